"""Parses a choice's text as it arrives, by its model's call syntax.

The parser is one generator that waits wherever it needs more text: reasoning? (content mark call closing-marks)*
content. Text that is malformed before a call has a name is content, including its mark. Malformed text after the name
ends the call, and what follows is content. A call that a cut left incomplete is neither content nor a call."""

import re
from collections.abc import Callable, Generator, Sequence
from functools import partial

from fairlane.gateway.dialects.openai.tools import NO_PARAMETERS, Tool
from fairlane.gateway.dialects.tools import tagged
from fairlane.gateway.dialects.tools.cursor import (
    BLANKS,
    MAX_BODY_CHARS,
    MAX_HEAD_CHARS,
    Asking,
    Marks,
    TextCursor,
    decoded,
)
from fairlane.gateway.dialects.tools.deltas import DeltaBuilder, OutputDelta
from fairlane.gateway.dialects.tools.syntax import CallSyntax

_MAX_NAMED_HEAD_CHARS = 512
_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
_ARGUMENTS = ("arguments", "parameters")
_FIRST_KEYS = frozenset({"name", "id", "type", *_ARGUMENTS})
_TO_ANOTHER = re.compile(r"\s*[;,]?\s*")
_FUNCTION, _FUNCTION_END = "<function=", "</function>"

Waiting = Generator[None, None, None]


class SyntaxReader(TextCursor):
    """An `OutputReader` for a `CallSyntax`."""

    def __init__(
        self, syntax: CallSyntax, tools: Sequence[Tool], *, reasoning: tuple[str, str] | None, is_reasoning: bool
    ) -> None:
        """`tools`: those that may be called; without any, calls are not parsed. `reasoning`: the marks around
        reasoning, if the model has any. `is_reasoning`: the prompt has opened it."""
        super().__init__()
        self.calls = 0
        self.incomplete: str | None = None
        self._is_cut = False
        # The last call that has a name has no whole arguments yet.
        self._is_open = False
        self._syntax = syntax
        self._tools = {tool.name: tool for tool in tools}
        self._reasoning = reasoning
        self._head = re.compile(syntax.head, re.ASCII)
        stray = [mark for mark in syntax.close if mark.startswith("<")]
        opens = [*syntax.open, *syntax.silent] if tools else []
        self._marks = Marks(opens)
        # After a call, a mark that closes one is never content.
        self._stray = stray if tools else []
        self._later_marks = Marks([*opens, *self._stray])
        self._delta = DeltaBuilder()
        self._reading = self._read(is_reasoning=is_reasoning)
        next(self._reading)

    def push(self, text: str) -> OutputDelta:
        self._extend(text)
        return self._resume()

    def end(self, *, is_cut: bool = False) -> OutputDelta:
        self._ended, self._is_cut = True, is_cut
        return self._resume()

    def _resume(self) -> OutputDelta:
        next(self._reading, None)
        return self._delta.take()

    def _read(self, *, is_reasoning: bool) -> Waiting:
        if self._reasoning is not None:
            yield from self._read_reasoning(self._reasoning, is_open=is_reasoning)
        if self._tools and self._syntax.bare:
            yield from self._read_bare_calls(BLANKS)
        while (mark := (yield from self._emit_until_mark())) is not None:
            if mark in self._syntax.open:
                self._keep_call(self._at - len(mark))
                if (yield from self._read_call(self._body)) and self._syntax.bare:
                    yield from self._read_bare_calls(_TO_ANOTHER)
        self._end_content(self._text[self._at :])
        self._delta.end()

    def _read_reasoning(self, marks: tuple[str, str], *, is_open: bool) -> Waiting:
        if not is_open and not (yield from self._next_mark(marks[:1])):
            return
        yield from self._emit_until(Marks(marks[1:]), self._delta.add_reasoning)

    def _emit_until_mark(self) -> Generator[None, None, str | None]:
        marks = self._later_marks if self.calls else self._marks
        return (yield from self._emit_until(marks, self._delta.add_content, keeps_partial=True))

    def _end_content(self, rest: str) -> None:
        """`rest`: the beginning of a mark at the end of the text. After a call, it is not content."""
        if not self._is_cut:
            self._delta.add_content("" if self.calls else rest)
        elif rest and not (self.calls and any(mark.startswith(rest) for mark in self._stray)):
            self.incomplete = rest

    def _read_bare_calls(self, before: re.Pattern[str]) -> Waiting:
        while (yield from self._next_brace(before)):
            if not (yield from self._read_call(partial(self._object, needs_tool=True), is_bare=True)):
                return
            before = _TO_ANOTHER

    def _read_call(self, body: Callable[[], Asking], *, is_bare: bool = False) -> Asking:
        self._is_open = self._ran_out = False
        is_call = yield from body()
        if self._is_cut and self._ran_out and self._is_incomplete(is_bare=is_bare):
            self.incomplete, self._kept_from, self._at = self._written(), None, len(self._text)
            self.calls -= self._is_open
        if self._kept_from is not None:
            self._delta.add_content(self._text[self._kept_from : self._at])
            self._kept_from = None
        if is_call:
            self._ran_out = False
            while (yield from self._next_mark(self._syntax.close)):
                pass
            if self._is_cut and self._ran_out:
                self._at = len(self._text)
            self._delta.end_call()
        self._call_from = None
        return is_call

    def _is_incomplete(self, *, is_bare: bool) -> bool:
        if self._kept_from is None:
            return self._is_open
        # Without a mark, an object is content unless it begins like a call.
        written = "".join(self._written().split()).lstrip(";,")
        return not is_bare or any(f'{{"name":"{name}"'.startswith(written) for name in self._tools)

    def _body(self) -> Asking:
        first = yield from self._skip_blanks()
        if first == "{":
            return (yield from self._object())
        if first == "[":
            return (yield from self._list())
        if self._syntax.body == "named":
            return (yield from self._named())
        if self._syntax.body == "xml":
            return (yield from self._tagged())
        return False

    def _list(self) -> Asking:
        has_begun = False
        self._at += 1
        while True:
            match (yield from self._skip_blanks()):
                case "{":
                    if self._kept_from is None:
                        self._keep_call(self._at)
                    if not (yield from self._object()):
                        return has_begun
                    has_begun = True
                case ",":
                    self._at += 1
                case "]":
                    self._at += 1
                    return has_begun
                case _:
                    return has_begun

    def _named(self) -> Asking:
        head = self._head.fullmatch((yield from self._until("{", _MAX_NAMED_HEAD_CHARS)) or "")
        if head is None:
            return False
        self._begin(head["name"])
        yield from self._emit_arguments()
        return True

    def _object(self, *, needs_tool: bool = False) -> Asking:
        """Parse `{"name": …, "arguments": {…}}`, in either order and with other keys ignored; return whether it has a
        name. `needs_tool`: only an object that names an offered tool is a call."""
        self._at += 1
        name, early, has_arguments, is_first = "", "", False, True
        while (character := (yield from self._skip_blanks())) and character in '",':
            if character == ",":
                self._at += 1
                continue
            key = yield from self._key()
            if key is None or (needs_tool and is_first and key not in _FIRST_KEYS):
                return bool(name)
            is_first = False
            if key == "name" and not name:
                found = yield from self._string()
                if found is None or not _NAME.fullmatch(found) or (needs_tool and found not in self._tools):
                    return False
                name = found
                self._begin(name)
                self._delta.add_arguments(self.calls - 1, _as_arguments(early))
                self._is_open = not has_arguments
            elif key in _ARGUMENTS and name and not has_arguments:
                has_arguments = True
                if not (yield from self._emit_arguments()):
                    return True
            else:
                value, is_whole = yield from self._value()
                if key in _ARGUMENTS and not has_arguments:
                    has_arguments, early = True, value
                if not is_whole:
                    return bool(name)
        if character == "}":
            self._at += 1
            self._is_open = False
            if name and not has_arguments:
                self._delta.add_arguments(self.calls - 1, "{}")
        return bool(name)

    def _tagged(self) -> Asking:
        if not (yield from self._next_mark((_FUNCTION,))):
            return False
        name = ((yield from self._until(">", MAX_HEAD_CHARS)) or "").strip()
        if not _NAME.fullmatch(name):
            return False
        self._at += 1
        head, self._kept_from = self._text[self._kept_from : self._at], None
        parts, size, end_mark = [], 0, Marks((_FUNCTION_END,))
        while size <= MAX_BODY_CHARS:
            start, end, mark = end_mark.find(self._text, self._at, ended=self._ended)
            parts.append(self._text[self._at : start])
            size += start - self._at
            self._at = end
            if mark is not None:
                tool = self._tools.get(name)
                self._begin(name)
                written = tagged.arguments("".join(parts), NO_PARAMETERS if tool is None else tool.parameters)
                self._delta.add_arguments(self.calls - 1, written)
                self._is_open = False
                return True
            if self._ended:
                self._ran_out = True
                break
            yield
        if self._is_cut:
            self._kept_from = self._at
            return False
        self._delta.add_content("".join([head, *parts]))
        return False

    def _begin(self, name: str) -> None:
        self._kept_from, self._is_open = None, True
        self._delta.begin_call(self.calls, name)
        self.calls += 1

    def _emit_arguments(self) -> Asking:
        index = self.calls - 1
        if (yield from self._next()) == "{":
            is_whole = yield from self._emit_value(partial(self._delta.add_arguments, index))
            self._is_open = not is_whole
            return is_whole
        value, is_whole = yield from self._value()
        self._is_open = not is_whole
        self._delta.add_arguments(index, _as_arguments(value) if is_whole else value)
        return is_whole


def _as_arguments(value: str) -> str:
    if value == "null":
        return "{}"
    inner = decoded(value) if value.startswith('"') else None
    return inner if isinstance(inner, str) and isinstance(decoded(inner), dict) else value
