"""What an output says, piece by piece: content, reasoning, and calls of tools."""

import secrets
import string
from typing import Protocol

import msgspec

_ID_LETTERS = string.ascii_letters + string.digits
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


def new_call_id() -> str:
    """As OpenAI's look."""
    return "call_" + "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
