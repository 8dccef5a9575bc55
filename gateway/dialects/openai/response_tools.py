"""Tools of the Responses API: functions, tools that take text, and namespaces of both.

The model sees all of them as functions: a tool that takes text has one argument, and the name of a tool in a namespace
is prefixed with the namespace."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator, Field, PlainValidator, Tag, ValidationInfo
from pydantic_core import PydanticCustomError

from fairlane.gateway.dialects.openai.field_types import Fields, Identifier, Ignored, Off, Text
from fairlane.gateway.dialects.openai.tools import (
    MAX_TOOLS,
    DirectCallers,
    FunctionBody,
    Grammar,
    Mode,
    TextInput,
    Tool,
    UnservedTool,
    by_type,
    custom_tool,
    flat_choice,
    flat_tool,
)

Json = dict[str, Any]


def full_name(namespace: str | None, name: str) -> str:
    """Return the name by which the model calls a tool."""
    if namespace is None:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


class CalledAs(msgspec.Struct, frozen=True):
    """The name of a namespaced tool in its calls, as the client sees them."""

    name: str
    namespace: str | None = None


class _ToolOptions(Fields):
    defer_loading: Ignored = None
    allowed_callers: DirectCallers | None = None
    is_async: Annotated[Off | None, Field(alias="async")] = None


class ResponseFunction(FunctionBody, _ToolOptions):
    """A function that the model may call."""

    type: Literal["function"]
    output_schema: Ignored = None

    def as_json(self) -> Json:
        document = {"type": self.type, "name": self.name, "description": self.description}
        return {**document, "parameters": self.parameters, "strict": bool(self.strict)}


class GrammarInput(Grammar):
    """A grammar for the input, which the model sees. It is enforced, except a Lark grammar with recursion."""

    type: Literal["grammar"]


Format = Annotated[
    Annotated[TextInput, Tag("<text>")] | Annotated[GrammarInput, Tag("<grammar>")], by_type("text", "grammar")
]


class ResponseCustomTool(_ToolOptions):
    """A tool that takes text."""

    type: Literal["custom"]
    name: Identifier
    description: Text | None = None
    format: Format | None = None

    def tool(self) -> Tool:
        grammar = self.format if isinstance(self.format, GrammarInput) else None
        return custom_tool(self.name, self.description, grammar)

    def as_json(self) -> Json:
        document = {"type": self.type, "name": self.name, "description": self.description or ""}
        return {**document, "format": {"type": "text"} if self.format is None else self.format.model_dump()}


CalledTool = ResponseFunction | ResponseCustomTool


_CALLED: dict[str, type[CalledTool]] = {"function": ResponseFunction, "custom": ResponseCustomTool}


def _called_tool(given: object, info: ValidationInfo) -> CalledTool:
    tool = flat_tool(given)
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(kind, str) or kind not in _CALLED:
        raise PydanticCustomError("tool", "has an unsupported type; use 'function' or 'custom'")
    return _CALLED[kind].model_validate(tool, context=info.context)


ListedTool = Annotated[CalledTool, PlainValidator(_called_tool, json_schema_input_type=CalledTool)]


class ToolNamespace(Fields):
    """A group of tools with a common prefix."""

    type: Literal["namespace"]
    name: Identifier
    description: Text | None = None
    tools: Annotated[list[ListedTool], Field(max_length=MAX_TOOLS, fail_fast=True)]

    def as_json(self) -> Json:
        document = {"type": self.type, "name": self.name, "description": self.description or ""}
        return {**document, "tools": [tool.as_json() for tool in self.tools]}


class HostedTool(UnservedTool):
    """A tool that is not served, such as one that OpenAI runs. It is refused unless no tool may be called."""

    KNOWN = (
        "apply_patch",
        "code_interpreter",
        "computer_use_preview",
        "computer",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
    )
    SERVED = "'function', 'custom' or 'namespace'"


ServedTool = CalledTool | ToolNamespace
AnyTool = ServedTool | HostedTool


def _tool(tool: object, info: ValidationInfo) -> AnyTool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "namespace":
        return ToolNamespace.model_validate(tool, context=info.context)
    if isinstance(kind, str) and kind not in _CALLED:
        return HostedTool.model_validate(tool, context=info.context)
    return _called_tool(tool, info)


def _check_count(tools: object) -> object:
    """Reject too many tools, including those inside namespaces, before any of them is validated."""
    inner = [tool.get("tools") if isinstance(tool, dict) else None for tool in tools] if isinstance(tools, list) else []
    if sum(len(found) if isinstance(found, list) else 1 for found in inner) > MAX_TOOLS:
        raise PydanticCustomError("tools", f"must have at most {MAX_TOOLS} items, including those inside namespaces")
    return tools


ResponseTools = Annotated[
    list[Annotated[AnyTool, PlainValidator(_tool, json_schema_input_type=AnyTool)]],
    Field(max_length=MAX_TOOLS, fail_fast=True),
    BeforeValidator(_check_count),
]


def offered_tools_of(tools: list[ServedTool]) -> Iterator[tuple[Tool, CalledAs | None]]:
    """Yield each tool as the model sees it, and its name in a namespace; None for one in no namespace."""
    for tool in tools:
        if isinstance(tool, ToolNamespace):
            for inner in tool.tools:
                name = full_name(tool.name, inner.name)
                yield msgspec.structs.replace(inner.tool(), name=name), CalledAs(inner.name, tool.name)
        else:
            yield tool.tool(), None


class ChosenTool(Fields):
    """One tool of the request."""

    type: Literal["function", "custom"]
    name: Identifier


class ResponseAllowedTools(Fields):
    """The tools that the model may choose from."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


ToolChoiceBody = Mode | ChosenTool | ResponseAllowedTools


def _read_choice(choice: object) -> ToolChoiceBody:
    match flat_choice(choice):
        case "none" | "auto" | "required" as mode:
            return mode
        case {"type": "function" | "custom"} as chosen:
            return ChosenTool.model_validate(chosen)
        case {"type": "allowed_tools"} as allowed:
            return ResponseAllowedTools.model_validate(allowed)
        case _:
            raise PydanticCustomError(
                "tool_choice", "must be 'none', 'auto', 'required', or name one tool or the allowed tools"
            )


ResponseToolChoice = Annotated[ToolChoiceBody, PlainValidator(_read_choice, json_schema_input_type=ToolChoiceBody)]
