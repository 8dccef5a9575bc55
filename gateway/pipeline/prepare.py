"""Prepares a request: parses, tokenizes, sets its terms and admits it. Nothing is reserved, and no store is used."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Generic, TypeVar

import msgspec

from fairlane.gateway.answers.builder import AnswerBuilder, Json
from fairlane.gateway.dialects.grammar.checker import GrammarChecker
from fairlane.gateway.dialects.grammar.structure import CheckedGrammar
from fairlane.gateway.dialects.openai.engine_fields import USUAL_DISPLAY
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import ChatRequest, GenerationRequest
from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.fleet import FleetCache, ServedModel
from fairlane.gateway.http import sse
from fairlane.gateway.http.body_budget import BodyRoom
from fairlane.gateway.http.request_id import random_id
from fairlane.gateway.http.sse import Headers
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.insight.request_traces.recorder import Asked, TraceRecorder
from fairlane.gateway.insight.telemetry.tracing import Value
from fairlane.gateway.model_text.token_stream import DiscardedTokens, TokenStream
from fairlane.gateway.model_text.tokenizer import PromptTooLong, TextModel
from fairlane.gateway.pipeline.admission import AllOpenRequests, admit, measure, too_long
from fairlane.gateway.pipeline.constraints import grammar_of
from fairlane.gateway.pipeline.context import RequestContext
from fairlane.gateway.pipeline.fitting import (
    MAX_VECTOR_NUMBERS,
    allowed_model,
    check_fields,
    check_scores,
    cut_output,
    pack_inputs,
    wrong_kind,
)
from fairlane.gateway.pipeline.media_desk import MediaDesk, with_media
from fairlane.gateway.request.live_request import LiveJob, job_ids
from fairlane.gateway.request.service_level import (
    CLASS_HEADER,
    IGNORED_HEADER,
    LANE_HEADER,
    ServiceLevel,
    agree,
    unknown_fields,
)
from fairlane.quotas.escrow.pool import Pair
from fairlane.quotas.tenants import UnknownFields
from fairlane.scheduler.admission.decide import Admitted
from fairlane.scheduler.admission.open_requests import Request
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import Yields

Generation = TypeVar("Generation", bound=GenerationRequest)
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[Generation]):
    """The differences between the generation endpoints."""

    # Operation name in OpenTelemetry's GenAI conventions.
    operation: str
    prompt_param: str
    most_prompts: int
    parse: Callable[[bytes, Reading], Generation]
    prompts: Callable[[TextModel, Generation], list[Tokens]]
    answer: type[AnswerBuilder]
    # Builds an error frame for a stream that runs on another gateway.
    error_frame: Callable[[Json], bytes] = sse.data
    # Size of stored data that belongs to the body, such as an earlier conversation.
    carried_bytes: int = 0
    # The models that it requires.
    yields: Yields = "text"
    # Entries of `prompts` that are one input: the texts of a pair.
    parts: int = 1


def conversation(text: TextModel, request: ChatRequest) -> list[Tokens]:
    """Return the one prompt of a conversation. Raises as `chat_prompt` does."""
    last = request.truncate_prompt_tokens
    return [text.chat_prompt(request.messages, request.offered_tools, request.rendering, last, request.media)]


class Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An admitted request. As a context it withdraws jobs that were never enqueued."""

    request: GenerationRequest
    model: ServedModel
    service_level: ServiceLevel
    ids: Sequence[str]
    prompts: Sequence[Tokens]
    # Token counts of the inputs packed into each prompt; only for embeddings.
    inputs: Sequence[Sequence[int]]
    asked: Sequence[Request]
    grammar: CheckedGrammar
    answers: Sequence[Admitted]
    # The weakest guarantee of its jobs.
    guaranteed: bool
    # Time to the first token of the last job; 0.0 while no worker knows its costs.
    expected_ttft_ms: float
    prompt_param: str
    open_requests: AllOpenRequests
    traced: Asked | None

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.open_requests.release(self.model.queue, self.ids)

    @property
    def output_param(self) -> str:
        """The field to reduce if too much output is requested: the output limit if stated, else the prompt."""
        return self.prompt_param if self.request.max_tokens is None else self.request.max_tokens_param

    @property
    def grammar_param(self) -> str | None:
        if not self.grammar.text:
            return None
        return "tools" if self.request.structure is None else self.request.structure.param

    def reader(self) -> TokenStream:
        text, request = self.model.text, self.request
        if request.max_tokens == 0:
            return DiscardedTokens(text)
        is_chat = isinstance(request, ChatRequest)
        shows_marks = is_chat and text.output_format.shows_marks(request.offered_tools)
        by_token = is_chat and text.output_format.may_reason
        stream = TokenStream(
            text, request.stop, min_tokens=request.min_tokens, control_text=shows_marks, by_token=by_token
        )
        if request.display is not USUAL_DISPLAY or request.stop_token_ids:
            stream.show(special=request.display.special_tokens, ends=self._ends, keeps_stops=request.display.stops)
        return stream

    @property
    def _ends(self) -> tuple[int, ...]:
        return self.request.sampling(0, self.model.text.card.eos_token_ids).stop_token_ids

    def class_name(self, jobs: Sequence[LiveJob]) -> str:
        """Return the class header's value. The queue may have given a weaker guarantee than admission."""
        return "guaranteed" if self.is_guaranteed(jobs) else "best-effort"

    def is_guaranteed(self, jobs: Sequence[LiveJob]) -> bool:
        return self.guaranteed and all(job.message is not None and job.message.guaranteed for job in jobs)

    def headers(self, jobs: Sequence[LiveJob]) -> Headers:
        return [*_served_as(self.service_level.lane.name, self.class_name(jobs)), *ignored_header(self.request.ignored)]


def ignored_header(ignored: Sequence[str]) -> Headers:
    """Return the header that names ignored fields, if there are any."""
    return [(IGNORED_HEADER.encode(), ", ".join(ignored).encode("ascii"))] if ignored else []


@cache  # few distinct combinations of lane and class
def _served_as(lane: str, class_name: str) -> tuple[tuple[bytes, bytes], ...]:
    return (LANE_HEADER.encode(), lane.encode()), (CLASS_HEADER.encode(), class_name.encode())


@dataclass(eq=False)
class Preparer:
    """Creates plans from request bodies. Every rejection is an ApiError.

    `refusal` returns the error for new requests while the gateway shuts down."""

    lanes: Mapping[LaneName, Lane]
    fleet_cache: FleetCache
    open_requests: AllOpenRequests
    refusal: Callable[[], ApiError | None]
    room: BodyRoom
    grammars: GrammarChecker
    trace: TraceRecorder
    media: MediaDesk
    # Of tenants that state nothing else.
    unknown_fields: UnknownFields = "ignore"
    # Of images in the results of tools; else the model reads that they are omitted.
    refuses_images: bool = False
    # An output limit beyond the context is cut to what is left of it; else it is an error.
    cuts_output: bool = True
    # Names a request that may be made within rights of this gateway, or returns None.
    next_name: Callable[[Pair], str | None] = lambda _: None

    async def prepare(self, kind: Kind[Generation], body: bytes, context: RequestContext) -> Plan:
        """Prepare and admit one request. Enter the plan as a context, which withdraws jobs that are not enqueued."""
        caller = context.caller
        request, model, prompts = await self.understand(kind, body, context)
        inputs: list[list[int]] = []
        if kind.yields != "text":
            most = max(1, MAX_VECTOR_NUMBERS // model.text.vector_size)
            prompts, inputs = pack_inputs(prompts, model.context_length, most=most, parts=kind.parts)
        grammar = CheckedGrammar()
        if request.structure is not None or request.offered_tools:
            grammar = await grammar_of(request, model.text, prompts[0], self.grammars, caller.tenant_id)
        refusal = self.refusal()
        if refusal is not None:  # the shutdown may have begun while the body was read
            raise refusal
        service_level = agree(request, context.headers, caller.identity, self.lanes)
        ids = job_ids(self._name(caller, model, service_level, len(prompts)), len(prompts))
        self.open_requests.hold(ids)
        try:
            return self._plan(kind, request, model, service_level, ids, prompts, inputs, grammar, context)
        except BaseException:
            self.open_requests.release(model.queue, ids)
            raise

    def _name(self, caller: Caller, model: ServedModel, service_level: ServiceLevel, prompts: int) -> str:
        if prompts > 1 or caller.once is not None or caller.batch_due_ms is not None:
            return random_id()
        pair = Pair(caller.root, caller.account, caller.key_id, model.name, service_level.lane.name)
        return self.next_name(pair) or random_id()

    def _plan(
        self,
        kind: Kind[Generation],
        request: Generation,
        model: ServedModel,
        service_level: ServiceLevel,
        ids: Sequence[str],
        prompts: Sequence[Tokens],
        inputs: Sequence[Sequence[int]],
        grammar: CheckedGrammar,
        context: RequestContext,
    ) -> Plan:
        caller = context.caller
        tenant = caller.identity.tenant
        if caller.batch_due_ms is not None:
            service_level = service_level.due_in(caller.batch_due_ms)
        elapsed_ms = (asyncio.get_running_loop().time() - context.arrived_s) * 1e3
        with context.span.child("admit") as span:
            asked = [
                measure(len(prompt), request, model, service_level, tenant, kind.prompt_param, elapsed_ms)
                for prompt in prompts
            ]
            known, now_ms = self.open_requests.at(model.queue), self.open_requests.now_ms
            traced = None
            if self.trace.is_on:
                traced = Asked(
                    arrived_s=context.arrived_s,
                    tenant=tenant,
                    model=model.name,
                    level=service_level,
                    prompts=prompts,
                    requests=asked,
                    salt=request.cache_salt,
                )
            try:
                answers = admit(ids, asked, model, known, now_ms=now_ms, n_param=request.n_param)
            except ApiError as refused:
                refused.lane = service_level.lane.name
                refused.asked = model.name, sum(map(len, prompts))
                if traced is not None:
                    self.trace.ended(traced, (), refused.code)
                raise
            if span.is_recording:
                span.set(_span_attributes(service_level, prompts, answers))
        guaranteed, expected_ttft_ms = True, 0.0
        for answer in answers:
            guaranteed = guaranteed and answer.guaranteed
            expected_ttft_ms = max(expected_ttft_ms, answer.expected_ttft_ms or 0.0)
        return Plan(
            request=request,
            model=model,
            service_level=service_level,
            ids=ids,
            prompts=prompts,
            inputs=inputs,
            asked=asked,
            grammar=grammar,
            answers=answers,
            guaranteed=guaranteed,
            expected_ttft_ms=expected_ttft_ms,
            prompt_param=kind.prompt_param,
            open_requests=self.open_requests,
            traced=traced,
        )

    def reading(self, context: RequestContext, prompts: int = 1) -> Reading:
        """Return the rules by which a body of at most so many prompts is read."""
        tenant = context.caller.identity.tenant
        unknown = unknown_fields(context.headers) or tenant.unknown_fields or self.unknown_fields
        return Reading(self.room.most_token_ids(prompts), unknown == "refuse", self.refuses_images)

    async def understand(
        self, kind: Kind[Generation], body: bytes, context: RequestContext
    ) -> tuple[Generation, ServedModel, list[Tokens]]:
        """Parse and tokenize a body, after its media were read and measured. Raises ApiError."""
        tenant, count, room = context.caller.tenant_id, len(body) + kind.carried_bytes, self.room
        request, model, found = await room.run(tenant, count, partial(self._understand, kind, body, context))
        if found is not None:
            return request, model, found
        request = await self.media.read(request, model, context)
        request, prompts = await room.run(tenant, count, partial(self._prompted, kind, request, model))
        return request, model, prompts

    def _understand(
        self, kind: Kind[Generation], body: bytes, context: RequestContext
    ) -> tuple[Generation, ServedModel, list[Tokens] | None]:
        """Return no prompts if media must be read first."""
        reading = self.reading(context, kind.most_prompts)
        request = kind.parse(body, reading)
        model = allowed_model(self.fleet_cache, request.model, context.caller)
        if model.text.card.yields != kind.yields:
            raise wrong_kind(model.text, kind.yields)
        if isinstance(request, ChatRequest):
            for name in model.text.unread(request.rendering):
                reading.ignore(name)
            if reading.found.given:
                request = with_media(request, reading, model.text.card.media_forms)
        if request.close_json and not model.text.closes_json:
            reading.ignore("close_json")
            request = msgspec.structs.replace(request, close_json=False)
        if reading.ignored:
            request = msgspec.structs.replace(request, ignored=tuple(reading.ignored))
        request = request.fitted(model.longest)
        if request.media.given:
            return request, model, None
        request, prompts = self._prompted(kind, request, model)
        return request, model, prompts

    def _prompted(
        self, kind: Kind[Generation], request: Generation, model: ServedModel
    ) -> tuple[Generation, list[Tokens]]:
        try:
            prompts = kind.prompts(model.text, request)
        except PromptTooLong as long:
            least = f"at least {long.least_tokens}"
            of_prompt = msgspec.structs.replace(request, max_tokens=None)
            raise too_long(least, of_prompt, model, prompt_param=kind.prompt_param) from None
        check_fields(request, model.text)
        if not all(prompts):
            raise invalid(kind.prompt_param, f"`{kind.prompt_param}` contains no tokens.")
        if request.scored is not None:
            check_scores(request, prompts)
        if self.cuts_output:
            request = cut_output(request, model, prompts)
        if request.bad_words:
            words = model.text.bad_words(request.bad_words)
            request = msgspec.structs.replace(request, draw={**request.draw, "bad_words": words})
        if usual := model.text.usual_draw:
            request = msgspec.structs.replace(request, draw={**usual, **request.draw})
        return request, prompts


def _span_attributes(
    service_level: ServiceLevel, prompts: Sequence[Tokens], answers: Sequence[Admitted]
) -> dict[str, Value | None]:
    expected_ms = [each.expected_ttft_ms for each in answers if each.expected_ttft_ms is not None]
    return {
        "fairlane.lane": service_level.lane.name.value,
        "fairlane.prompt_tokens": sum(map(len, prompts)),
        "fairlane.guaranteed": all(each.guaranteed for each in answers),
        "fairlane.expected_ttft_ms": max(expected_ms, default=None),
        "fairlane.deadline_ms": service_level.deadline_ms,
    }
