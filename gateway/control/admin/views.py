"""Response shapes of the admin API, published in OpenAPI, and functions that build them. Times are Unix seconds.

Parts that a request body has too are its models (`inputs`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Generic, Literal, NotRequired, TypeVar, cast

import msgspec
from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about, view_of
from fairlane.gateway.batches.batch_records import StandingBatch
from fairlane.gateway.control.admin.inputs import LimitsByBody, PriceBody, ScopesBody
from fairlane.quotas.api_keys import ApiKey
from fairlane.quotas.ledger import UsageSums
from fairlane.quotas.tenants import Tenant
from fairlane.scheduler.planner.costs import TYPICAL_CONTEXT, step_ms_by
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.protocol.messages import WorkerStatus

# Tokens at which the prefill curve ends; it ends earlier for a KV pool that is smaller.
LONGEST_PROMPT = 4096
T = TypeVar("T")
OpenStatus = Literal["validating", "in_progress", "finalizing", "cancelling"]


class Page(TypedDict, Generic[T]):
    """One page of a list."""

    data: Annotated[list[T], about("The items")]
    has_more: Annotated[bool, about("Whether there are further items")]
    last_id: Annotated[str | None, about("Id of the last item, for `after`; null for an empty list")]


class TenantView(TypedDict):
    """One tenant."""

    id: Annotated[str, about("Identifier")]
    name: Annotated[str, about("Name")]
    parent: Annotated[str | None, about("The parent tenant, whose limits apply too")]
    timezone: Annotated[str, about("IANA name of the zone in which its days and months begin")]
    weight: Annotated[float, about("Scheduling weight relative to other tenants")]
    default_lane: Annotated[str, about("The lane of requests that name none")]
    lanes: Annotated[list[str], about("Lanes that may be used")]
    models: Annotated[list[str] | None, about("Models that may be used; null: all")]
    model_aliases: Annotated[dict[str, str], about("Alternative model names, each mapped to the model's own name")]
    limits: Annotated[dict[str, int], about("Limits by name")]
    limits_by: Annotated[list[LimitsByBody], about("Limits of one model, one lane or both, in addition to `limits`")]
    shadow: Annotated[list[str], about("Limits that are counted, not enforced")]
    reserve: Annotated[str, about("`progressive`: output tokens are reserved in steps; `full`: all at the start")]
    preemption: Annotated[
        str, about("`exact`: preempted choices continue with the same tokens; `fast`: in the cheapest way")
    ]
    unknown_fields: Annotated[
        str | None, about("Fields of its requests that are not known: ignored, or refused; null: as the deployment")
    ]
    self_service: Annotated[str, about("`keys`: its keys may manage keys; `none`: only operators do")]
    share_group: Annotated[str, about("Tenants of one group reuse each other's cached prompts; empty: not shared")]
    state: Annotated[str, about("`active`, or the reason why it is not")]
    created_at: Annotated[float, about("Unix seconds")]
    version: Annotated[int, about("Grows with each change; part of the `ETag`")]
    quota: NotRequired[Annotated["QuotaView", about("Its limits and their use; only in lists requested with `quota`")]]


class KeyView(TypedDict):
    """One key, without its secret."""

    id: Annotated[str, about("Identifier")]
    tenant: Annotated[str, about("Id of the tenant")]
    name: Annotated[str, about("Name")]
    state: Annotated[Literal["active", "revoked"], about("`active`, or the reason why it is not")]
    created_at: Annotated[float, about("Unix seconds")]
    expires_at: Annotated[float | None, about("Unix seconds; null: never")]
    last_used_at: Annotated[float | None, about("Unix seconds, to the minute; null: never")]
    limits: Annotated[dict[str, int], about("Limits by name")]
    scopes: Annotated[ScopesBody, about("What the key may be used for")]
    via: Annotated[
        str | None,
        about("Its credential: `issuer:<name>`, `issuer:<name>/<group>`, `key:<id>`; null: by its own secret"),
    ]
    made_by: Annotated[str | None, about("Id of the key that made it with `POST /v1/keys`; null: an operator did")]
    version: Annotated[int, about("Grows with each change; part of the `ETag`")]


class NewKeyView(KeyView):
    """A new key with its secret, or an imported key, which is usable from now on."""

    key: Annotated[str | None, about("The key with its secret, shown only once; null: an imported key")]


class ErasedView(TypedDict):
    """Erased objects of deleted tenants."""

    id: Annotated[str, about("Identifier")]
    tenants: Annotated[int, about("Deleted tenants of this id")]
    erased: Annotated[
        dict[str, int],
        about("Objects erased by this call, by kind; those erased since the deletion are not counted again"),
    ]
    complete: Annotated[bool, about("Whether all is erased; else the rest follows within 20 minutes of the deletion")]


class Deleted(TypedDict):
    """The deleted object."""

    id: Annotated[str, about("Identifier")]
    deleted: Annotated[Literal[True], about("Always true")]


class LimitView(TypedDict):
    """One limit and its current use."""

    limit: Annotated[int, about("The limit's value")]
    used: Annotated[int, about("Amount used by settled requests")]
    reserved: Annotated[int, about("Amount held by running requests")]
    remaining: Annotated[int, about("The part that is left")]
    resets_at: Annotated[float | None, about("Unix seconds when its window resets; null: no reset by the clock")]
    scope: Annotated[
        Literal["tenant", "key", "model_lane", "parent"],
        about("The limit's owner: the tenant, the key, a model or lane, or a parent tenant"),
    ]
    shadow: Annotated[bool, about("Counted and reported, but not enforced")]


class QuotaView(TypedDict):
    """Every limit that is set."""

    limits: Annotated[dict[str, LimitView], about("Limits by name")]


class UsageLine(TypedDict, total=False):
    """A sum over settled requests, and the group that it belongs to."""

    lane: Annotated[str, about("`latency` or `throughput`")]
    model: Annotated[str, about("The model's name")]
    key: Annotated[str, about("Id of an API key")]
    day: Annotated[str, about("Date in the tenant's time zone")]
    requests: Annotated[int, about("Number of requests")]
    prompt_tokens: Annotated[int, about("Prompt tokens")]
    cached_tokens: Annotated[int, about("Prompt tokens that were in a cache: part of `prompt_tokens`")]
    output_tokens: Annotated[int, about("Output tokens")]
    cost: Annotated[int, about("In nano-units (billionths) of the currency, each request at the prices of its start")]
    gpu_seconds: Annotated[float, about("Share of the workers' step time, as measured by them")]
    kv_block_seconds: Annotated[float, about("KV blocks held, multiplied by the time, as measured by workers")]


class OwnUsageView(TypedDict):
    """Usage by group and in total."""

    data: Annotated[list[UsageLine], about("The items")]
    total: Annotated[UsageLine, about("The sum")]
    currency: Annotated[str, about("Currency of all prices and charges")]
    entries_from: Annotated[
        float | None,
        about("Unix seconds of the oldest ledger entry kept; the sums reach further back. Null: no entry is kept"),
    ]


class UsageView(OwnUsageView):
    """Usage by group and in total, of one of the tenants that had the id."""

    incarnation: Annotated[str, about("The tenant's incarnation; empty: the first tenant with this id")]
    earlier: Annotated[
        list[str], about("Incarnations of the id's other tenants with a kept ledger, last deleted first")
    ]


class PricesView(TypedDict):
    """The price list."""

    currency: Annotated[str, about("Currency of all prices and charges")]
    prices: Annotated[list[PriceBody], about("The most specific row applies: model and lane, model, lane, neither")]
    version: Annotated[int, about("Grows with each change; part of the `ETag`")]


class ChargebackLine(UsageLine, total=False):
    """A month's usage of a tenant, or of an organisation with all its tenants."""

    month: Annotated[str, about("Year and month, such as 2026-11")]
    organisation: Annotated[str, about("Id of its root tenant")]
    tenant: Annotated[str, about("Id of the tenant")]


class ChargebackView(TypedDict):
    """A month's usage of all tenants with any usage."""

    month: Annotated[str, about("Year and month, such as 2026-11")]
    currency: Annotated[str, about("Currency of all prices and charges")]
    tenants: Annotated[list[ChargebackLine], about("Tenants with usage")]
    organisations: Annotated[list[ChargebackLine], about("Each organisation with all its tenants")]
    total: Annotated[UsageLine, about("The sum")]


class WorkerState(TypedDict):
    """A worker's identity and load."""

    id: Annotated[str, about("Identifier")]
    model: Annotated[str, about("The model's name")]
    queue: Annotated[str, about("The queue that it takes jobs from")]
    card_sha256: Annotated[str, about("Hash of the model card that the worker serves")]
    started_at: Annotated[float, about("Unix seconds")]
    draining: Annotated[bool, about("Whether it has stopped taking jobs")]
    block_size: Annotated[int, about("Tokens per KV block")]
    blocks_total: Annotated[int, about("KV blocks in the pool")]
    blocks_free: Annotated[int, about("KV blocks with no data in use")]
    host_slots_total: Annotated[int, about("KV blocks that fit into host memory")]
    host_slots_free: Annotated[int, about("Free slots of host memory")]
    max_sequences: Annotated[int, about("Choices that run at the same time")]
    running: Annotated[dict[str, int], about("Running choices by lane")]
    waiting: Annotated[dict[str, int], about("Choices that wait in the worker, by lane")]
    preempted: Annotated[dict[str, int], about("Preempted choices by lane")]
    tokens_per_s: Annotated[dict[str, float], about("Output tokens per second by lane")]
    step_ms: Annotated[float, about("Mean time of recent steps")]
    single_stream_ms: Annotated[float, about("Time per output token of a stream that runs alone; 0 until measured")]
    prefill_tokens_per_s: Annotated[float, about("Prompt tokens that it computes per second")]


class WorkerCosts(TypedDict):
    """Costs of a step by part, and as curves: points of [tokens, milliseconds]."""

    base_ms: Annotated[float, about("Fixed cost of a step")]
    row_ms: Annotated[float, about("Per sequence")]
    prefill_token_ms: Annotated[float, about("Per prompt token")]
    context_token_ms: Annotated[float, about("Per KV token that a decoding sequence reads")]
    attention_pair_ms: Annotated[float, about("Per prompt token and token that it attends to")]
    prefill: Annotated[list[list[float]], about("Steps that compute only a prompt of n tokens: [n, ms]")]
    decode: Annotated[list[list[float]], about("Steps of one token for n sequences with 512 KV tokens each: [n, ms]")]


class WorkerView(WorkerState):
    """One live worker: its identity, its load and the costs of its steps."""

    costs: Annotated[WorkerCosts | None, about("Costs of its steps; null until it has learnt them")]


class OpenBatchView(TypedDict):
    """One open batch and its progress."""

    id: Annotated[str, about("Identifier")]
    tenant: Annotated[str, about("Id of the tenant")]
    key: Annotated[str, about("Id of the key that created it, whose limits apply to its lines")]
    endpoint: Annotated[str, about("The path that its lines call")]
    status: Annotated[OpenStatus, about("`validating`: no line has started; `finalizing`: no line runs any more")]
    created_at: Annotated[int, about("Unix seconds")]
    window_ends_at: Annotated[int, about("Unix seconds; lines that have not run by then expire")]
    total: Annotated[int, about("Lines of the file")]
    completed: Annotated[int, about("Answered lines")]
    failed: Annotated[int, about("Failed lines")]
    enqueued_tokens: Annotated[int, about("Upper bound of the prompt and output tokens of its unfinished lines")]
    gateway: Annotated[str | None, about("The process that runs it: its host, and a unique suffix; null: none")]


class LaneView(TypedDict):
    """One lane, of all models or of one."""

    lane: Annotated[str, about("`latency` or `throughput`")]
    queued: Annotated[int, about("Waiting jobs, also those that a worker took but has not begun")]
    queued_tokens: Annotated[int, about("Prompt tokens of jobs that wait for a worker")]
    oldest_wait_ms: Annotated[float, about("Longest current wait for a worker")]
    running: Annotated[int, about("Running choices")]
    preempted: Annotated[int, about("Choices that are preempted by more urgent ones, to continue later")]
    tokens_per_s: Annotated[float, about("Output tokens generated per second")]
    ttft_target_ms: Annotated[float, about("Target for the first token")]
    tpot_target_ms: Annotated[float, about("Target per output token; if adapted to the hardware, the slowest worker's")]


class LimitBlockView(TypedDict):
    """The limit that caused the refusal."""

    name: Annotated[str, about("Which limit")]
    scope: Annotated[str, about("The limit's owner: the tenant, the key, a model or lane, or a parent tenant")]
    limit: Annotated[int, about("The limit's value")]
    used: Annotated[int, about("Amount used by settled requests")]
    reserved: Annotated[int, about("Amount held by running requests")]
    requested: Annotated[int, about("The requested amount")]
    resets_at: Annotated[float | None, about("Unix seconds when its window resets; null: no reset by the clock")]


class ExplainView(TypedDict):
    """The outcome of such a request if it were sent now."""

    admitted: Annotated[bool, about("Whether the request would be admitted")]
    code: Annotated[str | None, about("Code of the refusal; null if the request would be admitted")]
    message: Annotated[str | None, about("Message of the refusal; null if the request would be admitted")]
    limit: Annotated[LimitBlockView | None, about("The limit that would refuse the request; null if none does")]
    retry_after_s: Annotated[
        float | None, about("Seconds until the request fits at the latest; null: unknown or never")
    ]
    expected_wait_ms: Annotated[
        float | None,
        about("Time until the first token; null if the request would be refused or nothing has been measured yet"),
    ]


class AuditView(TypedDict):
    """One recorded change."""

    id: Annotated[str, about("Identifier")]
    at: Annotated[float, about("Unix seconds")]
    actor: Annotated[str, about("The operator who made the change, or `key:<id>` of a tenant")]
    address: Annotated[str, about("The caller's address, as seen by this gateway")]
    action: Annotated[str, about("The recorded action, such as `tenant.update`")]
    target: Annotated[str, about("The changed object: a tenant, or a key as `tenant/key`")]
    changes: Annotated[dict[str, object], about("The changed fields, before and after")]


Shown = TypeVar("Shown")
Item = TypeVar("Item")


def page(items: Sequence[Item], limit: int, view: Callable[[Item], Shown], id_of: Callable[[Item], str]) -> Page[Shown]:
    """Return a page of `limit` items. Pass one item more than that, so that `has_more` can be known."""
    shown = items[:limit]
    last_id = id_of(shown[-1]) if shown else None
    return {"data": [view(item) for item in shown], "has_more": len(items) > limit, "last_id": last_id}


def tenant_view(tenant: Tenant) -> TenantView:
    """Return a tenant in the API's shape."""
    limits_by = [
        {"model": by.model or None, "lane": by.lane or None, "limits": by.limits.as_dict()} for by in tenant.limits_by
    ]
    aliases = dict(tenant.model_aliases)
    return view_of(TenantView, tenant, limits=tenant.limits.as_dict(), limits_by=limits_by, model_aliases=aliases)


def key_view(key: ApiKey) -> KeyView:
    """Return a key in the API's shape."""
    scopes = msgspec.to_builtins(key.scopes)
    return view_of(
        KeyView, key, limits=key.limits.as_dict(), scopes=scopes, via=key.via or None, made_by=key.made_by or None
    )


def worker_view(status: WorkerStatus) -> WorkerView:
    """Return a worker's last heartbeat in the API's shape."""
    return {**worker_state(status), "costs": _worker_costs(status)}


def _worker_costs(status: WorkerStatus) -> WorkerCosts | None:
    if not status.step_weights:
        return None
    base_ms, row_ms, token_ms, context_ms, pair_ms = status.step_weights
    return {
        "base_ms": base_ms,
        "row_ms": row_ms,
        "prefill_token_ms": token_ms,
        "context_token_ms": context_ms,
        "attention_pair_ms": pair_ms,
        "prefill": [
            [tokens, step_ms_by(status.step_weights, StepFeatures(1, tokens, 0, tokens * tokens))]
            for tokens in _doubled(min(status.kv_tokens, LONGEST_PROMPT))
        ],
        "decode": [
            [rows, step_ms_by(status.step_weights, StepFeatures(rows, 0, rows * TYPICAL_CONTEXT, 0))]
            for rows in _doubled(status.max_sequences)
        ],
    }


def _doubled(last: int) -> list[int]:
    return [1 << power for power in range((last - 1).bit_length())] + [last] if last > 0 else []


def worker_state(status: WorkerStatus) -> WorkerState:
    """Return the worker's view without its costs, which change with each step."""
    return view_of(WorkerState, status, id=status.worker_id, started_at=status.started_at_ms / 1e3)


def open_batch_view(standing: StandingBatch) -> OpenBatchView:
    """Return an open batch in the API's shape."""
    batch = standing.batch
    return view_of(
        OpenBatchView,
        batch,
        key=batch.key_id,
        status=standing.status,
        window_ends_at=batch.expires_at,
        enqueued_tokens=standing.enqueued_tokens,
        gateway=standing.owner or None,
    )


def usage_line(usage: UsageSums, group: Mapping[str, str]) -> UsageLine:
    """Return a sum with the values of its group."""
    costs = {"cost": usage.spend, "gpu_seconds": usage.gpu_us / 1e6, "kv_block_seconds": usage.kv_block_ms / 1e3}
    # The keys of `group` are the ledger's group names.
    return cast(UsageLine, {**group, **view_of(UsageLine, usage, **costs)})
