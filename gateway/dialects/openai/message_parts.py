"""Parts of a message's content: text, thinking and media."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Discriminator, Field, PlainValidator, Tag, model_validator
from pydantic_core import PydanticCustomError

from fairlane.gateway.dialects.media_marks import Mark, MediaFound, Medium, joined, omitted, source_of
from fairlane.gateway.dialects.openai.field_types import Fields, Hint, Ignored, Text, as_unicode

_TEXT_KINDS = frozenset({"text", "input_text", "output_text", "refusal", "reasoning_text", "summary_text"})
# Thinking, and calls that the message also has in a field of its own.
_ASIDE_KINDS = frozenset({"think", "thinking", "redacted_thinking", "reasoning", "non_standard"})
_ASIDE_KINDS |= {"tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call", "server_tool_call", "function_call"}
# Objects without text, and fields that say nothing to a model, in the results of other servers' tools.
_UNREADABLE = frozenset({"image", "input_image", "computer_screenshot", "input_file", "input_audio", "audio"})
_ASIDE = frozenset({"type", "cache_control", "citations", "file_id", "media_type", "page_age", "retrieved_at"})
# Fields of a piece of thinking that may have its text.
_THOUGHTS = ("text", "thinking", "summary", "reasoning")


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
Thought = Annotated[
    str,
    PlainValidator(
        _thought, json_schema_input_type=str | list[Any] | Annotated[dict[str, Any], Field(max_length=0)] | None
    ),
]


def _parts(given: object) -> object:
    return list(map(_usual, given)) if isinstance(given, list) else given


def _usual(part: object) -> object:
    """Return a plain text, as vLLM takes it, or the result of a tool in Anthropic's form, as a part of text."""
    match part:
        case str():
            return {"type": "text", "text": part}
        case {"type": "tool_result", **result}:
            return {"type": "text", "text": readable(result.get("content"))}
        case _:
            return part


class Part(Fields):
    """One part of a message: text, thinking or media."""

    type: Hint
    text: Text | None = None
    refusal: Text | None = None
    thinking: Thought = ""
    reasoning: Thought = ""
    think: Thought = ""
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
    # As LangChain and the AI SDK have them.
    base64: Any = None
    image: Any = None
    url: Any = None

    @property
    def embedded(self) -> object:
        """What any API but OpenAI's has of an image or sound."""
        return self.source or self.data or self.base64 or self.image or self.url

    @model_validator(mode="after")
    def _check_text(self) -> Self:
        if self.type in _TEXT_KINDS and self.model_fields_set.isdisjoint(("text", "refusal")):
            raise PydanticCustomError("part", "must have a text")
        return self


def _form(content: object) -> str | None:
    return "<text>" if isinstance(content, str) else "<parts>" if isinstance(content, list) else None


Content = Annotated[
    Annotated[Text, Tag("<text>")]
    | Annotated[
        list[Part],
        Field(fail_fast=True),
        BeforeValidator(_parts, json_schema_input_type=list[Part | str]),
        Tag("<parts>"),
    ],
    Discriminator(_form, custom_error_type="content", custom_error_message="must be text or a list of parts"),
]


Place = Callable[[Part], str | Mark]


def _omit(part: Part) -> str:
    return omitted(part.type)


def read_parts(parts: Sequence[Part], place: Place = _omit, *, is_history: bool = True) -> tuple[str, str]:
    """Return text and thinking. `place` returns what stands for media; `is_history`: of what a model or a tool said,
    which may contain thinking."""
    texts, thoughts = list[str | Mark](), list[str]()
    for part in parts:
        if part.type in _TEXT_KINDS:
            texts.append((part.refusal if part.type == "refusal" else part.text) or "")
        elif part.type in _ASIDE_KINDS and is_history:
            thoughts.append(part.thinking or part.reasoning or part.think or part.text or "")
        else:
            texts.append(place(part))
    return joined(texts), "\n".join(filter(None, thoughts))


def medium_of(part: Part, param: str, *, may_omit: bool) -> Medium:
    """Return the medium of a part."""
    match part.type:
        case "image_url" | "input_image" | "image":
            source = source_of("image", part.image_url or part.embedded, param)
        case "audio_url" | "input_audio" | "audio":
            source = source_of("audio", part.audio_url or part.input_audio or part.embedded, param)
        case _:
            source = None
    return Medium(param=param, type=part.type, source=source, may_omit=may_omit)


def marked_text(content: Content | None, found: MediaFound, param: str, *, is_history: bool) -> str:
    """Return the text of any content, with marks for media."""
    if not isinstance(content, list):
        return content or ""
    return read_parts(
        content, lambda part: found.mark(medium_of(part, param, may_omit=is_history)), is_history=is_history
    )[0]


def shown_parts(content: Content | None, kind: str) -> list[dict[str, Any]]:
    """Return any content as a list for a client: its text as one part of this kind, or each part if there is media."""
    if isinstance(content, list) and any(part.type not in _TEXT_KINDS | _ASIDE_KINDS for part in content):
        return [
            {"type": kind, "text": part.text or ""} if part.type in _TEXT_KINDS else part.model_dump(exclude_unset=True)
            for part in content
        ]
    return [{"type": kind, "text": text_of(content)}]


def text_of(content: Content | None) -> str:
    """Return the text of any content, without thinking."""
    return read_parts(content)[0] if isinstance(content, list) else content or ""


def readable(value: object) -> str:
    """Return the texts in a value of any shape, such as the result of a tool that another server ran."""
    match value:
        case str():
            return as_unicode(value)
        case list():
            return "\n".join(filter(None, map(readable, value)))
        case {"type": "base64"}:
            return omitted("document")
        case {"type": str(kind)} if kind in _UNREADABLE:
            return omitted(kind)
        case dict():
            said = [inner for name, inner in value.items() if name not in _ASIDE and not name.startswith("encrypted")]
            return readable(said)
        case _:
            return ""
