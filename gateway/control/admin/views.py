"""Response shapes of the admin API, published in OpenAPI, and functions that build them. Times are Unix seconds.

The fields' descriptions are in `gateway.control.openapi`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Literal, NotRequired, TypeVar, cast

from typing_extensions import TypedDict  # pydantic reads its own kind only, before Python 3.12

from fairlane.gateway.batches.batch_records import StandingBatch
from fairlane.gateway.control.admin.worker_costs import WorkerCosts, worker_costs
from fairlane.quotas import keyspace
from fairlane.quotas.api_keys import ApiKey
from fairlane.quotas.audit import AuditEntry
from fairlane.quotas.ledger import UsageReport, UsageSums
from fairlane.quotas.limits import LimitsBy
from fairlane.quotas.prices import PriceList
from fairlane.quotas.tenants import Tenant
from fairlane.scheduler.protocol.messages import WorkerStatus

T = TypeVar("T")
OpenStatus = Literal["validating", "in_progress", "finalizing", "cancelling"]


class Page(TypedDict, Generic[T]):
    """One page of a list."""

    data: list[T]
    has_more: bool
    last_id: str | None


class LimitsByView(TypedDict):
    """Limits of one model, one lane or both; null: any."""

    model: str | None
    lane: str | None
    limits: dict[str, int]


class TenantView(TypedDict):
    """One tenant."""

    id: str
    name: str
    parent: str | None
    timezone: str
    weight: float
    default_lane: str
    lanes: list[str]
    models: list[str] | None
    model_aliases: dict[str, str]
    limits: dict[str, int]
    limits_by: list[LimitsByView]
    shadow: list[str]
    reserve: str
    preemption: str
    share_group: str
    state: str
    created_at: float
    version: int
    quota: NotRequired["QuotaView"]


class ScopesView(TypedDict):
    """The permitted uses of a key; null: everything that its tenant may use."""

    models: list[str] | None
    lanes: list[str] | None
    endpoints: list[str] | None
    cidrs: list[str] | None
    act_as: list[str] | None


class KeyView(TypedDict):
    """One key, without its secret."""

    id: str
    tenant: str
    name: str
    state: Literal["active", "revoked"]
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    limits: dict[str, int]
    scopes: ScopesView
    via: str | None
    version: int


class NewKeyView(KeyView):
    """A new key with its secret, which is shown only once."""

    key: str


class CreatedKeyView(KeyView):
    """A new key with its secret, or an imported key, which is usable from now on."""

    key: str | None


class ErasedView(TypedDict):
    """Erased objects of deleted tenants."""

    id: str
    tenants: int
    erased: dict[str, int]
    complete: bool


class Deleted(TypedDict):
    """The deleted object."""

    id: str
    deleted: Literal[True]


class LimitView(TypedDict):
    """One limit and its current use."""

    limit: int
    used: int
    reserved: int
    remaining: int
    resets_at: float | None
    scope: Literal["tenant", "key", "model_lane", "parent"]
    shadow: bool


class QuotaView(TypedDict):
    """Every limit that is set."""

    limits: dict[str, LimitView]


class UsageLine(TypedDict, total=False):
    """A sum over settled requests, and the group that it belongs to."""

    lane: str
    model: str
    key: str
    day: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: int
    gpu_seconds: float
    kv_block_seconds: float


class UsageView(TypedDict):
    """Usage by group and in total."""

    data: list[UsageLine]
    total: UsageLine
    currency: str
    entries_from: float | None
    incarnation: str
    earlier: list[str]


class PriceView(TypedDict):
    """Prices of a model's tokens in a lane, in nano-units of the currency per token; `*`: any."""

    model: str
    lane: str
    input: int
    cached_input: int
    output: int


class PricesView(TypedDict):
    """The price list."""

    currency: str
    prices: list[PriceView]
    version: int


class ChargebackLine(UsageLine, total=False):
    """A month's usage of a tenant, or of an organisation with all its tenants."""

    month: str
    organisation: str
    tenant: str


class ChargebackView(TypedDict):
    """A month's usage of all tenants that used something."""

    month: str
    currency: str
    tenants: list[ChargebackLine]
    organisations: list[ChargebackLine]
    total: UsageLine


class WorkerState(TypedDict):
    """A worker's identity and load."""

    id: str
    model: str
    queue: str
    card_sha256: str
    started_at: float
    draining: bool
    block_size: int
    blocks_total: int
    blocks_free: int
    host_slots_total: int
    host_slots_free: int
    max_sequences: int
    running: dict[str, int]
    waiting: dict[str, int]
    preempted: dict[str, int]
    tokens_per_s: dict[str, float]
    step_ms: float
    single_stream_ms: float
    prefill_tokens_per_s: float


class WorkerView(WorkerState):
    """One live worker: its identity, its load and the costs of its steps."""

    costs: WorkerCosts | None


class OpenBatchView(TypedDict):
    """One open batch and its progress."""

    id: str
    tenant: str
    key: str
    endpoint: str
    status: OpenStatus
    created_at: int
    window_ends_at: int
    total: int
    completed: int
    failed: int
    enqueued_tokens: int
    gateway: str | None


class LaneView(TypedDict):
    """One lane, of all models or of one."""

    lane: str
    queued: int
    queued_tokens: int
    oldest_wait_ms: float
    running: int
    preempted: int
    tokens_per_s: float
    ttft_target_ms: float
    tpot_target_ms: float


class LimitBlockView(TypedDict):
    """The limit that caused the refusal."""

    name: str
    scope: str
    limit: int
    used: int
    reserved: int
    requested: int
    resets_at: float | None


class ExplainView(TypedDict):
    """The outcome that a request would have now."""

    admitted: bool
    code: str | None
    message: str | None
    limit: LimitBlockView | None
    retry_after_s: float | None
    expected_wait_ms: float | None


class AuditView(TypedDict):
    """One recorded change."""

    id: str
    at: float
    actor: str
    address: str
    action: str
    target: str
    changes: dict[str, object]


View = TypeVar("View")
Item = TypeVar("Item")

# Fields of a TenantView that an operator sets.
TENANT_FIELDS = (
    "name",
    "parent",
    "timezone",
    "weight",
    "default_lane",
    "lanes",
    "models",
    "model_aliases",
    "limits",
    "limits_by",
    "shadow",
    "reserve",
    "preemption",
    "share_group",
)


def page(items: Sequence[Item], limit: int, view: Callable[[Item], View], id_of: Callable[[Item], str]) -> Page[View]:
    """Return a page of `limit` items. Pass one item more than that, so that `has_more` can be known."""
    shown = items[:limit]
    last_id = id_of(shown[-1]) if shown else None
    return {"data": [view(item) for item in shown], "has_more": len(items) > limit, "last_id": last_id}


def tenant_view(tenant: Tenant) -> TenantView:
    """Return a tenant in the API's shape."""
    return {
        "id": tenant.id,
        "name": tenant.name,
        "parent": tenant.parent,
        "timezone": tenant.timezone,
        "weight": tenant.weight,
        "default_lane": tenant.default_lane,
        "lanes": list(tenant.lanes),
        "models": _listed(tenant.models),
        "model_aliases": dict(tenant.model_aliases),
        "limits": tenant.limits.as_dict(),
        "limits_by": [_limits_by_view(each) for each in tenant.limits_by],
        "shadow": list(tenant.shadow),
        "reserve": tenant.reserve,
        "preemption": tenant.preemption,
        "share_group": tenant.share_group,
        "state": tenant.state,
        "created_at": tenant.created_at,
        "version": tenant.version,
    }


def _limits_by_view(by: LimitsBy) -> LimitsByView:
    return {"model": by.model or None, "lane": by.lane or None, "limits": by.limits.as_dict()}


def key_view(key: ApiKey) -> KeyView:
    """Return a key in the API's shape."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "name": key.name,
        "state": key.state,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
        "limits": key.limits.as_dict(),
        "scopes": {
            "models": _listed(key.scopes.models),
            "lanes": _listed(key.scopes.lanes),
            "endpoints": _listed(key.scopes.endpoints),
            "cidrs": _listed(key.scopes.cidrs),
            "act_as": _listed(key.scopes.act_as),
        },
        "via": key.via or None,
        "version": key.version,
    }


def usage_view(
    report: UsageReport, currency: str, entries_from: float | None, account: str, accounts: Sequence[str]
) -> UsageView:
    """Return a ledger report with the values of each group. `accounts`: all accounts of the tenant's id."""
    return {
        "data": [usage_line(row.usage, row.group) for row in report.rows],
        "total": usage_line(report.total, {}),
        "currency": currency,
        "entries_from": entries_from,
        "incarnation": keyspace.incarnation_of(account),
        "earlier": [keyspace.incarnation_of(each) for each in accounts if each != account],
    }


def prices_view(prices: PriceList, currency: str) -> PricesView:
    """Return the price list in the API's shape."""
    return {"currency": currency, "prices": cast(list[PriceView], prices.as_rows()), "version": prices.version}


def worker_view(status: WorkerStatus) -> WorkerView:
    """Return a worker's last heartbeat in the API's shape."""
    return {**worker_state(status), "costs": worker_costs(status)}


def worker_state(status: WorkerStatus) -> WorkerState:
    """Return the worker's view without its costs, which change with each step."""
    return {
        "id": status.worker_id,
        "model": status.model,
        "queue": status.queue,
        "card_sha256": status.card_sha256,
        "started_at": status.started_at_ms / 1e3,
        "draining": status.draining,
        "block_size": status.block_size,
        "blocks_total": status.blocks_total,
        "blocks_free": status.blocks_free,
        "host_slots_total": status.host_slots_total,
        "host_slots_free": status.host_slots_free,
        "max_sequences": status.max_sequences,
        "running": status.running,
        "waiting": status.waiting,
        "preempted": status.preempted,
        "tokens_per_s": status.tokens_per_s,
        "step_ms": status.step_ms,
        "single_stream_ms": status.single_stream_ms,
        "prefill_tokens_per_s": status.prefill_tokens_per_s,
    }


def open_batch_view(standing: StandingBatch) -> OpenBatchView:
    """Return an open batch in the API's shape."""
    batch = standing.batch
    return {
        "id": batch.id,
        "tenant": batch.tenant,
        "key": batch.key_id,
        "endpoint": batch.endpoint,
        "status": cast(OpenStatus, standing.status),  # a status of open batches
        "created_at": batch.created_at,
        "window_ends_at": batch.expires_at,
        "total": batch.total,
        "completed": batch.completed,
        "failed": batch.failed,
        "enqueued_tokens": standing.enqueued_tokens,
        "gateway": standing.owner or None,
    }


def audit_view(entry: AuditEntry) -> AuditView:
    """Return an audit entry in the API's shape."""
    return {
        "id": entry.id,
        "at": entry.at,
        "actor": entry.actor,
        "address": entry.address,
        "action": entry.action,
        "target": entry.target,
        "changes": entry.changes,
    }


def usage_line(usage: UsageSums, group: Mapping[str, str]) -> UsageLine:
    """Return a sum with the values of its group."""
    figures: UsageLine = {
        "requests": usage.requests,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "cost": usage.spend,
        "gpu_seconds": usage.gpu_us / 1e6,
        "kv_block_seconds": usage.kv_block_ms / 1e3,
    }
    return cast(UsageLine, {**group, **figures})  # the keys of `group` are the ledger's group names


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)
