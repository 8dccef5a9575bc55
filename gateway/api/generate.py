"""The endpoint of generation, inside the tenant middleware: read → prepare → submit → respond, streamed or whole."""

import asyncio
import math
from dataclasses import dataclass
from typing import Generic

import msgspec
from starlette.types import Receive, Scope, Send

from fairlane.gateway.answers.builder import AnswerBuilder, Usage
from fairlane.gateway.answers.chunks import Rhythm
from fairlane.gateway.api import recording
from fairlane.gateway.errors import ApiError, error_body, internal_error
from fairlane.gateway.http import body_budget, response
from fairlane.gateway.http.body import read_body
from fairlane.gateway.http.disconnect import STATE, Disconnect
from fairlane.gateway.http.response import Channel
from fairlane.gateway.http.sse import ClientConnection, EventStream, Headers, Push, send_json
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.insight.request_records.recorder import RequestRecorder
from fairlane.gateway.insight.request_traces.recorder import TraceRecorder
from fairlane.gateway.insight.telemetry.metrics import PROVIDER, Telemetry, is_recording
from fairlane.gateway.insight.telemetry.tracing import Span
from fairlane.gateway.middleware.tenant import Journal, Notes
from fairlane.gateway.pipeline.bounds import Bounds
from fairlane.gateway.pipeline.delivery import Dispatcher
from fairlane.gateway.pipeline.prepare import Generation, Kind, Plan, Preparer
from fairlane.gateway.pipeline.settlement import Settlements
from fairlane.gateway.pipeline.stream import TokenEvents
from fairlane.gateway.pipeline.submit import Submitter
from fairlane.gateway.request.live_request import LiveRequest

# A whole response sends nothing before its end.
_WHOLE = Rhythm()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts shared by all generation endpoints."""

    bounds: Bounds
    preparer: Preparer
    submitter: Submitter
    dispatcher: Dispatcher
    settlements: Settlements
    telemetry: Telemetry
    recorder: RequestRecorder
    trace: TraceRecorder


class Generate(Generic[Generation]):
    """The generation endpoint of one kind of request."""

    def __init__(self, kind: Kind[Generation], parts: Parts) -> None:
        self._kind = kind
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises ApiError until the response has started."""
        caller, journal = scope["state"]["caller"], scope["state"]["journal"]
        answer: Channel = scope["state"][response.STATE]
        disconnect = scope["state"][STATE]
        try:
            plan = await self._read(scope, receive, answer, caller, journal)
            with plan:
                await self._serve(plan, caller, journal, disconnect, send, answer.push)
        except BaseException as error:
            recording.ended(self._parts.recorder, caller, journal, error)
            raise
        recording.ended(self._parts.recorder, caller, journal, None)

    async def _serve(
        self, plan: Plan, caller: Caller, journal: Journal, disconnect: Disconnect, send: Send, push: Push
    ) -> None:
        journal.lane, journal.model = plan.service_level.lane.name, plan.model.name
        if is_recording():
            self._note(journal, plan)
        in_flight = self._parts.telemetry.in_flight
        in_flight.add(journal.lane)
        try:
            if plan.request.stream:
                await self._stream(plan, caller, journal, disconnect, send, push)
            else:
                await self._plain(plan, caller, journal, disconnect, send)
            self._trace(plan, caller, journal, None)
        except BaseException as error:
            self._trace(plan, caller, journal, error)
            raise
        finally:
            in_flight.add(journal.lane, by=-1)

    def _trace(self, plan: Plan, caller: Caller, journal: Journal, error: BaseException | None) -> None:
        """Record the request in the trace, if recording is on. `error` is what ended it."""
        if self._parts.trace.is_on:
            asked = plan.recorded(caller.identity.tenant, journal.arrived_s)
            self._parts.trace.ended(asked, journal.outputs, error)

    async def _read(self, scope: Scope, receive: Receive, answer: Channel, caller: Caller, journal: Journal) -> Plan:
        """Read and parse the body. The body is freed on return, however long the response takes."""
        bounds, hold = self._parts.bounds, scope["state"][body_budget.STATE]
        try:
            body = await read_body(
                receive,
                scope["headers"],
                max_bytes=bounds.room.most_bytes(self._kind.most_prompts),
                timeout_s=bounds.body_timeout_s,
                arrived=answer.take_body(),
                hold=hold,
                tenant=caller.tenant_id,
            )
            journal.body_bytes = len(body)
            kind = await self._kind_of(body, caller)
            return await self._parts.preparer.prepare(kind, body, scope["headers"], caller, journal.arrived_s)
        finally:
            hold.release()

    async def _kind_of(self, body: bytes, caller: Caller) -> Kind[Generation]:
        """Return the kind that parses this body. Subclasses first read what it refers to from the store."""
        return self._kind

    async def _heard(self, answer: AnswerBuilder, caller: Caller) -> None:
        """Called when all output has arrived, before the response is ended."""

    async def _plain(self, plan: Plan, caller: Caller, journal: Journal, disconnect: Disconnect, send: Send) -> None:
        with ClientConnection(disconnect):
            answer, headers = await self._collect(plan, caller, journal)
        await send_json(send, answer, headers)

    async def _collect(self, plan: Plan, caller: Caller, journal: Journal) -> tuple[object, Headers]:
        """Return the whole response and its headers. Its parts are freed here, before a slow client has read it."""
        answer = await self._begin(plan, caller, journal, None)
        await self._answer(plan, caller, journal, answer, None)
        whole = await asyncio.to_thread(_encoded_whole, answer) if answer.is_large else answer.whole()
        return whole, plan.headers(answer.jobs)

    async def _stream(
        self, plan: Plan, caller: Caller, journal: Journal, disconnect: Disconnect, send: Send, push: Push
    ) -> None:
        fault: Exception | None = None
        with EventStream(disconnect, send, push, write_timeout_s=self._parts.bounds.write_timeout_s) as out:
            answer = await self._begin(plan, caller, journal, out)
            try:
                await self._answer(plan, caller, journal, answer, out)
            except Exception as error:  # a stream that has started ends with an error frame
                if not out.started:
                    raise
                fault = error
                told = error if isinstance(error, ApiError) else internal_error()
                body = error_body(told, journal.endpoint, journal.request_id)
                await out.write(answer.fault(body))
        await out.close()
        if fault is not None:
            raise fault  # for the tenant middleware's record

    async def _begin(self, plan: Plan, caller: Caller, journal: Journal, out: EventStream | None) -> AnswerBuilder:
        """Submit the request and return its builder. `out` is the stream, if any."""
        submitter, tier = self._parts.submitter, plan.service_level.service_tier
        request = await submitter.submit(caller, plan, journal.arrived_s)
        try:
            answer = self._kind.answer(plan.request, plan.model, tier, request.jobs, out)
            recording.opened(self._parts.recorder, caller, journal, plan, request, answer.id)
            return answer
        except BaseException as error:
            await submitter.end(caller, request, error)
            raise

    async def _answer(
        self, plan: Plan, caller: Caller, journal: Journal, answer: AnswerBuilder, out: EventStream | None
    ) -> None:
        """Feed the response with the request's events, and end the request. `out` is the stream, if any."""
        request, submitter = answer.jobs[0].request, self._parts.submitter
        try:
            if out is None:
                await self._tell(plan, request, journal, answer, _WHOLE)
                await self._heard(answer, caller)
            else:
                out.lead_with(plan.headers(request.jobs))
                await self._tell(plan, request, journal, answer, self._parts.bounds.stream_rhythm)
                await self._heard(answer, caller)
                await out.write(answer.ending())
                out.complete()
        except BaseException as error:
            await submitter.end(caller, request, error)
            raise
        await submitter.end(caller, request)

    async def _tell(
        self, plan: Plan, request: LiveRequest, journal: Journal, answer: AnswerBuilder, rhythm: Rhythm
    ) -> None:
        """Run the request's events into the builder."""
        if is_recording():
            journal.notes["fairlane.class"] = plan.class_name(request.jobs)
        events = TokenEvents(
            request=request,
            queue=self._parts.dispatcher.queue,
            settlements=self._parts.settlements,
            reader=plan.reader,
            service_level=plan.service_level,
            arrived_s=journal.arrived_s,
            queue_span=self._queue_span(plan, request),
            still_waits_ms=self._parts.dispatcher.still_waits_ms,
            eta_ms=plan.expected_ttft_ms,
            gap=self._parts.telemetry.gaps(journal.lane, journal.model, journal.tenant).observe,
            grammar_param=plan.grammar_param,
        )
        if journal.record is not None:
            journal.record.follow(events)
        try:
            await events.run(answer, rhythm)
        finally:
            self._conclude(events, answer, journal)

    def _queue_span(self, plan: Plan, request: LiveRequest) -> Span:
        span = self._parts.telemetry.span("queue")
        if span.is_recording:
            put_s = [job.queued_s for job in request.jobs if job.queued_s]
            span.began_ago(asyncio.get_running_loop().time() - min(put_s) if put_s else 0.0)
            span.tell(
                {
                    "fairlane.lane": plan.service_level.lane.name.value,
                    "fairlane.queue.position": min([job.place for job in request.jobs], default=0),
                    "fairlane.queue.jobs": len(request.jobs),
                    "fairlane.expected_ttft_ms": plan.expected_ttft_ms,
                }
            )
        return span

    def _note(self, journal: Journal, plan: Plan) -> None:
        request, service_level = plan.request, plan.service_level
        journal.notes |= {
            "gen_ai.operation.name": self._kind.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": request.model or plan.model.name,
            "gen_ai.response.model": plan.model.name,
            "gen_ai.request.stream": request.stream,
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.temperature": request.draw.get("temperature", 1.0),
            "gen_ai.request.choice.count": request.n,
            "openai.request.service_tier": request.service_tier,
            "openai.response.service_tier": service_level.service_tier,
            "fairlane.lane": service_level.lane.name.value,
            "fairlane.deadline_ms": service_level.deadline_ms,
        }

    def _conclude(self, events: TokenEvents, answer: AnswerBuilder, journal: Journal) -> None:
        """Record metrics and trace attributes of a generation, however it ended."""
        if events.first_token_s is None:
            events.queue_span.end()
        usage = answer.usage()
        journal.first_token_s = events.first_token_s
        journal.prompt_tokens, journal.output_tokens = usage.prompt_tokens, usage.completion_tokens
        if self._parts.trace.is_on:
            journal.outputs = [sum([choice.counted for choice in job.choices]) for job in events.jobs]
        if is_recording():
            journal.notes |= _used(events, usage) | {"gen_ai.response.id": answer.response_id}
        journal.pace_s, journal.queued_s = events.seconds_per_token, events.queued_s
        self._parts.telemetry.generated(
            journal.lane,
            journal.model,
            journal.tenant,
            queued_s=journal.queued_s,
            pace_s=journal.pace_s if math.isfinite(journal.pace_s) else None,
        )


def _used(events: TokenEvents, usage: Usage) -> Notes:
    """Return the trace attributes of a generation."""
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.response.finish_reasons": tuple(
            [choice.finish_reason for job in events.jobs for choice in job.choices if choice.finish_reason is not None]
        ),
        "fairlane.preemptions": sum(job.preemptions for job in events.jobs),
        "fairlane.resumed_tokens": events.request.ask.start.published,
    }


def _encoded_whole(answer: AnswerBuilder) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(answer.whole()))
