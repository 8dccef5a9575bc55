"""Items of the Responses API: the contents of `input`, and their conversion to turns. Each message is a separate turn;
reasoning, text and calls that the model produced together are one, in this order."""

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter
from pydantic_core import PydanticCustomError

from fairlane.common.redacted import Redacted
from fairlane.common.views import about
from fairlane.gateway.dialects.openai.field_types import Fields, Hint, Off, Text, joined_parts
from fairlane.gateway.dialects.openai.item_ids import NewId, new_id
from fairlane.gateway.dialects.openai.requests import Turn, merge_turns
from fairlane.gateway.dialects.openai.tools import ToolCall, text_input

Json = dict[str, Any]
# Encrypt and decrypt data that a tenant's clients keep; None if it is another tenant's, or was modified.
Close = Callable[[bytes], bytes]
Open = Callable[[bytes], bytes | None]
Status = Literal["in_progress", "completed", "incomplete"]
_TEXTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}
# Fields of output text that the model does not need.
_BESIDE = frozenset({"annotations", "logprobs"})
_INSTRUCTING = frozenset({"system", "developer"})


def full_name(namespace: str | None, name: str) -> str:
    """Return the name by which the model calls a tool."""
    if namespace is None:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def _refuse_unless_direct(caller: object) -> None:
    if caller is not None and caller != {"type": "direct"}:
        raise PydanticCustomError("caller", "is not supported yet")


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


Parts = Annotated[
    Text, BeforeValidator(partial(joined_parts, _TEXTS, _BESIDE), json_schema_input_type=str | list[dict[str, Any]])
]
Caller = Annotated[None, PlainValidator(_refuse_unless_direct, json_schema_input_type=dict[str, str] | None)]
CallId = Annotated[Hint, Field(min_length=1)]
Name = Annotated[Hint, Field(min_length=1)]


class MessageItem(Fields):
    """A message."""

    type: Annotated[Literal["message"], about("Type of this object")] = "message"
    role: Annotated[Literal["user", "assistant", "system", "developer"], about("The message's author")]
    content: Annotated[Parts, about("The content")]
    id: Annotated[Hint | None, about("Identifier")] = None
    status: Annotated[Status | None, about("Current status")] = None
    phase: Annotated[Literal["commentary", "final_answer"] | None, about("Accepted and ignored")] = None

    def turn(self) -> Turn:
        return Turn(role=self.role, content=self.content)

    def as_json(self, new: NewId = new_id) -> Json:
        part: Json = {"type": "input_text", "text": self.content}
        if self.role == "assistant":
            part = {"type": "output_text", "text": self.content, "annotations": []}
        item = {"type": "message", "id": self.id or new("msg"), "status": self.status or "completed"}
        return {**item, "role": self.role, "content": [part]}


class ReasoningItem(Fields):
    """The model's reasoning. Encrypted content of other origin is ignored."""

    type: Annotated[Literal["reasoning"], about("Type of this object")]
    id: Annotated[Hint | None, about("Identifier")] = None
    summary: Annotated[Parts | None, about("Always empty, or the requested kind of summary")] = None
    content: Annotated[Parts | None, about("The content")] = None
    encrypted_content: Annotated[
        Text | None, about("The text, encrypted for its tenant, for clients that send back nothing else of it")
    ] = None
    status: Annotated[Status | None, about("Current status")] = None

    def turn(self) -> Turn:
        return Turn(role="assistant", content=None, reasoning=self.content or self.summary)

    def opened(self, opens: Open) -> "ReasoningItem":
        """Return the item with its text, if it has that in encrypted form only."""
        text = None if self.content or self.encrypted_content is None else open_text(self.encrypted_content, opens)
        return self if text is None else self.model_copy(update={"content": text})

    def as_json(self, new: NewId = new_id) -> Json:
        item: Json = {"type": "reasoning", "id": self.id or new("rs")}
        item["summary"] = [{"type": "summary_text", "text": self.summary}] if self.summary else []
        item["content"] = [{"type": "reasoning_text", "text": self.content}] if self.content else []
        return item


class _AnyCall(Fields):
    call_id: Annotated[CallId, about("Id of the call, which its output refers to")]
    name: Annotated[Name, about("Name")]
    id: Annotated[Hint | None, about("Identifier")] = None
    status: Annotated[Status | None, about("Current status")] = None
    caller: Annotated[Caller, about("The caller: the model")] = None
    namespace: Annotated[Name | None, about("The tool's namespace, if any")] = None
    is_async: Annotated[Off | None, Field(alias="async"), about("OpenAI's field, always false or absent")] = None

    def _turn(self, arguments: str) -> Turn:
        call = ToolCall(name=full_name(self.namespace, self.name), arguments=arguments, id=self.call_id)
        return Turn(role="assistant", content=None, tool_calls=(call,))

    def _named(self, new: NewId, prefix: str) -> Json:
        item = {"id": self.id or new(prefix), "call_id": self.call_id, "name": self.name}
        return item if self.namespace is None else {**item, "namespace": self.namespace}


class CallItem(_AnyCall):
    """A function call by the model."""

    type: Annotated[Literal["function_call"], about("Type of this object")]
    arguments: Annotated[Text, about("The arguments as JSON")]

    def turn(self) -> Turn:
        return self._turn(self.arguments)

    def as_json(self, new: NewId = new_id) -> Json:
        item = {"type": self.type, "status": self.status or "completed"}
        return {**item, **self._named(new, "fc"), "arguments": self.arguments}


class CustomCallItem(_AnyCall):
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
    call_id: Annotated[CallId, about("Id of the call, which its output refers to")]
    output: Annotated[Parts, about("The tool's result")]
    id: Annotated[Hint | None, about("Identifier")] = None
    name: Annotated[Name | None, about("Name")] = None
    status: Annotated[Status | None, about("Current status")] = None
    caller: Annotated[Caller, about("The caller: the model")] = None
    namespace: Annotated[Name | None, about("The tool's namespace, if any")] = None

    def turn(self) -> Turn:
        name = None if self.name is None else full_name(self.namespace, self.name)
        return Turn(role="tool", content=self.output, tool_call_id=self.call_id, name=name)

    def as_json(self, new: NewId = new_id) -> Json:
        prefix = "fco" if self.type == "function_call_output" else "ctco"
        item = {"type": self.type, "id": self.id or new(prefix), "status": self.status or "completed"}
        named = {field: value for field in ("name", "namespace") if (value := getattr(self, field)) is not None}
        return {**item, "call_id": self.call_id, **named, "output": self.output}


class CompactionItem(Fields):
    """The summary of a conversation, encrypted for its tenant."""

    type: Annotated[Literal["compaction", "compaction_summary"], about("Type of this object")]
    encrypted_content: Annotated[
        str, Field(min_length=1), about("The summary as returned by `compact`, encrypted for its tenant")
    ]
    id: Annotated[Hint | None, about("Identifier")] = None
    created_by: Annotated[Hint | None, about("For the caller's own use; it has no effect")] = None

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
    id: CallId


PlainItem = MessageItem | ReasoningItem | CallItem | CustomCallItem | OutputItem
GivenItem = PlainItem | CompactionItem
Item = PlainItem | Summary
ListedItem = GivenItem | ReferenceItem
_KINDS: dict[str, type[ListedItem]] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": CallItem,
    "custom_tool_call": CustomCallItem,
    "function_call_output": OutputItem,
    "custom_tool_call_output": OutputItem,
    "compaction": CompactionItem,
    "compaction_summary": CompactionItem,
    "item_reference": ReferenceItem,
}


def is_reference(item: Mapping[str, object]) -> bool:
    """Return whether an item of a body refers to a stored one."""
    return _kind(item) == "item_reference"


def _kind(item: Mapping[str, object]) -> object:
    kind = item.get("type")
    return ("message" if "role" in item else "item_reference") if kind is None else kind


def _item(item: object) -> ListedItem:
    if not isinstance(item, dict):
        raise PydanticCustomError("item", "must be an object")
    kind = _kind(item)
    known = _KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise PydanticCustomError("item", "has an unsupported type")
    return known.model_validate(item if item.get("type") == kind else {**item, "type": kind})


def _listed(given: object) -> object:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


_Listed = Annotated[ListedItem, PlainValidator(_item, json_schema_input_type=ListedItem)]
Items = Annotated[
    list[_Listed],
    Field(min_length=1, fail_fast=True),
    BeforeValidator(_listed, json_schema_input_type=str | list[_Listed]),
]
_read_items = TypeAdapter(list[_Listed]).validate_python


def read_items(kept: list[Json]) -> list[GivenItem]:
    """Validate stored items. Raises ValidationError for one that cannot be sent to a model again."""
    return [item for item in _read_items(kept) if not isinstance(item, ReferenceItem)]


def turns_of(items: Sequence[Item], instructions: str | None) -> tuple[Turn, ...]:
    """Return the conversation as turns for chat templates. Instructions at its beginning are one turn, `instructions`
    first, since templates take only one system turn there."""
    turns = [] if instructions is None else [Turn(role="system", content=instructions)]
    turns += [item.turn() for item in items]

    def belongs(group: Sequence[Turn], turn: Turn) -> bool:
        is_first = group[0] is turns[0]
        return _continues(group[-1], turn) or (is_first and _INSTRUCTING.issuperset((group[0].role, turn.role)))

    return tuple([turn for turn in merge_turns(turns, belongs, "\n\n") if _stage(turn)])


def _stage(turn: Turn) -> int:
    return 2 if turn.tool_calls else int(turn.content is not None)


def _continues(before: Turn, turn: Turn) -> bool:
    return before.role == turn.role == "assistant" and (_stage(before) == 0 or _stage(turn) == 2)
