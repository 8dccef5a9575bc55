"""OpenAI's request bodies, field by field, as they are validated and documented by OpenAPI.

Field names and ranges are OpenAI's; `top_k`, `min_p`, `repetition_penalty`, `min_tokens` and `ignore_eos` are vLLM's,
`deadline_ms` is ours."""

from typing import Annotated, Any, Literal, TypeGuard, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from fairlane.gateway.dialects.openai.chat_tools import Choice, FunctionChoice, Functions, ToolBody
from fairlane.gateway.dialects.openai.engine_fields import MAX_LOGPROBS, EngineFields
from fairlane.gateway.dialects.openai.field_types import (
    Fields,
    Hint,
    Ignored,
    Lenient,
    NoneIfEmpty,
    Off,
    Text,
    as_unicode,
    lenient_in,
)
from fairlane.gateway.dialects.openai.message_parts import Content, Thought
from fairlane.gateway.dialects.openai.rendering import (
    Documents,
    EffortWord,
    ReasoningOptions,
    TemplateVariables,
    ThinkingOptions,
)
from fairlane.gateway.dialects.openai.structures import StructureFields
from fairlane.gateway.dialects.openai.tools import MAX_CALLS, MAX_TOOLS, CallBody, CalledBody
from fairlane.gateway.http.lifted import MAX_TOKEN_ID

# Choices per prompt.
MAX_CHOICES = 16
MAX_BEST_OF = 20
# Prompts times choices per request.
MAX_SEQUENCES = 128
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
# Tokens whose scores one request changes.
MAX_BIASES = 300
MOST_BIAS = 100.0
MAX_STOP_TOKENS = 128
# Thirty days, in a body or a header.
MAX_DEADLINE_MS = 30 * 86_400_000.0
_INT64 = 2**63
_MOST_DIGITS = 9


def _stops(stop: object) -> tuple[str, ...]:
    listed = [stop] if isinstance(stop, str) else stop
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise PydanticCustomError("stop", "must be text or a list of texts")
    if len(listed) > MAX_STOPS or any(len(text) > MAX_STOP_CHARS for text in listed):
        raise PydanticCustomError("stop", f"must be at most {MAX_STOPS} texts of at most {MAX_STOP_CHARS} characters")
    return tuple([as_unicode(text) for text in listed if text])


def _nothing(value: object) -> None:
    if value is not None and value != []:
        raise PydanticCustomError("unsupported", "is not supported yet")


def _transcript(audio: object) -> str:
    found = audio.get("transcript") if isinstance(audio, dict) else None
    if audio and not isinstance(found, str):
        raise PydanticCustomError("audio", "is not supported yet: it has no transcript")
    return as_unicode(found or "")


def _kept(tokens: int) -> int:
    if tokens == 0 or tokens < -1:
        raise PydanticCustomError("kept", "must be a number of tokens, or -1 for as many as the model takes")
    return tokens


def _prompts(prompt: object) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(prompt, str | tuple) or _is_token_ids(prompt):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise PydanticCustomError("prompt", "must be text, token ids, or a non-empty list of either")
    return tuple(_prompt(item) for item in prompt)


def _prompt(item: object) -> str | tuple[int, ...]:
    if isinstance(item, str) and item:
        return as_unicode(item)
    if isinstance(item, tuple) and item:  # a long list of a large body, checked when it was read
        return item
    if _is_token_ids(item):
        return tuple(item)
    raise PydanticCustomError("prompt", "contains a prompt that is empty, or neither text nor token ids")


def _biases(biases: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(biases, dict) or len(biases) > MAX_BIASES:
        raise PydanticCustomError("biases", f"must be an object of at most {MAX_BIASES} token ids")
    return tuple(_bias(token_id, bias) for token_id, bias in biases.items())


def _bias(token_id: str, bias: object) -> tuple[int, float]:
    if not (token_id.isascii() and token_id.isdecimal() and len(token_id) <= _MOST_DIGITS):
        raise PydanticCustomError("biases", "contains a key that is not a token id")
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not -MOST_BIAS <= bias <= MOST_BIAS:
        rule = f"contains a value that is not a number from -{MOST_BIAS:g} to {MOST_BIAS:g}"
        raise PydanticCustomError("biases", rule)
    return int(token_id), float(bias)


def _is_token_ids(item: object) -> TypeGuard[list[int]]:
    if not isinstance(item, list) or set(map(type, item)) != {int}:
        return False
    return bool(min(item) >= 0 and max(item) < MAX_TOKEN_ID)


Real = Annotated[float, Field(allow_inf_nan=False)]
Penalty = Annotated[Real, Field(ge=-2, le=2)]
Count = Annotated[int, Field(ge=1, lt=_INT64)]
_Item = TypeVar("_Item")
_Several = Annotated[list[_Item], Field(min_length=1, fail_fast=True)]
_Filled = Annotated[str, Field(min_length=1)]
_TokenIds = _Several[Annotated[int, Field(ge=0, lt=MAX_TOKEN_ID)]]
Prompts = Annotated[
    tuple[str | tuple[int, ...], ...],
    PlainValidator(_prompts, json_schema_input_type=_Filled | _Several[_Filled] | _TokenIds | _Several[_TokenIds]),
]
Stops = Annotated[tuple[str, ...], PlainValidator(_stops, json_schema_input_type=str | list[str])]
Biases = Annotated[tuple[tuple[int, float], ...], PlainValidator(_biases, json_schema_input_type=dict[str, float])]
TokenId = Annotated[int, Field(ge=0, lt=MAX_TOKEN_ID)]
Unsupported = Annotated[None, BeforeValidator(_nothing)]
Spoken = Annotated[str, PlainValidator(_transcript, json_schema_input_type=dict[str, Any])]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
Kept = Annotated[int, Field(lt=_INT64), AfterValidator(_kept)]
Tier = Literal["auto", "default", "flex", "scale", "priority", "fast"]


class StreamOptions(Fields):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[Off | None, lenient_in("stream_options")] = None
    continuous_usage_stats: bool | None = None


class Message(Fields):
    """One turn of a conversation."""

    role: Role
    content: Content | None = None
    name: Hint | None = None
    tool_call_id: Hint | None = None
    tool_calls: Annotated[list[CallBody], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    function_call: CalledBody | None = None
    refusal: Text | None = None
    reasoning_content: Thought = ""
    reasoning: Thought = ""
    # OpenRouter's and LiteLLM's forms of reasoning.
    reasoning_details: Thought = ""
    thinking_blocks: Thought = ""
    audio: Spoken = ""
    # DeepSeek's and Mistral's, and Kimi's mark of a last message that the model continues.
    prefix: Annotated[bool | None, lenient_in("messages")] = None
    partial: Annotated[bool | None, lenient_in("messages")] = None
    # What answers contain, and clients send back.
    annotations: Annotated[None, lenient_in("messages"), WithJsonSchema({})] = None
    cache_control: Ignored = None
    provider_specific_fields: Any = None


class RequestBody(Fields):
    """The fields of every request to a model."""

    model: Annotated[Hint, Field(min_length=1)]
    service_tier: Annotated[Tier | None, NoneIfEmpty] = None
    deadline_ms: Annotated[Real, Field(gt=0, le=MAX_DEADLINE_MS)] | None = None


class SampledBody(RequestBody):
    """The fields of OpenAI's requests for generated text."""

    temperature: Annotated[Real, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Real, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[Real, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Real, Field(ge=0.01, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64)] | None = None
    stream: bool | None = None
    close_json: bool | None = None


class GenerationBody(StructureFields, EngineFields, SampledBody):
    """The common fields of chat and plain completions."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=_INT64)] | None = None
    ignore_eos: bool | None = None
    logit_bias: Biases | None = None
    stop: Stops | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Kept | None = None
    cache_salt: Annotated[Hint, Field(min_length=1)] | None = None
    stream_options: StreamOptions | None = None


class ChatBody(GenerationBody):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Annotated[Choice | None, NoneIfEmpty] = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None
    function_call: FunctionChoice | None = None
    include_reasoning: bool | None = None
    reasoning_effort: Annotated[EffortWord | None, NoneIfEmpty] = None
    reasoning: Lenient[ReasoningOptions] = None
    thinking: Lenient[ThinkingOptions] = None
    enable_thinking: Lenient[bool] = None
    chat_template_kwargs: TemplateVariables | None = None
    documents: Documents | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionBody(GenerationBody):
    """The body of `POST /v1/completions`: one prompt or several, as text or as token ids."""

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0, lt=_INT64)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    suffix: Text | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_BEST_OF)] | None = None
