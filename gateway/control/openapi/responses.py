"""The JSON that the Responses API answers with, as OpenAPI shows it; `gateway/answers/responses.py` makes it."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads its own kind only, before Python 3.12

from fairlane.gateway.control.openapi.schemas import ChosenLogprob, Limited, Tier

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    """What a message says."""

    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[ChosenLogprob]


class OutputMessage(TypedDict):
    """What the model says."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]


class ReasoningText(TypedDict):
    """What the model thinks."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningOutput(TypedDict):
    """What the model thinks, before it answers."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: list[dict[str, Any]]
    content: list[ReasoningText]


class FunctionCallOutput(TypedDict):
    """A function that the model calls."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class CustomCallOutput(TypedDict):
    """A custom tool that the model calls."""

    type: Literal["custom_tool_call"]
    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus


class InputTokens(TypedDict):
    """What a cache held of the prompt."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokens(TypedDict):
    """What of the output came while the model was thinking."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Tokens of a response, as they are charged."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class IncompleteDetails(TypedDict):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens"]


class ResponseFailure(TypedDict):
    """Why a stream's response failed."""

    code: Literal["server_error", "rate_limit_exceeded"]
    message: str


class ReasoningEcho(TypedDict):
    """How the model was to think."""

    effort: str | None
    summary: str | None


class TextEcho(TypedDict):
    """What the answer's text was to be like."""

    format: dict[str, Any]
    verbosity: Literal["medium"]


class ResponseObject(TypedDict):
    """A response; a stream tells its making in numbered events, the last of which holds it whole."""

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
    """A response that is kept no more."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class CompactionOutput(TypedDict):
    """The summary of a conversation, sealed for its tenant: an item of later input, as it is."""

    type: Literal["compaction"]
    id: str
    encrypted_content: str


class UserMessage(TypedDict):
    """What the user said."""

    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["user"]
    content: list[dict[str, Any]]


class Compaction(TypedDict):
    """A conversation made short: what its user said, then a summary of all of it."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[UserMessage | CompactionOutput]
    usage: ResponseUsage
    fairlane: NotRequired[Limited]


class InputItemList(TypedDict):
    """What a kept response answers: messages, reasoning, calls and what these came to."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
