"""A conversation as chat templates expect it: dicts, with each call's arguments as the object that they spell.

Templates differ in what they take, so three things are made to fit: names of answered functions, which OpenAI's clients
leave out, are found by the call's id; ids are shortened where a template insists on nine characters (Mistral's); and
where it reads no calls, or no results, these become text.
"""

import hashlib
import re
import string
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from fairlane.gateway.openai.requests import Turn
from fairlane.gateway.openai.tools import ToolCall

_ROLES = {"developer": "system", "function": "tool"}
"""OpenAI's other words for what models know."""
_NINE = re.compile(r"length\s*(?:!=|==|<)\s*9\b")
_TOOL_ROLE = re.compile(r"""['"]tool['"]""")
_ID_LETTERS = string.ascii_letters + string.digits


class Conversation:
    """How one chat template takes messages."""

    def __init__(self, template: str, spell: Callable[[ToolCall], str]) -> None:
        """`template`: its source. `spell`: a call as text, for a template that reads none."""
        self._short_ids = _NINE.search(template) is not None
        self._spell = None if "tool_calls" in template else spell
        self._reads_results = _TOOL_ROLE.search(template) is not None

    def messages(self, turns: Sequence[Turn], *, arguments_as_text: bool = False) -> list[dict[str, Any]]:
        """The messages. `arguments_as_text`: a call's arguments are JSON text, as some templates want them."""
        called = {call.id: call.name for turn in turns for call in turn.tool_calls if call.id}
        if self._spell is not None:
            turns = [_with_calls_as_text(turn, self._spell) if turn.tool_calls else turn for turn in turns]
        if not self._reads_results:
            turns = list(_results_as_text(turns))
        return [self._message(turn, called, arguments_as_text) for turn in turns]

    def _message(self, turn: Turn, called: dict[str, str], arguments_as_text: bool) -> dict[str, Any]:
        message: dict[str, Any] = {"role": _ROLES.get(turn.role, turn.role), "content": turn.content}
        name = turn.name
        if name is None and turn.role == "tool":
            name = called.get(turn.tool_call_id or "")
        if name is not None:
            message["name"] = name
        if turn.tool_call_id is not None:
            message["tool_call_id"] = self._id(turn.tool_call_id)
        if turn.reasoning is not None:
            message["reasoning_content"] = turn.reasoning
        if turn.tool_calls:
            message["tool_calls"] = [
                {
                    "id": self._id(call.id or f"call_{number}"),
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": (call.arguments or "{}") if arguments_as_text else call.parsed_arguments(),
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


def _with_calls_as_text(turn: Turn, spell: Callable[[ToolCall], str]) -> Turn:
    """Calls as a part of what the model said."""
    said = [turn.content] if turn.content else []
    return replace(turn, content="\n".join([*said, *map(spell, turn.tool_calls)]), tool_calls=())


def _results_as_text(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Results, those that follow each other together, as what the user says: a role that every template knows."""
    results: list[str] = []
    for turn in turns:
        if turn.role in ("tool", "function"):
            results.append(f"<tool_response>\n{turn.content or ''}\n</tool_response>")
            continue
        if results:
            yield Turn(role="user", content="\n".join(results))
            results = []
        yield turn
    if results:
        yield Turn(role="user", content="\n".join(results))
