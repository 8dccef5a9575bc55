"""The endpoint of generation, inside the tenant middleware: read → prepare → submit → respond, streamed or whole."""

import asyncio
from dataclasses import dataclass
from typing import Generic

import msgspec

from fairlane.gateway.answers.builder import AnswerBuilder, Usage
from fairlane.gateway.answers.chunks import KeepAliveSchedule
from fairlane.gateway.api import recording
from fairlane.gateway.errors import error_body, shown
from fairlane.gateway.http.sse import ClientConnection, EventStream, send_json
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.insight.request_records.recorder import RequestRecorder
from fairlane.gateway.insight.telemetry.metrics import PROVIDER, Telemetry
from fairlane.gateway.insight.telemetry.tracing import NO_SPAN, Span
from fairlane.gateway.pipeline.context import Bounds, Notes, RequestContext
from fairlane.gateway.pipeline.prepare import Generation, Kind, Plan, Preparer
from fairlane.gateway.pipeline.stream import TokenEvents
from fairlane.gateway.pipeline.submit import Submitter
from fairlane.gateway.request.live_request import LiveRequest

_WHOLE = KeepAliveSchedule()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The components shared by all generation endpoints."""

    bounds: Bounds
    preparer: Preparer
    submitter: Submitter
    telemetry: Telemetry
    recorder: RequestRecorder


class Generate(Generic[Generation]):
    """The generation endpoint of one kind of request."""

    def __init__(self, kind: Kind[Generation], parts: Parts) -> None:
        self._kind = kind
        self._parts = parts

    async def __call__(self, context: RequestContext) -> None:
        """Serve one request: prepare → admit → submit → stream → settle. Raises ApiError before the response starts."""
        plan = None
        try:
            plan = await self._prepare(context)
            with plan:
                self._begin(context, plan)
                await (self._stream if plan.request.stream else self._respond)(context, plan)
        except BaseException as error:
            self._end(context, plan, error)
            raise
        self._end(context, plan, None)

    async def _prepare(self, context: RequestContext) -> Plan:
        bounds = self._parts.bounds
        try:
            max_bytes = bounds.room.most_bytes(self._kind.most_prompts)
            body = await context.read_body(max_bytes=max_bytes, timeout_s=bounds.body_timeout_s)
            kind = await self._kind_of(body, context.caller)
            return await self._parts.preparer.prepare(kind, body, context)
        finally:
            context.exchange.release()

    def _begin(self, context: RequestContext, plan: Plan) -> None:
        context.lane, context.model = plan.service_level.lane.name, plan.model.name
        self._parts.telemetry.in_flight.add(context.lane)
        if context.span.is_recording:
            self._note(context, plan)

    def _end(self, context: RequestContext, plan: Plan | None, error: BaseException | None) -> None:
        if plan is not None:
            self._parts.telemetry.in_flight.add(context.lane, by=-1)
            if plan.traced is not None:
                self._parts.preparer.trace.ended(plan.traced, context.outputs, recording.end_of(error)[0])
        recording.ended(self._parts.recorder, context, error)

    async def _respond(self, context: RequestContext, plan: Plan) -> None:
        with ClientConnection(context.exchange.disconnect):
            answer = await self._submit(context, plan, None)
            await self._generate(context, plan, answer, None)
            whole = await asyncio.to_thread(_encoded_whole, answer) if answer.is_large else answer.whole()
            headers = plan.headers(answer.jobs)
            del answer  # free the builder before a slow client has read the response
        await send_json(context.send, whole, headers)

    async def _stream(self, context: RequestContext, plan: Plan) -> None:
        fault: Exception | None = None
        exchange, timeout_s = context.exchange, self._parts.bounds.write_timeout_s
        with EventStream(exchange.disconnect, context.send, exchange.channel.push, write_timeout_s=timeout_s) as out:
            answer = await self._submit(context, plan, out)
            try:
                await self._generate(context, plan, answer, out)
            except Exception as error:  # a stream that has started ends with an error frame
                if not out.started:
                    raise
                fault = error
                await out.write(answer.fault(error_body(shown(error), context.endpoint, context.request_id)))
        await out.close()
        if fault is not None:
            raise fault  # for the tenant middleware's record

    async def _submit(self, context: RequestContext, plan: Plan, out: EventStream | None) -> AnswerBuilder:
        submitter, tier = self._parts.submitter, plan.service_level.service_tier
        request = await submitter.submit(context.caller, plan, context.arrived_s)
        try:
            answer = self._kind.answer(plan.request, plan.model, tier, request.jobs, out)
            recording.opened(self._parts.recorder, context, plan, request, answer.id)
            return answer
        except BaseException as error:
            await submitter.end(context.caller, request, error)
            raise

    async def _generate(
        self, context: RequestContext, plan: Plan, answer: AnswerBuilder, out: EventStream | None
    ) -> None:
        request, submitter, caller = answer.jobs[0].request, self._parts.submitter, context.caller
        try:
            schedule = _WHOLE
            if out is not None:
                schedule = self._parts.bounds.stream_schedule
                out.lead_with(plan.headers(request.jobs))
            events = self._events(context, plan, request)
            try:
                await events.run(answer, schedule)
            finally:
                self._conclude(context, events, answer)
            await self._finished(answer, caller)
            if out is not None:
                await out.write(answer.ending())
                out.complete()
        except BaseException as error:
            await submitter.end(caller, request, error)
            raise
        await submitter.end(caller, request)

    async def _kind_of(self, body: bytes, caller: Caller) -> Kind[Generation]:
        return self._kind

    async def _finished(self, answer: AnswerBuilder, caller: Caller) -> None: ...

    def _events(self, context: RequestContext, plan: Plan, request: LiveRequest) -> TokenEvents:
        if context.span.is_recording:
            context.notes["fairlane.class"] = plan.class_name(request.jobs)
        events = TokenEvents(
            request,
            plan,
            self._parts.submitter.settlements,
            context.arrived_s,
            self._queue_span(context, plan, request) if context.span.is_recording else NO_SPAN,
            self._parts.telemetry.gaps(context.lane, context.model, context.tenant).observe,
        )
        if context.record is not None:
            context.record.progress = events
        return events

    def _queue_span(self, context: RequestContext, plan: Plan, request: LiveRequest) -> Span:
        span = context.span.child("queue")
        put_s = [job.queued_s for job in request.jobs if job.queued_s]
        span.began_ago(asyncio.get_running_loop().time() - min(put_s) if put_s else 0.0)
        span.set(
            {
                "fairlane.lane": plan.service_level.lane.name.value,
                "fairlane.queue.position": min([job.place for job in request.jobs], default=0),
                "fairlane.queue.jobs": len(request.jobs),
                "fairlane.expected_ttft_ms": plan.expected_ttft_ms,
            }
        )
        return span

    def _note(self, context: RequestContext, plan: Plan) -> None:
        request, service_level = plan.request, plan.service_level
        context.notes |= {
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

    def _conclude(self, context: RequestContext, events: TokenEvents, answer: AnswerBuilder) -> None:
        if events.first_token_s is None:
            events.queue_span.end()
        usage = answer.usage()
        context.first_token_s = events.first_token_s
        context.prompt_tokens, context.output_tokens = usage.prompt_tokens, usage.completion_tokens
        if events.plan.traced is not None:
            context.outputs = [sum([choice.counted for choice in job.choices]) for job in events.jobs]
        if context.span.is_recording:
            context.notes |= _used(events, usage) | {"gen_ai.response.id": answer.response_id}
        context.pace_s, context.queued_s = events.seconds_per_token, events.queued_s
        self._parts.telemetry.generated(
            context.lane, context.model, context.tenant, queued_s=context.queued_s, pace_s=context.pace_s
        )


def _used(events: TokenEvents, usage: Usage) -> Notes:
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
