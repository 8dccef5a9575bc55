"""Content blocks on the wire: text, thinking, tool calls and their results.

Other blocks (images, documents, output of Anthropic's own tools) are rejected by their position."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, PlainValidator, Tag
from pydantic_core import PydanticCustomError

from fairlane.common.views import about
from fairlane.gateway.dialects.openai.field_types import Fields, Hint, Ignored, Text, json_text
from fairlane.gateway.dialects.openai.request_bodies import Unsupported

# Characters of one call's input as JSON.
MAX_INPUT_CHARS = 1024 * 1024


class DirectCaller(Fields):
    """The model itself called the tool."""

    type: Annotated[Literal["direct"], about("Type of this object")]


class TextBlock(Fields):
    """A block of text."""

    type: Annotated[Literal["text"], about("Type of this object")]
    text: Annotated[Text, about("The text")]
    cache_control: Ignored = None
    citations: Annotated[Unsupported, about("Accepted and ignored")] = None


class ThinkingBlock(Fields):
    """The model's thinking before a response. The signature is not checked."""

    type: Annotated[Literal["thinking"], about("Type of this object")]
    thinking: Annotated[Text, about("The model's thinking")]
    signature: Annotated[Text, about("Always `unsigned`: returned thinking is accepted unchecked")] = ""
    cache_control: Ignored = None


class RedactedThinkingBlock(Fields):
    """Thinking that cannot be read; it is ignored."""

    type: Annotated[Literal["redacted_thinking"], about("Type of this object")]
    data: Annotated[Text, about("The unreadable thinking, which is ignored")]


def _as_json(given: object) -> str:
    if not isinstance(given, dict):
        raise PydanticCustomError("input", "must be an object")
    text = json_text(given)
    if len(text) > MAX_INPUT_CHARS:
        raise PydanticCustomError("input", f"must have at most {MAX_INPUT_CHARS} characters as JSON")
    return text


class ToolUseBlock(Fields):
    """A tool call by the model."""

    type: Annotated[Literal["tool_use"], about("Type of this object")]
    id: Annotated[Hint, Field(min_length=1), about("Identifier")]
    name: Annotated[Hint, Field(min_length=1), about("Name")]
    input: Annotated[str, PlainValidator(_as_json, json_schema_input_type=dict[str, Any]), about("The arguments")]
    caller: Annotated[DirectCaller | None, about("The caller: the model")] = None
    toolset_name: Annotated[Unsupported, about("Accepted and ignored")] = None
    cache_control: Ignored = None


def _blocks(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


TextBlocks = Annotated[
    list[TextBlock], Field(fail_fast=True), BeforeValidator(_blocks, json_schema_input_type=str | list[TextBlock])
]


class ToolResultBlock(Fields):
    """The result of a tool call."""

    type: Annotated[Literal["tool_result"], about("Type of this object")]
    tool_use_id: Annotated[Hint, Field(min_length=1), about("Id of the call that this result answers")]
    content: Annotated[TextBlocks | None, about("The content")] = None
    is_error: Annotated[bool | None, about("Whether the tool failed; the content describes how")] = None
    toolset_name: Annotated[Unsupported, about("Accepted and ignored")] = None
    cache_control: Ignored = None


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
