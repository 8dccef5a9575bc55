"""Reads the media of a request, within the bounds of the settings."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES
from fairlane.gateway.http.thread_turns import ThreadTurns
from fairlane.gateway.media import base64s
from fairlane.gateway.media.addresses import AllowedHosts
from fairlane.gateway.media.fetcher import Fetcher
from fairlane.gateway.media.formats import Kind, format_of
from fairlane.gateway.media.refusal import MediaRefused, too_large
from fairlane.scheduler.protocol.settings import Networks

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    """What may be read, from the settings of the gateway."""

    hosts: tuple[str, ...] = ()
    networks: Networks = field(default_factory=Networks)
    max_bytes: int = 20 * 2**20
    max_media: int = 20
    max_pixels: int = 50_000_000
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class MediaSource:
    """One image or sound of a request."""

    # A `data:` or https URL; base64 alone if `is_base64`.
    text: str = field(repr=False)
    # The field of the request, for errors.
    param: str
    # None: of any kind.
    kind: Kind | None = None
    is_base64: bool = False


@dataclass(frozen=True, slots=True, weakref_slot=True)
class MediaItem:
    """Media that were read."""

    kind: Kind
    # By the first bytes, whatever the caller or the host states.
    mime: str
    data: bytes = field(repr=False)
    # The hash of `data`, in hexadecimal.
    sha256: str


class Media:
    """Reads media. For one event loop."""

    def __init__(self, limits: MediaLimits, fetcher: Fetcher | None = None) -> None:
        """`fetcher` is given by tests alone."""
        self._limits = limits
        self._fetcher = fetcher or Fetcher(
            AllowedHosts(limits.hosts), limits.networks, limits.max_bytes, limits.timeout_s
        )
        self._turns = ThreadTurns()

    async def read(self, sources: Sequence[MediaSource], tenant: str, hold: Callable[[int], None]) -> list[MediaItem]:
        """Read all media of a request, in order.

        `hold` is called with each number of bytes that the request will hold in addition to its body. It raises
        ApiError without room for them. Raises ApiError naming the field of the first medium that is not read."""
        if len(sources) > self._limits.max_media:
            one = sources[self._limits.max_media]
            raise invalid(one.param, f"A request may have at most {self._limits.max_media} images and sounds.")
        return await together([self._read(each, tenant, hold) for each in sources])

    async def _read(self, source: MediaSource, tenant: str, hold: Callable[[int], None]) -> MediaItem:
        try:
            if source.is_base64 or base64s.is_data_url(source.text):
                data = await self._decoded(source, tenant, hold)
            else:
                data = await self._fetcher.fetch(source.text, tenant, hold)
            return await self._run(tenant, len(data), partial(_item, data, source.kind, self._limits.max_pixels))
        except MediaRefused as refused:
            raise invalid(source.param, f"`{source.param}` {refused}") from None

    async def _decoded(self, source: MediaSource, tenant: str, hold: Callable[[int], None]) -> bytes:
        start = 0 if source.is_base64 else base64s.start_of_data(source.text)
        count, max_bytes = base64s.most_decoded_bytes(source.text, start), self._limits.max_bytes
        if count > max_bytes * 5 // 4 + 1024:  # whitespace is a few percent
            raise too_large(max_bytes)
        hold(min(count, max_bytes))
        return await self._run(tenant, count, partial(base64s.decode, source.text, start, max_bytes))

    async def _run(self, tenant: str, count: int, work: Callable[[], T]) -> T:
        """Run `work` on this many bytes, in a thread if they are many, so that streams are served meanwhile."""
        return work() if count <= LARGE_BODY_BYTES else await self._turns.run(tenant, work)


async def together(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of works that run at the same time, in order. The first error cancels the others, and does not
    keep their data."""
    tasks = [asyncio.ensure_future(each) for each in works]
    try:
        return await asyncio.gather(*tasks)
    except ApiError as refused:
        raise refused.with_traceback(None) from None
    finally:
        await _ended(tasks)


async def _ended(tasks: list[asyncio.Task[T]]) -> None:
    """Cancel tasks and forget them: they have an error, which would keep them alive by its caller's frame."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()


def _item(data: bytes, kind: Kind | None, max_pixels: int) -> MediaItem:
    found, mime = format_of(data, kind, max_pixels)
    return MediaItem(found, mime, data, hashlib.sha256(data).hexdigest())
