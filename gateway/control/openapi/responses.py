"""Responses of the Responses API, as published in OpenAPI; `gateway/answers/responses.py` builds them.

Output items are also valid input items, and have their models."""

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about
from fairlane.gateway.control.openapi.schemas import Limited, Tier
from fairlane.gateway.dialects.openai.batches import BatchUsage
from fairlane.gateway.dialects.openai.response_items import (
    CallItem,
    CompactionItem,
    CustomCallItem,
    GivenItem,
    MessageItem,
    ReasoningItem,
)


class ResponseObject(TypedDict):
    """A response, which also repeats the request's parameters; a stream sends it as numbered events, the last of which
    contains all of it."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["response"], about("Type of this object")]
    created_at: Annotated[int, about("Unix seconds")]
    completed_at: Annotated[int | None, about("Unix seconds; null: not completed")]
    status: Annotated[Literal["in_progress", "completed", "incomplete", "failed"], about("`completed` or why not")]
    error: Annotated[
        dict[str, str] | None, about("Why it failed: `code` (`server_error` or `rate_limit_exceeded`) and `message`")
    ]
    incomplete_details: Annotated[dict[str, str] | None, about("`reason`: `max_output_tokens`; null: not incomplete")]
    model: Annotated[str, about("The model's name")]
    output: Annotated[
        list[MessageItem | ReasoningItem | CallItem | CustomCallItem],
        about("Items in order: reasoning, messages and calls"),
    ]
    service_tier: Annotated[Tier, about("The granted tier: `priority`, `flex` or `default`")]
    usage: Annotated[BatchUsage | None, about("Charged tokens")]
    previous_response_id: Annotated[str | None, about("A stored response whose conversation this one continues")]
    store: Annotated[bool, about("Whether the response is stored")]
    temperature: Annotated[float, about("Temperature used for sampling")]
    top_p: Annotated[float, about("Nucleus probability used for sampling")]
    truncation: Annotated[Literal["disabled"], about("Always `disabled`: a conversation that is too long is refused")]
    fairlane: NotRequired[Limited]


class DeletedResponse(TypedDict):
    """A deleted response."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["response"], about("Type of this object")]
    deleted: Annotated[Literal[True], about("Always true")]


class Compaction(TypedDict):
    """A compacted conversation: the user's messages, then a summary of the whole."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["response.compaction"], about("Type of this object")]
    created_at: Annotated[int, about("Unix seconds")]
    output: Annotated[list[MessageItem | CompactionItem], about("The user's messages, then the summary")]
    usage: Annotated[BatchUsage, about("Charged tokens")]
    fairlane: NotRequired[Limited]


class InputItemList(TypedDict):
    """The input items of a stored response: messages, reasoning, calls and their results."""

    object: Annotated[Literal["list"], about("Type of this object")]
    data: Annotated[list[GivenItem], about("The items")]
    first_id: Annotated[str | None, about("Id of the first item; null for an empty list")]
    last_id: Annotated[str | None, about("Id of the last item, for `after`; null for an empty list")]
    has_more: Annotated[bool, about("Whether there are further items")]
