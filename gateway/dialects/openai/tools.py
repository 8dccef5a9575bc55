"""Tools of a chat request: the functions that the model may call, whether it must, and its earlier calls.

The pydantic classes are the wire format; `Tool`, `ToolChoice` and `ToolCall` are their validated form."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from fairlane.common.redacted import Redacted
from fairlane.gateway.dialects.openai.field_types import Fields, Hint, Identifier, Text, json_text, with_lists
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


class ToolBody(Fields):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionBody


def _arguments(given: object) -> object:
    return json_text(given) if isinstance(given, dict) else given or ""


Arguments = Annotated[Text, BeforeValidator(_arguments, json_schema_input_type=str | dict[str, Any])]


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


class NamedBody(Fields):
    """The name of a function."""

    name: Identifier


class NamedTool(Fields):
    """The tool that the model must call."""

    type: Literal["function"]
    function: NamedBody


class AllowedBody(Fields):
    """A subset of the request's tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedTools(Fields):
    """The tools that the model may choose from."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedBody


_MODES: dict[str, ToolChoice] = {mode: ToolChoice(mode) for mode in ("none", "auto", "required")}


def _choice(choice: object) -> ToolChoice:
    match choice:
        case str() if choice in _MODES:
            return _MODES[choice]
        case {"type": "function"}:
            return ToolChoice("required", (_chosen(choice),))
        case {"type": "allowed_tools", "allowed_tools": {"tools": [*tools]}} if len(tools) > MAX_TOOLS:
            raise PydanticCustomError("tool_choice", f"must name at most {MAX_TOOLS} tools")
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [_, *_] as tools},
        }:
            return ToolChoice(mode, tuple(map(_chosen, tools)))
        case _:
            raise PydanticCustomError(
                "tool_choice", "must be 'none', 'auto', 'required', or name one function or the allowed tools"
            )


def _chosen(tool: object) -> str:
    match tool:
        case {"type": "function", "function": {"name": str() as name}}:
            return name
        case _:
            raise PydanticCustomError(
                "tool_choice", 'must name a tool as {"type": "function", "function": {"name": …}}'
            )


Choice = Annotated[ToolChoice, PlainValidator(_choice, json_schema_input_type=Mode | NamedTool | AllowedTools)]


def _function_choice(choice: object) -> ToolChoice:
    match choice:
        case "none" | "auto":
            return ToolChoice(choice)
        case "":
            return ToolChoice()
        case {"name": str() as name}:
            return ToolChoice("required", (name,))
        case _:
            raise PydanticCustomError("function_call", "must be 'none', 'auto', or name one function")


# OpenAI's older form of tools, and of the choice of them.
Functions = Annotated[list[FunctionBody], Field(max_length=MAX_TOOLS, fail_fast=True)]
FunctionChoice = Annotated[
    ToolChoice, PlainValidator(_function_choice, json_schema_input_type=Literal["none", "auto"] | NamedBody)
]


def read_tools(bodies: Sequence[ToolBody] | None, choice: ToolChoice | None) -> tuple[tuple[Tool, ...], ToolChoice]:
    """Convert the tools of a request and the choice of them. Raises ApiError naming the field."""
    if not bodies and choice is None:
        return (), _MODES["auto"]
    tools = tuple([body.function.tool() for body in bodies or ()])
    return tools, checked_choice(tools, choice, "function.name")


def read_functions(
    functions: Sequence[FunctionBody] | None,
    call: ToolChoice | None,
    tools: Sequence[ToolBody] | None,
    choice: ToolChoice | None,
) -> tuple[tuple[Tool, ...], ToolChoice]:
    """Convert the tools of a request in either form, and the choice of them. Raises ApiError naming the field."""
    if not functions:
        if call is not None and call.mode == "required" and not tools:
            raise invalid("function_call", "`function_call` needs `functions`.")
        return read_tools(tools, choice or call)
    if tools:
        raise invalid("functions", "`functions` and `tools` are both given.")
    offered = tuple([body.tool() for body in functions])
    return offered, checked_choice(offered, call, "name", fields=("functions", "function_call"))


def checked_choice(
    tools: Sequence[Tool],
    choice: ToolChoice | None,
    name_field: str,
    fields: tuple[str, str] = ("tools", "tool_choice"),
) -> ToolChoice:
    """Check tools and their choice against each other. `name_field`: the field of a tool's name; `fields`: of the tools
    and the choice. Raises ApiError naming the field."""
    offered, chosen = fields
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        doubled = next(index for index, name in enumerate(names) if name in names[:index])
        raise invalid(f"{offered}.[{doubled}].{name_field}", f"Two of `{offered}` have the same name.")
    if sum(len(json.dumps(tool.as_json(), ensure_ascii=False)) for tool in tools) > MAX_TOOLS_CHARS:
        raise invalid(offered, f"`{offered}` must have at most {MAX_TOOLS_CHARS} characters in total.")
    choice = choice or ToolChoice()
    if choice.mode == "required" and not tools:
        raise invalid(chosen, f"`{chosen}` needs `{offered}`.")
    if not set(names).issuperset(choice.names or ()):
        raise invalid(chosen, f"`{chosen}` names a function that is not in `{offered}`.")
    return choice
