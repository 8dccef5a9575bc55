"""Parts of a message's content: text, thinking, and media, of which a text model reads only that it is missing."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Discriminator, Field, PlainValidator, Tag
from pydantic_core import PydanticCustomError

from fairlane.gateway.dialects.openai.field_types import Fields, Hint, Ignored, Text, as_unicode
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.errors import invalid

_TEXT_KINDS = frozenset({"text", "input_text", "output_text", "refusal", "reasoning_text", "summary_text"})
# Thinking, and calls that the message also has in a field of its own.
_ASIDE_KINDS = frozenset({"thinking", "redacted_thinking", "reasoning", "tool_use", "tool_call", "function_call"})
_MEDIA = ("image", "audio", "video", "document", "screenshot", "file")
# Fields of a piece of thinking that may have its text.
_THOUGHTS = ("text", "thinking", "summary", "reasoning")


def omitted(kind: str) -> str:
    """Return what a model reads in place of something other than text."""
    noun = next((medium for medium in _MEDIA if medium in kind), "content")
    return f"[{noun} omitted: this model reads text only]"


def _thought(value: object) -> str:
    if isinstance(value, str):
        return as_unicode(value)
    if not isinstance(value, list) and value not in (None, {}):
        raise PydanticCustomError("thinking", "must be text or a list of objects with text")
    return "\n".join(filter(None, map(_piece, value or ())))


def _piece(piece: object) -> str:
    found = piece if isinstance(piece, dict) else {"text": piece}
    texts = [text for name in _THOUGHTS if isinstance(text := found.get(name), str | list) and text]
    return _thought(texts[0]) if texts else ""


# Thinking in any form in which clients return it; what cannot be read is empty.
Thought = Annotated[str, PlainValidator(_thought, json_schema_input_type=str | list[Any])]


class Part(Fields):
    """One part of a message: text, thinking or media. Media is refused, or omitted from the results of tools."""

    type: Hint
    text: Text | None = None
    refusal: Text | None = None
    thinking: Thought = ""
    reasoning: Thought = ""
    signature: Any = None
    data: Any = None
    annotations: Any = None
    citations: Ignored = None
    logprobs: Any = None
    cache_control: Ignored = None
    provider_specific_fields: Any = None
    image_url: Any = None
    input_audio: Any = None
    audio_url: Any = None
    video_url: Any = None
    file: Any = None
    file_id: Any = None
    file_data: Any = None
    file_url: Any = None
    filename: Any = None
    detail: Any = None
    source: Any = None


def _form(content: object) -> str | None:
    return "<text>" if isinstance(content, str) else "<parts>" if isinstance(content, list) else None


Content = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[list[Part], Field(fail_fast=True), Tag("<parts>")],
    Discriminator(_form, custom_error_type="content", custom_error_message="must be text or a list of parts"),
]


def read_parts(parts: Sequence[Part], param: str, reading: Reading, *, is_history: bool) -> tuple[str, str]:
    """Return text and thinking. `is_history`: what a model or a tool said, of which media is omitted. Raises ApiError
    naming `param`."""
    texts, thoughts = list[str](), list[str]()
    for part in parts:
        text = part.refusal if part.type == "refusal" else part.text
        if part.type in _TEXT_KINDS:
            if text is None and not part.model_fields_set & {"text", "refusal"}:
                raise invalid(param, f"`{param}` contains a text part without text.")
            texts.append(text or "")
        elif is_history and part.type in _ASIDE_KINDS:
            thoughts.append(part.thinking or part.reasoning or text or "")
        elif is_history and not reading.refuses_images:
            texts.append(omitted(part.type))
            reading.ignore(f"{param}.{part.type}")
        else:
            raise invalid(param, f"`{param}` contains a part that is not text; this model reads only text.")
    return "\n".join(texts), "\n".join(filter(None, thoughts))
