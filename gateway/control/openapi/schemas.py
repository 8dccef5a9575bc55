"""Responses of the tenant API, as published in OpenAPI; `gateway.answers` builds them.

Parts that clients send back in later requests are the models of request bodies."""

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about
from fairlane.gateway.control.admin.views import LimitBlockView
from fairlane.gateway.dialects.openai.tools import CallBody

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]
Tier = Literal["priority", "flex", "default"]
Limited = Annotated[dict[str, str], about("`limited_by`: the limit that cut the answer short; absent if none did")]
_FINISH = about(
    "`stop`: the model ended it or a stop string matched; `length`: a limit; `tool_calls`: tools were called"
)


class Usage(TypedDict):
    """Charged tokens of one request, all its choices together."""

    prompt_tokens: Annotated[int, about("Prompt tokens")]
    completion_tokens: Annotated[int, about("Charged output tokens of all choices")]
    total_tokens: Annotated[int, about("Prompt and output tokens")]
    prompt_tokens_details: Annotated[dict[str, int], about("`cached_tokens`: prompt tokens that were in a cache")]
    completion_tokens_details: Annotated[dict[str, int], about("OpenAI's breakdown of the output tokens, always 0")]


class TokenLogprob(TypedDict):
    """One token and its log-probability."""

    token: Annotated[str, about("The token as text")]
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
    """A message of the model."""

    role: Annotated[Literal["assistant"], about("The message's author")]
    content: Annotated[str | None, about("The content")]
    refusal: Annotated[None, about("OpenAI's field, always null here")]
    reasoning_content: NotRequired[Annotated[str, about("The model's reasoning before its answer")]]
    tool_calls: NotRequired[Annotated[list[CallBody], about("Tool calls by the model")]]


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
    tool_calls: Annotated[list[dict[str, Any]], about("Parts of tool calls, each with the `index` of its call")]


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
    system_fingerprint: Annotated[
        str, about("Changes with the model's computation: the same fingerprint and seed give the same output")
    ]
    fairlane: NotRequired[Limited]


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
    embedding: Annotated[
        list[float] | str,
        about("The vector's numbers; as base64 of 32-bit little-endian floats if the request asks for it"),
    ]


class Embeddings(TypedDict):
    """The vectors of a request's inputs, in order."""

    object: Annotated[Literal["list"], about("Type of this object")]
    data: Annotated[list[Embedding], about("One vector for each input")]
    model: Annotated[str, about("The model's name")]
    usage: Annotated[dict[str, int], about("Charged tokens: `prompt_tokens`, `total_tokens`")]


class ModelObject(TypedDict):
    """A model that can be requested."""

    id: Annotated[str, about("Identifier")]
    object: Annotated[Literal["model"], about("Type of this object")]
    created: Annotated[int, about("Unix seconds: first announcement of the model in its current form")]
    owned_by: Annotated[str, about("Always `fairlane`")]
    context_length: Annotated[int, about("Maximum of prompt and output tokens together")]
    max_model_len: Annotated[int, about("vLLM's name for `context_length`")]
    exact: Annotated[
        bool,
        about(
            "Whether generated tokens are counted exactly; false: the text is tokenized again with this model's "
            "tokenizer"
        ),
    ]
    default_sampling: NotRequired[
        Annotated[dict[str, float], about("The authors' values by parameter, used if a request has none")]
    ]


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
