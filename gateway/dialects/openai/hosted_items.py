"""Items of tools that OpenAI runs, in earlier turns. A call with its result is shown to the model as a call of a
function; a call whose result only its maker knows is dropped."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import ValidationInfo

from fairlane.common.views import about
from fairlane.gateway.dialects.media_marks import MediaFound, Medium, joined, source_of
from fairlane.gateway.dialects.openai.field_types import Fields, Hint, json_text
from fairlane.gateway.dialects.openai.item_ids import NewId, new_id
from fairlane.gateway.dialects.openai.message_parts import readable
from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.dialects.openai.tools import ToolCall

Json = dict[str, Any]
# Fields with the arguments of each kind of call, and fields with its result. A call without fields for a result gets it
# in an item of its own.
_CALLS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "apply_patch_call": (("operation",), ()),
    "code_interpreter_call": (("code",), ("outputs",)),
    "computer_call": (("action", "actions"), ()),
    "file_search_call": (("queries",), ("results",)),
    "image_generation_call": (("revised_prompt",), ("result",)),
    "local_shell_call": (("action",), ()),
    "mcp_call": (("arguments",), ("output", "error")),
    "shell_call": (("action",), ()),
    "tool_search_call": (("arguments",), ()),
}
_OUTPUTS = frozenset({"apply_patch_call_output", "computer_call_output", "local_shell_call_output"})
_OUTPUTS |= {"shell_call_output", "tool_search_output"}
_DROPPED = frozenset({"mcp_approval_request", "mcp_approval_response", "mcp_list_tools", "web_search_call"})
# Said by one of several agents to another.
_AGENT = "agent_message"
HOSTED = _CALLS.keys() | _OUTPUTS | _DROPPED | {_AGENT}


def is_extension(kind: str) -> bool:
    """Return whether items of this type are a client's own or another server's: OpenResponses gives them a prefix."""
    return ":" in kind


class HostedItem(Fields):
    """An item of a tool that OpenAI runs, or of another agent."""

    type: Annotated[Hint, about("Type of this object, such as `web_search_call`")]
    item: Annotated[Json, about("The whole item")]

    def turns(self, found: MediaFound, param: str) -> Iterator[Turn]:
        item, kind = self.item, self.type
        call_id = readable(item.get("call_id") or item.get("id"))
        if kind in _OUTPUTS:
            shown = _shown(item.get("output") or item.get("tools"), found, f"{param}.output")
            yield Turn(role="tool", content=shown, tool_call_id=call_id)
        if kind == _AGENT:
            yield Turn(role="user", content=readable([item.get("author"), item.get("content")]))
        if kind not in _CALLS:
            return
        given, results = _CALLS[kind]
        arguments = {name: item[name] for name in given if item.get(name)}
        text = json.dumps(arguments, ensure_ascii=False)
        name = kind.removesuffix("_call")
        if kind == "mcp_call":
            name, text = readable(item.get("name")), readable(item.get("arguments"))
        yield Turn(role="assistant", content=None, tool_calls=(ToolCall(name=name, arguments=text, id=call_id),))
        if kind == "image_generation_call":
            image = {"type": "image", "image_url": {"data": item.get("result")}}
            yield Turn(role="tool", content=_shown(image, found, f"{param}.result"), tool_call_id=call_id)
        elif results:
            yield Turn(role="tool", content=readable([item.get(name) for name in results]), tool_call_id=call_id)

    def as_json(self, new: NewId = new_id) -> Json:
        known = self.item.get("id")
        return {**self.item, "id": known if isinstance(known, str) and known else new("item")}


def _shown(result: object, found: MediaFound, param: str) -> str:
    """Return the texts of a result, or the mark of an image."""
    match result:
        case {"type": "computer_screenshot" | "image" as kind, "image_url": image}:
            medium = Medium(param=param, type=kind, source=source_of("image", image, param), may_omit=True)
            return joined([found.mark(medium)])
    return readable(result)


def hosted(item: Json, info: ValidationInfo) -> Json:
    """Return the fields of a `HostedItem`, and name one that is dropped."""
    json_text(item)
    if (item["type"] in _DROPPED or is_extension(item["type"])) and info.context is not None:
        info.context.ignore(f"input.{item['type']}")
    return {"type": item["type"], "item": item}
