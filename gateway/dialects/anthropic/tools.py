"""Tools of the Messages API: custom ones, those of Anthropic that the caller runs, and those that are not served.

A tool that the caller runs comes without a schema, since Anthropic's models know it. Here the model is shown one."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from fairlane.gateway.dialects.openai.field_types import Fields, Identifier, Ignored, Text
from fairlane.gateway.dialects.openai.tools import DirectCallers, Parameters, Tool, UnservedTool

Json = dict[str, Any]
_CLIENT = re.compile(r"(bash|text_editor|memory)_\d{8}")


def _text(description: str) -> Json:
    return {"type": "string", "description": description}


_LINES: Json = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "For `view` of a file: first and last line, from 1; -1 as the last one is the end of the file",
}
_EDITS: Json = {
    "path": _text("Absolute path of the file or directory"),
    "file_text": _text("For `create`: the content of the file"),
    "old_str": _text("For `str_replace`: the text to replace, which occurs exactly once"),
    "new_str": _text("For `str_replace`: the text that replaces it"),
    "insert_line": {"type": "integer", "description": "For `insert`: the line after which to insert; 0: the beginning"},
    "insert_text": _text("For `insert`: the text to insert"),
    "view_range": _LINES,
}


def _commands(commands: Sequence[str], properties: Json, required: Sequence[str]) -> Json:
    return _object({"command": {"type": "string", "enum": [*commands]}, **properties}, ["command", *required])


def _object(properties: Json, required: Sequence[str]) -> Json:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


_SHOWN: Mapping[str, tuple[str, Json]] = {
    "bash": (
        "Run a command in a bash session, whose state stays between calls.",
        _object(
            {
                "command": _text("The command to run; required unless `restart` is true"),
                "restart": {"type": "boolean", "description": "Start a new session instead of running a command"},
            },
            [],
        ),
    ),
    "text_editor": (
        "View, create and edit text files.",
        _commands(("view", "create", "str_replace", "insert"), _EDITS, ["path"]),
    ),
    "memory": (
        "View and change the files in `/memories`, which are kept between conversations.",
        _commands(
            ("view", "create", "str_replace", "insert", "delete", "rename"),
            {
                **_EDITS,
                "old_path": _text("For `rename`: the present path"),
                "new_path": _text("For `rename`: the new path"),
            },
            [],
        ),
    ),
}


class CustomTool(Fields):
    """A tool that the caller defines and runs."""

    type: Literal["custom"] | None = None
    name: Identifier
    description: Text | None = None
    input_schema: Parameters
    strict: bool | None = None
    cache_control: Ignored = None
    defer_loading: Ignored = None
    eager_input_streaming: Ignored = None
    allowed_callers: DirectCallers | None = None
    input_examples: Ignored = None

    def tool(self) -> Tool:
        strict = bool(self.strict)
        return Tool(name=self.name, description=self.description or "", parameters=self.input_schema, strict=strict)


class ClientTool(Fields):
    """A tool of Anthropic's that the caller runs: `bash_…`, `text_editor_…` or `memory_…`, of any version."""

    type: Annotated[str, Field(pattern=_CLIENT.pattern)]
    name: Identifier
    max_characters: Ignored = None
    strict: bool | None = None
    cache_control: Ignored = None
    defer_loading: Ignored = None
    eager_input_streaming: Ignored = None
    allowed_callers: DirectCallers | None = None
    input_examples: Ignored = None

    def tool(self) -> Tool:
        description, parameters = _SHOWN[self.type.rpartition("_")[0]]
        return Tool(name=self.name, description=description, parameters=parameters, strict=bool(self.strict))


class ServerTool(UnservedTool):
    """A tool that is not served, such as one that Anthropic runs. It is refused unless no tool may be called."""

    # Some run on the caller's side, but need images.
    KNOWN = (
        "advisor",
        "browser",
        "code_execution",
        "computer",
        "mcp_toolset",
        "tool_search_tool",
        "web_fetch",
        "web_search",
    )
    SERVED = "'custom'"


def _kind(tool: object) -> str:
    kind = tool.get("type") if isinstance(tool, Mapping) else getattr(tool, "type", None)
    if not isinstance(kind, str) or kind == "custom":
        return "<custom>"
    return "<client>" if _CLIENT.fullmatch(kind) else "<server>"


AnyTool = Annotated[
    Annotated[CustomTool, Tag("<custom>")]
    | Annotated[ClientTool, Tag("<client>")]
    | Annotated[ServerTool, Tag("<server>")],
    Discriminator(_kind),
]
