"""Responses of the tenant API, as published in OpenAPI; `gateway.answers` builds them.

Also the headers of requests and responses in the document."""

from collections.abc import Iterable
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads its own kind only, before Python 3.12

from fairlane.gateway.control.admin.call import IF_MATCH, LONGEST_TAGS, TAGS
from fairlane.gateway.control.admin.views import LimitBlockView
from fairlane.gateway.dialects.openai.wire import MAX_DEADLINE_MS
from fairlane.gateway.errors import TABLE, Code, Retry, is_anthropic
from fairlane.gateway.middleware.idempotency import REPLAYED_HEADER
from fairlane.gateway.middleware.idempotent_run import HEADER as IDEMPOTENCY_HEADER
from fairlane.gateway.middleware.tenant import DEGRADED_HEADER, PROCESSING_HEADER
from fairlane.gateway.request.service_level import (
    CLASS_HEADER,
    DEADLINE_HEADER,
    LANE_HEADER,
    PROGRESS_HEADER,
    READ_TIMEOUT_HEADER,
    TTFT_HEADERS,
)
from fairlane.scheduler.protocol.lanes import LaneName

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]
Tier = Literal["priority", "flex", "default"]


class CachedTokens(TypedDict):
    """The cached part of the prompt's tokens."""

    cached_tokens: int
    audio_tokens: int


class CompletionTokens(TypedDict):
    """OpenAI's breakdown of the output tokens; always 0."""

    reasoning_tokens: int
    audio_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(TypedDict):
    """Charged tokens of one request, all its choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: CompletionTokens


class Limited(TypedDict):
    """The limit that cut a choice short."""

    limited_by: str


class TokenLogprob(TypedDict):
    """One token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(TokenLogprob):
    """A generated token, and the most likely ones at its position."""

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


class CalledFunction(TypedDict):
    """The function that a call names."""

    name: str
    arguments: str


class CallView(TypedDict):
    """A tool call."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class CalledFunctionDelta(TypedDict):
    """A part of a call's function: first its name, then its arguments piece by piece."""

    name: NotRequired[str]
    arguments: str


class CallDelta(TypedDict):
    """A part of a call."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunctionDelta


class AssistantMessage(TypedDict):
    """A message of the model."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallView]]


class ChatChoice(TypedDict):
    """One choice of a chat completion."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason


class ChatDelta(TypedDict, total=False):
    """The part of a message that a chunk adds."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str
    tool_calls: list[CallDelta]


class ChatChunkChoice(TypedDict):
    """The part of a chat choice that a chunk adds."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None


class ChatCompletionChunk(TypedDict):
    """One event of a streamed chat completion; with `stream_options.include_usage` the last one has no choice."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    service_tier: Tier
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    fairlane: NotRequired[Limited]


class ChatCompletion(TypedDict):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    service_tier: Tier
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    fairlane: NotRequired[Limited]


class CompletionChoice(TypedDict):
    """One choice of a plain completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class CompletionChunkChoice(TypedDict):
    """The part of a plain completion's choice that a chunk adds."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class CompletionChunk(TypedDict):
    """One event of a streamed completion; with `stream_options.include_usage` the last one has no choice."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    service_tier: Tier
    system_fingerprint: str
    choices: list[CompletionChunkChoice]
    usage: NotRequired[Usage | None]
    fairlane: NotRequired[Limited]


class Completion(TypedDict):
    """A plain completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    service_tier: Tier
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    fairlane: NotRequired[Limited]


class Embedding(TypedDict):
    """The vector of one input, of unit length."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddedTokens(TypedDict):
    """Charged tokens of the inputs."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(TypedDict):
    """The vectors of a request's inputs, in order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddedTokens


class DefaultSampling(TypedDict, total=False):
    """Sampling parameters recommended by the model's authors."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float


class ModelObject(TypedDict):
    """A model that can be requested."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: int
    max_model_len: int
    exact: bool
    default_sampling: NotRequired[DefaultSampling]


class ModelList(TypedDict):
    """Every model that the key may use."""

    object: Literal["list"]
    data: list[ModelObject]


class TokenCount(TypedDict):
    """The tokens of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: NotRequired[list[str]]


class DetokenizedText(TypedDict):
    """The text of tokens."""

    prompt: str


class VersionView(TypedDict):
    """The gateway's release."""

    version: str


class ErrorBody(TypedDict):
    """An error: its machine-readable code, its message, and the field or limit that caused it."""

    message: str
    type: str
    param: str | None
    code: str
    limit: NotRequired[LimitBlockView]


class Error(TypedDict):
    """The error response, also within a stream."""

    error: ErrorBody


Json = dict[str, Any]
REF = "#/components/headers/"

_TEXT: Json = {"type": "string"}
_WHOLE: Json = {"type": "integer", "minimum": 0}
_MS: Json = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_DEADLINE_MS}
_FLAG: Json = {"type": "string", "enum": ["0", "1"]}
_LANE: Json = {"type": "string", "enum": [lane.value for lane in LaneName]}
_ID = "x-request-id"
_KEY: Json = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"}

_ASKED_BY_ALL = {_ID: (_TEXT, "The caller's id of the request; echoed if it is well-formed")}
_ASKED_OF_A_MODEL = {
    LANE_HEADER: (_LANE, "The lane to use; overrides `service_tier`, and is refused if the tenant may not use it"),
    DEADLINE_HEADER: (
        _MS,
        "Deadline of the last token in milliseconds from arrival; refused if it cannot be met; as `deadline_ms`",
    ),
    **dict.fromkeys(
        TTFT_HEADERS, (_MS, "Deadline of the first token in milliseconds from arrival; refused if it cannot be met")
    ),
    PROGRESS_HEADER: (_FLAG, "1: a waiting stream sends comments with the reason"),
    READ_TIMEOUT_HEADER: (
        {"type": "string"},
        "Seconds that the official SDK waits for a plain answer; ignored if not a number",
    ),
    "traceparent": (_TEXT, "The caller's trace context, which is continued"),
}
_ASKED_ONCE = {
    IDEMPOTENCY_HEADER: (
        _KEY,
        "The request runs once: repeated within 24 hours, it joins the first run or replays its answer",
    )
}
_OF_A_MODEL = {
    LANE_HEADER: (_LANE, "The lane that served the request"),
    CLASS_HEADER: (
        {"type": "string", "enum": ["guaranteed", "best-effort"]},
        "Whether the stated deadline is guaranteed",
    ),
}
_OF_ONCE = {
    REPLAYED_HEADER: ({"type": "string", "const": "true"}, "The answer is that of an earlier request with the same key")
}
_OF_LIMITS = {
    f"x-ratelimit-{figure}-{dimension}": (schema, f"{what} of the limit on {dimension} with the least remaining")
    for dimension in ("requests", "tokens")
    for figure, schema, what in (
        ("limit", _WHOLE, "Value"),
        ("remaining", _WHOLE, "Remaining part"),
        ("reset", _TEXT, "Time until the refill, such as 1s or 6m0s,"),
    )
}
_OF_ANTHROPIC = {
    "request-id": (_TEXT, "The request's id"),
    **{
        f"anthropic-ratelimit-{dimension}-{figure}": (
            schema,
            f"{what} of the limit on {dimension} with the least remaining",
        )
        for dimension in ("requests", "tokens")
        for figure, schema, what in (
            ("limit", _WHOLE, "Value"),
            ("remaining", _WHOLE, "Remaining part"),
            ("reset", _TEXT, "Time of the refill (RFC 3339)"),
        )
    },
}
_OF_STORES = {
    PROCESSING_HEADER.decode(): (_WHOLE, "Milliseconds from the request's arrival to this header"),
    DEGRADED_HEADER.decode(): (
        _TEXT,
        "Unavailable stores, comma-separated: `quota-store`, `queue-store`; absent: none",
    ),
}
_TAGGED = {"etag": (_TEXT, "The version returned; for a quota, that of its tenant")}
_TAGS: Json = {"type": "string", "pattern": rf"^([*]|{TAGS.pattern})$", "maxLength": LONGEST_TAGS}
_IF_MATCH = {IF_MATCH: (_TAGS, "Change it only if its `ETag` is one of these, or for `*`; else 412")}
_WHEN = {
    "retry-after": (_WHOLE, "Seconds until this request would fit"),
    "retry-after-ms": (_WHOLE, "The same in milliseconds"),
}
_WHETHER = {"x-should-retry": ({"type": "string", "const": "false"}, "A retry of the same request cannot succeed")}


def components() -> Json:
    """Return every response header by name."""
    told = {
        _ID: (_TEXT, "The request's id"),
        **_OF_A_MODEL,
        **_OF_ONCE,
        **_OF_LIMITS,
        **_OF_ANTHROPIC,
        **_OF_STORES,
        **_TAGGED,
        **_WHEN,
        **_WHETHER,
    }
    return {name: {"schema": schema, "description": what} for name, (schema, what) in told.items()}


def asked(*, of_a_model: bool, is_once: bool, if_match: bool) -> list[Json]:
    """Return the request headers of an operation as parameters. `is_once`: it honours an idempotency key."""
    groups = ((_ASKED_OF_A_MODEL, of_a_model), (_ASKED_ONCE, is_once), (_IF_MATCH, if_match))
    known = dict(_ASKED_BY_ALL)
    for headers, is_taken in groups:
        known |= headers if is_taken else {}
    return [
        {"name": name, "in": "header", "required": False, "schema": schema, "description": what}
        for name, (schema, what) in known.items()
    ]


def told(
    who: Literal["tenant", "admin", "anyone"],
    path: str,
    *,
    of_a_model: bool = False,
    is_once: bool = False,
    tagged: bool = False,
) -> Json:
    """Return the response headers of an operation."""
    of_tenants = (*_OF_LIMITS, *_OF_STORES) if who == "tenant" else ()
    of_anthropic = _OF_ANTHROPIC if is_anthropic(path) else ()
    of_a_model_or_key = (*(_OF_A_MODEL if of_a_model else ()), *(_OF_ONCE if is_once else ()))
    return _refs([_ID, *of_tenants, *of_anthropic, *of_a_model_or_key, *(_TAGGED if tagged else ())])


def of_refusals(codes: Iterable[Code]) -> Json:
    """Return the additional headers of error responses with these codes."""
    rules = {TABLE[code].retry for code in codes}
    when = rules & {Retry.LATER, Retry.HOPELESS, Retry.IF_KNOWN}
    whether = rules & {Retry.NEVER, Retry.HOPELESS, Retry.IF_KNOWN}
    return _refs([*(_WHEN if when else ()), *(_WHETHER if whether else ())])


def _refs(names: Iterable[str]) -> Json:
    return {name: {"$ref": REF + name} for name in names}
