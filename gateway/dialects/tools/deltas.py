"""Pieces of parsed output: content, reasoning, and tool calls."""

import secrets
from typing import Protocol

from fairlane.common.redacted import Redacted

_ID_BYTES = 12
_MAX_BLANKS = 1024


class ToolCallDelta(Redacted, frozen=True):
    """A piece of one call. The first one has its id and name."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    # `arguments` is the input of a custom tool instead.
    is_text: bool = False


class OutputDelta(Redacted, frozen=True):
    """The output that one push of text added.

    Its parts are in this order: the rest of a call that an earlier delta began, reasoning, content, new calls."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()

    @property
    def continued(self) -> ToolCallDelta | None:
        return self.calls[0] if self.calls and self.calls[0].name is None else None

    @property
    def begun(self) -> tuple[ToolCallDelta, ...]:
        return self.calls if self.continued is None else self.calls[1:]


class OutputReader(Protocol):
    """Parses one choice. The sum of the deltas does not depend on how the text is split into pushes.

    No output is lost: text that cannot be parsed as a call is returned as content."""

    @property
    def calls(self) -> int:
        """Calls begun so far; a choice with calls has ended with them. After the end, an incomplete one does not
        count."""

    @property
    def incomplete(self) -> str | None:
        """After the end: the text of the call, or of the beginning of its mark, that a cut left incomplete."""

    def push(self, text: str) -> OutputDelta: ...

    def end(self, *, is_cut: bool = False) -> OutputDelta:
        """Return what was held back. No push may follow. `is_cut`: a limit or a stop string ended the output, so the
        beginning of a call at its end is not content."""


class DeltaBuilder:
    """Collects parsed output until it is taken. Drops whitespace next to calls and reasoning."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[str | None, str | None, list[str]]] = {}
        # Whitespace held back until the next output is known; None if it cannot be dropped.
        self._blanks: str | None = ""
        self._has_content = self._has_thought = False
        # True after a call or reasoning.
        self._has_more = False

    def add_content(self, text: str) -> None:
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

    def add_reasoning(self, text: str) -> None:
        self._has_more = True
        text = text if self._has_thought else text.lstrip()
        if text:
            self._has_thought = True
            self._reasoning.append(text)

    def begin_call(self, index: int, name: str) -> None:
        self._has_more = True
        self._calls[index] = ("call_" + secrets.token_hex(_ID_BYTES), name, [])

    def end_call(self) -> None:
        self._blanks = "" if self._blanks is None else self._blanks

    def end(self) -> None:
        if self._blanks and not self._has_more:
            self._content.append(self._blanks)

    def add_arguments(self, index: int, text: str) -> None:
        if text:
            self._calls.setdefault(index, (None, None, []))[2].append(text)

    def take(self) -> OutputDelta:
        calls = tuple(
            ToolCallDelta(index, "".join(parts), id=call_id, name=name)
            for index, (call_id, name, parts) in self._calls.items()
        )
        delta = OutputDelta("".join(self._content), "".join(self._reasoning), calls)
        self._content, self._reasoning, self._calls = [], [], {}
        return delta
