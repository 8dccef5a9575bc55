"""What OpenAI's administration API reads and answers, as far as tenants, keys, limits and the ledger fill it."""

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic reads its own kind only, before Python 3.12

from fairlane.gateway.admin.inputs import Figure, Text, Word
from fairlane.gateway.openai.fields import Off

T = TypeVar("T")

PAGE, LARGEST_PAGE = 20, 100
BUCKETS, MOST_BUCKETS, MOST_COST_BUCKETS = 7, 31, 180


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


class ProjectBody(_Body):
    """A new project."""

    name: Annotated[Text, Field(min_length=1)]
    external_key_id: None = None
    geography: None = None
    residency: None = None


class ProjectChange(_Body):
    """What can be changed of a project."""

    name: Annotated[Text | None, Field(min_length=1)] = None
    external_key_id: None = None
    geography: None = None


class RateLimitChange(_Body):
    """What can be changed of a model's limits."""

    max_requests_per_1_minute: Figure | None = None
    max_tokens_per_1_minute: Figure | None = None
    max_requests_per_1_day: None = None
    max_images_per_1_minute: None = None
    max_audio_megabytes_per_1_minute: None = None
    batch_1_day_max_input_tokens: None = None


class ServiceAccountBody(_Body):
    """A new service account, which is a key here."""

    name: Annotated[Text, Field(min_length=1)]
    expires_in_seconds: Annotated[int | None, Field(ge=1, le=10**10)] = None
    create_service_account_only: Off | None = None


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class ListQuery(_Query):
    """Which part of a list."""

    limit: Annotated[int, Field(ge=1, le=LARGEST_PAGE, description="Items of one page at most")] = PAGE
    after: Annotated[Word | None, Field(description="`last_id` of the page before")] = None


class ProjectsQuery(ListQuery):
    """Which projects."""

    include_archived: Annotated[bool, Field(description="Suspended tenants too")] = False


class KeysQuery(ListQuery):
    """Which keys."""

    owner_project_access: Annotated[
        Literal["active", "inactive", "any"], Field(description="Keys of tenants that are served, suspended, or both")
    ] = "any"


class DaysQuery(_Query):
    """Which days, and of whom."""

    start_time: Annotated[int, Field(ge=0, lt=10**11, description="Unix seconds; its day is included")]
    end_time: Annotated[int | None, Field(ge=0, lt=10**11, description="Unix seconds, excluded; absent: now")] = None
    bucket_width: Annotated[Literal["1d"], Field(description="Always a day")] = "1d"
    project_ids: Annotated[list[Word], Field(description="Of these tenants; none: of all")] = []
    api_key_ids: Annotated[list[Word], Field(description="Of these keys; none: of all")] = []
    page: Annotated[Word | None, Field(description="`next_page` of the page before")] = None


class CostsQuery(DaysQuery):
    """The same, and by what to sum."""

    group_by: Annotated[
        list[Literal["project_id", "api_key_id", "line_item"]], Field(description="By what to sum; a line is a model")
    ] = []
    line_items: Annotated[list[Word], Field(description="Of these models; none: of all")] = []
    limit: Annotated[int, Field(ge=1, le=MOST_COST_BUCKETS, description="Days in one page")] = BUCKETS


class CompletionsQuery(DaysQuery):
    """The same, and by what to sum."""

    group_by: Annotated[
        list[Literal["project_id", "api_key_id", "model", "service_tier"]], Field(description="By what to sum")
    ] = []
    models: Annotated[list[Word], Field(description="Of these models; none: of all")] = []
    limit: Annotated[int, Field(ge=1, le=MOST_BUCKETS, description="Days in one page")] = BUCKETS


class Listed(TypedDict, Generic[T]):
    """One part of a list."""

    object: Literal["list"]
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ProjectView(TypedDict):
    """A tenant."""

    id: str
    object: Literal["organization.project"]
    name: str
    created_at: int
    archived_at: int | None
    status: Literal["active", "archived"]


class ServiceAccountView(TypedDict):
    """Who owns a key: an account of the key's own."""

    id: str
    object: Literal["organization.project.service_account"]
    name: str
    created_at: int
    role: Literal["member"]


class OwnerView(TypedDict):
    """Whose a key is."""

    type: Literal["service_account"]
    service_account: ServiceAccountView


class ProjectKeyView(TypedDict):
    """A key, without its secret."""

    id: str
    object: Literal["organization.project.api_key"]
    name: str
    redacted_value: str
    created_at: int
    last_used_at: int | None
    expires_at: int | None
    owner: OwnerView
    owner_project_access: Literal["active", "inactive"]


class KeyValueView(TypedDict):
    """A key just made: the only time that the whole of it is shown."""

    id: str
    object: Literal["organization.project.service_account.api_key"]
    name: str
    value: str
    created_at: int
    expires_at: int | None


class NewServiceAccountView(ServiceAccountView):
    """An account just made, with its key."""

    api_key: KeyValueView


class DeletedKeyView(TypedDict):
    """A key that is no more."""

    id: str
    object: Literal["organization.project.api_key.deleted"]
    deleted: Literal[True]


class RateLimitView(TypedDict):
    """A tenant's limits of one model in all lanes; the largest figure there is stands for none."""

    id: str
    object: Literal["project.rate_limit"]
    model: str
    max_requests_per_1_minute: int
    max_tokens_per_1_minute: int


class CompletionsResult(TypedDict):
    """A sum over settled requests; null: not grouped by it."""

    object: Literal["organization.usage.completions.result"]
    input_tokens: int
    input_cached_tokens: int
    input_uncached_tokens: int
    output_tokens: int
    num_model_requests: int
    project_id: str | None
    api_key_id: str | None
    model: str | None
    service_tier: str | None


class Bucket(TypedDict):
    """One day, in the zone of each tenant."""

    object: Literal["bucket"]
    start_time: int
    end_time: int
    results: list[CompletionsResult]


class AmountView(TypedDict):
    """Money."""

    value: float
    """In the currency."""
    currency: str


class CostsResult(TypedDict):
    """What settled requests cost; null: not grouped by it."""

    object: Literal["organization.costs.result"]
    amount: AmountView
    project_id: str | None
    api_key_id: str | None
    line_item: str | None
    """A model's name."""


class CostBucket(TypedDict):
    """One day, in the zone of each tenant."""

    object: Literal["bucket"]
    start_time: int
    end_time: int
    results: list[CostsResult]


class CostBuckets(TypedDict):
    """Some days."""

    object: Literal["page"]
    data: list[CostBucket]
    has_more: bool
    next_page: str | None


class Buckets(TypedDict):
    """Some days."""

    object: Literal["page"]
    data: list[Bucket]
    has_more: bool
    next_page: str | None
