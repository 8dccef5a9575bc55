"""A request before anything is held for it: parsed, tokenised, on agreed terms, let in. Touches no store."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Generic, TypeVar

import msgspec

from fairlane.gateway.answers.builder import AnswerBuilder, Json
from fairlane.gateway.dialects.grammar.checker import GrammarChecker
from fairlane.gateway.dialects.grammar.structure import CheckedGrammar
from fairlane.gateway.dialects.openai.requests import ChatRequest, GenerationRequest
from fairlane.gateway.errors import ApiError, invalid, model_not_found
from fairlane.gateway.fleet import FleetCache, ServedModel
from fairlane.gateway.http import sse
from fairlane.gateway.http.body_budget import BodyRoom
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES
from fairlane.gateway.http.request_id import random_id
from fairlane.gateway.http.sse import Headers
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.insight.request_traces.recorder import Asked, TraceRecorder
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.gateway.insight.telemetry.tracing import Value
from fairlane.gateway.model_text.tokenizer import PromptTooLong, TextModel, TokenStream
from fairlane.gateway.pipeline.admission import AllOpenRequests, admit, class_name, measure, too_long
from fairlane.gateway.pipeline.constraints import grammar_of
from fairlane.gateway.request.live_request import LiveJob, job_ids
from fairlane.gateway.request.service_level import CLASS_HEADER, LANE_HEADER, ServiceLevel, agree
from fairlane.quotas.tenants import Tenant
from fairlane.scheduler.admission.decide import Admitted
from fairlane.scheduler.admission.open_requests import Request
from fairlane.scheduler.protocol.lanes import Lane, LaneName

_OTHER_MODEL = {
    True: "This model makes no embeddings: it generates text.",
    False: "This model makes embeddings, and generates no text: /v1/embeddings works.",
}
"""Of a model that an endpoint is not for; by whether that is the embedders'."""

Generation = TypeVar("Generation", bound=GenerationRequest)
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[Generation]):
    """What differs between the endpoints that generate."""

    operation: str
    """As the GenAI conventions name it."""
    prompt_param: str
    """The field that a caller shortens where the prompt is too long."""
    most_prompts: int
    """Of one request."""
    parse: Callable[[bytes, int], Generation]
    """(body, token ids that it may hold) → the request."""
    prompts: Callable[[TextModel, Generation], list[Tokens]]
    """One job each."""
    answer: type[AnswerBuilder]
    """The shape of its answers."""
    error_frame: Callable[[Json], bytes] = sse.data
    """An error in a stream whose answer is not made here: one that another gateway runs."""
    carried_bytes: int = 0
    """What a body brings along that is kept elsewhere, as an earlier conversation."""
    embeds: bool = False
    """It is for embedders, and for nothing else; the others are for all other models."""


def conversation(text: TextModel, request: ChatRequest) -> list[Tokens]:
    """The one prompt of a request that holds a conversation. Raises as `chat_prompt`."""
    return [text.chat_prompt(request.messages, request.offered_tools, request.effort)]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was let in, as a context: at its end those of its jobs are withdrawn that were never put."""

    request: GenerationRequest
    model: ServedModel
    service_level: ServiceLevel
    ids: Sequence[str]
    """Of its jobs, one for each prompt."""
    prompts: Sequence[Tokens]
    inputs: Sequence[Sequence[int]]
    """Of each prompt of an embedder, how many tokens its inputs have; empty: it is no embedder's."""
    asked: Sequence[Request]
    """What each asks of the workers."""
    grammar: CheckedGrammar
    """What each choice has to be."""
    answers: Sequence[Admitted]
    """Admission's word on each."""
    guaranteed: bool
    """The promise to it is the weakest of those to its jobs."""
    prompt_param: str
    """The field that a caller shortens where the prompt is too long."""
    open_requests: AllOpenRequests
    """Where its jobs are on their way to the queue."""

    def __enter__(self) -> None:
        """They are held already."""

    def __exit__(self, *_: object) -> None:
        self.open_requests.let_go(self.model.queue, self.ids)

    @property
    def expected_ttft_ms(self) -> float:
        """When its last job is expected to begin; 0.0 where no worker knows its costs yet."""
        return max([answer.expected_ttft_ms or 0.0 for answer in self.answers])

    @property
    def output_param(self) -> str:
        """The same where it asks for too much output: the field that says how much, else the prompt's."""
        return self.prompt_param if self.request.max_tokens is None else self.request.max_tokens_param

    @property
    def grammar_param(self) -> str | None:
        """The field that asked for its grammar; None: it has none."""
        if not self.grammar.text:
            return None
        return "tools" if self.request.structure is None else self.request.structure.param

    def reader(self) -> TokenStream:
        """Reads a choice from its first token."""
        text, request = self.model.text, self.request
        shows_marks = request.is_conversation and text.output_format.shows_marks(request.offered_tools)
        return TokenStream(text, request.stop, min_tokens=request.min_tokens, control_text=shows_marks)

    def recorded(self, tenant: Tenant, arrived_s: float) -> Asked:
        """What a trace keeps of it."""
        return _asked(self.request, self.model, self.service_level, self.prompts, self.asked, tenant, arrived_s)

    def class_name(self, jobs: Sequence[LiveJob]) -> str:
        """As the answer's header has it: the queue may have promised less than admission would."""
        return class_name(guaranteed=self.is_guaranteed(jobs))

    def is_guaranteed(self, jobs: Sequence[LiveJob]) -> bool:
        """The same as one word."""
        return self.guaranteed and all(job.message is not None and job.message.guaranteed for job in jobs)

    def headers(self, jobs: Sequence[LiveJob]) -> Headers:
        """What the answer says of how it was served; of its jobs, once they are put."""
        return [*_served_as(self.service_level.lane.name, self.class_name(jobs))]


def _asked(
    request: GenerationRequest,
    model: ServedModel,
    level: ServiceLevel,
    prompts: Sequence[Tokens],
    requests: Sequence[Request],
    tenant: Tenant,
    arrived_s: float,
) -> Asked:
    return Asked(
        arrived_s=arrived_s,
        tenant=tenant,
        model=model.name,
        level=level,
        prompts=prompts,
        requests=requests,
        salt=request.cache_salt,
    )


@cache  # of few lanes and two classes
def _served_as(lane: str, class_name: str) -> tuple[tuple[bytes, bytes], ...]:
    return (LANE_HEADER.encode(), lane.encode()), (CLASS_HEADER.encode(), class_name.encode())


class Preparer:
    """From bytes to a plan; each refusal is an ApiError."""

    def __init__(
        self,
        lanes: Mapping[LaneName, Lane],
        fleet_cache: FleetCache,
        open_requests: AllOpenRequests,
        telemetry: Telemetry,
        refusal: Callable[[], ApiError | None],
        room: BodyRoom,
        grammars: GrammarChecker,
        trace: TraceRecorder,
    ) -> None:
        """`refusal`: why no request is let in any more, if so. `room`: what a body may hold. `trace`: hears of what
        admission refuses."""
        self._trace = trace
        self._grammars = grammars
        self._room = room
        self._lanes = lanes
        self._fleet_cache = fleet_cache
        self._open_requests = open_requests
        self._telemetry = telemetry
        self._refusal = refusal

    async def prepare(
        self, kind: Kind[Generation], body: bytes, headers: Headers, caller: Caller, arrived_s: float
    ) -> Plan:
        """The plan of one request, to be entered: what is not put within it is withdrawn from admission.

        `headers`: the ASGI scope's; `arrived_s`: on the event loop's clock.
        """
        request, model, prompts = await self.understand(kind, body, caller)
        inputs: list[list[int]] = []
        if kind.embeds:
            prompts, inputs = pack_inputs(prompts, model.context_length)
        grammar = CheckedGrammar()
        if request.structure is not None or request.offered_tools:
            grammar = await grammar_of(request, model.text, prompts[0], self._grammars, caller.tenant_id)
        refusal = self._refusal()
        if refusal is not None:  # it came before the last body, or while that was read
            raise refusal
        ids = job_ids(random_id(), len(prompts))
        self._open_requests.hold(ids)
        try:
            return self._plan(kind, request, model, ids, prompts, inputs, grammar, headers, caller, arrived_s)
        except BaseException:
            self._open_requests.let_go(model.queue, ids)
            raise

    def _plan(
        self,
        kind: Kind[Generation],
        request: Generation,
        model: ServedModel,
        ids: Sequence[str],
        prompts: Sequence[Tokens],
        inputs: Sequence[Sequence[int]],
        grammar: CheckedGrammar,
        headers: Headers,
        caller: Caller,
        arrived_s: float,
    ) -> Plan:
        """Let the request in. Nothing is awaited here: no other request comes between its assessment and its entry."""
        service_level, tenant = agree(request, headers, caller.identity, self._lanes), caller.identity.tenant
        if caller.batch_due_ms is not None:
            service_level = service_level.due_in(caller.batch_due_ms)
        elapsed_ms = (asyncio.get_running_loop().time() - arrived_s) * 1e3
        with self._telemetry.span("admit") as span:
            asked = [
                measure(len(prompt), request, model, service_level, tenant, kind.prompt_param, elapsed_ms)
                for prompt in prompts
            ]
            known, now_ms = self._open_requests.at(model.queue), self._open_requests.now_ms
            try:
                answers = admit(ids, asked, model, known, now_ms=now_ms)
            except ApiError as refused:
                refused.lane = service_level.lane.name
                refused.asked = model.name, sum(map(len, prompts))
                if self._trace.is_on:
                    wanted = _asked(request, model, service_level, prompts, asked, tenant, arrived_s)
                    self._trace.ended(wanted, (), refused)
                raise
            if span.is_recording:
                span.tell(_told(service_level, prompts, answers))
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
            guaranteed=all(answer.guaranteed for answer in answers),
            prompt_param=kind.prompt_param,
            open_requests=self._open_requests,
        )

    async def understand(
        self, kind: Kind[Generation], body: bytes, caller: Caller
    ) -> tuple[Generation, ServedModel, list[Tokens]]:
        """The request that a body holds, its model, and the tokens of its prompts. Raises ApiError."""
        read_bytes = len(body) + kind.carried_bytes
        if read_bytes <= LARGE_BODY_BYTES:
            return self._understand(kind, body, caller)
        # a larger one is looked at in a thread: the loop has streams to serve
        work = partial(self._understand_and_measure, kind, body, caller)
        return await self._room.in_thread(caller.tenant_id, read_bytes, work)

    def _understand_and_measure(
        self, kind: Kind[Generation], body: bytes, caller: Caller
    ) -> tuple[Generation, ServedModel, list[Tokens]]:
        """In a thread of its own, whose time tells what a body cost that is refused."""
        began_s = time.thread_time()
        try:
            return self._understand(kind, body, caller)
        except ApiError as refused:
            refused.work_s = time.thread_time() - began_s
            raise

    def _understand(
        self, kind: Kind[Generation], body: bytes, caller: Caller
    ) -> tuple[Generation, ServedModel, list[Tokens]]:
        request = kind.parse(body, self._room.most_token_ids(kind.most_prompts))
        model = allowed_model(self._fleet_cache, request.model, caller)
        if model.text.card.is_embedder is not kind.embeds:
            raise invalid("model", _OTHER_MODEL[kind.embeds])
        try:
            prompts = kind.prompts(model.text, request)
        except PromptTooLong as long:
            least = f"at least {long.least_tokens}"
            raise too_long(least, request, model, prompt_param=kind.prompt_param) from None
        _check_token_ids(request, model.text.card.vocab_size)
        _check_fields(request, model.text.card.refused_fields)
        if not all(prompts):
            raise invalid(kind.prompt_param, f"`{kind.prompt_param}` holds no token.")
        if usual := model.text.card.usual_draw:
            request = msgspec.structs.replace(request, draw={**usual, **request.draw})
        return request, model, prompts


def pack_inputs(inputs: Sequence[Tokens], context_length: int) -> tuple[list[Tokens], list[list[int]]]:
    """Pack consecutive inputs into as few jobs as the context allows: a thousand short ones would fill the lane's
    queue. Returns the jobs' prompts and, for each, the lengths of its inputs."""
    packs: list[list[Tokens]] = []
    room = 0
    for each in inputs:
        if not packs or len(each) > room:
            packs.append([])
            room = context_length
        packs[-1].append(each)
        room -= len(each)
    return [tuple(chain.from_iterable(pack)) for pack in packs], [[*map(len, pack)] for pack in packs]


def _check_token_ids(request: GenerationRequest, vocab_size: int) -> None:
    """Raises ApiError for a field that names a token which the model does not have."""
    named = {"logit_bias": [token for token, _ in request.draw.get("logit_bias", ())]}
    named["stop_token_ids"] = [*request.stop_token_ids]
    for field, tokens in named.items():
        if tokens and max(tokens) >= vocab_size:
            raise invalid(field, f"`{field}` holds a token id that is not below {vocab_size}.")


def _check_fields(request: GenerationRequest, refused: Sequence[str]) -> None:
    """Raises ApiError for a field that the engine of the model's workers does not take."""
    field = next((field for field in refused if request.asks_for(field)), None)
    if field is not None:
        raise invalid(field, f"`{field}` cannot be served: the engine of this model does not take it.")


def allowed_model(fleet_cache: FleetCache, name: str, caller: Caller) -> ServedModel:
    """A model that the caller may use, by its name or one of the tenant's aliases.

    Raises ApiError `model_not_found`, `model_not_allowed`, and as `find` does.
    """
    name = caller.identity.tenant.model_aliases.get(name, name)
    found = fleet_cache.find((name,))
    if not found:
        raise model_not_found()
    if not may_use(caller, name):
        raise ApiError("This key may not use the model.", "model_not_allowed", "model")
    return found[0]


def may_use(caller: Caller, model: str) -> bool:
    """Both tenant and key must allow it."""
    allowed = caller.identity.tenant.models
    return (allowed is None or model in allowed) and caller.identity.key.scopes.allows("models", model)


def _told(
    service_level: ServiceLevel, prompts: Sequence[Tokens], answers: Sequence[Admitted]
) -> dict[str, Value | None]:
    """What a trace keeps of an admission."""
    expected_ms = [each.expected_ttft_ms for each in answers if each.expected_ttft_ms is not None]
    return {
        "fairlane.lane": service_level.lane.name.value,
        "fairlane.prompt_tokens": sum(map(len, prompts)),
        "fairlane.guaranteed": all(each.guaranteed for each in answers),
        "fairlane.expected_ttft_ms": max(expected_ms, default=None),
        "fairlane.deadline_ms": service_level.deadline_ms,
    }
