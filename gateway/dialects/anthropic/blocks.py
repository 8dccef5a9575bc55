"""Content blocks on the wire: text, thinking, tool calls and their results, and what an earlier conversation with
Anthropic's own models may contain.

What a model does not read is rejected in the user's messages, and omitted from the results of tools."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, PlainValidator, Tag
from pydantic_core import PydanticCustomError

from fairlane.common.views import about
from fairlane.gateway.dialects.openai.field_types import Fields, Hint, Ignored, Text, as_unicode, json_text
from fairlane.gateway.dialects.openai.message_parts import readable

# Characters of one call's input as JSON.
MAX_INPUT_CHARS = 1024 * 1024

Unread = Annotated[Any, about("Accepted and ignored")]


class TextBlock(Fields):
    """A block of text."""

    type: Annotated[Literal["text"], about("Type of this object")]
    text: Annotated[Text, about("The text")]
    cache_control: Ignored = None
    citations: Ignored = None


class ThinkingBlock(Fields):
    """The model's thinking before a response. The signature is not checked."""

    type: Annotated[Literal["thinking"], about("Type of this object")]
    thinking: Annotated[Text | None, about("The model's thinking")] = None
    signature: Annotated[Any, about("Always `unsigned`: returned thinking is accepted unchecked")] = None
    cache_control: Ignored = None


class RedactedThinkingBlock(Fields):
    """Thinking that cannot be read; it is ignored."""

    type: Annotated[Literal["redacted_thinking"], about("Type of this object")]
    data: Annotated[Any, about("The unreadable thinking, which is ignored")] = None
    cache_control: Ignored = None


def _blocks(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else [] if content is None else content


TextBlocks = Annotated[
    list[TextBlock],
    Field(fail_fast=True),
    BeforeValidator(_blocks, json_schema_input_type=str | list[TextBlock] | None),
]


class ImageBlock(Fields):
    """An image."""

    type: Annotated[Literal["image"], about("Type of this object")]
    source: Annotated[Any, about("`base64` with `data`, or `url` with `url`")] = None
    cache_control: Ignored = None
    text: ClassVar[None] = None


class OtherBlock(Fields):
    """A block of a kind that no model reads: refused, or omitted from the results of tools."""

    type: Annotated[Hint, about("Type of this object")]
    text: ClassVar[None] = None


def _only_type(block: Mapping[str, object]) -> dict[str, object]:
    return {"type": block["type"]}


SourceBlock = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ImageBlock, Tag("<image>")]
    | Annotated[OtherBlock, BeforeValidator(_only_type), Tag("<other>")],
    Discriminator(lambda block: tag if (tag := _tag(block)) in ("<text>", "<image>") else tag and "<other>"),
]
SourceBlocks = Annotated[
    list[SourceBlock], Field(fail_fast=True), BeforeValidator(_blocks, json_schema_input_type=str | list[SourceBlock])
]


class DocumentSource(Fields):
    """The source of a document: texts and images."""

    type: Annotated[Hint, about("`text` or `content`; others are refused, or omitted from the results of tools")]
    data: Annotated[Text | None, about("The text")] = None
    content: Annotated[SourceBlocks | None, about("The content")] = None
    media_type: Unread = None
    url: Unread = None
    file_id: Unread = None


class DocumentBlock(Fields):
    """A document."""

    type: Annotated[Literal["document"], about("Type of this object")]
    source: Annotated[DocumentSource | None, about("The document's content")] = None
    title: Annotated[Text | None, about("The title")] = None
    context: Annotated[Text | None, about("What the document is about")] = None
    citations: Ignored = None
    cache_control: Ignored = None

    @property
    def parts(self) -> Sequence["TextBlock | ImageBlock | OtherBlock"]:
        """The content; a block of another kind for what no model reads."""
        match self.source:
            case DocumentSource(type="content", content=blocks):
                return blocks or ()
            case DocumentSource(type="text", data=str(text)):
                return [TextBlock(type="text", text=text)]
        return [OtherBlock(type=self.type)]


class SearchResultBlock(Fields):
    """The result of a search by the caller."""

    type: Annotated[Literal["search_result"], about("Type of this object")]
    content: Annotated[TextBlocks, about("The content")]
    source: Annotated[Text | None, about("Where it was found")] = None
    title: Annotated[Text | None, about("The title")] = None
    citations: Ignored = None
    cache_control: Ignored = None

    @property
    def text(self) -> str:
        return "\n".join(filter(None, (self.title, self.source, *(block.text for block in self.content))))


class ToolReferenceBlock(Fields):
    """A tool that a search for tools found."""

    type: Annotated[Literal["tool_reference"], about("Type of this object")]
    tool_name: Annotated[Hint, about("Name")]
    cache_control: Ignored = None

    @property
    def text(self) -> str:
        return f"[tool: {self.tool_name}]"


def _as_json(given: object) -> str:
    if given in (None, ""):
        return "{}"
    if not isinstance(given, dict | str):
        raise PydanticCustomError("input", "must be an object")
    text = as_unicode(given) if isinstance(given, str) else json_text(given)  # a text: the JSON of a stream, unparsed
    if len(text) > MAX_INPUT_CHARS:
        raise PydanticCustomError("input", f"must have at most {MAX_INPUT_CHARS} characters as JSON")
    return text


class ToolUseBlock(Fields):
    """A tool call by the model; one of a tool that Anthropic runs only in an earlier turn."""

    type: Annotated[Hint, about("`tool_use`, or `server_tool_use` and `mcp_tool_use`")]
    id: Annotated[Hint | None, about("Identifier")] = None
    name: Annotated[Hint | None, about("Name")] = None
    input: Annotated[
        str, PlainValidator(_as_json, json_schema_input_type=dict[str, Any] | str | None), about("The arguments")
    ]
    caller: Unread = None
    server_name: Unread = None
    toolset_name: Unread = None
    cache_control: Ignored = None


_NO_BLOCK = {"custom_error_type": "block", "custom_error_message": "must be an object with a type"}


def _tag(block: object) -> str | None:
    kind = block.get("type") if isinstance(block, Mapping) else getattr(block, "type", None)
    if not isinstance(kind, str):
        return None
    for ending in ("_tool_use", "_tool_result"):
        if kind.endswith(ending):
            return f"<{ending}>"
    return f"<{kind}>" if kind in _KINDS else "<other>"


ReadBlock = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[DocumentBlock, Tag("<document>")]
    | Annotated[SearchResultBlock, Tag("<search_result>")]
    | Annotated[ToolReferenceBlock, Tag("<tool_reference>")]
    | Annotated[ImageBlock, Tag("<image>")]
    | Annotated[OtherBlock, BeforeValidator(_only_type), Tag("<other>")],
    Discriminator(lambda block: tag if (tag := _tag(block)) in _READ else tag and "<other>", **_NO_BLOCK),
]


ReadBlocks = Annotated[
    list[ReadBlock], Field(fail_fast=True), BeforeValidator(_blocks, json_schema_input_type=str | list[ReadBlock])
]


class ToolResultBlock(Fields):
    """The result of a tool call."""

    type: Annotated[Literal["tool_result"], about("Type of this object")]
    tool_use_id: Annotated[Hint | None, about("Id of the call that this result answers")] = None
    content: Annotated[ReadBlocks | None, about("The content")] = None
    is_error: Annotated[bool | None, about("Whether the tool failed; the content describes how")] = None
    toolset_name: Unread = None
    cache_control: Ignored = None


class ServerResultBlock(Fields):
    """The result of a tool that Anthropic ran in an earlier turn."""

    type: Annotated[Hint, about("Type of this object, such as `web_search_tool_result`")]
    tool_use_id: Annotated[Hint | None, about("Id of the call that this result answers")] = None
    content: Annotated[
        str, PlainValidator(readable, json_schema_input_type=Any), about("The content, of which the model reads texts")
    ] = ""
    is_error: Annotated[bool | None, about("Whether the tool failed; the content describes how")] = None
    caller: Unread = None
    cache_control: Ignored = None


class CompactionBlock(Fields):
    """A summary of an earlier conversation."""

    type: Annotated[Literal["compaction"], about("Type of this object")]
    content: Annotated[Text | None, about("The summary")] = None
    encrypted_content: Unread = None
    cache_control: Ignored = None


_READ = frozenset({"<text>", "<document>", "<search_result>", "<tool_reference>", "<image>"})
_KINDS = frozenset(
    {"text", "thinking", "redacted_thinking", "tool_use", "tool_result", "document", "search_result", "tool_reference"}
    | {"compaction", "image"}
)
Block = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[RedactedThinkingBlock, Tag("<redacted_thinking>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolUseBlock, Tag("<_tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
    | Annotated[ServerResultBlock, Tag("<_tool_result>")]
    | Annotated[DocumentBlock, Tag("<document>")]
    | Annotated[SearchResultBlock, Tag("<search_result>")]
    | Annotated[ToolReferenceBlock, Tag("<tool_reference>")]
    | Annotated[CompactionBlock, Tag("<compaction>")]
    | Annotated[ImageBlock, Tag("<image>")]
    | Annotated[OtherBlock, BeforeValidator(_only_type), Tag("<other>")],
    Discriminator(_tag, **_NO_BLOCK),
]
Blocks = Annotated[
    list[Block], Field(fail_fast=True), BeforeValidator(_blocks, json_schema_input_type=str | list[Block])
]
