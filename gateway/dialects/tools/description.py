"""Tools in a system turn, for models whose chat template does not show tools: in the form that Hermes models learn."""

import json
from collections.abc import Sequence

from msgspec.structs import replace

from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.dialects.openai.tools import Tool, ToolCall
from fairlane.gateway.dialects.tools.syntax import CallSyntax

_TEXT = """\
You may call one or more functions to help with the user's request.

These are the functions, each with the JSON schema of its parameters:
<tools>
{tools}
</tools>

To call a function, answer with its name and its arguments in this form, and nothing else:
{call}
Its result will be given to you in the next turn."""


def with_tools(
    turns: Sequence[Turn], tools: Sequence[Tool], syntax: CallSyntax, *, takes_system: bool = True
) -> list[Turn]:
    """Return the turns with the tools at the end of the system turn or, if the template takes none, at the beginning of
    the user's turn."""
    definitions = "\n".join(json.dumps(tool.as_json(), ensure_ascii=False) for tool in tools)
    call = syntax.before + syntax.spell("<function-name>", "<arguments-as-JSON>") + syntax.after
    text = _TEXT.format(tools=definitions, call=call)
    first = turns[0] if turns else None
    if first is not None and first.role in ("system", "developer"):
        return [replace(first, content=f"{first.content or ''}\n\n{text}"), *turns[1:]]
    if first is not None and first.role == "user" and not takes_system:
        return [replace(first, content=f"{text}\n\n{first.content or ''}"), *turns[1:]]
    return [Turn(role="system", content=text), *turns]


def call_text(call: ToolCall, syntax: CallSyntax) -> str:
    """Return a call of an earlier turn in the model's syntax."""
    return syntax.spell(call.name, call.arguments or "{}")
