"""JSON shapes of request records, as published in OpenAPI, and functions that build them. Times are Unix seconds."""

from typing import Any, Literal

import msgspec
from typing_extensions import TypedDict  # pydantic reads its own kind only, before Python 3.12

from fairlane.common.views import view_of
from fairlane.gateway.insight.request_records.record import RecordedPreemption, RequestRecord, State
from fairlane.gateway.insight.request_records.time_account import TimeParts
from fairlane.gateway.insight.request_records.why import waits_of, why, words_of

ClassName = Literal["guaranteed", "best-effort"]


class RequestFields(TypedDict):
    """Fields of a request in lists and single records."""

    id: str
    request_id: str
    tenant: str
    key: str
    model: str
    lane: str
    state: State
    outcome: str | None
    code: str | None
    arrived_at: float
    queue_ms: float | None
    ttft_ms: float | None
    total_ms: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    worker: str | None
    trace_id: str | None


# A mix-in for `class`, which cannot be a field name in a class body.
OfClass = TypedDict("OfClass", {"class": ClassName | None})


class RequestView(RequestFields, OfClass):
    """One request in a list."""

    preemptions: int


class RequestEvent(TypedDict):
    """One event of a request."""

    at_ms: float
    kind: str
    position: int | None
    stall_ms: float | None


class RequestWait(TypedDict):
    """One reason for waiting, and its duration."""

    reason: str
    words: str
    ms: float


class RequestTime(TypedDict):
    """The parts of a request's time, which add up to the total."""

    total_ms: float
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    preempted_ms: float
    paused_ms: float
    network_ms: float


class PreemptionCause(TypedDict):
    """The request that displaced another one, and the resource it needed."""

    resource: str
    lane: str
    tenant: str | None
    request: str | None


class RequestPreemption(TypedDict):
    """One preemption of one choice."""

    at_ms: float
    choice: int
    cause: PreemptionCause | None
    mode: str
    blocks: int
    bytes: int
    predicted_ms: float
    stall_ms: float | None


class RequestSteps(TypedDict):
    """A request's steps at its worker, by phase."""

    prefill_steps: int
    prefill_tokens: int
    decode_steps: int


class RequestCharges(TypedDict):
    """The charged tokens of a request, and its use of the machine."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: int | None
    gpu_seconds: float
    kv_block_seconds: float


class RequestDetail(RequestFields, OfClass):
    """One request with all details."""

    endpoint: str
    message: str | None
    limit: str | None
    deadline_ms: float | None
    ttft_deadline_ms: float | None
    ttft_target_ms: float | None
    expected_ttft_ms: float | None
    tokens_per_s: float | None
    choices: int
    time: RequestTime | None
    workers: list[str]
    takings: int
    stalled_ms: float
    paused_ms: float
    waits: list[RequestWait]
    events: list[RequestEvent]
    preemptions: list[RequestPreemption]
    preempted: int
    left_out: int
    steps: RequestSteps | None
    charges: RequestCharges | None
    gateway: str
    why: str


def request_view(record: RequestRecord) -> RequestView:
    """Return a record as shown in a list."""
    return view_of(RequestView, record, **_computed(record), preemptions=record.preempted)


def request_detail(record: RequestRecord, now_s: float) -> RequestDetail:
    """Return a record with all details. `now_s`: Unix seconds, for a running request."""
    has_run = record.prefill_steps or record.decode_steps
    return view_of(
        RequestDetail,
        record,
        **_computed(record),
        message=record.message or None,
        limit=record.limit or None,
        tokens_per_s=_tokens_per_s(record),
        time=None if record.time is None else time_fields(record.time),
        stalled_ms=round(record.stalled_ms, 1),
        paused_ms=round(record.paused_ms, 1),
        waits=[{"reason": reason, "words": words_of(reason), "ms": ms} for reason, ms in waits_of(record)],
        events=_events(record),
        preemptions=[_preemption(each) for each in record.preemptions],
        steps=view_of(RequestSteps, record) if has_run else None,
        charges=_charges(record),
        why=why(record, (now_s - record.arrived_s) * 1e3),
    )


def time_fields(parts: TimeParts) -> dict[str, float]:
    """Return the account of a request's time as shown by API, console, command line and trace."""
    return {"total_ms": parts.total} | {f"{name}_ms": ms for name, ms in msgspec.structs.asdict(parts).items()}


def for_tenant(record: RequestRecord) -> RequestRecord:
    """Return the record without data of other tenants: of a request that displaced it, only the lane remains."""
    shown = [
        one if one.tenant == record.tenant else msgspec.structs.replace(one, tenant="", request="")
        for one in record.preemptions
    ]
    return msgspec.structs.replace(record, preemptions=shown)


def _computed(record: RequestRecord) -> dict[str, Any]:
    """Return the common fields that are not stored in the form in which they are shown."""
    classes = {None: None, True: "guaranteed", False: "best-effort"}
    return {
        "class": classes[record.guaranteed],
        "arrived_at": round(record.arrived_s, 3),
        "cached_tokens": record.charges[1] if record.charges is not None else 0,
        "worker": record.workers[-1] if record.workers else None,
        "trace_id": record.trace_id or None,
    }


def _tokens_per_s(record: RequestRecord) -> float | None:
    if record.ttft_ms is None or record.last_token_ms is None or record.last_token_ms <= record.ttft_ms:
        return None
    later = record.output_tokens - record.choices
    return round(later / (record.last_token_ms - record.ttft_ms) * 1e3, 2) if later > 0 else None


def _events(record: RequestRecord) -> list[RequestEvent]:
    return [
        {
            "at_ms": event.at_ms,
            "kind": event.kind,
            "position": int(event.figure) if event.figure and event.kind in ("queued", "position") else None,
            "stall_ms": event.figure if event.kind in ("resumed", "moved") else None,
        }
        for event in sorted(record.events, key=lambda one: one.at_ms)
    ]


def _preemption(preemption: RecordedPreemption) -> RequestPreemption:
    cause = None
    if preemption.resource is not None:
        names = {"tenant": preemption.tenant or None, "request": preemption.request or None}
        cause = view_of(PreemptionCause, preemption, **names)
    return view_of(RequestPreemption, preemption, cause=cause)


def _charges(record: RequestRecord) -> RequestCharges | None:
    if record.charges is None:
        return None
    prompt, cached, output = record.charges
    return {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "output_tokens": output,
        "cost": record.spend,
        "gpu_seconds": record.gpu_us / 1e6,
        "kv_block_seconds": record.kv_block_ms / 1e3,
    }
