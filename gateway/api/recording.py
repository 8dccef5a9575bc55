"""Writes request records: requests admitted, how they ended, and requests rejected."""

import asyncio
import time
from functools import partial

from starlette.requests import ClientDisconnect

from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.request_id import random_id
from fairlane.gateway.insight.request_records.live import LiveRecord
from fairlane.gateway.insight.request_records.record import LONGEST_TEXT, RequestRecord
from fairlane.gateway.insight.request_records.recorder import RequestRecorder
from fairlane.gateway.insight.request_records.views import time_fields
from fairlane.gateway.insight.telemetry.context import CARRIED
from fairlane.gateway.insight.telemetry.tracing import context_of
from fairlane.gateway.pipeline.context import CLIENT_CLOSED, RequestContext
from fairlane.gateway.pipeline.prepare import Plan
from fairlane.gateway.pipeline.settlement import outcome_of
from fairlane.gateway.request.live_request import LiveRequest
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.store.errors import STORE_ERRORS

# Statuses of rejections that are recorded. The others are errors in the caller's request.
_RECORDED = frozenset({429, 503, 504})


def opened(
    recorder: RequestRecorder, context: RequestContext, plan: Plan, request: LiveRequest, answer_id: str
) -> None:
    """Open the record of a submitted request. `answer_id` is empty if the response's id contains the request's."""
    if recorder.enabled:
        make, names = partial(_record, recorder.gateway_id, context, plan), (context.request_id, answer_id)
        context.record = recorder.open(make, request, names, context.arrived_s, plan.service_level.ttft_ms)


def _record(gateway_id: str, context: RequestContext, plan: Plan, live: LiveRecord) -> RequestRecord:
    level, jobs, caller = plan.service_level, live.jobs, context.caller
    ask = jobs[0].request.ask
    parent = "" if jobs[0].message is None else jobs[0].message.traceparent
    return RequestRecord(
        id=live.id,
        request_id=live.names[0],
        answer_id=live.names[1],
        tenant=caller.tenant_id,
        incarnation=caller.identity.tenant.incarnation,
        key=caller.key_id,
        arrived_s=time.time() - live.age_ms / 1e3,
        endpoint=context.endpoint,
        model=plan.model.name,
        lane=ask.lane,
        gateway=gateway_id,
        trace_id=_kept_trace(parent),
        guaranteed=plan.is_guaranteed(jobs),
        deadline_ms=level.deadline_ms,
        ttft_deadline_ms=level.hard_ttft_ms,
        ttft_target_ms=live.due_ms,
        expected_ttft_ms=plan.expected_ttft_ms or None,
        prompt_tokens=ask.prompt_tokens,
        choices=ask.choices,
        ignored=plan.request.ignored,
    )


def _kept_trace(traceparent: str) -> str:
    context = context_of(traceparent) if traceparent else None
    return f"{context.trace_id:032x}" if context is not None and context.trace_flags.sampled else ""


def ended(recorder: RequestRecorder, context: RequestContext, error: BaseException | None) -> None:
    """Close the record of a request, or record the rejection of one that was not admitted."""
    if not recorder.enabled:
        return
    code, outcome, message, limit = end_of(error)
    if context.record is not None:
        context.record.answered(code, outcome, message, limit, is_timed=context.span.is_recording)
        if context.record.time is not None:
            context.notes |= {f"fairlane.time.{name}": ms for name, ms in time_fields(context.record.time).items()}
    elif isinstance(error, ApiError) and error.status in _RECORDED:
        model, prompt_tokens = error.asked
        lane = context.lane if context.lane in set(LaneName) else ""
        caller = context.caller
        refused = RequestRecord(
            id=random_id(),
            tenant=caller.tenant_id,
            incarnation=caller.identity.tenant.incarnation,
            key=caller.key_id,
            request_id=context.request_id,
            endpoint=context.endpoint,
            code=error.code,
            message=message,
            limit=limit,
            lane=error.lane or lane,
            model=model,
            prompt_tokens=prompt_tokens,
            trace_id=_kept_trace(CARRIED.get().traceparent),
            arrived_s=0.0,
        )
        recorder.refused(refused, context.arrived_s)


def end_of(error: BaseException | None) -> tuple[str | None, Outcome, str, str]:
    """Return code, outcome, message and limit of an end. Messages other than our own may contain parts of a prompt."""
    match error:
        case None:
            return None, Outcome.FINISHED, "", ""
        case ApiError():
            limit = "" if error.limit is None else error.limit.name
            return error.code, outcome_of(error), error.message[:LONGEST_TEXT], limit
        case ClientDisconnect() | asyncio.CancelledError():
            return CLIENT_CLOSED, Outcome.CANCELLED, "", ""
        case _ if isinstance(error, STORE_ERRORS):
            return "quota_store_unavailable", Outcome.FAILED, "The store did not answer.", ""
        case _:
            return "internal_error", Outcome.FAILED, "", ""
