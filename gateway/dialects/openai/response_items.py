"""Items of a conversation in the Responses API: what a request's `input` may hold, and the turns that they come to.

A message is a turn of its own. What the model did before it came to rest is one turn together: its reasoning, then what
it said, then its calls.
"""

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter
from pydantic_core import PydanticCustomError

from fairlane.gateway.dialects.openai.fields import Fields, Hint, Off, Text
from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.dialects.openai.tools import ToolCall

Json = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]
INPUT = "input"
"""The one argument of a custom tool, as the model calls it."""
_TEXTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}
"""Parts that are text, and the field that holds it."""
_BESIDE = frozenset({"annotations", "logprobs"})
"""Fields of an answer's text that say nothing to the model."""
_ID_BYTES = 24
_INSTRUCTING = frozenset({"system", "developer"})


def new_id(prefix: str) -> str:
    """An id that nobody can guess, as OpenAI's look."""
    return f"{prefix}_{secrets.token_hex(_ID_BYTES)}"


def full_name(namespace: str | None, name: str) -> str:
    """What the model calls a tool."""
    if namespace is None:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def _joined(content: object) -> object:
    """Text, given whole or in text parts."""
    return "\n".join(map(_part, content)) if isinstance(content, list) else content


def _part(part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    field = _TEXTS.get(kind) if isinstance(kind, str) else None
    if not isinstance(part, dict) or field is None:
        raise PydanticCustomError("parts", "holds a part that is not text; only text is supported")
    if part.keys() - {"type", field, *_BESIDE} or not isinstance(part.get(field), str):
        raise PydanticCustomError("parts", "holds a text part with fields other than type and text")
    return str(part[field])


def _refuse_unless_direct(caller: object) -> None:
    if caller is not None and caller != {"type": "direct"}:
        raise PydanticCustomError("caller", "is not supported yet")


Parts = Annotated[Text, BeforeValidator(_joined, json_schema_input_type=str | list[dict[str, Any]])]
Caller = Annotated[None, PlainValidator(_refuse_unless_direct, json_schema_input_type=dict[str, str] | None)]
CallId = Annotated[Hint, Field(min_length=1)]
Name = Annotated[Hint, Field(min_length=1)]


class MessageItem(Fields):
    """What somebody says."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    id: Hint | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None

    def turn(self) -> Turn:
        """As the model reads it."""
        return Turn(role=self.role, content=self.content)

    def as_json(self) -> Json:
        """As it is kept and listed."""
        part: Json = {"type": "input_text", "text": self.content}
        if self.role == "assistant":
            part = {"type": "output_text", "text": self.content, "annotations": []}
        told = {"type": "message", "id": self.id or new_id("msg"), "status": self.status or "completed"}
        return {**told, "role": self.role, "content": [part]}


class ReasoningItem(Fields):
    """What the model thought. What only its maker could decrypt is passed over."""

    type: Literal["reasoning"]
    id: Hint | None = None
    summary: Parts | None = None
    content: Parts | None = None
    encrypted_content: Text | None = None
    status: Status | None = None

    def turn(self) -> Turn:
        """As the model reads it: with no answer yet."""
        return Turn(role="assistant", content=None, reasoning=self.content or self.summary)

    def as_json(self) -> Json:
        """As it is kept and listed."""
        told: Json = {"type": "reasoning", "id": self.id or new_id("rs")}
        told["summary"] = [{"type": "summary_text", "text": self.summary}] if self.summary else []
        told["content"] = [{"type": "reasoning_text", "text": self.content}] if self.content else []
        return told


class CallItem(Fields):
    """A function that the model called."""

    type: Literal["function_call"]
    call_id: CallId
    name: Name
    arguments: Text
    id: Hint | None = None
    status: Status | None = None
    caller: Caller = None
    namespace: Name | None = None
    is_async: Annotated[Off | None, Field(alias="async")] = None

    def turn(self) -> Turn:
        """As the model reads it."""
        call = ToolCall(name=full_name(self.namespace, self.name), arguments=self.arguments, id=self.call_id)
        return Turn(role="assistant", content=None, tool_calls=(call,))

    def as_json(self) -> Json:
        """As it is kept and listed."""
        told = {"type": self.type, "id": self.id or new_id("fc"), "status": self.status or "completed"}
        told |= {} if self.namespace is None else {"namespace": self.namespace}
        return {**told, "call_id": self.call_id, "name": self.name, "arguments": self.arguments}


class CustomCallItem(Fields):
    """A custom tool that the model called: to the model a function with one argument."""

    type: Literal["custom_tool_call"]
    call_id: CallId
    name: Name
    input: Text
    id: Hint | None = None
    status: Status | None = None
    caller: Caller = None
    namespace: Name | None = None
    is_async: Annotated[Off | None, Field(alias="async")] = None

    def turn(self) -> Turn:
        """As the model reads it."""
        arguments = json.dumps({INPUT: self.input}, ensure_ascii=False)
        call = ToolCall(name=full_name(self.namespace, self.name), arguments=arguments, id=self.call_id)
        return Turn(role="assistant", content=None, tool_calls=(call,))

    def as_json(self) -> Json:
        """As it is kept and listed."""
        told = {"type": self.type, "id": self.id or new_id("ctc"), "call_id": self.call_id}
        told |= {} if self.namespace is None else {"namespace": self.namespace}
        return {**told, "name": self.name, "input": self.input}


class OutputItem(Fields):
    """What a call came to."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: CallId
    output: Parts
    id: Hint | None = None
    name: Name | None = None
    status: Status | None = None
    caller: Caller = None
    namespace: Name | None = None

    def turn(self) -> Turn:
        """As the model reads it."""
        name = None if self.name is None else full_name(self.namespace, self.name)
        return Turn(role="tool", content=self.output, tool_call_id=self.call_id, name=name)

    def as_json(self) -> Json:
        """As it is kept and listed."""
        prefix = "fco" if self.type == "function_call_output" else "ctco"
        told = {"type": self.type, "id": self.id or new_id(prefix), "status": self.status or "completed"}
        named = {field: value for field in ("name", "namespace") if (value := getattr(self, field)) is not None}
        return {**told, "call_id": self.call_id, **named, "output": self.output}


class CompactionItem(Fields):
    """The summary of a conversation, as it was sealed for its tenant."""

    type: Literal["compaction", "compaction_summary"]
    encrypted_content: Annotated[str, Field(min_length=1)]
    id: Hint | None = None
    created_by: Hint | None = None

    def as_json(self) -> Json:
        """As it is kept and listed."""
        return {"type": "compaction", "id": self.id or new_id("cmp"), "encrypted_content": self.encrypted_content}


@dataclass(frozen=True, slots=True)
class Summary:
    """The same, opened."""

    item: CompactionItem
    text: str

    def turn(self) -> Turn:
        """As the model reads it."""
        return Turn(role="user", content=f"This is a summary of our conversation so far:\n\n{self.text}")

    def as_json(self) -> Json:
        """As it is kept and listed."""
        return self.item.as_json()

    def __repr__(self) -> str:
        return f"Summary({len(self.text)} characters)"


PlainItem = MessageItem | ReasoningItem | CallItem | CustomCallItem | OutputItem
GivenItem = PlainItem | CompactionItem
"""As it stands in a body."""
Item = PlainItem | Summary
_KINDS: dict[str, type[GivenItem]] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": CallItem,
    "custom_tool_call": CustomCallItem,
    "function_call_output": OutputItem,
    "custom_tool_call_output": OutputItem,
    "compaction": CompactionItem,
    "compaction_summary": CompactionItem,
}


def _item(item: object) -> GivenItem:
    if not isinstance(item, dict):
        raise PydanticCustomError("item", "must be an object")
    kind = item.get("type", "message" if "role" in item else "item_reference")
    known = _KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        hint = ": send the item itself, or `previous_response_id`" if kind == "item_reference" else ""
        raise PydanticCustomError("item", f"is an item of a type that is not supported{hint}")
    return known.model_validate(item)


def _listed(given: object) -> object:
    """A text alone is what a user says."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


ListedItem = Annotated[GivenItem, PlainValidator(_item, json_schema_input_type=GivenItem)]
Items = Annotated[
    list[ListedItem],
    Field(min_length=1, fail_fast=True),
    BeforeValidator(_listed, json_schema_input_type=str | list[ListedItem]),
]
_read = TypeAdapter(list[ListedItem]).validate_python


def read_items(items: Iterable[Json]) -> list[GivenItem]:
    """Items that were kept."""
    return _read(list(items))


def turns_of(items: Sequence[Item], instructions: str | None) -> tuple[Turn, ...]:
    """Return the conversation as chat templates take it.

    What stands at its beginning to instruct the model is one turn, `instructions` first: templates take one there.
    """
    groups: list[list[Turn]] = [] if instructions is None else [[Turn(role="system", content=instructions)]]
    stage = 0  # of the last group together
    for item in items:
        new = item.turn()
        roles = (groups[-1][0].role, new.role) if groups else ()
        if (len(groups) == 1 and _INSTRUCTING.issuperset(roles)) or (
            roles == ("assistant", "assistant") and _goes_on(stage, new)
        ):
            groups[-1].append(new)
            stage = max(stage, _stage(new))
        else:
            groups.append([new])
            stage = _stage(new)
    turns = [group[0] if len(group) == 1 else _as_one(group) for group in groups]
    return tuple([turn for turn in turns if _stage(turn)])


def _stage(turn: Turn) -> int:
    """Return how far the model has come in it: 0: it has only thought, 1: has spoken, 2: has called."""
    return 2 if turn.tool_calls else int(turn.content is not None)


def _goes_on(stage: int, new: Turn) -> bool:
    return stage == 0 or _stage(new) == 2


def _as_one(group: Sequence[Turn]) -> Turn:
    contents = [turn.content for turn in group if turn.content is not None]
    if group[0].role in _INSTRUCTING:
        return replace(group[0], content="\n\n".join(contents))
    return Turn(
        role="assistant",
        content=contents[-1] if contents else None,
        tool_calls=tuple([call for turn in group for call in turn.tool_calls]),
        reasoning="\n".join([turn.reasoning for turn in group if turn.reasoning]) or None,
    )
