"""Converts a conversation to the dicts that a chat template expects.

What a template does not support becomes text: tools, calls, results, and system messages after others, which agents
send. If the template's source does not show what it supports, it is probed once. A conversation that the template
rejects is rewritten for a strict one (`strict_turns`)."""

import hashlib
import json
import re
import string
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from fairlane.gateway.dialects.openai.requests import Turn, is_system
from fairlane.gateway.dialects.openai.tools import Tool, ToolCall
from fairlane.gateway.dialects.tools.syntax import CallSyntax
from fairlane.gateway.model_text.chat_template import TemplateRefusal
from fairlane.gateway.model_text.strict_turns import (
    RESULT_ROLES,
    alternating,
    is_result,
    late_system_as_user,
    one_call_each,
    results_as_text,
    system_as_one,
)

# OpenAI's roles → the roles that models know.
_ROLES = {"developer": "system", "function": "tool"}
_NINE = re.compile(r"length\s*(?:!=|==|<)\s*9\b")
_ID_LETTERS = string.ascii_letters + string.digits
# Tools in a system turn, in the form that Hermes models learn.
_TOOLS_TEXT = """\
You may call one or more functions to help with the user's request.

These are the functions, each with the JSON schema of its parameters:
<tools>
{tools}
</tools>

To call a function, answer with its name and its arguments in this form, and nothing else:
{call}
Its result will be given to you in the next turn."""


class _Form(NamedTuple):
    arguments_as_text: bool
    # The content of a turn that holds only calls.
    empty_content: str | None


_FORMS = [_Form(arguments_as_text=text, empty_content=empty) for text in (False, True) for empty in (None, "")]
_FUNCTION, _KEY, _VALUE = "tried_function", "tried_key", "tried value"
_PROBE = (
    Turn(role="user", content="a"),
    Turn(
        role="assistant",
        content=None,
        tool_calls=(ToolCall(name=_FUNCTION, arguments=f'{{"{_KEY}": "{_VALUE}"}}', id="call_1"),),
    ),
    Turn(role="tool", content="a", tool_call_id="call_1"),
)
_BROKEN_CALL_PROBE = (
    _PROBE[0],
    Turn(role="assistant", content=None, tool_calls=(ToolCall(name=_FUNCTION, arguments=_VALUE, id="call_1"),)),
    _PROBE[2],
)
_TWO_SYSTEM_PROBE = (
    Turn(role="system", content="a"),
    Turn(role="system", content=_VALUE),
    Turn(role="user", content="a"),
)
_LATE_SYSTEM_PROBE = (
    Turn(role="user", content="a"),
    Turn(role="system", content=_VALUE),
    Turn(role="assistant", content="a"),
    Turn(role="user", content="a"),
)


class Conversation:
    """Converts messages for one chat template."""

    def __init__(
        self,
        source: str,
        fields: Collection[str],
        render: Callable[[list[dict[str, Any]]], str],
        syntax: CallSyntax,
    ) -> None:
        """`source`: the template's; `fields`: the names of fields and other literals in it. `render`: renders it, or
        raises TemplateRefusal. `syntax`: of calls as text, for templates without support for calls."""
        self._syntax = syntax
        self._short_ids = _NINE.search(source) is not None
        self._reads_thinking = "thinking" in fields and "reasoning_content" not in fields
        self._reads_calls = "tool_calls" in fields
        self._reads_results = "tool" in fields
        self._form = self._best_form(render) if self._reads_calls else _FORMS[0]
        self._takes_broken_calls = True
        self._takes_broken_calls = _FUNCTION in _probe(render, self._messages(_BROKEN_CALL_PROBE, self._form))
        self._takes_system = _VALUE in _probe(
            render, [{"role": "system", "content": _VALUE}, {"role": "user", "content": "a"}]
        )
        self._takes_two_systems = _VALUE in _probe(render, self._messages(_TWO_SYSTEM_PROBE, self._form))
        self._takes_late_system = _VALUE in _probe(render, self._messages(_LATE_SYSTEM_PROBE, self._form))

    def forms(self, turns: Sequence[Turn]) -> Iterator[list[dict[str, Any]]]:
        """Yield the messages to render; after a rejection, the same as a strict template takes them."""
        if not self._takes_late_system:
            turns = late_system_as_user(turns)
        if not self._takes_two_systems:
            turns = system_as_one(turns)
        yield from self._one_or_several_calls(turns)
        yield from self._one_or_several_calls(alternating(self._as_text(turns), takes_system=self._takes_system))

    def _one_or_several_calls(self, turns: Sequence[Turn]) -> Iterator[list[dict[str, Any]]]:
        yield self._messages(turns, self._form)
        if any(len(turn.tool_calls) > 1 for turn in turns):
            yield self._messages(one_call_each(turns), self._form)

    def with_tools(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> list[Turn]:
        """Return the turns with the tools at the end of the system turn or, if the template takes none, at the
        beginning of the user's turn."""
        definitions = "\n".join(json.dumps(tool.as_json(), ensure_ascii=False) for tool in tools)
        syntax = self._syntax
        call = syntax.before + syntax.spell("<function-name>", "<arguments-as-JSON>") + syntax.after
        text = _TOOLS_TEXT.format(tools=definitions, call=call)
        first = turns[0] if turns else None
        if first is not None and is_system(first):
            return [replace(first, content=f"{first.content or ''}\n\n{text}"), *turns[1:]]
        if first is not None and first.role == "user" and not self._takes_system:
            return [replace(first, content=f"{text}\n\n{first.content or ''}"), *turns[1:]]
        return [Turn(role="system", content=text), *turns]

    def _best_form(self, render: Callable[[list[dict[str, Any]]], str]) -> _Form:
        rendered = {form: _probe(render, self._messages(_PROBE, form)) for form in _FORMS}
        takes = [form for form, text in rendered.items() if _FUNCTION in text and _VALUE in text]
        clean = [form for form in takes if f"{{'{_KEY}'" not in rendered[form] and "None" not in rendered[form]]
        return [*clean, *takes, *_FORMS][0]

    def _messages(self, turns: Sequence[Turn], form: _Form) -> list[dict[str, Any]]:
        called = {call.id: call.name for turn in turns for call in turn.tool_calls if call.id}
        if any(is_result(turn) and not turn.tool_call_id for turn in turns):
            turns = list(_with_ids(turns))
        return [self._message(turn, called, form) for turn in self._as_text(turns)]

    def _as_text(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        if not self._reads_calls:
            turns = [_with_calls_as_text(turn, self._syntax) if turn.tool_calls else turn for turn in turns]
        if not self._reads_results and {turn.role for turn in turns} & RESULT_ROLES:
            turns = results_as_text(turns)
        return turns

    def _message(self, turn: Turn, called: dict[str, str], form: _Form) -> dict[str, Any]:
        content = form.empty_content if turn.content is None else turn.content
        message: dict[str, Any] = {"role": _ROLES.get(turn.role, turn.role), "content": content}
        name = turn.name
        if name is None and turn.role == "tool":
            name = called.get(turn.tool_call_id or "")
        if name is not None:
            message["name"] = name
        if turn.tool_call_id is not None:
            message["tool_call_id"] = self._id(turn.tool_call_id)
        if turn.reasoning is not None and not self._reads_thinking:
            message["reasoning_content"] = turn.reasoning
        elif turn.reasoning is not None and not (turn.content and turn.tool_calls):  # gpt-oss accepts one
            message["thinking"] = turn.reasoning
        if turn.tool_calls:
            message["tool_calls"] = [
                {
                    "id": self._id(_id_of(call, number)),
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": (call.arguments or "{}") if form.arguments_as_text else self._arguments(call),
                    },
                }
                for number, call in enumerate(turn.tool_calls)
            ]
        return message

    def _arguments(self, call: ToolCall) -> dict[str, Any] | str:
        found = call.parsed_arguments()
        return found if isinstance(found, dict) or self._takes_broken_calls else {"arguments": found}

    def _id(self, given: str) -> str:
        if not self._short_ids or (len(given) == 9 and given.isascii() and given.isalnum()):
            return given
        digest = hashlib.sha256(given.encode()).digest()
        return "".join([_ID_LETTERS[byte % len(_ID_LETTERS)] for byte in digest[:9]])


def _with_ids(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Yield the turns; a result without a call's id has that of the first call before it without a result."""
    waiting: dict[str, str] = {}
    last: str | None = None
    for turn in turns:
        if turn.tool_calls:
            waiting = {_id_of(call, number): call.name for number, call in enumerate(turn.tool_calls)}
        if is_result(turn):
            last = turn.tool_call_id or next(iter(waiting), last)
            known = turn.tool_call_id if last is None else last
            called = waiting.pop(last or "", None)
            turn = replace(turn, tool_call_id=known, name=turn.name or called or turn.name)
        yield turn


def _id_of(call: ToolCall, number: int) -> str:
    return call.id or f"call_{number}"


def _probe(render: Callable[[list[dict[str, Any]]], str], messages: list[dict[str, Any]]) -> str:
    try:
        return render(messages)
    except TemplateRefusal:
        return ""


def _with_calls_as_text(turn: Turn, syntax: CallSyntax) -> Turn:
    said = [turn.content] if turn.content else []
    calls = [syntax.spell(call.name, call.arguments or "{}") for call in turn.tool_calls]
    return replace(turn, content="\n".join([*said, *calls]), tool_calls=())
