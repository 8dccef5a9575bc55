"""Responses of the Responses API, as published in OpenAPI; `gateway/answers/responses.py` builds them."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads its own kind only, before Python 3.12

from fairlane.gateway.control.openapi.schemas import ChosenLogprob, Limited, Tier

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    """Text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[ChosenLogprob]


class OutputMessage(TypedDict):
    """A message of the model."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]


class ReasoningText(TypedDict):
    """Text of the model's reasoning."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningOutput(TypedDict):
    """The model's reasoning before its answer."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: list[dict[str, Any]]
    content: list[ReasoningText]


class FunctionCallOutput(TypedDict):
    """A function call."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class CustomCallOutput(TypedDict):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus


class InputTokens(TypedDict):
    """The cached part of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokens(TypedDict):
    """The reasoning part of the output tokens."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Charged tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class IncompleteDetails(TypedDict):
    """The reason why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseFailure(TypedDict):
    """The reason why a streamed response failed."""

    code: Literal["server_error", "rate_limit_exceeded"]
    message: str


class ReasoningEcho(TypedDict):
    """The requested reasoning settings."""

    effort: str | None
    summary: str | None


class TextEcho(TypedDict):
    """The requested text settings."""

    format: dict[str, Any]
    verbosity: Literal["medium"]


class ResponseObject(TypedDict):
    """A response; a stream sends it as numbered events, the last of which contains all of it."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputMessage | ReasoningOutput | FunctionCallOutput | CustomCallOutput]
    service_tier: Tier
    usage: ResponseUsage | None
    background: Literal[False]
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningEcho
    safety_identifier: str | None
    store: bool
    temperature: float
    text: TextEcho
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None
    fairlane: NotRequired[Limited]


class DeletedResponse(TypedDict):
    """A deleted response."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class CompactionOutput(TypedDict):
    """The summary of a conversation, encrypted for its tenant, to be sent as an item of a later input."""

    type: Literal["compaction"]
    id: str
    encrypted_content: str


class UserMessage(TypedDict):
    """A message of the user."""

    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["user"]
    content: list[dict[str, Any]]


class Compaction(TypedDict):
    """A compacted conversation: the user's messages, then a summary of the whole."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[UserMessage | CompactionOutput]
    usage: ResponseUsage
    fairlane: NotRequired[Limited]


class InputItemList(TypedDict):
    """The input items of a stored response: messages, reasoning, calls and their results."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
