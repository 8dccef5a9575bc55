"""Request bodies and queries of the admin API, validated field by field and published in OpenAPI.

Rules that need more than one field or outside knowledge (time zones, networks, a default lane among the lanes) are in
`quotas`."""

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from fairlane.common.views import about
from fairlane.gateway.dialects.openai.request_bodies import MAX_DEADLINE_MS
from fairlane.gateway.insight.request_records.record import State
from fairlane.gateway.insight.request_records.search import AFTER
from fairlane.quotas.api_keys import ENDPOINT, LONGEST_OVERLAP_S, SHA256
from fairlane.quotas.field_checks import LONGEST_LIST, LONGEST_TEXT
from fairlane.quotas.limits import LARGEST, LARGEST_LIMITS_BY, LIMIT_NAMES
from fairlane.quotas.prices import LARGEST_PRICE, MOST_ROWS
from fairlane.quotas.store import LARGEST_ASK
from fairlane.quotas.tenants import LEAST_WEIGHT, MOST_WEIGHT, TENANT_ID

PAGE = 100
LARGEST_PAGE = 1_000


def shown(**schema: Any) -> FieldInfo:  # noqa: ANN401 - any JSON
    """Return a field with schema constraints that are only documented here: `quotas` enforces them and reports
    their errors."""
    return cast(FieldInfo, Field(json_schema_extra=schema))


def optional(text: str, **rules: Any) -> Any:  # noqa: ANN401 - as pydantic's own function
    """Return the default of a field that may be null or absent."""
    return Field(None, description=text, **rules)


# The part that a pattern can express; other unprintable characters are refused later.
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*$"
_DATE = "[1-9][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_HOUR}(:[0-5][0-9]([.][0-9]{{1,6}})?)?(Z|[+-]{_HOUR})"
RFC_3339 = f"^{_DATE}T{_TIME}$"
# A date, RFC 3339 with a zone, or Unix seconds.
MOMENT = f"^({_DATE}(T{_TIME})?|[0-9]{{1,11}}([.][0-9]*)?|[.][0-9]+)$"
_GROUP = "(lane|model|key|day)"
GROUPS = f"^({_GROUP}(,{_GROUP}){{0,3}})?$"
_COST_GROUP = "(lane|model|key)"
COST_GROUPS = f"^({_COST_GROUP}(,{_COST_GROUP}){{0,2}})?$"

Text = Annotated[str, Field(max_length=LONGEST_TEXT), shown(pattern=PRINTABLE)]
# A search term, which is never stored.
Word = Annotated[str, Field(max_length=LONGEST_TEXT)]
TenantId = Annotated[str, Field(max_length=LONGEST_TEXT), shown(pattern=TENANT_ID.pattern, maxLength=63)]
Moment = Annotated[str, Field(max_length=LONGEST_TEXT), shown(pattern=MOMENT)]
EpochS = Annotated[float, Field(allow_inf_nan=False), shown(exclusiveMinimum=0, exclusiveMaximum=1e11)]
Expiry = EpochS | Annotated[str, Field(max_length=LONGEST_TEXT), shown(pattern=RFC_3339)]
Texts = Annotated[list[Text], Field(max_length=LONGEST_LIST, fail_fast=True)]
Lane = Literal["latency", "throughput"]
Figure = Annotated[int, Field(ge=0, le=LARGEST)]
Real = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[Real, shown(minimum=LEAST_WEIGHT, maximum=MOST_WEIGHT)]
# Python unpacks the tuple; mypy does not.
LimitName = Literal[LIMIT_NAMES]  # type: ignore[valid-type]
Price = Annotated[int, Field(ge=0, le=LARGEST_PRICE)]


class _Input(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class Nothing(_Input):
    """An empty object."""


class LimitsBody(_Input):
    """Limits by name; null or absent: no limit."""

    requests_per_minute: Figure | None = optional("Requests in any 60 seconds")
    tokens_per_minute: Figure | None = optional("Prompt and output tokens in any 60 seconds")
    input_tokens_per_minute: Figure | None = optional("Prompt tokens in any 60 seconds")
    output_tokens_per_minute: Figure | None = optional("Output tokens in any 60 seconds")
    tokens_per_day: Figure | None = optional("Prompt and output tokens of a calendar day")
    tokens_per_month: Figure | None = optional("Prompt and output tokens of a calendar month")
    concurrent_requests: Figure | None = optional("Requests that run or wait at the same time")
    queued_requests: Figure | None = optional("Requests that wait at the same time")
    max_prompt_tokens: Figure | None = optional("Prompt tokens of one request")
    max_output_tokens: Figure | None = optional("Output tokens of one request, all choices together")
    spend_per_day: Figure | None = optional("Spend of a calendar day, in nano-units (billionths) of the currency")
    spend_per_month: Figure | None = optional("Spend of a calendar month, in nano-units (billionths) of the currency")
    enqueued_batch_tokens: Figure | None = optional("Estimated tokens of the unfinished lines of open batches")


class LimitsByBody(_Input):
    """Limits on a tenant's use of one model, one lane, or one model in one lane."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["model"]}, {"required": ["lane"]}]})

    model: Text | None = optional("null or absent: any", min_length=1)
    lane: Lane | None = optional("null or absent: any; `model` or `lane` must be named")
    limits: Annotated[LimitsBody, about("Limits by name")]


class QuotaBody(_Input):
    """Limits under `limits`, or directly by name if at least one is named."""

    limits: Annotated[LimitsBody, about("Limits by name")]

    @model_validator(mode="before")
    @classmethod
    def _wrap(cls, given: object) -> object:
        return {"limits": given} if isinstance(given, dict) and given and "limits" not in given else given


class TenantChange(_Input):
    """A change to a tenant. Null resets a field to its default; limits are merged."""

    name: Text | None = optional("Name")
    parent: TenantId | None = optional("The parent tenant, whose limits apply too; cannot be changed later")
    timezone: Text | None = optional("IANA name, such as Europe/Berlin")
    weight: Weight | None = optional("Scheduling weight relative to other tenants")
    default_lane: Lane | None = optional("The lane of requests that name none")
    lanes: Annotated[list[Lane], Field(min_length=1, fail_fast=True)] | None = optional("Lanes that may be used")
    models: Texts | None = optional("Models that the tenant may use; null: all")
    model_aliases: dict[Text, Text] | None = optional(
        "Alternative model names, each mapped to the model's own name", max_length=LONGEST_LIST
    )
    limits: LimitsBody | None = optional("Limits by name")
    limits_by: list[LimitsByBody] | None = optional(
        "Limits of one model, one lane or both, in addition to `limits`; a change replaces all of them",
        max_length=LARGEST_LIMITS_BY,
        fail_fast=True,
    )
    shadow: Annotated[list[LimitName], Field(fail_fast=True)] | None = optional("Limits that are counted, not enforced")
    reserve: Literal["progressive", "full"] | None = optional(
        "`progressive`: output tokens are reserved in steps; `full`: all at the start"
    )
    preemption: Literal["exact", "fast"] | None = optional(
        "`exact`: preempted choices continue with the same tokens; `fast`: in the cheapest way"
    )
    unknown_fields: Literal["ignore", "refuse"] | None = optional(
        "Fields of its requests that are not known: ignored, or refused; null: as the deployment does it"
    )
    self_service: Literal["none", "keys"] | None = optional(
        "`keys`: keys that an operator made may make, rotate and revoke keys of the tenant; null: `none`"
    )
    share_group: Text | None = optional("Tenants of one group reuse each other's cached prompts; null: not shared")


class TenantBody(TenantChange):
    """A new tenant."""

    id: Annotated[TenantId, about("The tenant's permanent id")]


class ScopesBody(_Input):
    """The permitted uses of a key; null or absent: everything that is permitted to its tenant."""

    models: Texts | None = optional("Models that may be used; null: all")
    lanes: Annotated[list[Lane], Field(fail_fast=True)] | None = optional(
        "Lanes that the key may use; null or absent: all of its tenant's"
    )
    endpoints: list[Annotated[Text, shown(pattern=ENDPOINT.pattern)]] | None = optional(
        "Paths such as /v1/chat/completions, each including all paths below it", max_length=LONGEST_LIST, fail_fast=True
    )
    cidrs: Texts | None = optional("Networks such as 10.0.0.0/8")
    act_as: list[TenantId] | None = optional(
        "Tenants that a trusted proxy may act as, named in a header; null or absent: none",
        max_length=LONGEST_LIST,
        fail_fast=True,
    )


class KeyChange(_Input):
    """A change to a key. Null resets a field to its default; limits are merged, scopes are replaced as a whole."""

    name: Text | None = optional("Name")
    expires_at: Expiry | None = optional("Unix seconds, or RFC 3339 with a zone; null: never")
    limits: LimitsBody | None = optional("Limits by name")
    scopes: ScopesBody | None = optional("What the key may be used for")


class OwnKeyBody(KeyChange):
    """A new key of the calling key's tenant."""

    name: Annotated[Text, about("Name")]


class KeyBody(OwnKeyBody):
    """A new key."""

    sha256: Annotated[str | None, shown(pattern=SHA256.pattern)] = optional(
        "SHA-256 of an existing `sk-…` key of other software, to import it; null or absent: a new key"
    )


class PriceBody(_Input):
    """Prices of a model's tokens in a lane, in nano-units of the currency per token: thousandths per million tokens."""

    model: Text = Field("*", min_length=1, description="Name of a model; `*`: any")
    lane: Literal["latency", "throughput", "*"] = Field("*", description="`*`: any")
    input: Annotated[Price, about("Price of a prompt token")]
    cached_input: Price | None = optional("Price of a cached prompt token, at most `input`; null or absent: `input`")
    output: Annotated[Price, about("Price of an output token")]


class PricesBody(_Input):
    """The whole price list. The most specific row applies: model and lane, then model, then lane, then neither."""

    prices: Annotated[
        list[PriceBody],
        Field(max_length=MOST_ROWS, fail_fast=True),
        about("The most specific row applies: model and lane, model, lane, neither"),
    ]


class RotateBody(_Input):
    """The validity of the old key."""

    overlap_s: Annotated[Real, shown(minimum=0, maximum=LONGEST_OVERLAP_S)] = Field(
        0.0, description="Seconds for which the old key stays valid; absent: 0"
    )


class TokenBody(_Input):
    """A new operator token."""

    name: Annotated[Text, Field(min_length=1, description="A display name, which the audit log shows")]
    role: Annotated[
        Literal["viewer", "operator", "owner"],
        about("`viewer`: read; `operator`: also change limits and keys, drain, suspend; `owner`: everything"),
    ]
    expires_at: Expiry | None = optional("Unix seconds or RFC 3339; null or absent: never")


class ExplainBody(_Input):
    """The sizes of a hypothetical request."""

    prompt_tokens: Annotated[int, Field(ge=0, le=LARGEST_ASK), about("Prompt tokens")]
    max_output_tokens: Annotated[int, Field(ge=1, le=LARGEST_ASK), about("Requested output tokens")]
    lane: Annotated[Lane, about("`latency` or `throughput`")]
    model: Word | None = optional("null or absent: any model that the tenant may use")
    deadline_ms: Annotated[Real, Field(gt=0, le=MAX_DEADLINE_MS)] | None = optional(
        "Milliseconds from arrival to the last token; a request that cannot meet it is refused. Absent: none"
    )


class SimulationBody(_Input):
    """A simulation: the trace, the workers that serve it, and settings that the trace does not contain."""

    trace: Annotated[Word, about("Name of a trace, as listed")]
    loads: list[Annotated[Real, Field(gt=0, le=10_000)]] = Field(
        [1.0],
        min_length=1,
        max_length=5,
        fail_fast=True,
        description="Speed-up factors over the recorded arrival times, one run for each; absent: 1",
    )
    workers: int | None = optional("Simulated workers; null or absent: as many as are live, at least 1", ge=1, le=1_000)
    hardware: Word | None = optional("A calibration, such as h100-8b; null or absent: as measured by a live worker")
    start_s: Real = Field(0.0, ge=0, le=1e9, description="Seconds of the trace to skip; absent: 0")
    duration_s: Real | None = optional("Seconds of the trace to simulate then; null or absent: the rest", gt=0, le=1e9)
    bad_rows: Literal["skip", "fail"] = Field("skip", description="Whether to skip invalid rows or refuse the trace")
    tenants: int = Field(8, ge=1, le=1_000, description="Number of tenants if the trace names none")
    zipf: Real = Field(1.0, ge=0, le=10, description="Zipf exponent of shares if the trace names no tenants; 0: equal")
    latency_share: Real = Field(0.3, ge=0, le=1, description="Share of the latency lane if the trace names no lanes")
    seed: int = Field(0, ge=0, le=2**31, description="Seed of the random assignment of tenants and lanes")


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class PageQuery(_Query):
    """The page of a list."""

    limit: int = Field(PAGE, ge=1, le=LARGEST_PAGE, description="Maximum number of items of the page")
    after: Word | None = optional("`last_id` of the previous page")


class TenantsQuery(PageQuery):
    """The page of a list of tenants, and the fields to include."""

    quota: bool = Field(False, description="Include each tenant's `quota` where it can be read")


class LanesQuery(PageQuery):
    """The page of a list of lanes, of all models or of one."""

    model: Word | None = optional("Only work for this model; absent: for all")


class TraceContentQuery(_Query):
    """The part of a trace's bytes to return."""

    offset: int = Field(0, ge=0, le=2**53, description="Bytes to skip at the beginning")


class HistoryQuery(_Query):
    """The part of the history to return."""

    span: Literal["15m", "day", "month"] = Field("15m", description="How far it goes back, without `from`")
    first: float | None = optional(
        "Unix seconds at which it begins, at most 31 days before its end; absent: see `span`",
        alias="from",
        ge=0,
        le=1e11,
        allow_inf_nan=False,
    )
    lane: Lane | None = optional("Only this lane's figures; absent: all lanes")
    tenant: Word | None = optional("Include this tenant's figures; absent: none")
    until: float | None = optional("Unix seconds at which it ends; absent: now", ge=0, le=1e11, allow_inf_nan=False)


class LiveQuery(_Query):
    """The events to receive."""

    kv: bool = Field(True, description="Also send the map of KV blocks, as `kv` events")


class SearchQuery(_Query):
    """The text to search for."""

    q: Annotated[str, Field(max_length=200)] = Field(description="An id, or a part of a name; empty finds nothing")


class OpenBatchesQuery(PageQuery):
    """The page of a list of open batches, by the end of their windows."""

    tenant: Word | None = optional("Only this tenant's; absent: all")
    after: str | None = optional("`last_id` of the previous page", pattern=r"^[0-9]{12}:batch_[0-9a-f]{24}$")


class RequestsQuery(PageQuery):
    """A filter and an order for running and recently ended requests."""

    tenant: Word | None = optional("Only this tenant's; absent: all")
    lane: Lane | None = optional("Only requests in this lane")
    state: State | None = optional("Only in this state")
    outcome: Literal["rejected", "finished", "cancelled", "expired", "unavailable", "failed"] | None = optional(
        "Only requests with this outcome"
    )
    slowest: Literal["ttft", "total", "queue"] | None = optional(
        "Sort by time to first token, total time or queue time, longest first"
    )
    after: str | None = optional("`last_id` of the previous page", pattern=AFTER)


class OfIncarnation(_Query):
    """The ledger to read, if several tenants had the id one after another."""

    incarnation: str | None = optional(
        "A deleted tenant of this id, from `earlier` of the usage; absent: the latest tenant",
        pattern=r"^([0-9a-f]{12})?$",
    )


class DaysQuery(_Query):
    """The days of the ledger, in the tenant's zone, and the fields to group by."""

    first: Moment | None = optional("Date, RFC 3339 or Unix seconds; absent: 30 days before `to`", alias="from")
    last: Moment | None = optional("The same format, inclusive; absent: today", alias="to")
    group_by: Annotated[Word, shown(pattern=GROUPS)] = Field(
        "", description="A comma-separated list of lane, model, key and day, each at most once"
    )


class UsageQuery(DaysQuery, OfIncarnation):
    """The tenant and the days of the ledger, in the tenant's zone, and the fields to group by."""


class ChargebackQuery(_Query):
    """The month to report, in each tenant's own zone, and the fields to group by."""

    month: str | None = optional(
        "Year and month, such as 2026-11; absent: the previous month, UTC", pattern=r"^[1-9][0-9]{3}-(0[1-9]|1[0-2])$"
    )
    group_by: Annotated[Word, shown(pattern=COST_GROUPS)] = Field(
        "", description="A comma-separated list of lane, model and key, each at most once"
    )
    format: Literal["csv", "json"] = Field("json", description="Response format")


class LedgerQuery(OfIncarnation):
    """The ledger entries to export, and their format."""

    first: Moment | None = optional(
        "Date in the tenant's zone, RFC 3339 or Unix seconds; absent: from the first entry", alias="from"
    )
    last: Moment | None = optional("The same format, inclusive; absent: now", alias="to")
    format: Literal["csv", "jsonl"] = Field("jsonl", description="One line for each entry in both formats")


class AuditQuery(PageQuery):
    """The entries of the audit log to return, newest first."""

    actor: Word | None = optional("Only by operators whose name contains this")
    action: Word | None = optional("Only this action, or group such as `tenant`")
    target: Word | None = optional("Only this object; a tenant includes its keys")
    first: Moment | None = optional("Date (UTC), RFC 3339 or Unix seconds; absent: all that is kept", alias="from")
    last: Moment | None = optional("The same format, inclusive; absent: now", alias="to")
    format: Literal["json", "csv", "jsonl"] = Field(
        "json", description="`csv` and `jsonl` export all that match, without pages"
    )
    after: str | None = optional("`last_id` of the previous page", pattern=r"^\d{1,15}-\d{1,15}$")
