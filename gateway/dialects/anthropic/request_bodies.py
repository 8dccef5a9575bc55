"""Anthropic's request bodies, field by field, as they are validated and documented by OpenAPI.

Field names and ranges are Anthropic's. Features specific to Anthropic's API are rejected by name; fields without an
effect here (`cache_control`, `diagnostics`, hints for streams) are accepted and ignored. `deadline_ms` is
ours."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from fairlane.gateway.dialects.anthropic.blocks import Blocks, TextBlocks
from fairlane.gateway.dialects.anthropic.tools import AnyTool
from fairlane.gateway.dialects.openai.field_types import (
    Fields,
    Hint,
    Identifier,
    Ignored,
    NoneIfEmpty,
    as_unicode,
    lenient_in,
)
from fairlane.gateway.dialects.openai.neutral import Neutral, hint
from fairlane.gateway.dialects.openai.rendering import TemplateVariables
from fairlane.gateway.dialects.openai.request_bodies import (
    MAX_DEADLINE_MS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    Count,
    Real,
)
from fairlane.gateway.dialects.openai.structures import JsonSchema
from fairlane.gateway.dialects.openai.tools import MAX_TOOLS

MAX_EDITS = 16

# The first two are Anthropic's, the others as in a chat.
ServiceTier = Literal["auto", "standard_only", "default", "scale", "flex", "priority", "fast"]


class MessageBody(Fields):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class ToolChoiceBody(Fields):
    """The tools that the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: Identifier | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingBody(Fields):
    """Whether the model thinks, and what is shown of it. The budget is not enforced."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[None, lenient_in("thinking"), WithJsonSchema({})] = None
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(Fields):
    """A response format: JSON that follows a schema."""

    type: Literal["json_schema"]
    schema_: Annotated[JsonSchema, Field(alias="schema")]


class OutputConfig(Fields):
    """The format of the response. The effort is a hint for models that support it."""

    effort: Annotated[Literal["low", "medium", "high", "xhigh", "max"] | None, lenient_in("output_config")] = None
    format: JsonFormat | None = None


class KeptTurns(Fields):
    """Keep thinking in this many of the assistant's last turns."""

    type: Literal["thinking_turns"]
    value: Count


class KeptAll(Fields):
    """Keep all thinking."""

    type: Literal["all"]


class ClearThinking(Fields):
    """Removes thinking of earlier turns from the prompt."""

    type: Literal["clear_thinking_20251015"]
    keep: Annotated[KeptTurns | KeptAll, Field(discriminator="type")] | Literal["all"] | None = None


class ContextManagement(Fields):
    """Edits of the conversation before the model reads it."""

    edits: Annotated[list[ClearThinking], Field(max_length=MAX_EDITS, fail_fast=True)] | None = None


class PromptBody(Fields):
    """The parts of a prompt: the body of `POST /v1/messages/count_tokens`."""

    model: Annotated[Hint, Field(min_length=1)]
    messages: Annotated[list[MessageBody], Field(min_length=1, fail_fast=True)]
    system: TextBlocks | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Annotated[ToolChoiceBody | None, NoneIfEmpty] = None
    thinking: Annotated[ThinkingBody | None, NoneIfEmpty] = None
    output_config: OutputConfig | None = None
    output_format: Annotated[JsonFormat | None, NoneIfEmpty] = None
    cache_control: Ignored = None
    context_management: ContextManagement | None = None
    user_profile_id: Ignored = None
    chat_template_kwargs: TemplateVariables | None = None


class MessagesBody(PromptBody):
    """The body of `POST /v1/messages`."""

    max_tokens: Count | None = None
    stop_sequences: (
        Annotated[
            list[Annotated[str, Field(max_length=MAX_STOP_CHARS), AfterValidator(as_unicode)]],
            Field(max_length=MAX_STOPS, fail_fast=True),
        ]
        | None
    ) = None
    stream: bool | None = None
    temperature: Annotated[Real, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Real, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    close_json: bool | None = None
    service_tier: Annotated[ServiceTier | None, NoneIfEmpty] = None
    metadata: Ignored = None
    diagnostics: Ignored = None
    deadline_ms: Annotated[Real, Field(gt=0, le=MAX_DEADLINE_MS)] | None = None


_NOT_SERVED: dict[str, tuple[Any, ...]] = {"mcp_servers": ([],), "speed": hint("standard")}
NEUTRAL_PROMPT: Neutral = _NOT_SERVED
# Unsupported fields, with the values other than null that have no effect.
NEUTRAL_MESSAGES: Neutral = {
    **_NOT_SERVED,
    "container": (),
    "fallbacks": ([],),
    "inference_geo": hint("global"),
    "workspace_id": hint(),
}
