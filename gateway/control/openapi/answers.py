"""Responses of the tenant API, as published in OpenAPI; `gateway.answers` builds them.

Parts that clients send back in later requests (items, blocks, tool calls) are the models of request bodies."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from pydantic.config import JsonDict
from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about
from fairlane.gateway.control.admin.views import LimitBlockView
from fairlane.gateway.dialects.anthropic.blocks import TextBlock, ThinkingBlock, ToolUseBlock
from fairlane.gateway.dialects.openai.batches import BatchUsage, ItemPage
from fairlane.gateway.dialects.openai.response_items import (
    CallItem,
    CompactionItem,
    CustomCallItem,
    GivenItem,
    MessageItem,
    ReasoningItem,
)
from fairlane.gateway.dialects.openai.tools import CallBody, CalledBody
from fairlane.gateway.errors import ANTHROPIC_TYPES

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls", "function_call"]
Tier = Literal["priority", "flex", "default"]
_FINISH = about(
    "`stop`: by the model or a stop string; `length`: by a limit; `tool_calls`, `function_call`: tools were called"
)


class IncompleteCall(TypedDict):
    """A tool call that a limit or a stop string cut off."""

    text: Annotated[str, about("The call as the model wrote it")]


class Remarks(TypedDict):
    """How an answer was cut short."""

    limited_by: NotRequired[Annotated[str, about("The limit that cut the answer short")]]
    incomplete_tool_call: NotRequired[
        Annotated[IncompleteCall, about("The tool call in which it was cut; of several choices, the first one's")]
    ]


class Usage(TypedDict):
    """Charged tokens of one request, all its choices together."""

    prompt_tokens: Annotated[int, about("Prompt tokens")]
    completion_tokens: Annotated[int, about("Charged output tokens of all choices")]
    total_tokens: Annotated[int, about("Prompt and output tokens")]
    prompt_tokens_details: Annotated[dict[str, int], about("`cached_tokens`: prompt tokens that were in a cache")]
    completion_tokens_details: Annotated[dict[str, int], about("OpenAI's breakdown of the output tokens, always 0")]


class TokenLogprob(TypedDict):
    """One token and its log-probability."""

    token: Annotated[str, about(r"The token as text; bytes of an incomplete character as `\xf0`")]
    logprob: Annotated[float, about("Natural logarithm of the probability; -9999 for an impossible token")]
    bytes: Annotated[list[int], about("The token's UTF-8 bytes; a token may contain only some bytes of a character")]


class ChosenLogprob(TokenLogprob):
    """A generated token, and the most likely ones at its position."""

    top_logprobs: Annotated[list[TokenLogprob], about("Log-probabilities of the most likely tokens at each position")]


class ChatLogprobs(TypedDict):
    """Log-probabilities of a chat choice."""

    content: Annotated[list[ChosenLogprob], about("One entry for each token")]
    refusal: Annotated[None, about("OpenAI's field, always null here")]


class CompletionLogprobs(TypedDict):
    """Log-probabilities of a plain completion, in parallel lists."""

    tokens: Annotated[list[str], about("The tokens")]
    token_logprobs: Annotated[list[float], about("Log-probability of each token")]
    top_logprobs: Annotated[list[dict[str, float]], about("Log-probabilities of the likeliest tokens at each position")]
    text_offset: Annotated[list[int], about("Start of each token, in characters of the choice")]


class AssistantMessage(TypedDict):
    """A message by the model."""

    role: Annotated[Literal["assistant"], about("The message's author")]
    content: Annotated[str | None, about("The content")]
    refusal: Annotated[None, about("OpenAI's field, always null here")]
    reasoning_content: NotRequired[Annotated[str, about("The model's reasoning before its answer")]]
    reasoning: NotRequired[Annotated[str, about("Another name for `reasoning_content`, by the deployment's settings")]]
    tool_calls: NotRequired[Annotated[list[CallBody], about("Tool calls by the model")]]
    function_call: NotRequired[Annotated[CalledBody, about("The model's call, of a request with `functions`")]]


class ChatChoice(TypedDict):
    """One choice of a chat completion."""

    index: Annotated[int, about("Index of the choice")]
    message: Annotated[AssistantMessage, about("The model's answer")]
    logprobs: Annotated[ChatLogprobs | None, about("Log-probabilities of its tokens; null if not requested")]
    finish_reason: Annotated[ChatFinishReason, _FINISH]


class ChatDelta(TypedDict, total=False):
    """The part of a message that a chunk adds."""

    role: Annotated[Literal["assistant"], about("The message's author")]
    content: Annotated[str | None, about("The content")]
    refusal: Annotated[None, about("OpenAI's field, always null here")]
    reasoning_content: Annotated[str, about("The model's reasoning before its answer")]
    reasoning: Annotated[str, about("Another name for `reasoning_content`, by the deployment's settings")]
    tool_calls: Annotated[list[dict[str, Any]], about("Parts of tool calls, each with the `index` of its call")]
    function_call: Annotated[dict[str, str], about("A part of the model's call, of a request with `functions`")]


class ChatChunkChoice(TypedDict):
    """The part of a chat choice that a chunk adds."""

    index: Annotated[int, about("Index of the choice")]
    delta: Annotated[ChatDelta, about("The added part")]
    logprobs: Annotated[ChatLogprobs | None, about("Log-probabilities of its tokens; null if not requested")]
    finish_reason: Annotated[ChatFinishReason | None, _FINISH]


class _Generated(TypedDict):
    id: Annotated[str, about("Identifier")]
    created: Annotated[int, about("Unix seconds")]
    model: Annotated[str, about("The model's name")]
    service_tier: Annotated[Tier, about("The granted tier: `priority`, `flex` or `default`")]
    system_fingerprint: Annotated[str, about("The same fingerprint and seed give the same output")]
    fairlane: NotRequired[Annotated[Remarks, about("How the answer was cut short; absent if it was not")]]


class ChatCompletionChunk(_Generated):
    """One event of a streamed chat completion; with `stream_options.include_usage` the last one has no choice."""

    object: Annotated[Literal["chat.completion.chunk"], about("Type of this object")]
    choices: Annotated[list[ChatChunkChoice], about("`n` choices for each prompt, by index")]
    usage: NotRequired[Annotated[Usage | None, about("Charged tokens")]]


class ChatCompletion(_Generated):
    """A chat completion."""

    object: Annotated[Literal["chat.completion"], about("Type of this object")]
    choices: Annotated[list[ChatChoice], about("`n` choices for each prompt, by index")]
    usage: Annotated[Usage, about("Charged tokens")]


class CompletionChoice(TypedDict):
    """One choice of a plain completion, or the part of it that a chunk adds."""

    index: Annotated[int, about("Index of the choice")]
    text: Annotated[str, about("The text")]
    logprobs: Annotated[CompletionLogprobs | None, about("Log-probabilities of its tokens; null if not requested")]
    finish_reason: Annotated[FinishReason | None, _FINISH]


class Completion(_Generated):
    """A plain completion, or an event of its stream; with `stream_options.include_usage` the last has no choice."""

    object: Annotated[Literal["text_completion"], about("Type of this object")]
    choices: Annotated[list[CompletionChoice], about("`n` choices for each prompt, by index")]
    usage: NotRequired[Annotated[Usage | None, about("Charged tokens")]]


class Embedding(TypedDict):
    """The vector of one input, of unit length."""

    object: Annotated[Literal["embedding"], about("Type of this object")]
    index: Annotated[int, about("Index of the input in the request")]
    embedding: Annotated[list[float] | str, about("The vector's numbers, or base64 of 32-bit little-endian floats")]


class Embeddings(TypedDict):
    """The vectors of a request's inputs, in order."""

    object: Annotated[Literal["list"], about("Type of this object")]
    data: Annotated[list[Embedding], about("One vector for each input")]
    model: Annotated[str, about("The model's name")]
    usage: Annotated[dict[str, int], about("Charged tokens: `prompt_tokens`, `total_tokens`")]


class Pooled(TypedDict):
    """The vector of one input, in vLLM's form."""

    index: Annotated[int, about("Index of the input in the request")]
    object: Annotated[Literal["pooling"], about("Type of this object")]
    data: Annotated[list[float] | str, about("The vector's numbers, or base64 of 32-bit little-endian floats")]


class PooledList(TypedDict):
    """The vectors of a request's inputs, in order."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["list"], about("Type of this object")]
    created: Annotated[int, about("Unix seconds")]
    model: Annotated[str, about("The model's name")]
    data: Annotated[list[Pooled], about("One vector for each input")]
    usage: Annotated[dict[str, int], about("Charged tokens: `prompt_tokens`, `total_tokens`")]


class Score(TypedDict):
    """The score of one pair of texts."""

    index: Annotated[int, about("Index of the pair in the request")]
    object: Annotated[Literal["score"], about("Type of this object")]
    score: Annotated[float, about("How well the texts fit, as the model has learnt it")]


class Scores(TypedDict):
    """The scores of a request's pairs, in order."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["list"], about("Type of this object")]
    created: Annotated[int, about("Unix seconds")]
    model: Annotated[str, about("The model's name")]
    data: Annotated[list[Score], about("One score for each pair")]
    usage: Annotated[dict[str, int], about("Charged tokens: `prompt_tokens`, `total_tokens`")]


class RankedDocument(TypedDict):
    """One document of a ranking."""

    index: Annotated[int, about("Index of the document in the request")]
    relevance_score: Annotated[float, about("How well it fits the query")]
    document: NotRequired[Annotated[dict[str, str], about("Its `text`; absent with `return_documents: false`")]]


class Ranking(TypedDict):
    """The documents of a request, from the most relevant."""

    id: Annotated[str, about("Identifier")]
    model: Annotated[str, about("The model's name")]
    results: Annotated[list[RankedDocument], about("All documents, or the first `top_n`")]
    usage: Annotated[dict[str, int], about("Charged tokens: `prompt_tokens`, `total_tokens`")]


class ModelObject(TypedDict):
    """A model that can be requested."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["model"], about("Type of this object")]
    created: Annotated[int, about("Unix seconds: first announcement of the model in its current form")]
    owned_by: Annotated[str, about("Always `fairlane`")]
    context_length: Annotated[int, about("Maximum of prompt and output tokens together")]
    max_model_len: Annotated[int, about("vLLM's name for `context_length`")]
    exact: Annotated[bool, about("Whether output tokens are counted exactly; false: the text is tokenized again")]
    default_sampling: NotRequired[Annotated[dict[str, float], about("The authors' values, by parameter")]]


class ModelList(TypedDict):
    """Every model that the key may use."""

    object: Annotated[Literal["list"], about("Type of this object")]
    data: Annotated[list[ModelObject], about("The items")]


class TokenCount(TypedDict):
    """The tokens of a prompt."""

    count: Annotated[int, about("Number of tokens")]
    max_model_len: Annotated[int, about("vLLM's name for `context_length`")]
    tokens: Annotated[list[int], about("The tokens")]
    token_strs: NotRequired[Annotated[list[str], about("Each token's text, if requested")]]


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
    conversation: Annotated[dict[str, str] | None, about("`id` of the conversation that it was added to; null: none")]
    store: Annotated[bool, about("Whether the response is stored")]
    temperature: Annotated[float, about("Temperature used for sampling")]
    top_p: Annotated[float, about("Nucleus probability used for sampling")]
    truncation: Annotated[
        Literal["auto", "disabled"], about("Whether the oldest turns of a conversation that is too long are dropped")
    ]
    fairlane: NotRequired[Annotated[Remarks, about("How the answer was cut short; absent if it was not")]]


class Compaction(TypedDict):
    """A compacted conversation: the user's messages, then a summary of the whole."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["response.compaction"], about("Type of this object")]
    created_at: Annotated[int, about("Unix seconds")]
    output: Annotated[list[MessageItem | CompactionItem], about("The user's messages, then the summary")]
    usage: Annotated[BatchUsage, about("Charged tokens")]
    fairlane: NotRequired[Annotated[Remarks, about("How the answer was cut short; absent if it was not")]]


class InputItemList(ItemPage):
    """The input items of a stored response: messages, reasoning, calls and their results."""

    data: Annotated[list[GivenItem], about("The items")]


class MessageUsage(TypedDict):
    """Charged tokens of a request; `input_tokens` and `cache_read_input_tokens` together are its prompt."""

    input_tokens: Annotated[int, about("Prompt tokens")]
    cache_creation_input_tokens: Annotated[int, about("Always 0")]
    cache_read_input_tokens: Annotated[int, about("Prompt tokens that were in a cache")]
    output_tokens: Annotated[int, about("Output tokens")]
    service_tier: Annotated[Literal["standard", "priority", "batch"], about("The granted service tier")]


class AnthropicMessage(TypedDict):
    """A message; a stream sends it as events, from `message_start` to `message_stop`."""

    id: Annotated[str, about("Identifier")]
    type: Annotated[Literal["message"], about("Type of this object")]
    role: Annotated[Literal["assistant"], about("The message's author")]
    model: Annotated[str, about("The model's name")]
    content: Annotated[list[TextBlock | ThinkingBlock | ToolUseBlock], about("Its blocks, in order")]
    stop_reason: Annotated[
        Literal["end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"],
        about("Why the message ended"),
    ]
    stop_sequence: Annotated[str | None, about("The stop sequence that matched; null: none")]
    usage: Annotated[MessageUsage, about("Charged tokens")]
    fairlane: NotRequired[Annotated[Remarks, about("How the answer was cut short; absent if it was not")]]


class PromptTokens(TypedDict):
    """The number of a prompt's tokens."""

    input_tokens: Annotated[int, about("Prompt tokens")]


class InputTokens(PromptTokens):
    """The number of a response's prompt tokens."""

    object: Annotated[Literal["response.input_tokens"], about("Type of this object")]


class ErrorBody(TypedDict):
    """An error: its machine-readable code, its message, and the field or limit that caused it."""

    message: Annotated[str, about("Human-readable message")]
    type: Annotated[str, about("OpenAI's type of the error")]
    param: Annotated[str | None, about("The request's field that caused the error; null if none did")]
    code: Annotated[str, about("Machine-readable error code, from the table of errors")]
    limit: NotRequired[Annotated[LimitBlockView, about("The limit that caused the error, if any")]]


class Error(TypedDict):
    """The error response, also within a stream."""

    error: Annotated[ErrorBody, about("The error")]


_ERROR_TYPES: JsonDict = {"enum": ["invalid_request_error", *dict.fromkeys(ANTHROPIC_TYPES.values())]}


class AnthropicErrorBody(TypedDict):
    """An error: Anthropic's type, Fairlane's machine-readable code, and the field or limit that caused it."""

    type: Annotated[str, Field(json_schema_extra=_ERROR_TYPES), about("Anthropic's type of the error")]
    message: Annotated[str, about("Human-readable message")]
    code: Annotated[str, about("Machine-readable error code, from the table of errors")]
    param: NotRequired[Annotated[str, about("The request's field that caused the error; null if none did")]]
    limit: NotRequired[Annotated[LimitBlockView, about("The limit that caused the error, if any")]]


class AnthropicError(TypedDict):
    """The error response on Anthropic's paths, also within a stream."""

    type: Annotated[Literal["error"], about("Type of this object")]
    error: Annotated[AnthropicErrorBody, about("The error")]
    request_id: Annotated[str | None, about("The request's id, as in the header `request-id`")]
