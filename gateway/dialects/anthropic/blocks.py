"""Content blocks on the wire: text, thinking, tool calls and their results.

Other blocks (images, documents, output of Anthropic's own tools) are rejected by their position."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, PlainValidator, Tag
from pydantic_core import PydanticCustomError

from fairlane.gateway.dialects.openai.fields import Fields, Hint, Text, json_text
from fairlane.gateway.dialects.openai.wire import Unsupported

# Of one call's input, as JSON.
MAX_INPUT_CHARS = 1024 * 1024


class CacheControl(Fields):
    """A caching hint. It changes nothing, since all of a prompt is cached here."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: Hint | None = None


class DirectCaller(Fields):
    """The model itself called the tool."""

    type: Literal["direct"]


class TextBlock(Fields):
    """A block of text."""

    type: Literal["text"]
    text: Text
    cache_control: CacheControl | None = None
    citations: Unsupported = None


class ThinkingBlock(Fields):
    """The model's thinking before a response. The signature is not checked."""

    type: Literal["thinking"]
    thinking: Text
    signature: Text = ""
    cache_control: CacheControl | None = None


class RedactedThinkingBlock(Fields):
    """Thinking that cannot be read; it is ignored."""

    type: Literal["redacted_thinking"]
    data: Text


def _as_json(given: object) -> str:
    if not isinstance(given, dict):
        raise PydanticCustomError("input", "must be an object")
    text = json_text(given)
    if len(text) > MAX_INPUT_CHARS:
        raise PydanticCustomError("input", f"must have at most {MAX_INPUT_CHARS} characters as JSON")
    return text


class ToolUseBlock(Fields):
    """A tool call by the model."""

    type: Literal["tool_use"]
    id: Annotated[Hint, Field(min_length=1)]
    name: Annotated[Hint, Field(min_length=1)]
    input: Annotated[str, PlainValidator(_as_json, json_schema_input_type=dict[str, Any])]
    caller: DirectCaller | None = None
    toolset_name: Unsupported = None
    cache_control: CacheControl | None = None


def _blocks(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


TextBlocks = Annotated[
    list[TextBlock], Field(fail_fast=True), BeforeValidator(_blocks, json_schema_input_type=str | list[TextBlock])
]


class ToolResultBlock(Fields):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[Hint, Field(min_length=1)]
    content: TextBlocks | None = None
    is_error: bool | None = None
    toolset_name: Unsupported = None
    cache_control: CacheControl | None = None


def _tag(block: object) -> str | None:
    kind = block.get("type") if isinstance(block, Mapping) else getattr(block, "type", None)
    return f"<{kind}>" if isinstance(kind, str) else None


_KNOWN = "'text', 'thinking', 'redacted_thinking', 'tool_use' or 'tool_result'"
Block = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[RedactedThinkingBlock, Tag("<redacted_thinking>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")],
    Discriminator(
        _tag,
        custom_error_type="block",
        custom_error_message=f"must be a block of the type {_KNOWN}; images, documents and others are not supported",
    ),
]
Blocks = Annotated[
    list[Block], Field(fail_fast=True), BeforeValidator(_blocks, json_schema_input_type=str | list[Block])
]
