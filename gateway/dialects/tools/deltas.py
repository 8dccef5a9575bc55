"""What an output says, piece by piece: content, reasoning, and calls of tools."""

import secrets
from typing import Protocol

import msgspec

_ID_LENGTH = 24
_MAX_BLANKS = 1024
"""That are held back."""


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
    """The output that one push of text added.

    Its parts come in this order: the rest of a call that an earlier delta began, reasoning, content, new calls.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()

    @property
    def continued(self) -> ToolCallDelta | None:
        """The rest of a call that an earlier delta began; None if there is none."""
        return self.calls[0] if self.calls and self.calls[0].name is None else None

    @property
    def begun(self) -> tuple[ToolCallDelta, ...]:
        """The calls that this delta begins."""
        return self.calls if self.continued is None else self.calls[1:]

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
    """Puts together what was read since it was last taken. Drops the blanks beside calls and reasoning."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[str | None, str | None, list[str]]] = {}
        self._blanks: str | None = ""
        """Held back until it is known what follows; None: not where they may be dropped."""
        self._has_content = self._has_thought = False
        self._has_more = False
        """There was a call, or reasoning."""

    def say(self, text: str) -> None:
        """More content."""
        if not text:
            return
        if self._blanks is not None:
            said = text.lstrip()
            blanks = self._blanks + text[: len(text) - len(said)]
            if self._has_more and not self._has_content:
                blanks = ""
            if not said and len(blanks) <= _MAX_BLANKS:
                self._blanks = blanks
                return
            self._blanks = None
            text = blanks + said
        self._has_content = True
        self._content.append(text)

    def reason(self, text: str) -> None:
        """More reasoning."""
        self._has_more = True
        text = text if self._has_thought else text.lstrip()
        if text:
            self._has_thought = True
            self._reasoning.append(text)

    def begin(self, index: int, name: str) -> None:
        """A call of this function."""
        self._has_more = True
        self._calls[index] = (new_call_id(), name, [])

    def end_call(self) -> None:
        """What follows is no longer a call."""
        self._blanks = "" if self._blanks is None else self._blanks

    def end(self) -> None:
        """Nothing follows."""
        if self._blanks and not self._has_more:
            self._content.append(self._blanks)

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
        delta = OutputDelta("".join(self._content), "".join(self._reasoning), calls)
        self._content, self._reasoning, self._calls = [], [], {}
        return delta


def new_call_id() -> str:
    """As OpenAI's look."""
    return "call_" + secrets.token_hex(_ID_LENGTH // 2)
