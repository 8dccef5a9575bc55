"""What the admin API reads: bodies and queries, field by field, as they are checked and as OpenAPI shows them.

Rules that need more than the field itself (zones, networks, a default lane among the lanes) are those of `quotas`.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fairlane.gateway.openai.wire import MAX_DEADLINE_MS
from fairlane.quotas.field_checks import LONGEST_LIST, LONGEST_TEXT
from fairlane.quotas.limits import LARGEST, LARGEST_LIMITS_BY
from fairlane.quotas.store import LARGEST_ASK

PAGE = 100
LARGEST_PAGE = 1_000

Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Texts = Annotated[list[Text], Field(max_length=LONGEST_LIST)]
Lane = Literal["latency", "throughput"]
Figure = Annotated[int, Field(ge=0, le=LARGEST)]
Real = Annotated[float, Field(allow_inf_nan=False)]
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
    "enqueued_batch_tokens",
]


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
    enqueued_batch_tokens: Annotated[
        Figure | None,
        Field(description="About what the lines of open batches still come to, prompts and output, at most"),
    ] = None


class LimitsByBody(_Input):
    """Limits of a tenant's work with one model, in one lane, or with both."""

    model: Annotated[Text | None, Field(min_length=1, description="null or absent: any")] = None
    lane: Annotated[Lane | None, Field(description="null or absent: any; one of the two must be named")] = None
    limits: LimitsBody


class QuotaBody(_Input):
    """Limits under `limits`, or their names themselves."""

    limits: LimitsBody

    @model_validator(mode="before")
    @classmethod
    def _wrap(cls, given: object) -> object:
        return {"limits": given} if isinstance(given, dict) and "limits" not in given else given


class TenantChange(_Input):
    """What can be changed of a tenant; in a change null is the default, and limits are merged."""

    name: Text | None = None
    parent: Annotated[
        Text | None, Field(description="The tenant above, whose limits its work must fit too; never changes")
    ] = None
    timezone: Annotated[Text | None, Field(description="IANA name, such as Europe/Berlin")] = None
    weight: Annotated[Real | None, Field(description="Share of the work against other tenants")] = None
    default_lane: Lane | None = None
    lanes: Annotated[list[Lane], Field(min_length=1)] | None = None
    models: Annotated[Texts | None, Field(description="Names it may use; null: all")] = None
    limits: LimitsBody | None = None
    limits_by: Annotated[
        list[LimitsByBody] | None,
        Field(max_length=LARGEST_LIMITS_BY, description="Limits beside the others; a change replaces all of them"),
    ] = None
    shadow: Annotated[list[LimitName] | None, Field(description="Limits that are counted, never refused")] = None
    reserve: Literal["progressive", "full"] | None = None
    preemption: Literal["exact", "fast"] | None = None
    share_group: Annotated[
        Text | None, Field(description="Tenants of one group reuse each other's cached prompts; null: none does")
    ] = None


class TenantBody(TenantChange):
    """A new tenant."""

    id: Text


class ScopesBody(_Input):
    """What a key may be used for; null or absent: all that its tenant may."""

    models: Texts | None = None
    lanes: list[Lane] | None = None
    endpoints: Annotated[
        Texts | None, Field(description="Paths such as /v1/chat/completions, each with all below it")
    ] = None
    cidrs: Annotated[Texts | None, Field(description="Networks such as 10.0.0.0/8")] = None


class KeyBody(_Input):
    """A new key."""

    name: Text
    expires_at: Annotated[Real | Text | None, Field(description="Unix seconds, or RFC 3339 with a zone")] = None
    limits: LimitsBody | None = None
    scopes: ScopesBody | None = None


class KeyChange(_Input):
    """What can be changed of a key; null is the default, limits are merged, scopes are replaced whole."""

    name: Text | None = None
    expires_at: Annotated[Real | Text | None, Field(description="Unix seconds, or RFC 3339; null: never")] = None
    limits: LimitsBody | None = None
    scopes: ScopesBody | None = None


class RotateBody(_Input):
    """How the old key ends."""

    overlap_s: Annotated[Real, Field(description="How long the old key goes on working, in seconds")] = 0.0


class ExplainBody(_Input):
    """The sizes of a request that is not sent."""

    prompt_tokens: Annotated[int, Field(ge=0, le=LARGEST_ASK)]
    max_output_tokens: Annotated[int, Field(ge=1, le=LARGEST_ASK)]
    lane: Lane
    model: Annotated[Text | None, Field(description="null or absent: any that the tenant may use")] = None
    deadline_ms: Annotated[Real, Field(gt=0, le=MAX_DEADLINE_MS)] | None = None


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class PageQuery(_Query):
    """Which part of a list."""

    limit: Annotated[int, Field(ge=1, le=LARGEST_PAGE)] = PAGE
    after: Annotated[Text | None, Field(description="`last_id` of the page before")] = None


class UsageQuery(_Query):
    """Which days of the ledger, in the tenant's zone, and by what to sum."""

    first: Annotated[
        Text | None, Field(alias="from", description="Date, RFC 3339 or Unix seconds; absent: 30 days before `to`")
    ] = None
    last: Annotated[Text | None, Field(alias="to", description="The same, included; absent: today")] = None
    group_by: Annotated[Text, Field(description="Of lane, model, key and day, with commas between")] = ""


class LedgerQuery(_Query):
    """Which entries of the ledger, and how they are written."""

    first: Annotated[
        Text | None, Field(alias="from", description="Date in the tenant's zone, RFC 3339 or Unix seconds; absent: all")
    ] = None
    last: Annotated[Text | None, Field(alias="to", description="The same, included; absent: now")] = None
    format: Literal["csv", "jsonl"] = "jsonl"


class AuditQuery(PageQuery):
    """Which part of the audit log, newest first."""

    after: Annotated[str | None, Field(pattern=r"^\d{1,15}-\d{1,15}$", description="`last_id` of the page before")] = (
        None
    )
