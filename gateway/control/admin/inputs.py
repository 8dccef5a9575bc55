"""Request bodies and queries of the admin API, validated field by field and published in OpenAPI.

Rules that need more than one field or outside knowledge (time zones, networks, a default lane among the lanes) are in
`quotas`."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from fairlane.common.views import about
from fairlane.gateway.dialects.openai.wire import MAX_DEADLINE_MS
from fairlane.gateway.insight.request_records.search import AFTER
from fairlane.quotas.api_keys import ENDPOINT, LONGEST_OVERLAP_S, SHA256
from fairlane.quotas.field_checks import LONGEST_LIST, LONGEST_TEXT
from fairlane.quotas.limits import LARGEST, LARGEST_LIMITS_BY
from fairlane.quotas.prices import LARGEST_PRICE, MOST_ROWS
from fairlane.quotas.store import LARGEST_ASK
from fairlane.quotas.tenants import LEAST_WEIGHT, MOST_WEIGHT, TENANT_ID

PAGE = 100
LARGEST_PAGE = 1_000


def shown(**schema: str | float) -> FieldInfo:
    """Return a field with schema constraints that are only documented here: `quotas` enforces them and words their
    errors."""
    found: FieldInfo = Field(json_schema_extra=dict(schema))
    return found


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
LimitName = Literal[
    "requests_per_minute",
    "tokens_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "tokens_per_day",
    "tokens_per_month",
    "concurrent_requests",
    "queued_requests",
    "max_prompt_tokens",
    "max_output_tokens",
    "spend_per_day",
    "spend_per_month",
    "enqueued_batch_tokens",
]
Price = Annotated[int, Field(ge=0, le=LARGEST_PRICE)]


class _Input(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class Nothing(_Input):
    """An empty object."""


class LimitsBody(_Input):
    """Limits by name; null or absent: no limit."""

    requests_per_minute: Annotated[Figure | None, about("Requests in any 60 seconds")] = None
    tokens_per_minute: Annotated[Figure | None, about("Prompt and output tokens in any 60 seconds")] = None
    input_tokens_per_minute: Annotated[Figure | None, about("Prompt tokens in any 60 seconds")] = None
    output_tokens_per_minute: Annotated[Figure | None, about("Output tokens in any 60 seconds")] = None
    tokens_per_day: Annotated[Figure | None, about("Prompt and output tokens of a calendar day")] = None
    tokens_per_month: Annotated[Figure | None, about("Prompt and output tokens of a calendar month")] = None
    concurrent_requests: Annotated[Figure | None, about("Requests that run or wait at the same time")] = None
    queued_requests: Annotated[Figure | None, about("Requests that wait at the same time")] = None
    max_prompt_tokens: Annotated[Figure | None, about("Prompt tokens of one request")] = None
    max_output_tokens: Annotated[Figure | None, about("Output tokens of one request, all choices together")] = None
    spend_per_day: Annotated[
        Figure | None, about("Spend of a calendar day, in nano-units (billionths) of the currency")
    ] = None
    spend_per_month: Annotated[
        Figure | None, about("Spend of a calendar month, in nano-units (billionths) of the currency")
    ] = None
    enqueued_batch_tokens: Annotated[
        Figure | None, about("Estimated prompt and output tokens of the unfinished lines of open batches")
    ] = None


class LimitsByBody(_Input):
    """Limits on a tenant's use of one model, one lane, or one model in one lane."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["model"]}, {"required": ["lane"]}]})

    model: Annotated[Text | None, Field(min_length=1, description="null or absent: any")] = None
    lane: Annotated[Lane | None, about("null or absent: any; `model` or `lane` must be named")] = None
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

    name: Annotated[Text | None, about("Name")] = None
    parent: Annotated[TenantId | None, about("The parent tenant, whose limits apply too; cannot be changed later")] = (
        None
    )
    timezone: Annotated[Text | None, about("IANA name, such as Europe/Berlin")] = None
    weight: Annotated[Weight | None, about("Scheduling weight relative to other tenants")] = None
    default_lane: Annotated[Lane | None, about("The lane of requests that name none")] = None
    lanes: Annotated[
        Annotated[list[Lane], Field(min_length=1, fail_fast=True)] | None, about("Lanes that may be used")
    ] = None
    models: Annotated[Texts | None, about("Models that the tenant may use; null: all")] = None
    model_aliases: Annotated[
        dict[Text, Text] | None,
        Field(max_length=LONGEST_LIST, description="Alternative model names, each mapped to the model's own name"),
    ] = None
    limits: Annotated[LimitsBody | None, about("Limits by name")] = None
    limits_by: Annotated[
        list[LimitsByBody] | None,
        Field(
            max_length=LARGEST_LIMITS_BY,
            description="Limits of one model, one lane or both, in addition to `limits`; a change replaces all of them",
            fail_fast=True,
        ),
    ] = None
    shadow: Annotated[
        Annotated[list[LimitName], Field(fail_fast=True)] | None, about("Limits that are counted but not enforced")
    ] = None
    reserve: Annotated[
        Literal["progressive", "full"] | None,
        about("`progressive`: output tokens are reserved in steps; `full`: all at the start"),
    ] = None
    preemption: Annotated[
        Literal["exact", "fast"] | None,
        about("`exact`: preempted choices continue with the same tokens; `fast`: in the cheapest way"),
    ] = None
    share_group: Annotated[
        Text | None, about("Tenants of one group reuse each other's cached prompts; null: not shared")
    ] = None


class TenantBody(TenantChange):
    """A new tenant."""

    id: Annotated[TenantId, about("The tenant's permanent id")]


class ScopesBody(_Input):
    """The permitted uses of a key; null or absent: everything that its tenant may use."""

    models: Annotated[Texts | None, about("Models that may be used; null: all")] = None
    lanes: Annotated[
        Annotated[list[Lane], Field(fail_fast=True)] | None,
        about("Lanes that the key may use; null or absent: all of its tenant's"),
    ] = None
    endpoints: Annotated[
        list[Annotated[Text, shown(pattern=ENDPOINT.pattern)]] | None,
        Field(
            max_length=LONGEST_LIST,
            description="Paths such as /v1/chat/completions, each including all paths below it",
            fail_fast=True,
        ),
    ] = None
    cidrs: Annotated[Texts | None, about("Networks such as 10.0.0.0/8")] = None
    act_as: Annotated[
        list[TenantId] | None,
        Field(
            max_length=LONGEST_LIST,
            description="Tenants that a trusted proxy may act as, named in a header; null or absent: none",
            fail_fast=True,
        ),
    ] = None


class KeyBody(_Input):
    """A new key."""

    name: Annotated[Text, about("Name")]
    expires_at: Annotated[Expiry | None, about("Unix seconds, or RFC 3339 with a zone; null: never")] = None
    limits: Annotated[LimitsBody | None, about("Limits by name")] = None
    scopes: Annotated[ScopesBody | None, about("What the key may be used for")] = None
    sha256: Annotated[
        str | None,
        about("SHA-256 of an existing `sk-…` key of other software, to import it; null or absent: a new key"),
        shown(pattern=SHA256.pattern),
    ] = None


class KeyChange(_Input):
    """A change to a key. Null resets a field to its default; limits are merged, scopes are replaced as a whole."""

    name: Annotated[Text | None, about("Name")] = None
    expires_at: Annotated[Expiry | None, about("Unix seconds, or RFC 3339 with a zone; null: never")] = None
    limits: Annotated[LimitsBody | None, about("Limits by name")] = None
    scopes: Annotated[ScopesBody | None, about("What the key may be used for")] = None


class PriceBody(_Input):
    """Prices of a model's tokens in a lane, in nano-units of the currency per token: thousandths per million tokens."""

    model: Annotated[Text, Field(min_length=1, description="Name of a model; `*`: any")] = "*"
    lane: Annotated[Literal["latency", "throughput", "*"], about("`*`: any")] = "*"
    input: Annotated[Price, about("Price of a prompt token")]
    cached_input: Annotated[
        Price | None, about("Price of a cached prompt token, at most `input`; null or absent: `input`")
    ] = None
    output: Annotated[Price, about("Price of an output token")]


class PricesBody(_Input):
    """The whole price list. The most specific row applies: model and lane, then model, then lane, then neither."""

    prices: Annotated[
        list[PriceBody],
        Field(max_length=MOST_ROWS, fail_fast=True),
        about("The most specific row applies: model and lane, then model, then lane, then neither"),
    ]


class RotateBody(_Input):
    """The validity of the old key."""

    overlap_s: Annotated[
        Real,
        about("Seconds for which the old key stays valid; absent: 0"),
        shown(minimum=0, maximum=LONGEST_OVERLAP_S),
    ] = 0.0


class TokenBody(_Input):
    """A new operator token."""

    name: Annotated[Text, Field(min_length=1, description="A display name, which the audit log shows")]
    role: Annotated[
        Literal["viewer", "operator", "owner"],
        about("`viewer`: read; `operator`: also change limits and keys, drain, suspend; `owner`: everything"),
    ]
    expires_at: Annotated[Expiry | None, about("Unix seconds or RFC 3339; null or absent: never")] = None


class ExplainBody(_Input):
    """The sizes of a hypothetical request."""

    prompt_tokens: Annotated[int, Field(ge=0, le=LARGEST_ASK), about("Prompt tokens")]
    max_output_tokens: Annotated[int, Field(ge=1, le=LARGEST_ASK), about("Requested output tokens")]
    lane: Annotated[Lane, about("`latency` or `throughput`")]
    model: Annotated[Word | None, about("null or absent: any model that the tenant may use")] = None
    deadline_ms: Annotated[
        Annotated[Real, Field(gt=0, le=MAX_DEADLINE_MS)] | None,
        about("Milliseconds from arrival to the last token; a request that cannot meet it is refused. Absent: none"),
    ] = None


class SimulationBody(_Input):
    """A simulation: the trace, the workers that serve it, and settings that the trace does not contain."""

    trace: Annotated[Word, about("Name of a trace, as listed")]
    loads: Annotated[
        list[Annotated[Real, Field(gt=0, le=10_000)]],
        Field(
            min_length=1,
            max_length=5,
            description="Speed-up factors over the recorded arrival times, one run for each; absent: 1",
            fail_fast=True,
        ),
    ] = [1.0]
    workers: Annotated[
        int | None,
        Field(ge=1, le=1_000, description="Simulated workers; null or absent: as many as are live now, at least one"),
    ] = None
    hardware: Annotated[
        Word | None, about("A calibration by name, such as h100-8b; null or absent: as measured by a live worker")
    ] = None
    start_s: Annotated[Real, Field(ge=0, le=1e9, description="Seconds of the trace to skip; absent: 0")] = 0.0
    duration_s: Annotated[
        Real | None,
        Field(gt=0, le=1e9, description="Seconds of the trace to simulate after that; null or absent: the rest"),
    ] = None
    bad_rows: Annotated[
        Literal["skip", "fail"], about("What to do with invalid rows: skip them, or refuse the trace")
    ] = "skip"
    tenants: Annotated[int, Field(ge=1, le=1_000, description="Number of tenants if the trace names none")] = 8
    zipf: Annotated[
        Real,
        Field(ge=0, le=10, description="Zipf exponent of the tenants' shares if the trace names none; 0: equal shares"),
    ] = 1.0
    latency_share: Annotated[
        Real, Field(ge=0, le=1, description="Share of requests in the latency lane if the trace names no lanes")
    ] = 0.3
    seed: Annotated[int, Field(ge=0, le=2**31, description="Seed of the random assignment of tenants and lanes")] = 0


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class PageQuery(_Query):
    """The page of a list."""

    limit: Annotated[int, Field(ge=1, le=LARGEST_PAGE, description="Maximum number of items of the page")] = PAGE
    after: Annotated[Word | None, about("`last_id` of the previous page")] = None


class TenantsQuery(PageQuery):
    """The page of a list of tenants, and the fields to include."""

    quota: Annotated[bool, about("Include each tenant's `quota` where it can be read")] = False


class LanesQuery(PageQuery):
    """The page of a list of lanes, of all models or of one."""

    model: Annotated[Word | None, about("Only work for this model; absent: for all")] = None


class TraceContentQuery(_Query):
    """The part of a trace's bytes to return."""

    offset: Annotated[int, Field(ge=0, le=2**53, description="Bytes to skip at the beginning")] = 0


class HistoryQuery(_Query):
    """The part of the history to return."""

    span: Annotated[Literal["15m", "day", "month"], about("How far it goes back")] = "15m"
    lane: Annotated[Lane | None, about("Only this lane's figures; absent: all lanes")] = None
    tenant: Annotated[Word | None, about("Include this tenant's figures; absent: none")] = None
    until: Annotated[
        float | None,
        Field(ge=0, le=1e11, allow_inf_nan=False, description="Unix seconds at which it ends; absent: now"),
    ] = None


class LiveQuery(_Query):
    """The events to receive."""

    kv: Annotated[bool, about("Also send the map of KV blocks, as `kv` events")] = True


class OpenBatchesQuery(PageQuery):
    """The page of a list of open batches, by the end of their windows."""

    tenant: Annotated[Word | None, about("Only this tenant's; absent: all")] = None
    after: Annotated[
        str | None, Field(pattern=r"^[0-9]{12}:batch_[0-9a-f]{24}$", description="`last_id` of the previous page")
    ] = None


class RequestsQuery(PageQuery):
    """A filter and an order for running and recently ended requests."""

    tenant: Annotated[Word | None, about("Only this tenant's; absent: all")] = None
    lane: Annotated[Lane | None, about("Only requests in this lane")] = None
    state: Annotated[
        Literal["queued", "running", "preempted", "paused", "lost", "ended"] | None,
        about("Only requests in this state"),
    ] = None
    outcome: Annotated[
        Literal["rejected", "finished", "cancelled", "expired", "unavailable", "failed"] | None,
        about("Only requests with this outcome"),
    ] = None
    slowest: Annotated[
        Literal["ttft", "total", "queue"] | None,
        about("Sort by time to first token, total time or queue time, longest first"),
    ] = None
    after: Annotated[str | None, Field(pattern=AFTER, description="`last_id` of the previous page")] = None


class OfIncarnation(_Query):
    """The ledger to read, if several tenants had the id one after another."""

    incarnation: Annotated[
        str | None,
        Field(
            pattern=r"^([0-9a-f]{12})?$",
            description="A deleted tenant of this id, from `earlier` of the usage; absent: the latest tenant",
        ),
    ] = None


class UsageQuery(OfIncarnation):
    """The days of the ledger, in the tenant's zone, and the fields to group by."""

    first: Annotated[
        Moment | None, Field(alias="from", description="Date, RFC 3339 or Unix seconds; absent: 30 days before `to`")
    ] = None
    last: Annotated[Moment | None, Field(alias="to", description="The same format, inclusive; absent: today")] = None
    group_by: Annotated[
        Word,
        about("A comma-separated list of lane, model, key and day, each at most once"),
        shown(pattern=GROUPS),
    ] = ""


class ChargebackQuery(_Query):
    """The month to report, in each tenant's own zone, and the fields to group by."""

    month: Annotated[
        str | None,
        Field(
            pattern=r"^[1-9][0-9]{3}-(0[1-9]|1[0-2])$",
            description="Year and month, such as 2026-11; absent: the previous month, UTC",
        ),
    ] = None
    group_by: Annotated[
        Word,
        about("A comma-separated list of lane, model and key, each at most once"),
        shown(pattern=COST_GROUPS),
    ] = ""
    format: Annotated[Literal["csv", "json"], about("Response format")] = "json"


class LedgerQuery(OfIncarnation):
    """The ledger entries to export, and their format."""

    first: Annotated[
        Moment | None,
        Field(
            alias="from",
            description="Date in the tenant's zone, RFC 3339 or Unix seconds; absent: from the first entry",
        ),
    ] = None
    last: Annotated[Moment | None, Field(alias="to", description="The same format, inclusive; absent: now")] = None
    format: Annotated[Literal["csv", "jsonl"], about("One line for each entry in both formats")] = "jsonl"


class AuditQuery(PageQuery):
    """The page of the audit log, newest first."""

    after: Annotated[
        str | None, Field(pattern=r"^\d{1,15}-\d{1,15}$", description="`last_id` of the previous page")
    ] = None
