"""The JSON that the tenant API answers with, as OpenAPI shows it; `gateway.answers` makes it."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads its own kind only, before Python 3.12

from gateway.admin_shapes import LimitBlockView

FinishReason = Literal["stop", "length"]
Tier = Literal["priority", "flex", "default"]


class CachedTokens(TypedDict):
    """What a cache held of the prompt."""

    cached_tokens: int


class Usage(TypedDict):
    """Tokens of one request, all its choices together, as they are charged."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Limited(TypedDict):
    """What cut a choice short, where a limit did."""

    limited_by: str


class TokenLogprob(TypedDict):
    """One token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(TokenLogprob):
    """A chosen token, and the likeliest ones in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    """Log-probabilities of a chat choice."""

    content: list[ChosenLogprob]
    refusal: None


class CompletionLogprobs(TypedDict):
    """Log-probabilities of a plain completion, in parallel lists."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class AssistantMessage(TypedDict):
    """What the model says."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """One choice of a chat completion."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(TypedDict):
    """A chat completion; a stream's events are `chat.completion.chunk` objects with a `delta` for the message."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    service_tier: Tier
    choices: list[ChatChoice]
    usage: Usage
    fairlane: NotRequired[Limited]


class CompletionChoice(TypedDict):
    """One choice of a plain completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class Completion(TypedDict):
    """A plain completion; a stream's events have the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    service_tier: Tier
    choices: list[CompletionChoice]
    usage: Usage
    fairlane: NotRequired[Limited]


class Model(TypedDict):
    """A model that can be asked for."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: int


class ModelList(TypedDict):
    """Every model that the key may use."""

    object: Literal["list"]
    data: list[Model]


class ErrorBody(TypedDict):
    """What went wrong: the code for programs, the message for people, the field or limit that is the cause."""

    message: str
    type: str
    param: str | None
    code: str
    limit: NotRequired[LimitBlockView]


class Error(TypedDict):
    """Every refusal, in a plain answer and in a stream."""

    error: ErrorBody
