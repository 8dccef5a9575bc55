"""Message Batches on the wire: bodies and queries as they are documented by OpenAPI, and the objects of answers."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about
from fairlane.gateway.dialects.anthropic.request_bodies import MessagesBody
from fairlane.gateway.dialects.openai.field_types import LENIENT, Fields
from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.http.json_reader import read_struct

MAX_REQUESTS = 50_000
MAX_CUSTOM_ID = 512
MOST_LISTED = 1_000
ProcessingStatus = Literal["in_progress", "canceling", "ended"]


class MessageBatchRequest(Fields):
    """One request of a Message Batch."""

    custom_id: Annotated[str, Field(min_length=1, max_length=MAX_CUSTOM_ID, description="Its name in the results")]
    params: Annotated[
        MessagesBody,
        Field(description="The request, without `stream`; checked when it runs", json_schema_extra={LENIENT: True}),
    ]


class MessageBatchBody(Fields):
    """The body of `POST /v1/messages/batches`, bounded like any request's."""

    requests: Annotated[
        list[MessageBatchRequest],
        Field(min_length=1, max_length=MAX_REQUESTS, fail_fast=True, description="The requests"),
    ]


class MessageBatchesQuery(BaseModel):
    """The Message Batches to list, newest first."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED, description="Maximum number of items of the page")] = 20
    after_id: Annotated[str, Field(max_length=64, description="`last_id` of the previous page")] = ""
    before_id: Annotated[str, Field(max_length=64, description="`first_id` of the following page")] = ""


class _Request(msgspec.Struct):
    custom_id: str
    params: msgspec.Raw


class _Body(msgspec.Struct):
    requests: list[_Request]


def read_requests(body: bytes) -> list[tuple[str, bytes]]:
    """Return name and undecoded body of each request. Raises ApiError naming the field."""
    if body.count(b'"custom_id"') > MAX_REQUESTS:
        raise _too_many()
    requests = read_struct(body, _Body).requests
    if not requests:
        raise invalid("requests", "`requests` must not be empty.")
    if len(requests) > MAX_REQUESTS:  # the name may be spelled with escapes
        raise _too_many()
    seen = set[str]()
    for index, each in enumerate(requests):
        param = f"requests.[{index}]"
        if not 0 < len(each.custom_id) <= MAX_CUSTOM_ID:
            raise invalid(f"{param}.custom_id", f"`custom_id` must be a string of 1 to {MAX_CUSTOM_ID} characters.")
        if each.custom_id in seen:
            raise invalid(f"{param}.custom_id", "An earlier request has the same `custom_id`.")
        if not bytes(each.params).startswith(b"{"):
            raise invalid(f"{param}.params", "`params` must be an object.")
        seen.add(each.custom_id)
    return [(each.custom_id, bytes(each.params)) for each in requests]


def _too_many() -> ApiError:
    return invalid("requests", f"`requests` must have at most {MAX_REQUESTS} items.")


def as_lines(requests: list[tuple[str, bytes]], url: str, max_bytes: int) -> bytes:
    """Return the requests as the lines of a batch's file, each of at most `max_bytes`. Raises ApiError."""
    return b"".join(_lines(requests, url, max_bytes))


def _lines(requests: list[tuple[str, bytes]], url: str, max_bytes: int) -> Iterator[bytes]:
    for index, (custom_id, params) in enumerate(requests):
        head = msgspec.json.encode({"custom_id": custom_id, "method": "POST", "url": url})
        line = head[:-1] + b',"body":' + params.replace(b"\r", b" ").replace(b"\n", b" ") + b"}\n"
        if len(line) > max_bytes:
            message = f"The request is larger than {max_bytes} bytes."
            raise ApiError(message, "request_too_large", f"requests.[{index}]")
        yield line


def timestamp(seconds: int | None) -> str | None:
    """Return a time in Anthropic's format."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class MessageBatchCounts(TypedDict):
    """The requests of a Message Batch by result; all are `processing` until the batch has ended."""

    processing: Annotated[int, about("Requests of a batch that has not ended")]
    succeeded: Annotated[int, about("Answered requests")]
    errored: Annotated[int, about("Failed requests")]
    canceled: Annotated[int, about("Requests that did not run because the batch was cancelled")]
    expired: Annotated[int, about("Requests that did not run within the batch's time")]


class MessageBatchObject(TypedDict):
    """A Message Batch."""

    id: Annotated[str, about("Identifier")]
    type: Annotated[Literal["message_batch"], about("Type of this object")]
    processing_status: Annotated[ProcessingStatus, about("Current status")]
    request_counts: Annotated[MessageBatchCounts, about("Progress of the batch")]
    created_at: Annotated[str | None, about("Time of creation")]
    expires_at: Annotated[str | None, about("Time at which requests that have not run expire")]
    ended_at: Annotated[str | None, about("Time of its end; null: not ended")]
    cancel_initiated_at: Annotated[str | None, about("Time of the cancellation's request; null: none")]
    archived_at: Annotated[None, about("Always null")]
    results_url: Annotated[str | None, about("Path of the results; null: not ended")]


class MessageBatchList(TypedDict):
    """A page of the tenant's Message Batches, newest first."""

    data: Annotated[list[MessageBatchObject], about("The items")]
    first_id: Annotated[str | None, about("Id of the first item; null for an empty list")]
    last_id: Annotated[str | None, about("Id of the last item; null for an empty list")]
    has_more: Annotated[bool, about("Whether there are further items")]


class DeletedMessageBatch(TypedDict):
    """A deleted Message Batch."""

    id: Annotated[str, about("Identifier")]
    type: Annotated[Literal["message_batch_deleted"], about("Type of this object")]
