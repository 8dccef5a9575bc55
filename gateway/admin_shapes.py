"""The JSON shapes that the admin API answers with, as OpenAPI shows them. Times are Unix seconds."""

from typing import Generic, Literal, TypeVar

from typing_extensions import TypedDict  # pydantic reads its own kind only, before Python 3.12

T = TypeVar("T")


class Page(TypedDict, Generic[T]):
    """One part of a list."""

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
    limits: dict[str, int]
    limits_by: list[LimitsByView]
    shadow: list[str]
    reserve: str
    preemption: str
    share_group: str
    state: str
    created_at: float
    version: int


class ScopesView(TypedDict):
    """What a key may be used for; null: all that its tenant may."""

    models: list[str] | None
    lanes: list[str] | None
    endpoints: list[str] | None
    cidrs: list[str] | None


class KeyView(TypedDict):
    """One key, without its secret."""

    id: str
    tenant: str
    name: str
    state: Literal["active", "revoked"]
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    """To the minute; null: never."""
    limits: dict[str, int]
    scopes: ScopesView
    version: int


class NewKeyView(KeyView):
    """A key just made: the only time that the whole of it is shown."""

    key: str


class Deleted(TypedDict):
    """What is no more."""

    id: str
    deleted: Literal[True]


class LimitView(TypedDict):
    """One limit as it stands."""

    limit: int
    used: int
    reserved: int
    remaining: int
    resets_at: float | None
    scope: Literal["tenant", "key", "model_lane", "parent"]
    shadow: bool
    """Counted and told, never refused."""


class QuotaView(TypedDict):
    """Every limit that is set."""

    limits: dict[str, LimitView]


class UsageLine(TypedDict, total=False):
    """A sum over settled requests, and the group that it is of."""

    lane: str
    model: str
    key: str
    day: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class UsageView(TypedDict):
    """Usage by group and in all."""

    data: list[UsageLine]
    total: UsageLine


class WorkerView(TypedDict):
    """One worker that is alive, and how full it is."""

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
    """What a further token of a stream takes that is alone there; 0 while that was not measured."""
    prefill_tokens_per_s: float


class LaneView(TypedDict):
    """One lane over all models and workers."""

    lane: str
    queued: int
    oldest_wait_ms: float
    running: int
    preempted: int
    tokens_per_s: float
    ttft_target_ms: float
    tpot_target_ms: float
    """Where the target fits the machine, that of the slowest worker."""


class LimitBlockView(TypedDict):
    """The limit that is the cause."""

    name: str
    scope: str
    limit: int
    used: int
    reserved: int
    requested: int
    resets_at: float | None


class ExplainView(TypedDict):
    """What would become of a request that came now."""

    admitted: bool
    code: str | None
    """As the refusal would say it; null where it would be admitted."""
    message: str | None
    limit: LimitBlockView | None
    retry_after_s: float | None
    """By when it would fit at the latest; null where that is not known, or never."""
    expected_wait_ms: float | None
    """Until the first token; null where it is refused at the door, or nothing was measured yet."""


class AuditView(TypedDict):
    """One change that somebody made."""

    id: str
    at: float
    actor: str
    address: str
    """Where the call came from, as this gateway sees it."""
    action: str
    target: str
    changes: dict[str, object]
