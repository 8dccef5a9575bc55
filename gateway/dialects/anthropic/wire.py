"""The request bodies on the wire, field by field: what a body is checked against and OpenAPI shows.

Field names and ranges are Anthropic's. What its own API alone can do is refused by name; what changes nothing here is
taken and left: `cache_control`, `diagnostics`, the effort, hints for streams. `deadline_ms` is ours.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fairlane.gateway.dialects.anthropic.blocks import Blocks, CacheControl, TextBlocks
from fairlane.gateway.dialects.openai.fields import Fields, Hint, Text, as_unicode
from fairlane.gateway.dialects.openai.neutral import Neutral
from fairlane.gateway.dialects.openai.structures import JsonSchema
from fairlane.gateway.dialects.openai.tools import MAX_TOOLS, DirectCallers, Parameters
from fairlane.gateway.dialects.openai.wire import MAX_DEADLINE_MS, MAX_STOP_CHARS, Count, Real, Unsupported

MAX_STOP_SEQUENCES = 16
MAX_EDITS = 16

ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
ServiceTier = Literal["auto", "standard_only", "default", "scale", "flex", "priority", "fast"]
"""The first two are Anthropic's, the others as in a chat."""


class MessageBody(Fields):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class CustomTool(Fields):
    """A tool that the caller runs; those that Anthropic runs are not served."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: Text | None = None
    input_schema: Parameters
    strict: bool | None = None
    cache_control: CacheControl | None = None
    defer_loading: bool | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: DirectCallers | None = None
    input_examples: Unsupported = None


class ToolChoiceBody(Fields):
    """Whether the model has to call a tool, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingBody(Fields):
    """Whether thinking is shown. How long a model thinks is its own affair: the budget is not enforced."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(Fields):
    """The answer is JSON that keeps to a schema."""

    type: Literal["json_schema"]
    schema_: Annotated[JsonSchema, Field(alias="schema")]


class OutputConfig(Fields):
    """What form the answer shall have. The effort is a hint, for models that know it."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class MetadataBody(Fields):
    """On whose behalf the request is made."""

    user_id: Hint | None = None


class DiagnosticsBody(Fields):
    """The request before this one, of which its caller would like to know why the cache missed it."""

    previous_message_id: Hint | None = None


class KeptTurns(Fields):
    """The last turns of the assistant's that thought."""

    type: Literal["thinking_turns"]
    value: Count


class KeptAll(Fields):
    """All of them."""

    type: Literal["all"]


class ClearThinking(Fields):
    """Thinking of earlier turns that the model is not to read again."""

    type: Literal["clear_thinking_20251015"]
    keep: Annotated[KeptTurns | KeptAll, Field(discriminator="type")] | Literal["all"] | None = None


class ContextManagement(Fields):
    """What is left out of the conversation before the model reads it."""

    edits: Annotated[list[ClearThinking], Field(max_length=MAX_EDITS, fail_fast=True)] | None = None


class PromptBody(Fields):
    """What a prompt is made of: the body of `POST /v1/messages/count_tokens`."""

    model: Annotated[Hint, Field(min_length=1)]
    messages: Annotated[list[MessageBody], Field(min_length=1, fail_fast=True)]
    system: TextBlocks | None = None
    tools: Annotated[list[CustomTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoiceBody | None = None
    thinking: ThinkingBody | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    cache_control: CacheControl | None = None
    context_management: ContextManagement | None = None
    user_profile_id: Hint | None = None


class MessagesBody(PromptBody):
    """The body of `POST /v1/messages`."""

    max_tokens: Count | None = None
    stop_sequences: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS), AfterValidator(as_unicode)]],
            Field(max_length=MAX_STOP_SEQUENCES, fail_fast=True),
        ]
        | None
    ) = None
    stream: bool | None = None
    temperature: Annotated[Real, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Real, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    service_tier: ServiceTier | None = None
    metadata: MetadataBody | None = None
    diagnostics: DiagnosticsBody | None = None
    deadline_ms: Annotated[Real, Field(gt=0, le=MAX_DEADLINE_MS)] | None = None


_NOT_SERVED: dict[str, tuple[Any, ...]] = {"mcp_servers": ([],), "speed": ("standard",)}
NEUTRAL_PROMPT: Neutral = _NOT_SERVED
NEUTRAL_MESSAGES: Neutral = {**_NOT_SERVED, "container": (), "fallbacks": ([],), "inference_geo": ("global",)}
"""Fields that are not served, with the values beside null that ask for nothing."""
