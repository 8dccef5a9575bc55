"""Media of requests: read by the gateway, measured by a worker, and handed over to the workers of their jobs.

An engine makes a number of tokens of an image, which must be known before the request is admitted and its tokens are
reserved. A worker of the model finds it out without a step of the engine. Nothing is stored: the bytes are in this
process's memory while the request lives, counted against its tenant like bodies."""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TypeVar
from weakref import WeakValueDictionary, finalize

from msgspec.structs import replace

from fairlane.gateway.dialects.media_marks import Media, ReadMedium
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import ChatRequest, GenerationRequest, rewritten
from fairlane.gateway.errors import ApiError, invalid, store_unavailable
from fairlane.gateway.fleet import ServedModel
from fairlane.gateway.http.body_budget import BodyBudget, BodyHold
from fairlane.gateway.media.fetcher import Slots
from fairlane.gateway.media.reader import Media as MediaReader
from fairlane.gateway.media.reader import MediaItem, MediaSource, together
from fairlane.gateway.pipeline.context import RequestContext
from fairlane.scheduler.links.connection import Link
from fairlane.scheduler.links.frames import UNMEASURED, Fetch, Measured, MediaPart
from fairlane.scheduler.protocol.media import MEDIA_PART_BYTES, MeasureMedia, MediaForm, MediaKind
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.scheduler.queue.shards import queue_of
from fairlane.store.errors import STORE_ERRORS

# A worker that has not measured an item after this time is not waited for; another one is asked, a few in all.
MEASURE_S = 10.0
MOST_ASKED = 3
# Items that are measured at a time: of all tenants, of each one.
MEASURES = 64, 8
# Lengths that are remembered, and for how long: an engine that restarts with other settings may read items as others.
MOST_KNOWN, KNOWN_S = 8_192, 600.0
Generation = TypeVar("Generation", bound=GenerationRequest)
Chat = TypeVar("Chat", bound=ChatRequest)
Key = tuple[str, bytes]
_STORE_AWAY = UNMEASURED - 1


def with_media(request: Chat, reading: Reading, forms: dict[MediaKind, MediaForm]) -> Chat:
    """Return a chat with the media that its model reads, and with words in place of others. Raises ApiError."""
    media = reading.found.media
    unread = reading.unread(media, forms.keys())
    messages = rewritten(request.messages, partial(media.omitted_from, indices=unread))
    if len(unread) == len(media.given):
        return replace(request, messages=messages)
    for param, is_given in (
        ("prompt_logprobs", request.scored is not None),
        ("truncate_prompt_tokens", request.truncate_prompt_tokens is not None),
    ):
        if is_given:
            raise invalid(param, f"`{param}` is not supported for conversations with images or sounds.")
    return replace(request, messages=rewritten(messages, partial(media.leading, forms=forms)), media=media)


@dataclass(eq=False, kw_only=True)
class MediaDesk:
    """The media of one gateway process. For one event loop."""

    gateway_id: str
    registry: RedisRegistry
    reader: MediaReader
    bodies: BodyBudget
    # Where workers find this gateway; known once it listens.
    address: str = ""
    _held: WeakValueDictionary[bytes, MediaItem] = field(default_factory=WeakValueDictionary)
    # With the time when each is forgotten, by tenant, model and content.
    _known: OrderedDict[bytes, tuple[int, float]] = field(default_factory=OrderedDict)
    _measures: Slots = field(default_factory=lambda: Slots(*MEASURES))
    _asking: "dict[Key, asyncio.Task[int]]" = field(default_factory=dict)
    _answers: "dict[Key, asyncio.Future[int]]" = field(default_factory=dict)

    async def read(self, request: Generation, model: ServedModel, context: RequestContext) -> Generation:
        """Return the request with its media read and measured. Raises ApiError naming the field of one that is not."""
        kinds, tenant = model.text.card.media_forms.keys(), context.caller.tenant_id
        hold = BodyHold(self.bodies)
        hold.claim(tenant, 0)
        try:
            if request.keeps_input:
                hold.add(sum([len(each.source.text) for each in request.media.given if each.source]))
            with context.span.child("media"):
                sources = [each.source for each in request.media.given if each.source and each.kind in kinds]
                items = await self.reader.read(sources, tenant, hold.add)
                context.body_bytes += sum([len(item.data) for item in items])  # a refused request costs them too
                measured = iter(await self._measured(items, sources, model, context))
        except BaseException:
            hold.release()
            raise
        read = tuple([next(measured) if each.kind in kinds else None for each in request.media.given])
        media = Media(key=request.media.key, read=read)  # without what was sent: it is larger than what was read
        finalize(media, _release, asyncio.get_running_loop(), hold)
        return replace(request, media=media)

    def received(self, link: Link, message: Fetch | Measured) -> Sequence[MediaPart]:
        """Take a worker's message, and return the answer."""
        if isinstance(message, Measured):
            answer = self._answers.get((queue_of(link.queue), message.digest))
            if answer is not None and not answer.done():
                answer.set_result(message.tokens)
            return ()
        item = self._held.get(message.digest)
        if item is None:
            return [MediaPart(message.digest, message.start, 0, b"")]
        part = item.data[message.start : message.start + MEDIA_PART_BYTES]
        return [MediaPart(message.digest, message.start, len(item.data), part)]

    async def _measured(
        self, items: Sequence[MediaItem], sources: Sequence[MediaSource], model: ServedModel, context: RequestContext
    ) -> Sequence[ReadMedium]:
        held = [self._held.setdefault(bytes.fromhex(each.sha256), each) for each in items]
        lengths = await together([self._tokens(each, model, context) for each in held])
        for source, tokens in zip(sources, lengths, strict=True):
            if tokens <= 0:
                raise invalid(source.param, f"`{source.param}` cannot be read by this model.")
        most = model.context_length + 1
        return [ReadMedium(item, min(tokens, most)) for item, tokens in zip(held, lengths, strict=True)]

    async def _tokens(self, item: MediaItem, model: ServedModel, context: RequestContext) -> int:
        tenant = context.caller.identity.tenant
        whose = blake2b(f"{tenant.id} {tenant.created_at} {model.queue} {item.sha256}".encode()).digest()
        tokens, until_s = self._known.get(whose, (0, 0.0))
        if until_s > asyncio.get_running_loop().time():
            self._known.move_to_end(whose)
            return tokens
        release = await self._slot(tenant.id)
        try:
            tokens = await self._shared(item, model)
        finally:
            release()
        self._known[whose] = tokens, asyncio.get_running_loop().time() + KNOWN_S
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return tokens

    async def _slot(self, tenant: str) -> Callable[[], None]:
        try:
            async with asyncio.timeout(MOST_ASKED * MEASURE_S):
                return await self._measures.acquire(tenant)
        except TimeoutError:
            message = "Too many images and sounds are being measured for this tenant."
            raise ApiError(message, "concurrency_limit_exceeded", retry_after_s=1.0) from None

    async def _shared(self, item: MediaItem, model: ServedModel) -> int:
        """Return an item's length. Requests that ask for it at the same time share the answer."""
        key = (queue_of(model.queue), bytes.fromhex(item.sha256))
        if key not in self._asking:
            self._asking[key] = asyncio.ensure_future(self._ask(key, item, model))
            self._asking[key].add_done_callback(lambda _: self._asking.pop(key, None))
        tokens = await asyncio.shield(self._asking[key])
        if tokens == _STORE_AWAY:  # each request raises an error of its own, which keeps nothing of the others
            raise store_unavailable()
        if tokens == UNMEASURED:
            raise ApiError("No worker of this model has measured the request's images.", "unavailable")
        return tokens

    async def _ask(self, key: Key, item: MediaItem, model: ServedModel) -> int:
        workers = [worker for worker in model.workers if not worker.draining]
        asked = MeasureMedia(
            gateway_id=self.gateway_id, gateway_address=self.address, kind=item.kind, digest=bytes.fromhex(item.sha256)
        )
        try:
            for worker in random.sample(workers, min(len(workers), MOST_ASKED)):
                answer = self._answers[key] = asyncio.get_running_loop().create_future()
                try:
                    async with asyncio.timeout(MEASURE_S):
                        await self.registry.measure_media(worker.queue, worker.worker_id, asked)
                        tokens: int = await answer
                except TimeoutError:
                    continue
                if tokens > UNMEASURED:
                    return tokens
        except STORE_ERRORS:
            return _STORE_AWAY
        finally:
            self._answers.pop(key, None)
        return UNMEASURED


def _release(loop: asyncio.AbstractEventLoop, hold: BodyHold) -> None:
    # The last reference to media may end in a thread, and the budget is the loop's.
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(hold.release)
