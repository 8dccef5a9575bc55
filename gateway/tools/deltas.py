"""What an output says, piece by piece: content, reasoning, and calls of tools."""

import secrets
from typing import Protocol

import msgspec

_ID_LENGTH = 24


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A part of one call. The first of a call has its id and name."""

    index: int
    """Of the call, within its choice."""
    arguments: str = ""
    """Goes on with the JSON text of its arguments."""
    id: str | None = None
    name: str | None = None

    def __repr__(self) -> str:
        return f"ToolCallDelta({self.index}, {len(self.arguments)} characters)"


class OutputDelta(msgspec.Struct, frozen=True):
    """What a push of text brought."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()

    def __repr__(self) -> str:
        return f"OutputDelta({len(self.content)} + {len(self.reasoning)} characters, {len(self.calls)} of calls)"


class OutputReader(Protocol):
    """Reads one choice. However its text is split into pushes, the deltas come to the same in the end.

    Nothing that the model wrote is lost: what cannot be read as a call is content.
    """

    calls: int
    """How many calls were begun; where there are any, the choice ended by them."""

    def push(self, text: str) -> OutputDelta:
        """What the next text brings."""

    def end(self) -> OutputDelta:
        """What was held back. Nothing may be pushed after it."""


class DeltaBuilder:
    """What was read since it was last taken."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self._calls: dict[int, tuple[str | None, str | None, list[str]]] = {}

    def begin(self, index: int, name: str) -> None:
        """A call of this function."""
        self._calls[index] = (new_call_id(), name, [])

    def arguments(self, index: int, text: str) -> None:
        """More of a call's arguments."""
        if text:
            self._calls.setdefault(index, (None, None, []))[2].append(text)

    def take(self) -> OutputDelta:
        """All of it, once."""
        calls = tuple(
            ToolCallDelta(index, "".join(parts), id=call_id, name=name)
            for index, (call_id, name, parts) in self._calls.items()
        )
        delta = OutputDelta("".join(self.content), "".join(self.reasoning), calls)
        self.content, self.reasoning, self._calls = [], [], {}
        return delta


def new_call_id() -> str:
    """As OpenAI's look."""
    return "call_" + secrets.token_hex(_ID_LENGTH // 2)
