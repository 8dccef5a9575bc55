"""OpenAI's older form of tools: `functions` and `function_call`, which become tools and the choice of one."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from fairlane.gateway.dialects.openai.tools import (
    MAX_TOOLS,
    FunctionBody,
    NamedBody,
    Tool,
    ToolBody,
    ToolChoice,
    checked_choice,
    read_tools,
)
from fairlane.gateway.errors import invalid


def _choice(choice: object) -> ToolChoice:
    match choice:
        case "none" | "auto":
            return ToolChoice(choice)
        case "":
            return ToolChoice()
        case {"name": str() as name}:
            return ToolChoice("required", (name,))
        case _:
            raise PydanticCustomError("function_call", "must be 'none', 'auto', or name one function")


Functions = Annotated[list[FunctionBody], Field(max_length=MAX_TOOLS, fail_fast=True)]
FunctionChoice = Annotated[
    ToolChoice, PlainValidator(_choice, json_schema_input_type=Literal["none", "auto"] | NamedBody)
]


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
