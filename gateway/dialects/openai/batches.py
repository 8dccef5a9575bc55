"""Files and batches on the wire: bodies and queries field by field, as they are validated and documented by OpenAPI."""

from typing import Annotated, Literal, NotRequired, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about
from fairlane.gateway.dialects.openai.field_types import Fields
from fairlane.gateway.dialects.openai.reading import checked_fields
from fairlane.gateway.errors import invalid

SHORTEST_EXPIRY_S, LONGEST_EXPIRY_S = 3_600, 30 * 86_400
LONGEST_WINDOW_H = 7 * 24
MAX_METADATA = 16
MAX_METADATA_KEY, MAX_METADATA_VALUE = 64, 512
LinesEndpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses"]
MOST_PARAMETERS = 64
MOST_FILES_LISTED, MOST_BATCHES_LISTED = 10_000, 100


class ExpiresAfter(Fields):
    """The expiry of a file."""

    anchor: Annotated[Literal["created_at"], Field(description="Start of `seconds`")]
    seconds: Annotated[int, Field(ge=SHORTEST_EXPIRY_S, le=LONGEST_EXPIRY_S, description="From an hour to thirty days")]


class BatchBody(Fields):
    """The body of `POST /v1/batches`."""

    input_file_id: Annotated[str, Field(max_length=64, description="A file of purpose `batch`")]
    endpoint: Annotated[LinesEndpoint, Field(description="The path that every line of the file calls")]
    completion_window: Annotated[
        str,
        Field(
            pattern=r"^[1-9][0-9]{0,2}h$",
            description=f"Whole hours, such as 24h; {LONGEST_WINDOW_H}h at most. Lines not run by then expire",
        ),
    ]
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=MAX_METADATA_KEY)], Annotated[str, Field(max_length=MAX_METADATA_VALUE)]]
        | None,
        Field(max_length=MAX_METADATA, description="For the caller's own use; returned unchanged"),
    ] = None
    output_expires_after: Annotated[
        ExpiresAfter | None, Field(description="When output and error file are deleted; null: after thirty days")
    ] = None


class _ListQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class FilesQuery(_ListQuery):
    """The files to list."""

    after: Annotated[str, Field(max_length=64, description="`last_id` of the previous page")] = ""
    limit: Annotated[int, Field(ge=1, le=MOST_FILES_LISTED, description="Maximum number of items of the page")] = (
        MOST_FILES_LISTED
    )
    order: Annotated[Literal["asc", "desc"], Field(description="By creation time; `desc`: newest first")] = "desc"
    purpose: Annotated[str, Field(max_length=64, description="Absent or empty: any")] = ""


class BatchesQuery(_ListQuery):
    """The batches to list, newest first."""

    after: Annotated[str, Field(max_length=64, description="`last_id` of the previous page")] = ""
    limit: Annotated[int, Field(ge=1, le=MOST_BATCHES_LISTED, description="Maximum number of items of the page")] = 20


Q = TypeVar("Q", bound=BaseModel)


def read_query(kind: type[Q], query: bytes) -> Q:
    """Parse a query string. Raises ApiError naming the parameter."""
    try:
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
    except ValueError:
        raise invalid(None, f"The query has more than {MOST_PARAMETERS} parameters.") from None
    known = [name for name, _ in given if name in kind.model_fields]
    for name in kind.model_fields:
        if known.count(name) > 1:
            raise invalid(name, "The parameter is given twice.")
    return checked_fields(kind, {}, dict(given))


UploadForm = TypedDict(
    "UploadForm",
    {
        "file": Annotated[
            str,
            Field(
                description="JSON lines, each `{custom_id, method, url, body}`",
                json_schema_extra={"format": "binary", "contentMediaType": "application/octet-stream"},
            ),
        ],
        "purpose": Literal["batch"],
        "expires_after[anchor]": NotRequired[Literal["created_at"]],
        "expires_after[seconds]": NotRequired[
            Annotated[int, Field(ge=SHORTEST_EXPIRY_S, le=LONGEST_EXPIRY_S, description="Absent for thirty days")]
        ],
    },
)
UploadForm.__doc__ = "The body of `POST /v1/files`, as multipart/form-data."


class FileObject(TypedDict):
    """A stored file."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["file"], about("Type of this object")]
    bytes: Annotated[int, about("Size in bytes")]
    created_at: Annotated[int, about("Unix seconds")]
    expires_at: Annotated[int, about("Unix seconds; null: never")]
    filename: Annotated[str, about("The uploaded file's name")]
    purpose: Annotated[Literal["batch", "batch_output"], about("The file's purpose")]
    status: Annotated[Literal["processed"], about("Current status")]
    status_details: Annotated[None, about("Always null")]


class _Page(TypedDict):
    object: Annotated[Literal["list"], about("Type of this object")]
    has_more: Annotated[bool, about("Whether there are further items")]


class ItemPage(_Page):
    """A page of items of responses and conversations, in OpenAI's format."""

    first_id: Annotated[str, about("Id of the first item; empty for an empty list")]
    last_id: Annotated[str, about("Id of the last item, for `after`; empty for an empty list")]


class ListPage(_Page):
    """A page of a list, in OpenAI's format."""

    first_id: Annotated[str | None, about("Id of the first item; null for an empty list")]
    last_id: Annotated[str | None, about("Id of the last item, for `after`; null for an empty list")]


class FileList(ListPage):
    """A page of the tenant's files."""

    data: Annotated[list[FileObject], about("The items")]


class DeletedObject(TypedDict):
    """A deleted file or response."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["file", "response"], about("Type of this object")]
    deleted: Annotated[bool, about("Always true")]


class BatchErrorObject(TypedDict):
    """An error that made the whole input file invalid."""

    code: Annotated[str, about("Machine-readable error code, from the table of errors")]
    line: Annotated[int | None, about("Line number, from 1; null: the whole file")]
    message: Annotated[str, about("Human-readable message")]
    param: Annotated[str | None, about("The request's field that caused the error; null if none did")]


class BatchErrors(TypedDict):
    """The first errors of an invalid input file."""

    object: Annotated[Literal["list"], about("Type of this object")]
    data: Annotated[list[BatchErrorObject], about("The items")]


class RequestCounts(TypedDict):
    """The number of lines of a batch, by result."""

    total: Annotated[int, about("The sum")]
    completed: Annotated[int, about("Answered lines")]
    failed: Annotated[int, about("Failed lines, and those that an expired or cancelled batch did not finish")]


class BatchUsage(TypedDict):
    """Charged tokens, in the format of the Responses API."""

    input_tokens: Annotated[int, about("Prompt tokens")]
    input_tokens_details: Annotated[dict[str, int], about("`cached_tokens`: prompt tokens that were in a cache")]
    output_tokens: Annotated[int, about("Output tokens")]
    output_tokens_details: Annotated[dict[str, int], about("`reasoning_tokens`: those of the reasoning; 0 in a batch")]
    total_tokens: Annotated[int, about("Prompt and output tokens")]


Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]


class BatchObject(TypedDict):
    """A batch and its progress."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["batch"], about("Type of this object")]
    endpoint: Annotated[str, about("The path that each line calls")]
    errors: Annotated[BatchErrors | None, about("Why the file could not be run; null: it could")]
    input_file_id: Annotated[str, about("The file with the batch's lines")]
    completion_window: Annotated[str, about("Time in which the batch must run")]
    status: Annotated[Status, about("Current status")]
    output_file_id: Annotated[str | None, about("The file of answers; null: not written yet")]
    error_file_id: Annotated[str | None, about("The file of failed lines; null: not written yet")]
    created_at: Annotated[int, about("Unix seconds")]
    in_progress_at: Annotated[int | None, about("Unix seconds; null: the file is still being read")]
    expires_at: Annotated[int, about("Unix seconds; null: never")]
    finalizing_at: Annotated[int | None, about("Unix seconds; null: lines may still run")]
    completed_at: Annotated[int | None, about("Unix seconds; null: not completed")]
    failed_at: Annotated[int | None, about("Unix seconds; null: not failed")]
    expired_at: Annotated[int | None, about("Unix seconds; null: not expired")]
    cancelling_at: Annotated[int | None, about("Unix seconds; null: cancellation was not requested")]
    cancelled_at: Annotated[int | None, about("Unix seconds; null: it was not cancelled")]
    request_counts: Annotated[RequestCounts, about("Progress of the batch")]
    usage: Annotated[BatchUsage, about("Charged tokens")]
    metadata: Annotated[dict[str, str] | None, about("For the caller's own use; it has no effect")]


class BatchList(ListPage):
    """A page of the tenant's batches."""

    data: Annotated[list[BatchObject], about("The items")]
