"""Tools in the body of a chat, in OpenAI's present form and its older one, and the choice of them."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainValidator, Tag
from pydantic_core import PydanticCustomError

from fairlane.gateway.dialects.openai.field_types import Fields, Identifier, Text
from fairlane.gateway.dialects.openai.tools import (
    MAX_TOOLS,
    FunctionBody,
    Grammar,
    Mode,
    TextInput,
    Tool,
    ToolChoice,
    by_type,
    checked_choice,
    custom_tool,
    flat_choice,
    nested_tool,
)
from fairlane.gateway.errors import invalid


class FunctionTool(Fields):
    """A function that the model may call."""

    type: Literal["function"] | None = "function"
    function: FunctionBody

    def tool(self) -> Tool:
        return self.function.tool()


class GrammarFormat(Fields):
    """A grammar as the format of the input."""

    type: Literal["grammar"]
    grammar: Grammar


Format = Annotated[
    Annotated[TextInput, Tag("<text>")] | Annotated[GrammarFormat, Tag("<grammar>")], by_type("text", "grammar")
]


class CustomBody(Fields):
    """A tool that takes text."""

    name: Identifier
    description: Text | None = None
    format: Format | None = None


class CustomToolBody(Fields):
    """A tool that takes text."""

    type: Literal["custom"]
    custom: CustomBody

    def tool(self) -> Tool:
        asked = self.custom
        grammar = asked.format.grammar if isinstance(asked.format, GrammarFormat) else None
        return custom_tool(asked.name, asked.description, grammar)


ToolBody = Annotated[
    Annotated[FunctionTool, Tag("<function>")] | Annotated[CustomToolBody, Tag("<custom>")],
    by_type("function", "custom"),
    BeforeValidator(nested_tool),
]


class NamedBody(Fields):
    """The name of a tool."""

    name: Identifier


class NamedTool(Fields):
    """A function by its name."""

    type: Literal["function"]
    function: NamedBody


class NamedCustomTool(Fields):
    """A custom tool by its name."""

    type: Literal["custom"]
    custom: NamedBody


class AllowedBody(Fields):
    """A subset of the request's tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool | NamedCustomTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedTools(Fields):
    """The tools that the model may choose from."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedBody


_MODES: dict[str, ToolChoice] = {mode: ToolChoice(mode) for mode in ("none", "auto", "required")}


def _choice(choice: object) -> ToolChoice:
    match flat_choice(choice):
        case str(mode) if mode in _MODES:
            return _MODES[mode]
        case {"type": "function" | "custom"}:
            return ToolChoice("required", (_chosen(choice),))
        case {"type": "allowed_tools", "tools": [*tools]} if len(tools) > MAX_TOOLS:
            raise PydanticCustomError("tool_choice", f"must name at most {MAX_TOOLS} tools")
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [_, *_] as tools}:
            return ToolChoice(mode, tuple(map(_chosen, tools)))
        case _:
            raise PydanticCustomError(
                "tool_choice", "must be 'none', 'auto', 'required', or name one tool or the allowed tools"
            )


def _chosen(tool: object) -> str:
    match flat_choice(tool):
        case {"type": "function" | "custom", "name": str() as name}:
            return name
        case _:
            raise PydanticCustomError(
                "tool_choice",
                'must name a tool as {"type": "function", "function": {"name": …}}, or with "custom" in both places',
            )


Choice = Annotated[
    ToolChoice, PlainValidator(_choice, json_schema_input_type=Mode | NamedTool | NamedCustomTool | AllowedTools)
]


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
    tools = tuple([body.tool() for body in bodies or ()])
    return tools, checked_choice(tools, choice, "{kind}.name")


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
