"""Responses of the Responses API, as published in OpenAPI; `gateway/answers/responses.py` builds them."""

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about
from fairlane.gateway.control.openapi.schemas import ChosenLogprob, Limited, Tier

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    """Text of a message."""

    type: Annotated[Literal["output_text"], about("Type of this object")]
    text: Annotated[str, about("The text")]
    annotations: Annotated[list[dict[str, Any]], about("OpenAI's field, always null or empty")]
    logprobs: Annotated[list[ChosenLogprob], about("Log-probabilities of its tokens; null if not requested")]


class OutputMessage(TypedDict):
    """A message of the model."""

    type: Annotated[Literal["message"], about("Type of this object")]
    id: Annotated[str, about("Identifier")]
    role: Annotated[Literal["assistant"], about("The message's author")]
    status: Annotated[ItemStatus, about("Current status")]
    content: Annotated[list[OutputText], about("The content")]


class ReasoningText(TypedDict):
    """Text of the model's reasoning."""

    type: Annotated[Literal["reasoning_text"], about("Type of this object")]
    text: Annotated[str, about("The text")]


class ReasoningOutput(TypedDict):
    """The model's reasoning before its answer."""

    type: Annotated[Literal["reasoning"], about("Type of this object")]
    id: Annotated[str, about("Identifier")]
    status: Annotated[ItemStatus, about("Current status")]
    summary: Annotated[list[dict[str, Any]], about("Always empty, or the requested kind of summary")]
    content: Annotated[list[ReasoningText], about("The content")]


class FunctionCallOutput(TypedDict):
    """A function call."""

    type: Annotated[Literal["function_call"], about("Type of this object")]
    id: Annotated[str, about("Identifier")]
    call_id: Annotated[str, about("Id of the call, which its output refers to")]
    name: Annotated[str, about("Name")]
    arguments: Annotated[str, about("The arguments as JSON")]
    status: Annotated[ItemStatus, about("Current status")]


class CustomCallOutput(TypedDict):
    """A call of a custom tool."""

    type: Annotated[Literal["custom_tool_call"], about("Type of this object")]
    id: Annotated[str, about("Identifier")]
    call_id: Annotated[str, about("Id of the call, which its output refers to")]
    name: Annotated[str, about("Name")]
    input: Annotated[str, about("The argument")]
    status: Annotated[ItemStatus, about("Current status")]


class InputTokens(TypedDict):
    """The cached part of the prompt's tokens."""

    cached_tokens: Annotated[int, about("Prompt tokens that were in a cache: part of `prompt_tokens`")]
    cache_write_tokens: Annotated[int, about("Always 0")]


class OutputTokens(TypedDict):
    """The reasoning part of the output tokens."""

    reasoning_tokens: Annotated[int, about("Always 0")]


class ResponseUsage(TypedDict):
    """Charged tokens of a response."""

    input_tokens: Annotated[int, about("Prompt tokens")]
    input_tokens_details: Annotated[InputTokens, about("OpenAI's breakdown of the input tokens")]
    output_tokens: Annotated[int, about("Output tokens")]
    output_tokens_details: Annotated[OutputTokens, about("OpenAI's breakdown of the output tokens")]
    total_tokens: Annotated[int, about("Prompt and output tokens")]


class IncompleteDetails(TypedDict):
    """The reason why a response is incomplete."""

    reason: Annotated[Literal["max_output_tokens"], about("The limit that was reached")]


class ResponseFailure(TypedDict):
    """The reason why a streamed response failed."""

    code: Annotated[Literal["server_error", "rate_limit_exceeded"], about("Machine-readable error code")]
    message: Annotated[str, about("Human-readable message")]


class ReasoningEcho(TypedDict):
    """The requested reasoning settings."""

    effort: Annotated[
        str | None,
        about("Thinking effort, if the model's chat template supports it; else only `none` and `medium` are accepted"),
    ]
    summary: Annotated[str | None, about("Always empty, or the requested kind of summary")]


class TextEcho(TypedDict):
    """The requested text settings."""

    format: Annotated[dict[str, Any], about("Required format of the text")]
    verbosity: Annotated[Literal["medium"], about("Only at its neutral value")]


class ResponseObject(TypedDict):
    """A response; a stream sends it as numbered events, the last of which contains all of it."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["response"], about("Type of this object")]
    created_at: Annotated[int, about("Unix seconds")]
    completed_at: Annotated[int | None, about("Unix seconds; null: not completed")]
    status: Annotated[Literal["in_progress", "completed", "incomplete", "failed"], about("`completed` or why not")]
    error: Annotated[ResponseFailure | None, about("The error")]
    incomplete_details: Annotated[IncompleteDetails | None, about("Why the response is incomplete; null: it is not")]
    model: Annotated[str, about("The model's name")]
    output: Annotated[
        list[OutputMessage | ReasoningOutput | FunctionCallOutput | CustomCallOutput],
        about("Items in order: reasoning, messages and calls"),
    ]
    service_tier: Annotated[Tier, about("The granted tier: `priority`, `flex` or `default`")]
    usage: Annotated[ResponseUsage | None, about("Charged tokens")]
    background: Annotated[Literal[False], about("Always false")]
    frequency_penalty: Annotated[float, about("Penalty by how often a token has occurred in the output")]
    instructions: Annotated[str | None, about("System prompt of this response; following ones do not inherit it")]
    max_output_tokens: Annotated[int | None, about("Maximum output tokens; null: none was stated")]
    max_tool_calls: Annotated[int | None, about("Accepted: it limits OpenAI's built-in tools, of which there are none")]
    metadata: Annotated[dict[str, str], about("For the caller's own use; it has no effect")]
    parallel_tool_calls: Annotated[bool, about("Whether an answer may call several tools at once")]
    presence_penalty: Annotated[float, about("Penalty for every token that has occurred in the output")]
    previous_response_id: Annotated[str | None, about("A stored response whose conversation this one continues")]
    prompt_cache_key: Annotated[str | None, about("For the caller's own use; it has no effect")]
    reasoning: Annotated[ReasoningEcho, about("Options of the model's reasoning")]
    safety_identifier: Annotated[str | None, about("For the caller's own use; it has no effect")]
    store: Annotated[bool, about("Whether the response is stored")]
    temperature: Annotated[float, about("Temperature used for sampling")]
    text: Annotated[TextEcho, about("Options of the answer's text")]
    tool_choice: Annotated[str | dict[str, Any], about("Whether the model must call a tool, and which one")]
    tools: Annotated[list[dict[str, Any]], about("Functions that the model may call")]
    top_logprobs: Annotated[int, about("Number of most likely tokens to return at each position")]
    top_p: Annotated[float, about("Nucleus probability used for sampling")]
    truncation: Annotated[Literal["disabled"], about("Always `disabled`: a conversation that is too long is refused")]
    user: Annotated[str | None, about("For the caller's own use; it has no effect")]
    fairlane: NotRequired[Annotated[Limited, about("The limit that cut the answer short; absent if none did")]]


class DeletedResponse(TypedDict):
    """A deleted response."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["response"], about("Type of this object")]
    deleted: Annotated[Literal[True], about("Always true")]


class CompactionOutput(TypedDict):
    """The summary of a conversation, encrypted for its tenant, to be sent as an item of a later input."""

    type: Annotated[Literal["compaction"], about("Type of this object")]
    id: Annotated[str, about("Identifier")]
    encrypted_content: Annotated[str, about("The summary, encrypted for its tenant, to be sent in a later `input`")]


class UserMessage(TypedDict):
    """A message of the user."""

    type: Annotated[Literal["message"], about("Type of this object")]
    id: Annotated[str, about("Identifier")]
    status: Annotated[ItemStatus, about("Current status")]
    role: Annotated[Literal["user"], about("The message's author")]
    content: Annotated[list[dict[str, Any]], about("The content")]


class Compaction(TypedDict):
    """A compacted conversation: the user's messages, then a summary of the whole."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["response.compaction"], about("Type of this object")]
    created_at: Annotated[int, about("Unix seconds")]
    output: Annotated[list[UserMessage | CompactionOutput], about("The user's messages, then the summary")]
    usage: Annotated[ResponseUsage, about("Charged tokens")]
    fairlane: NotRequired[Annotated[Limited, about("The limit that cut the answer short; absent if none did")]]


class InputItemList(TypedDict):
    """The input items of a stored response: messages, reasoning, calls and their results."""

    object: Annotated[Literal["list"], about("Type of this object")]
    data: Annotated[list[dict[str, Any]], about("The items")]
    first_id: Annotated[str | None, about("Id of the first item; null for an empty list")]
    last_id: Annotated[str | None, about("Id of the last item, for `after`; null for an empty list")]
    has_more: Annotated[bool, about("Whether there are further items")]
