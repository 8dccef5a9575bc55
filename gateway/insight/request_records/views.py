"""JSON shapes of request records, as published in OpenAPI, and functions that build them. Times are Unix seconds."""

from typing import Annotated, Any, Literal

import msgspec
from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about, view_of
from fairlane.gateway.insight.request_records.record import EventKind, RecordedPreemption, RequestRecord, State
from fairlane.gateway.insight.request_records.time_account import TimeParts
from fairlane.gateway.insight.request_records.why import waits_of, why, words_of

ClassName = Literal["guaranteed", "best-effort"]


class RequestFields(TypedDict):
    """Fields of a request in lists and single records."""

    id: Annotated[str, about("The request's own id, which is part of the answer's id")]
    request_id: Annotated[str, about("`x-request-id` of the answer; if several requests have it, it means the newest")]
    tenant: Annotated[str, about("Id of the tenant")]
    key: Annotated[str, about("Public id of the key")]
    model: Annotated[str, about("The model's name")]
    lane: Annotated[str, about("The lane that served it")]
    state: Annotated[State, about("`lost`: its gateway is silent, and the request has not been settled yet")]
    outcome: Annotated[
        str | None, about("`rejected`, `finished`, `cancelled`, `expired`, `unavailable` or `failed`; null: it runs")
    ]
    code: Annotated[str | None, about("The error that refused or ended it, or `client_closed`; null: none did")]
    arrived_at: Annotated[float, about("Unix seconds")]
    queue_ms: Annotated[float | None, about("Time until the step that began its prompt, as in `time`; null: not begun")]
    ttft_ms: Annotated[float | None, about("From its arrival to its first token; null: no token yet")]
    total_ms: Annotated[float | None, about("From its arrival to the end of its answer; null: it is running")]
    prompt_tokens: Annotated[int, about("Tokens of all its prompts")]
    cached_tokens: Annotated[int, about("Prompt tokens that were in a cache; 0 until it is settled")]
    output_tokens: Annotated[int, about("Tokens received so far")]
    tokens_per_s: Annotated[float | None, about("Rate from its first token to its last; null before the second")]
    worker: Annotated[str | None, about("The worker that ended it; null: none yet")]
    trace_id: Annotated[str | None, about("Id of its trace; null: not traced")]


OfClass = TypedDict(
    "OfClass",
    {"class": Annotated[ClassName | None, about("The class promised at admission; null: it was refused before")]},
)


class RequestView(RequestFields, OfClass):
    """One request in a list."""

    preemptions: Annotated[int, about("Number of preemptions")]
    cost: Annotated[int | None, about("Nano-units of the currency; null: not settled, or by another gateway")]


class RequestEvent(TypedDict):
    """One event of a request."""

    at_ms: Annotated[float, about("Time since the request's arrival")]
    kind: Annotated[EventKind, about("`moved`: to another worker, after its own was lost or gave it back")]
    position: Annotated[int | None, about("1 + the tenant's requests ahead of it in the lane; null for other kinds")]
    stall_ms: Annotated[float | None, about("`resumed`: time of its stall; `moved`: time without a token; else null")]


class RequestWait(TypedDict):
    """One reason for waiting, and its duration."""

    reason: Annotated[str, about("`queue`: as in `time`; else why the worker left it out of steps, within these parts")]
    words: Annotated[str, about("The reason as it follows `It waited`")]
    ms: Annotated[float, about("Duration; of several choices, that of the longest wait")]


class RequestTime(TypedDict):
    """The parts of a request's time, which add up to the total."""

    total_ms: Annotated[float, about("From its arrival to the end of its answer, or until now: the sum of the parts")]
    queue_ms: Annotated[float, about("Time in which no step had begun its prompt, also after a worker was lost")]
    prefill_ms: Annotated[float, about("From the step that began its prompt to its first token")]
    decode_ms: Annotated[float, about("From its first token to its last")]
    preempted_ms: Annotated[float, about("Time in which a choice was preempted")]
    paused_ms: Annotated[float, about("Time in which a choice waited for its own limits, and none was preempted")]
    network_ms: Annotated[float, about("Before the queue, from the worker to the gateway, and after its last token")]


class PreemptionCause(TypedDict):
    """The request that displaced another one, and the resource it needed."""

    resource: Annotated[str, about("The missing resource: KV `blocks`, batch `slots`, a step's `tokens` or `pace`")]
    lane: Annotated[str, about("Lane of the request that took its place")]
    tenant: Annotated[str | None, about("Tenant of that request; null: another tenant, or the lane's share floor")]
    request: Annotated[str | None, about("Id of the request that took its place; null where `tenant` is")]


class RequestPreemption(TypedDict):
    """One preemption of one choice."""

    at_ms: Annotated[float, about("Time since the request's arrival")]
    choice: Annotated[int, about("Index of the preempted choice")]
    cause: Annotated[PreemptionCause | None, about("The request that displaced it; null: not reported by its worker")]
    mode: Annotated[str, about("`swap`: its KV moved to host memory; `recompute`: computed again; `keep`: it stayed")]
    blocks: Annotated[int, about("KV blocks that it gave up")]
    bytes: Annotated[int, about("Size of their KV; 0: not reported by the engine")]
    predicted_ms: Annotated[float, about("Predicted cost of resuming; 0: none, or no prediction")]
    stall_ms: Annotated[float | None, about("Duration of the stall; null: not over")]


class RequestSteps(TypedDict):
    """A request's steps at its worker, by phase."""

    prefill_steps: Annotated[int, about("Steps that computed a part of its prompt, or recomputed KV")]
    prefill_tokens: Annotated[int, about("Tokens computed by these steps")]
    decode_steps: Annotated[int, about("Steps that generated one further token of a choice")]


class RequestCharges(TypedDict):
    """The charged tokens of a request, and its use of the machine."""

    prompt_tokens: Annotated[int, about("Prompt tokens")]
    cached_tokens: Annotated[int, about("Prompt tokens that were in a cache: part of `prompt_tokens`")]
    output_tokens: Annotated[int, about("Output tokens")]
    cost: Annotated[int | None, about("Nano-units of the currency; null: another gateway settled it, see the ledger")]
    gpu_seconds: Annotated[float, about("Share of the workers' step time, as measured by them")]
    kv_block_seconds: Annotated[float, about("KV blocks held, multiplied by the time, as measured by workers")]


class RequestDetail(RequestFields, OfClass):
    """One request with all details."""

    endpoint: Annotated[str, about("The path that it called")]
    message: Annotated[str | None, about("The error's message; null: none")]
    limit: Annotated[str | None, about("Name of the limit that refused or ended it; null: none")]
    deadline_ms: Annotated[float | None, about("Stated deadline of the last token; null: none")]
    ttft_deadline_ms: Annotated[float | None, about("Stated deadline of the first token; null: none")]
    ttft_target_ms: Annotated[float | None, about("Its stated TTFT deadline, or the lane's target; null: refused")]
    expected_ttft_ms: Annotated[float | None, about("Admission's prediction; null: no worker knew its costs")]
    choices: Annotated[int, about("Choices of all its prompts")]
    ignored: Annotated[list[str], about("Fields of its body that had no effect, as `x-fairlane-ignored` names them")]
    time: Annotated[RequestTime, about("Parts of its time so far, on one clock")]
    workers: Annotated[list[str], about("The workers that ended its jobs")]
    takings: Annotated[int, about("Times a worker took it from the queue; above 1: a worker was lost or gave it back")]
    stalled_ms: Annotated[float, about("Time for which its choices were preempted, summed over choices")]
    paused_ms: Annotated[float, about("Time for which its choices waited for its own limits, summed over choices")]
    waits: Annotated[list[RequestWait], about("Its waits, the longest first")]
    events: Annotated[list[RequestEvent], about("Its events in order; of very many, the first and the last")]
    preemptions: Annotated[list[RequestPreemption], about("Its preemptions; of very many, the first and the last")]
    preempted: Annotated[int, about("Number of preemptions")]
    left_out: Annotated[int, about("Events and preemptions that were dropped")]
    steps: Annotated[RequestSteps | None, about("Its steps at the worker; null: not reported")]
    charges: Annotated[RequestCharges | None, about("Charged tokens; null: nothing is settled yet")]
    gateway: Annotated[str, about("The process that serves or served it")]
    why: Annotated[str, about("The explanation in a sentence or two")]


def request_view(record: RequestRecord) -> RequestView:
    """Return a record as shown in a list."""
    return view_of(RequestView, record, **_computed(record), preemptions=record.preempted, cost=record.spend)


def request_detail(record: RequestRecord, now_s: float) -> RequestDetail:
    """Return a record with all details. `now_s`: Unix seconds, for a running request."""
    has_run = record.prefill_steps or record.decode_steps
    return view_of(
        RequestDetail,
        record,
        **_computed(record),
        message=record.message or None,
        limit=record.limit or None,
        time=time_fields(record.time),
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
    classes = {None: None, True: "guaranteed", False: "best-effort"}
    return {
        "class": classes[record.guaranteed],
        "arrived_at": round(record.arrived_s, 3),
        "tokens_per_s": _tokens_per_s(record),
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
