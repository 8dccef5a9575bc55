"""Converts a conversation to the dicts that a chat template expects, with each call's arguments as an object.

Templates differ, so some things are adapted: names of answered functions, which OpenAI's clients omit, are found by the
call's id; ids are shortened for templates that require nine characters (Mistral's); and calls, results or late system
messages become text for templates without support for them. What the source does not show is found by probing, once per
template: whether arguments are an object or JSON text, whether a turn with only calls has no content or an empty one,
and which system messages it supports."""

import hashlib
import re
import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from fairlane.gateway.dialects.openai.requests import Turn, merge_turns
from fairlane.gateway.dialects.openai.tools import ToolCall
from fairlane.gateway.model_text import late_system
from fairlane.gateway.model_text.chat_template import TemplateRefusal

# OpenAI's roles → the roles that models know.
_ROLES = {"developer": "system", "function": "tool"}
_NINE = re.compile(r"length\s*(?:!=|==|<)\s*9\b")
_TOOL_ROLE = re.compile(r"""['"]tool['"]""")
_ID_LETTERS = string.ascii_letters + string.digits


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


class Conversation:
    """Converts messages for one chat template."""

    def __init__(
        self, source: str, render: Callable[[list[dict[str, Any]]], str], spell: Callable[[ToolCall], str]
    ) -> None:
        """`source`: the template's. `render`: renders it, or raises TemplateRefusal. `spell`: writes a call as text,
        for templates without support for calls."""
        self._short_ids = _NINE.search(source) is not None
        self._reads_thinking = "thinking" in source and "reasoning_content" not in source
        self._spell = None if "tool_calls" in source else spell
        self._reads_results = _TOOL_ROLE.search(source) is not None
        self._form = _FORMS[0]
        if self._spell is None:
            self._form = self._best_form(render)
        self.takes_system = _VALUE in _probe(
            render, [{"role": "system", "content": _VALUE}, {"role": "user", "content": "a"}]
        )
        self._takes_late_system = late_system.PROBE_TEXT in _probe(
            render, self._messages(late_system.PROBE, self._form)
        )

    def messages(self, turns: Sequence[Turn]) -> list[dict[str, Any]]:
        if not self._takes_late_system and late_system.has_late_system(turns):
            turns = late_system.as_user(turns)
        return self._messages(turns, self._form)

    def _best_form(self, render: Callable[[list[dict[str, Any]]], str]) -> _Form:
        rendered = {form: _probe(render, self._messages(_PROBE, form)) for form in _FORMS}
        takes = [form for form, text in rendered.items() if _FUNCTION in text and _VALUE in text]
        clean = [form for form in takes if f"{{'{_KEY}'" not in rendered[form] and "None" not in rendered[form]]
        return [*clean, *takes, *_FORMS][0]

    def _messages(self, turns: Sequence[Turn], form: _Form) -> list[dict[str, Any]]:
        called = {call.id: call.name for turn in turns for call in turn.tool_calls if call.id}
        if self._spell is not None:
            turns = [_with_calls_as_text(turn, self._spell) if turn.tool_calls else turn for turn in turns]
        if not self._reads_results:
            turns = _results_as_text(turns)
        return [self._message(turn, called, form) for turn in turns]

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
                    "id": self._id(call.id or f"call_{number}"),
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": (call.arguments or "{}") if form.arguments_as_text else call.parsed_arguments(),
                    },
                }
                for number, call in enumerate(turn.tool_calls)
            ]
        return message

    def _id(self, given: str) -> str:
        if not self._short_ids or (len(given) == 9 and given.isascii() and given.isalnum()):
            return given
        digest = hashlib.sha256(given.encode()).digest()
        return "".join([_ID_LETTERS[byte % len(_ID_LETTERS)] for byte in digest[:9]])


def _probe(render: Callable[[list[dict[str, Any]]], str], messages: list[dict[str, Any]]) -> str:
    try:
        return render(messages)
    except TemplateRefusal:
        return ""


def _with_calls_as_text(turn: Turn, spell: Callable[[ToolCall], str]) -> Turn:
    said = [turn.content] if turn.content else []
    return replace(turn, content="\n".join([*said, *map(spell, turn.tool_calls)]), tool_calls=())


def _results_as_text(turns: Sequence[Turn]) -> list[Turn]:
    marked = [
        replace(turn, content=f"<tool_response>\n{turn.content or ''}\n</tool_response>") if _is_result(turn) else turn
        for turn in turns
    ]
    merged = merge_turns(marked, lambda group, turn: _is_result(group[-1]) and _is_result(turn))
    return [Turn(role="user", content=turn.content) if _is_result(turn) else turn for turn in merged]


def _is_result(turn: Turn) -> bool:
    return turn.role in ("tool", "function")
