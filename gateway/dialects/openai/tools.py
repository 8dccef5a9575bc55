"""Tools of all APIs: the functions that the model may call, whether it must, and its earlier calls.

`Tool`, `ToolChoice` and `ToolCall` are the validated form; the pydantic classes are parts of bodies. A custom tool,
which takes text, is to the model a function with one argument."""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field
from pydantic_core import PydanticCustomError

from fairlane.common.redacted import Redacted
from fairlane.gateway.dialects.grammar.lark_pattern import lark_pattern
from fairlane.gateway.dialects.openai.field_types import (
    EMPTY,
    MAX_HINT_CHARS,
    Fields,
    Hint,
    Identifier,
    Text,
    json_text,
    with_lists,
)
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.errors import invalid
from fairlane.gateway.http.json_reader import read_text

MAX_TOOLS = 1_024
# The only argument of a custom tool, as the model sees it.
INPUT = "input"
# Names, descriptions and schemas of one request's tools together, as JSON.
MAX_TOOLS_CHARS = 1024 * 1024
# Per message.
MAX_CALLS = 128
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

_Tool = TypeVar("_Tool")
Mode = Literal["none", "auto", "required"]
# Only the model itself may call a tool.
DirectCallers = Annotated[list[Literal["direct"]], Field(fail_fast=True)]


def json_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a model wrote; None if it wrote something else or was cut short."""
    try:
        found = read_text(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def text_input(text: str) -> str:
    """Return the arguments of a custom tool's call."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


class Tool(Redacted, frozen=True, kw_only=True):
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: dict[str, Any]
    strict: bool = False
    # A custom tool, whose only argument is a text.
    takes_text: bool = False
    # A regular expression of all its texts; empty: any text.
    pattern: str = ""

    @property
    def kind(self) -> Literal["function", "custom"]:
        return "custom" if self.takes_text else "function"

    @property
    def schema(self) -> dict[str, Any]:
        """The schema to enforce."""
        return _one_text(f"^(?:{self.pattern})$") if self.pattern else self.parameters

    def as_json(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ToolChoice(Redacted, frozen=True):
    """The tools that the model may call, and whether it must call one."""

    mode: Mode = "auto"
    # None allows all tools of the request.
    names: tuple[str, ...] | None = None

    def offered(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        if self.mode == "none":
            return ()
        return tuple(tool for tool in tools if self.names is None or tool.name in self.names)


class ToolCall(Redacted, frozen=True, kw_only=True):
    """A call in one of the model's earlier turns."""

    name: str
    # JSON, if the model wrote valid JSON.
    arguments: str
    id: str | None = None

    def parsed_arguments(self) -> dict[str, Any] | str:
        if not self.arguments.strip():
            return {}
        found = json_object(self.arguments)
        return self.arguments if found is None else found


def _schema(parameters: dict[str, Any]) -> dict[str, Any]:
    if parameters.get("type") not in (None, "object"):
        raise PydanticCustomError("schema", "must be the JSON schema of an object")
    json_text(parameters)
    return {name: with_lists(value) for name, value in parameters.items()}


Parameters = Annotated[dict[str, Any], AfterValidator(_schema)]


class FunctionBody(Fields):
    """A function that the model may call."""

    name: Identifier
    description: Text | None = None
    parameters: Parameters | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        return Tool(
            name=self.name,
            description=self.description or "",
            parameters=self.parameters or NO_PARAMETERS,
            strict=bool(self.strict),
        )


class UnservedTool(BaseModel):
    """A tool that is not served, such as one that the API's maker runs. It is refused unless no tool may be called."""

    model_config = ConfigDict(strict=True, frozen=True, hide_input_in_errors=True)
    # Beginnings of the types of known ones: some end in a version.
    KNOWN: ClassVar[tuple[str, ...]]
    SERVED: ClassVar[str]
    type: Annotated[str, Field(max_length=MAX_HINT_CHARS)]

    @property
    def refusal(self) -> str:
        named = next((name for name in self.KNOWN if self.type.startswith(name)), None)
        if named is None:
            return f"has an unsupported type; use {self.SERVED}."
        return f"is `{named}`, which is not served: only tools that the caller runs are."


def served_tools(
    tools: Iterable[_Tool | UnservedTool], param: str, reading: Reading | None, *, may_call: bool
) -> list[_Tool]:
    """Return the tools that are served. Raises ApiError for another one, where it may be called.

    `param`: the field of a tool, in which `{index}` is its place."""
    served = list[_Tool]()
    for index, tool in enumerate(tools):
        if not isinstance(tool, UnservedTool):
            served.append(tool)
        elif may_call:
            named = param.format(index=index)
            raise invalid(named, f"`{named}` {tool.refusal}")
        elif reading is not None:
            reading.ignore("tools")
    return served


def by_type(*kinds: str) -> Discriminator:
    """Return the discriminator of a union by `type`, whose members are tagged `<kind>`. Unknown types are of the first
    kind, which then names the field."""

    def kind(given: object) -> str:
        found = given.get("type") if isinstance(given, dict) else getattr(given, "type", None)
        return f"<{found if isinstance(found, str) and found in kinds else kinds[0]}>"

    return Discriminator(kind)


class TextInput(Fields):
    """Any text as input."""

    type: Literal["text"]


class Grammar(Fields):
    """A grammar for the input, which the model sees. It is enforced, except a Lark grammar with recursion."""

    syntax: Literal["lark", "regex"]
    definition: Text


def custom_tool(name: str, description: str | None, grammar: Grammar | None) -> Tool:
    """Return a custom tool as the model sees it."""
    pattern, parts = "", [description] if description else []
    if grammar is not None:
        parts.append(f"`{INPUT}` keeps to this grammar ({grammar.syntax}):\n{grammar.definition}")
        pattern = grammar.definition if grammar.syntax == "regex" else lark_pattern(grammar.definition) or ""
    said = "\n\n".join(parts)
    return Tool(name=name, description=said, parameters=_one_text(), strict=True, takes_text=True, pattern=pattern)


def _one_text(pattern: str | None = None) -> dict[str, Any]:
    text = {"type": "string"} if pattern is None else {"type": "string", "pattern": pattern}
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


def _arguments(given: object) -> object:
    return json_text(given) if isinstance(given, dict) else "" if given in EMPTY else given


Arguments = Annotated[
    Text,
    BeforeValidator(
        _arguments, json_schema_input_type=str | dict[str, Any] | Annotated[list[Any], Field(max_length=0)] | None
    ),
]


class CalledBody(Fields):
    """The name and arguments of a call."""

    name: Hint | None = None
    arguments: Arguments = ""
    provider_specific_fields: Any = None


class CustomCalledBody(Fields):
    """The name and input of a custom tool's call."""

    name: Hint | None = None
    input: Text = ""


class CallBody(Fields):
    """A call by the model."""

    id: Hint | None = None
    type: Literal["function", "custom"] | None = "function"
    function: CalledBody | None = None
    custom: CustomCalledBody | None = None
    index: Any = None
    provider_specific_fields: Any = None


def nested_tool(tool: object) -> object:
    """Return a function in the form of a chat, if it has that of Responses."""
    if not isinstance(tool, dict) or tool.get("type") != "function" or "name" not in tool:
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def flat_tool(tool: object) -> object:
    """Return a function in the form of Responses, if it has that of a chat."""
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
        return tool
    return {**{name: value for name, value in tool.items() if name != "function"}, **tool["function"]}


def flat_choice(choice: object) -> object:
    """Return a choice of tools in the form of Responses, if it has that of chats, Mistral's API or Anthropic's."""
    if choice == "any":
        return "required"
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind in ("none", "auto", "required", "any"):
        return flat_choice(kind)
    if kind == "tool":
        return {**choice, "type": "function"}
    inner = choice.get(kind) if isinstance(kind, str) else None
    return {**inner, "type": kind} if isinstance(inner, dict) else choice


def checked_choice(
    tools: Sequence[Tool],
    choice: ToolChoice | None,
    name_field: str,
    fields: tuple[str, str] = ("tools", "tool_choice"),
) -> ToolChoice:
    """Check tools and their choice against each other. `name_field`: the field of a tool's name, in which `{kind}` is
    `function` or `custom`; `fields`: of the tools and the choice. Raises ApiError naming the field."""
    offered, chosen = fields
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        doubled = next(index for index, name in enumerate(names) if name in names[:index])
        named = name_field.format(kind=tools[doubled].kind)
        raise invalid(f"{offered}.[{doubled}].{named}", f"Two of `{offered}` have the same name.")
    if sum(len(json.dumps(tool.as_json(), ensure_ascii=False)) for tool in tools) > MAX_TOOLS_CHARS:
        raise invalid(offered, f"`{offered}` must have at most {MAX_TOOLS_CHARS} characters in total.")
    choice = choice or ToolChoice()
    if choice.mode == "required" and not tools:
        raise invalid(chosen, f"`{chosen}` needs `{offered}`.")
    if not set(names).issuperset(choice.names or ()):
        raise invalid(chosen, f"`{chosen}` names a tool that is not in `{offered}`.")
    return choice
