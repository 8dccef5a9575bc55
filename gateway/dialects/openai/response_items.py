"""Items of the Responses API: the contents of `input`, and their conversion to turns. Each message is a separate turn;
reasoning, text and calls that the model produced together are one, in this order."""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, TypeAdapter

from fairlane.common.redacted import Redacted
from fairlane.common.views import about
from fairlane.gateway.dialects.media_marks import MediaFound
from fairlane.gateway.dialects.openai.field_types import Fields, Hint, Lenient, Text
from fairlane.gateway.dialects.openai.hosted_items import HOSTED, HostedItem, hosted, is_extension
from fairlane.gateway.dialects.openai.item_ids import NewId, new_id
from fairlane.gateway.dialects.openai.message_parts import Content, marked_text, shown_parts, text_of
from fairlane.gateway.dialects.openai.requests import Turn, is_system, merge_turns
from fairlane.gateway.dialects.openai.response_tools import HostedTool, ResponseTools, full_name
from fairlane.gateway.dialects.openai.tools import Arguments, ToolCall, text_input

Json = dict[str, Any]
# Encrypt and decrypt data that a tenant's clients keep; None if it is another tenant's, or was modified.
Close = Callable[[bytes], bytes]
Open = Callable[[bytes], bytes | None]
Status = Literal["in_progress", "completed", "incomplete"]
# How OpenAI's encrypted contents begin; ours are random from the first character on.
_FOREIGN = "gAAAAA"
FOREIGN_SUMMARY = "[omitted: only the server that made it can read it]"


def close_text(text: str, close: Close) -> str:
    """Encrypt a text for the tenant."""
    return base64.urlsafe_b64encode(close(text.encode())).decode()


def open_text(carried: str, opens: Open) -> str | None:
    """Decrypt a text; None if it is another tenant's, or was modified."""
    try:
        content = opens(base64.urlsafe_b64decode(carried))
    except ValueError:
        return None
    return None if content is None else content.decode()


Name = Annotated[Hint, Field(min_length=1)]


class MessageItem(Fields):
    """A message."""

    type: Annotated[Literal["message"] | None, about("Type of this object")] = "message"
    role: Annotated[Literal["user", "assistant", "system", "developer"], about("The message's author")]
    content: Annotated[Content | None, about("The content")]
    id: Annotated[Hint | None, about("Identifier")] = None
    status: Annotated[Lenient[Status], about("Current status")] = None
    phase: Annotated[Any, about("Accepted and ignored")] = None

    def turn(self, found: MediaFound, param: str) -> Turn:
        is_history = self.role == "assistant"
        text = marked_text(self.content, found, f"{param}.content", is_history=is_history)
        return Turn(role=self.role, content=text)

    def as_json(self, new: NewId = new_id) -> Json:
        item = {"type": "message", "id": self.id or new("msg"), "status": self.status or "completed"}
        if self.role == "assistant":
            content: list[Json] = [{"type": "output_text", "text": text_of(self.content), "annotations": []}]
        else:
            content = shown_parts(self.content, "input_text")
        return {**item, "role": self.role, "content": content}


class ReasoningItem(Fields):
    """The model's reasoning. Encrypted content of other origin is ignored."""

    type: Annotated[Literal["reasoning"], about("Type of this object")]
    id: Annotated[Hint | None, about("Identifier")] = None
    summary: Annotated[Content | None, about("Always empty, or the requested kind of summary")] = None
    content: Annotated[Content | None, about("The content")] = None
    encrypted_content: Annotated[
        Text | None, about("The text, encrypted for its tenant, for clients that send back nothing else of it")
    ] = None
    status: Annotated[Lenient[Status], about("Current status")] = None

    def turn(self) -> Turn:
        return Turn(role="assistant", content=None, reasoning=text_of(self.content) or text_of(self.summary))

    def opened(self, opens: Open) -> "ReasoningItem":
        """Return the item with its text, if it has that in encrypted form only."""
        text = (
            None
            if text_of(self.content) or self.encrypted_content is None
            else open_text(self.encrypted_content, opens)
        )
        return self if text is None else self.model_copy(update={"content": text})

    def as_json(self, new: NewId = new_id) -> Json:
        item: Json = {"type": "reasoning", "id": self.id or new("rs")}
        for field, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
            text = text_of(getattr(self, field))
            item[field] = [{"type": kind, "text": text}] if text else []
        if self.encrypted_content and not item["content"]:
            item["encrypted_content"] = self.encrypted_content
        return item


class AnyCall(Fields):
    """A call of a function or a custom tool."""

    call_id: Annotated[Hint, about("Id of the call, which its output refers to")]
    name: Annotated[Hint | None, about("Name")] = None
    id: Annotated[Hint | None, about("Identifier")] = None
    status: Annotated[Lenient[Status], about("Current status")] = None
    caller: Annotated[Any, about("Accepted and ignored")] = None
    namespace: Annotated[Name | None, about("The tool's namespace, if any")] = None
    is_async: Annotated[Any, Field(alias="async"), about("Accepted and ignored")] = None

    def _turn(self, arguments: str) -> Turn:
        call = ToolCall(name=full_name(self.namespace, self.name or ""), arguments=arguments, id=self.call_id)
        return Turn(role="assistant", content=None, tool_calls=(call,))

    def _named(self, new: NewId, prefix: str) -> Json:
        item = {"id": self.id or new(prefix), "call_id": self.call_id, "name": self.name or ""}
        return item if self.namespace is None else {**item, "namespace": self.namespace}


class CallItem(AnyCall):
    """A function call by the model."""

    type: Annotated[Literal["function_call"], about("Type of this object")]
    arguments: Annotated[Arguments, about("The arguments as JSON")] = ""

    def turn(self) -> Turn:
        return self._turn(self.arguments)

    def as_json(self, new: NewId = new_id) -> Json:
        item = {"type": self.type, "status": self.status or "completed"}
        return {**item, **self._named(new, "fc"), "arguments": self.arguments}


class CustomCallItem(AnyCall):
    """A call of a custom tool by the model, to which it is a function with one argument."""

    type: Annotated[Literal["custom_tool_call"], about("Type of this object")]
    input: Annotated[Text, about("The argument")]

    def turn(self) -> Turn:
        return self._turn(text_input(self.input))

    def as_json(self, new: NewId = new_id) -> Json:
        return {"type": self.type, **self._named(new, "ctc"), "input": self.input}


class OutputItem(Fields):
    """The output of a call."""

    type: Annotated[Literal["function_call_output", "custom_tool_call_output"], about("Type of this object")]
    call_id: Annotated[Hint, about("Id of the call, which its output refers to")]
    output: Annotated[Content | None, about("The tool's result")]
    id: Annotated[Hint | None, about("Identifier")] = None
    name: Annotated[Name | None, about("Name")] = None
    status: Annotated[Lenient[Status], about("Current status")] = None
    caller: Annotated[Any, about("Accepted and ignored")] = None
    namespace: Annotated[Name | None, about("The tool's namespace, if any")] = None

    def turn(self, found: MediaFound, param: str) -> Turn:
        name = None if self.name is None else full_name(self.namespace, self.name)
        text = marked_text(self.output, found, f"{param}.output", is_history=True)
        return Turn(role="tool", content=text, tool_call_id=self.call_id, name=name)

    def as_json(self, new: NewId = new_id) -> Json:
        prefix = "fco" if self.type == "function_call_output" else "ctco"
        item = {"type": self.type, "id": self.id or new(prefix), "status": self.status or "completed"}
        named = {field: value for field in ("name", "namespace") if (value := getattr(self, field)) is not None}
        return {**item, "call_id": self.call_id, **named, "output": self._shown_output}

    @property
    def _shown_output(self) -> str | list[Json]:
        parts = shown_parts(self.output, "input_text")
        return text_of(self.output) if [part["type"] for part in parts] == ["input_text"] else parts


class AdditionalToolsItem(Fields):
    """Tools that are offered in addition to the body's."""

    type: Annotated[Literal["additional_tools"], about("Type of this object")]
    tools: Annotated[ResponseTools, about("Functions that the model may call")]
    role: Annotated[Any, about("Accepted and ignored")] = None
    id: Annotated[Hint | None, about("Identifier")] = None

    def turn(self) -> Turn:
        return Turn(role="assistant", content=None)

    def as_json(self, new: NewId = new_id) -> Json:
        tools = [tool.as_json() for tool in self.tools if not isinstance(tool, HostedTool)]
        return {"type": self.type, "id": self.id or new("at"), "role": "developer", "tools": tools}


class CompactionItem(Fields):
    """The summary of a conversation, encrypted for its tenant."""

    type: Annotated[Literal["compaction", "compaction_summary"], about("Type of this object")]
    encrypted_content: Annotated[
        str, Field(min_length=1), about("The summary as returned by `compact`, encrypted for its tenant")
    ]
    id: Annotated[Hint | None, about("Identifier")] = None
    created_by: Annotated[Hint | None, about("For the caller's own use; it has no effect")] = None

    @property
    def is_foreign(self) -> bool:
        """Whether OpenAI's servers encrypted it, so that it is no changed item of a tenant here."""
        return self.encrypted_content.startswith(_FOREIGN)

    @classmethod
    def sealed(cls, summary: str, close: Close) -> "CompactionItem":
        return cls(type="compaction", encrypted_content=close_text(summary, close))

    def summary(self, opens: Open) -> str | None:
        """Return the decrypted summary; None if it is another tenant's, or was modified."""
        return open_text(self.encrypted_content, opens)

    def as_json(self, new: NewId = new_id) -> Json:
        return {"type": "compaction", "id": self.id or new("cmp"), "encrypted_content": self.encrypted_content}


class Summary(Redacted, frozen=True):
    """A decrypted `CompactionItem`."""

    item: CompactionItem
    text: str

    def turn(self) -> Turn:
        return Turn(role="user", content=f"This is a summary of our conversation so far:\n\n{self.text}")

    def as_json(self, new: NewId = new_id) -> Json:
        return self.item.as_json(new)


class ReferenceItem(Fields):
    """A reference to an item of a stored response, which takes its place."""

    type: Literal["item_reference"] = "item_reference"
    id: Name


PlainItem = MessageItem | ReasoningItem | CallItem | CustomCallItem | OutputItem | HostedItem | AdditionalToolsItem
GivenItem = PlainItem | CompactionItem
Item = PlainItem | Summary
ListedItem = GivenItem | ReferenceItem
_TAGS = {
    "function_call_output": "<output>",
    "custom_tool_call_output": "<output>",
    "compaction": "<compaction>",
    "compaction_summary": "<compaction>",
    **dict.fromkeys(HOSTED, "<hosted>"),
    **{kind: f"<{kind}>" for kind in ("message", "reasoning", "function_call", "custom_tool_call", "additional_tools")},
    "item_reference": "<item_reference>",
}


def is_reference(item: Mapping[str, object]) -> bool:
    """Return whether an item of a body refers to a stored one."""
    return _kind(item) == "item_reference"


def _kind(item: Mapping[str, object]) -> object:
    kind = item.get("type")
    return ("message" if "role" in item else "item_reference") if kind is None else kind


def _typed(item: object) -> object:
    return {**item, "type": _kind(item)} if isinstance(item, dict) and item.get("type") is None else item


def _tag(item: object) -> str | None:
    kind = item.get("type") if isinstance(item, Mapping) else getattr(item, "type", None)
    return _TAGS.get(kind, "<hosted>" if is_extension(kind) else None) if isinstance(kind, str) else None


def _listed(given: object) -> object:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


_Listed = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[CallItem, Tag("<function_call>")]
    | Annotated[CustomCallItem, Tag("<custom_tool_call>")]
    | Annotated[OutputItem, Tag("<output>")]
    | Annotated[HostedItem, BeforeValidator(hosted, json_schema_input_type=dict[str, Any]), Tag("<hosted>")]
    | Annotated[AdditionalToolsItem, Tag("<additional_tools>")]
    | Annotated[CompactionItem, Tag("<compaction>")]
    | Annotated[ReferenceItem, Tag("<item_reference>")],
    Discriminator(_tag, custom_error_type="item", custom_error_message="must be an item of a supported type"),
    BeforeValidator(_typed, json_schema_input_type=ListedItem),
]
Items = Annotated[
    list[_Listed],
    Field(min_length=1, fail_fast=True),
    BeforeValidator(_listed, json_schema_input_type=str | list[_Listed]),
]
_read_items = TypeAdapter(list[_Listed]).validate_python


def read_items(kept: list[Json]) -> list[GivenItem]:
    """Validate stored items. Raises ValidationError for one that cannot be sent to a model again."""
    return [item for item in _read_items(kept) if not isinstance(item, ReferenceItem)]


def turns_of(items: Sequence[Item], instructions: str | None, found: MediaFound, given: int) -> tuple[Turn, ...]:
    """Return the conversation as turns for chat templates. Instructions at its beginning are one turn, `instructions`
    first, since templates take only one system turn there. The last `given` items are the body's own."""
    turns = [] if instructions is None else [Turn(role="system", content=instructions)]
    for place, item in enumerate(items, given - len(items)):
        param = "input" if place < 0 else f"input.[{place}]"
        if isinstance(item, MessageItem | OutputItem):
            turns.append(item.turn(found, param))
        else:
            turns += item.turns(found, param) if isinstance(item, HostedItem) else [item.turn()]

    def belongs(group: Sequence[Turn], turn: Turn) -> bool:
        is_first = group[0] is turns[0]
        return _continues(group[-1], turn) or (is_first and is_system(group[0]) and is_system(turn))

    return tuple([turn for turn in merge_turns(turns, belongs, "\n\n") if _stage(turn)])


def _stage(turn: Turn) -> int:
    return 2 if turn.tool_calls else int(turn.content is not None)


def _continues(before: Turn, turn: Turn) -> bool:
    return before.role == turn.role == "assistant" and (_stage(before) == 0 or _stage(turn) == 2)
