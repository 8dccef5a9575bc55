"""What the admin API reads: bodies and queries, field by field, as they are checked and as OpenAPI shows them.

Rules that need more than the field itself (zones, networks, a default lane among the lanes) are those of `quotas`.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from fairlane.gateway.openai.wire import MAX_DEADLINE_MS
from fairlane.gateway.records.search import AFTER
from fairlane.quotas.api_keys import ENDPOINT, LONGEST_OVERLAP_S, SHA256
from fairlane.quotas.field_checks import LONGEST_LIST, LONGEST_TEXT
from fairlane.quotas.limits import LARGEST, LARGEST_LIMITS_BY
from fairlane.quotas.prices import LARGEST_PRICE, MOST_ROWS
from fairlane.quotas.store import LARGEST_ASK
from fairlane.quotas.tenants import LEAST_WEIGHT, MOST_WEIGHT, TENANT_ID

PAGE = 100
LARGEST_PAGE = 1_000


def shown(**schema: str | float) -> FieldInfo:
    """What the document says of a field, beside what is checked here: a rule of `quotas`, which names its own."""
    found: FieldInfo = Field(json_schema_extra=dict(schema))
    return found


PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""As far as a pattern can say it: other characters that do not print are refused too."""
_DATE = "[1-9][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_HOUR}(:[0-5][0-9]([.][0-9]{{1,6}})?)?(Z|[+-]{_HOUR})"
RFC_3339 = f"^{_DATE}T{_TIME}$"
MOMENT = f"^({_DATE}(T{_TIME})?|[0-9]{{1,11}}([.][0-9]*)?|[.][0-9]+)$"
"""A date, RFC 3339 with a zone, or Unix seconds."""
_GROUP = "(lane|model|key|day)"
GROUPS = f"^({_GROUP}(,{_GROUP}){{0,3}})?$"
_COST_GROUP = "(lane|model|key)"
COST_GROUPS = f"^({_COST_GROUP}(,{_COST_GROUP}){{0,2}})?$"

Text = Annotated[str, Field(max_length=LONGEST_TEXT), shown(pattern=PRINTABLE)]
Word = Annotated[str, Field(max_length=LONGEST_TEXT)]
"""What is looked for and never kept."""
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
    """No field at all."""


class LimitsBody(_Input):
    """Limits by name; null or absent is none."""

    requests_per_minute: Figure | None = None
    tokens_per_minute: Figure | None = None
    input_tokens_per_minute: Figure | None = None
    output_tokens_per_minute: Figure | None = None
    tokens_per_day: Figure | None = None
    tokens_per_month: Figure | None = None
    concurrent_requests: Figure | None = None
    queued_requests: Figure | None = None
    max_prompt_tokens: Figure | None = None
    max_output_tokens: Figure | None = None
    spend_per_day: Annotated[
        Figure | None, Field(description="Money of a calendar day, in nano-units (billionths) of the currency")
    ] = None
    spend_per_month: Annotated[
        Figure | None, Field(description="Money of a calendar month, in nano-units (billionths) of the currency")
    ] = None
    enqueued_batch_tokens: Annotated[
        Figure | None,
        Field(description="About what the lines of open batches still come to, prompts and output, at most"),
    ] = None


class LimitsByBody(_Input):
    """Limits of a tenant's work with one model, in one lane, or with both."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["model"]}, {"required": ["lane"]}]})

    model: Annotated[Text | None, Field(min_length=1, description="null or absent: any")] = None
    lane: Annotated[Lane | None, Field(description="null or absent: any; one of the two must be named")] = None
    limits: LimitsBody


class QuotaBody(_Input):
    """Limits under `limits`. Their names themselves are taken too, where at least one is named."""

    limits: LimitsBody

    @model_validator(mode="before")
    @classmethod
    def _wrap(cls, given: object) -> object:
        return {"limits": given} if isinstance(given, dict) and given and "limits" not in given else given


class TenantChange(_Input):
    """What can be changed of a tenant; in a change null is the default, and limits are merged."""

    name: Text | None = None
    parent: Annotated[
        TenantId | None, Field(description="The tenant above, whose limits its work must fit too; never changes")
    ] = None
    timezone: Annotated[Text | None, Field(description="IANA name, such as Europe/Berlin")] = None
    weight: Annotated[Weight | None, Field(description="Share of the work against other tenants")] = None
    default_lane: Lane | None = None
    lanes: Annotated[list[Lane], Field(min_length=1, fail_fast=True)] | None = None
    models: Annotated[Texts | None, Field(description="Names it may use; null: all")] = None
    model_aliases: Annotated[
        dict[Text, Text] | None,
        Field(max_length=LONGEST_LIST, description="Other names for models, each with the model's own"),
    ] = None
    limits: LimitsBody | None = None
    limits_by: Annotated[
        list[LimitsByBody] | None,
        Field(
            max_length=LARGEST_LIMITS_BY,
            description="Limits beside the others; a change replaces all of them",
            fail_fast=True,
        ),
    ] = None
    shadow: Annotated[
        Annotated[list[LimitName], Field(fail_fast=True)] | None,
        Field(description="Limits that are counted, never refused"),
    ] = None
    reserve: Literal["progressive", "full"] | None = None
    preemption: Literal["exact", "fast"] | None = None
    share_group: Annotated[
        Text | None, Field(description="Tenants of one group reuse each other's cached prompts; null: none does")
    ] = None


class TenantBody(TenantChange):
    """A new tenant."""

    id: TenantId


class ScopesBody(_Input):
    """What a key may be used for; null or absent: all that its tenant may."""

    models: Texts | None = None
    lanes: Annotated[list[Lane], Field(fail_fast=True)] | None = None
    endpoints: Annotated[
        list[Annotated[Text, shown(pattern=ENDPOINT.pattern)]] | None,
        Field(
            max_length=LONGEST_LIST,
            description="Paths such as /v1/chat/completions, each with all below it",
            fail_fast=True,
        ),
    ] = None
    cidrs: Annotated[Texts | None, Field(description="Networks such as 10.0.0.0/8")] = None
    act_as: Annotated[
        list[TenantId] | None,
        Field(
            max_length=LONGEST_LIST,
            description="Tenants that a trusted gateway in front may name in a header; null or absent: none",
            fail_fast=True,
        ),
    ] = None


class KeyBody(_Input):
    """A new key."""

    name: Text
    expires_at: Annotated[Expiry | None, Field(description="Unix seconds, or RFC 3339 with a zone; null: never")] = None
    limits: LimitsBody | None = None
    scopes: ScopesBody | None = None
    sha256: Annotated[
        str | None,
        Field(description="Of a key of other software, `sk-…`, which goes on working here; null or absent: a new key"),
        shown(pattern=SHA256.pattern),
    ] = None


class KeyChange(_Input):
    """What can be changed of a key; null is the default, limits are merged, scopes are replaced whole."""

    name: Text | None = None
    expires_at: Annotated[Expiry | None, Field(description="Unix seconds, or RFC 3339 with a zone; null: never")] = None
    limits: LimitsBody | None = None
    scopes: ScopesBody | None = None


class PriceBody(_Input):
    """What a model's tokens cost in a lane, in nano-units of the currency per token: thousandths per million tokens."""

    model: Annotated[Text, Field(min_length=1, description="Name of a model; `*`: any")] = "*"
    lane: Annotated[Literal["latency", "throughput", "*"], Field(description="`*`: any")] = "*"
    input: Annotated[Price, Field(description="Of a prompt token")]
    cached_input: Annotated[
        Price | None, Field(description="Of a prompt token that a cache held, at most `input`; null or absent: `input`")
    ] = None
    output: Annotated[Price, Field(description="Of an output token")]


class PricesBody(_Input):
    """The whole price list. Of the rows that fit, model and lane go before model, that before lane, that before any."""

    prices: Annotated[list[PriceBody], Field(max_length=MOST_ROWS, fail_fast=True)]


class RotateBody(_Input):
    """How the old key ends."""

    overlap_s: Annotated[
        Real,
        Field(description="How long the old key goes on working, in seconds; absent: not at all"),
        shown(minimum=0, maximum=LONGEST_OVERLAP_S),
    ] = 0.0


class TokenBody(_Input):
    """A new token for operators."""

    name: Annotated[Text, Field(min_length=1, description="A name for people, which the audit log tells")]
    role: Annotated[
        Literal["viewer", "operator", "owner"],
        Field(description="`viewer` reads; `operator` also changes limits and keys, drains and suspends; `owner`: all"),
    ]
    expires_at: Annotated[Expiry | None, Field(description="Unix seconds or RFC 3339; null or absent: never")] = None


class ExplainBody(_Input):
    """The sizes of a request that is not sent."""

    prompt_tokens: Annotated[int, Field(ge=0, le=LARGEST_ASK)]
    max_output_tokens: Annotated[int, Field(ge=1, le=LARGEST_ASK)]
    lane: Lane
    model: Annotated[Word | None, Field(description="null or absent: any that the tenant may use")] = None
    deadline_ms: Annotated[Real, Field(gt=0, le=MAX_DEADLINE_MS)] | None = None


class SimulationBody(_Input):
    """What to simulate: a trace, the workers that serve it, and what the trace itself does not say."""

    trace: Annotated[Word, Field(description="Name of a trace, as the list has it")]
    loads: Annotated[
        list[Annotated[Real, Field(gt=0, le=10_000)]],
        Field(
            min_length=1,
            max_length=5,
            description="How many times as fast as recorded, each a run; absent: 1",
            fail_fast=True,
        ),
    ] = [1.0]
    workers: Annotated[
        int | None, Field(ge=1, le=1_000, description="null or absent: as many as are alive now, at least one")
    ] = None
    hardware: Annotated[
        Word | None,
        Field(description="A worker by name, such as h100-8b; null or absent: as a worker that is alive has measured"),
    ] = None
    start_s: Annotated[Real, Field(ge=0, le=1e9, description="Seconds of the trace to leave out; absent: none")] = 0.0
    duration_s: Annotated[
        Real | None, Field(gt=0, le=1e9, description="Seconds to play from there; null or absent: all")
    ] = None
    bad_rows: Annotated[
        Literal["skip", "fail"], Field(description="Rows that cannot be used: leave them out, or refuse the trace")
    ] = "skip"
    tenants: Annotated[int, Field(ge=1, le=1_000, description="Where the trace names none: how many ask")] = 8
    zipf: Annotated[Real, Field(ge=0, le=10, description="The exponent of their shares; 0: all ask alike")] = 1.0
    latency_share: Annotated[
        Real, Field(ge=0, le=1, description="Where the trace names no lanes: part of the requests in the latency lane")
    ] = 0.3
    seed: Annotated[int, Field(ge=0, le=2**31, description="Of tenants and lanes that are dealt out")] = 0


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class PageQuery(_Query):
    """Which part of a list."""

    limit: Annotated[int, Field(ge=1, le=LARGEST_PAGE, description="Items of one page at most")] = PAGE
    after: Annotated[Word | None, Field(description="`last_id` of the page before")] = None


class TenantsQuery(PageQuery):
    """And what of them."""

    quota: Annotated[
        bool, Field(description="With each one's `quota`, as its own call shows it, where it is known")
    ] = False


class LanesQuery(PageQuery):
    """Of which model."""

    model: Annotated[Word | None, Field(description="What waits and runs for this one; absent: for all")] = None


class TraceContentQuery(_Query):
    """Which part of a trace's bytes."""

    offset: Annotated[int, Field(ge=0, le=2**53, description="Bytes to leave out at the beginning")] = 0


class HistoryQuery(_Query):
    """Which part of the history."""

    span: Annotated[Literal["15m", "day", "month"], Field(description="How far it goes back")] = "15m"
    lane: Annotated[Lane | None, Field(description="Only this lane's figures; absent: of all")] = None
    tenant: Annotated[Word | None, Field(description="This tenant's figures too; absent: of none")] = None
    until: Annotated[
        float | None,
        Field(ge=0, le=1e11, allow_inf_nan=False, description="Unix seconds at which it ends; absent: now"),
    ] = None


class LiveQuery(_Query):
    """What to watch."""

    kv: Annotated[bool, Field(description="The map of KV blocks too, as events `kv`")] = True


class OpenBatchesQuery(PageQuery):
    """Which open batches, by the end of their windows."""

    tenant: Annotated[Word | None, Field(description="Only this tenant's; absent: all")] = None
    after: Annotated[
        str | None, Field(pattern=r"^[0-9]{12}:batch_[0-9a-f]{24}$", description="`last_id` of the page before")
    ] = None


class RequestsQuery(PageQuery):
    """Which requests, those that run and those that ended of late, and in which order."""

    tenant: Annotated[Word | None, Field(description="Only this tenant's; absent: all")] = None
    lane: Annotated[Lane | None, Field(description="Only of this lane")] = None
    state: Annotated[
        Literal["queued", "running", "preempted", "paused", "lost", "ended"] | None,
        Field(description="Only those in this state"),
    ] = None
    outcome: Annotated[
        Literal["rejected", "finished", "cancelled", "expired", "unavailable", "failed"] | None,
        Field(description="Only those that ended so"),
    ] = None
    slowest: Annotated[
        Literal["ttft", "total", "queue"] | None,
        Field(description="Those first that took longest to their first token, in all, or in the queue"),
    ] = None
    after: Annotated[str | None, Field(pattern=AFTER, description="`last_id` of the page before")] = None


class OfIncarnation(_Query):
    """Whose ledger, where several tenants had the id one after another."""

    incarnation: Annotated[
        str | None,
        Field(
            pattern=r"^([0-9a-f]{12})?$",
            description="One of `earlier` of the tenant's usage: a deleted tenant of this id; absent: the last one",
        ),
    ] = None


class UsageQuery(OfIncarnation):
    """Which days of the ledger, in the tenant's zone, and by what to sum."""

    first: Annotated[
        Moment | None, Field(alias="from", description="Date, RFC 3339 or Unix seconds; absent: 30 days before `to`")
    ] = None
    last: Annotated[Moment | None, Field(alias="to", description="The same, included; absent: today")] = None
    group_by: Annotated[
        Word, Field(description="Of lane, model, key and day, each once, with commas between"), shown(pattern=GROUPS)
    ] = ""


class ChargebackQuery(_Query):
    """Which month of every tenant's, each in its own zone, and by what to sum."""

    month: Annotated[
        str | None,
        Field(
            pattern=r"^[1-9][0-9]{3}-(0[1-9]|1[0-2])$", description="As 2026-11; absent: the one before this one, UTC"
        ),
    ] = None
    group_by: Annotated[
        Word, Field(description="Of lane, model and key, each once, with commas between"), shown(pattern=COST_GROUPS)
    ] = ""
    format: Annotated[Literal["csv", "json"], Field(description="How it is written")] = "json"


class LedgerQuery(OfIncarnation):
    """Which entries of the ledger, and how they are written."""

    first: Annotated[
        Moment | None,
        Field(alias="from", description="Date in the tenant's zone, RFC 3339 or Unix seconds; absent: all"),
    ] = None
    last: Annotated[Moment | None, Field(alias="to", description="The same, included; absent: now")] = None
    format: Annotated[Literal["csv", "jsonl"], Field(description="One line for each entry, either way")] = "jsonl"


class AuditQuery(PageQuery):
    """Which part of the audit log, newest first."""

    after: Annotated[str | None, Field(pattern=r"^\d{1,15}-\d{1,15}$", description="`last_id` of the page before")] = (
        None
    )
