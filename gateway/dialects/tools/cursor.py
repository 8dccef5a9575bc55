"""Reads text that arrives in pieces: primitives of the tool-call parser."""

import re
from collections.abc import Callable, Generator, Sequence

from fairlane.gateway.http.json_reader import read_text

MAX_HEAD_CHARS = 8 * 1024
MAX_BODY_CHARS = 2**20
# Brackets within brackets of a JSON value.
MAX_DEPTH = 256
# Whitespace kept until the next text is known.
_MAX_BLANKS = 1024
_UNBOUNDED = 2**60
BLANKS = re.compile(r"\s*")
_ANY = re.compile(r".", re.DOTALL)
_NOT_BLANK = re.compile(r"\S")
# The next significant character of a JSON value: in a string, in an object or list, or after a number or literal.
_IN_STRING = re.compile(r'["\\]')
_IN_BRACKETS = re.compile(r"[^\s0-9A-Za-z.+\-:,]")
_AFTER_SCALAR = re.compile(r"[^0-9A-Za-z.+\-]")
_CLOSING = {"{": "}", "[": "]"}

Asking = Generator[None, None, bool]
Emit = Callable[[str], None]


class Marks:
    """Finds the first of several marks in streamed text."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, marks)) or r"(?!)")
        self._beginnings = {mark[:length] for mark in marks for length in range(1, len(mark))}
        self._longest = max(map(len, self._beginnings), default=0)
        self._firsts = {mark[0] for mark in marks}

    def find(self, text: str, at: int, *, ended: bool) -> tuple[int, int, str | None]:
        """Return the start and end of the first mark, and the mark. Without one, `text` is free up to the start, where
        the text that follows may complete a mark."""
        found = self._pattern.search(text, at)
        if found is not None:
            return found.start(), found.end(), found[0]
        first = max(at, len(text) - self._longest)
        for begin in range(first, len(text)) if not ended else ():
            if text[begin] in self._firsts and text[begin:] in self._beginnings:
                return begin, begin, None
        return len(text), len(text), None


class TextCursor:
    """A position in text that arrives in pieces. Its generators wait for more text with a bare `yield`."""

    def __init__(self) -> None:
        self._text, self._at = "", 0
        # Start of a call whose name is not known yet.
        self._kept_from: int | None = None
        # Start of the text that `_seek` has passed and not emitted, and the characters that it may still pass.
        self._from = self._left = 0
        # The current call as it was written: text that left the buffer, and where the rest begins in the buffer.
        self._call_text: list[str] = []
        self._call_from: int | None = None
        self._ended = False
        # The end of the text ended a part that could have gone on.
        self._ran_out = False

    def _extend(self, text: str) -> None:
        keep_from = self._at if self._kept_from is None else self._kept_from
        if self._call_from is not None:
            self._call_text.append(self._text[self._call_from : keep_from])
            self._call_from = 0
        self._text = self._text[keep_from:] + text
        self._at -= keep_from
        if self._kept_from is not None:
            self._kept_from = 0

    def _keep_call(self, at: int) -> None:
        self._kept_from = self._call_from = at
        self._call_text = []

    def _written(self) -> str:
        return "".join([*self._call_text, self._text[self._call_from or 0 :]])

    def _emit_until(
        self, marks: Marks, emit: Emit, *, keeps_partial: bool = False
    ) -> Generator[None, None, str | None]:
        """Emit the text before the next mark, and return the mark; None at the end. `keeps_partial`: do not emit the
        beginning of a mark at the end."""
        while True:
            start, end, mark = marks.find(self._text, self._at, ended=self._ended and not keeps_partial)
            emit(self._text[self._at : start])
            self._at = end
            if mark is not None or self._ended:
                return mark
            yield

    def _seek(self, pattern: re.Pattern[str], emit: Emit) -> Generator[None, None, str]:
        """Pass the text before the next character that a pattern matches, and return that character; empty at the end,
        or after `_left` characters. Emit the passed text before waiting for more."""
        while True:
            start, most = self._at, min(self._at + self._left, len(self._text))
            found = pattern.search(self._text, start, most)
            self._at = most if found is None else found.start()
            self._left -= self._at - start
            if found is not None:
                return found[0]
            if self._ended or not self._left:
                self._ran_out = self._ended and self._at == len(self._text)
                return ""
            emit(self._text[self._from : self._at])
            yield
            self._from = self._at

    def _take(self) -> None:
        self._at += 1
        self._left -= 1

    def _next(self) -> Generator[None, None, str]:
        self._left = 1
        return (yield from self._seek(_ANY, _drop))

    def _until(self, end: str, most: int) -> Generator[None, None, str | None]:
        parts: list[str] = []
        self._from, self._left = self._at, most + 1
        found = yield from self._seek(re.compile(re.escape(end)), parts.append)
        return "".join([*parts, self._text[self._from : self._at]]) if found else None

    def _skip_blanks(self) -> Generator[None, None, str]:
        """Skip whitespace and return the next character without taking it; empty at the end, or if the call's head
        is too long."""
        self._left = _UNBOUNDED
        if self._kept_from is not None:
            self._left = max(0, self._kept_from + MAX_HEAD_CHARS - self._at)
        return (yield from self._seek(_NOT_BLANK, _drop))

    def _next_mark(self, marks: Sequence[str]) -> Asking:
        while True:
            blanks = BLANKS.match(self._text, self._at, self._at + _MAX_BLANKS)
            at = self._at if blanks is None else blanks.end()
            for mark in marks:
                if self._text.startswith(mark, at):
                    self._at = at + len(mark)
                    return True
            if at >= self._at + _MAX_BLANKS:
                return False
            rest = self._text[at : at + max(map(len, marks), default=0)]
            if not any(mark.startswith(rest) for mark in marks):
                return False
            if self._ended:
                self._ran_out = True
                return False
            yield

    def _next_brace(self, before: re.Pattern[str]) -> Asking:
        while True:
            skipped = before.match(self._text, self._at, self._at + _MAX_BLANKS)
            at = self._at if skipped is None else skipped.end()
            if at < len(self._text):
                if self._text[at] != "{":
                    return False
                self._keep_call(self._at)
                self._at = at
                return True
            if self._ended:
                return False
            yield

    def _emit_value(self, emit: Emit, limit: int = _UNBOUNDED) -> Asking:
        """Emit one JSON value, of which only strings and brackets are checked. Return False if it is malformed, cut off
        or too long."""
        self._from, self._left = self._at, limit
        is_whole = yield from self._pass_value(emit)
        emit(self._text[self._from : self._at])
        return is_whole

    def _pass_value(self, emit: Emit) -> Asking:
        closing: list[str] = []
        while True:
            mark = yield from self._seek(_IN_BRACKETS if closing else _ANY, emit)
            if mark == '"':
                if not (yield from self._pass_string(emit)):
                    return False
            elif mark in _CLOSING and len(closing) < MAX_DEPTH:
                closing.append(_CLOSING[mark])
                self._take()
            elif closing and mark == closing[-1]:
                closing.pop()
                self._take()
            elif closing or not mark or _AFTER_SCALAR.match(mark):
                return False
            else:
                return bool((yield from self._seek(_AFTER_SCALAR, emit))) or self._left > 0
            if not closing:
                return True

    def _pass_string(self, emit: Emit) -> Asking:
        self._take()
        while (mark := (yield from self._seek(_IN_STRING, emit))) == "\\":
            self._take()
            if not (yield from self._seek(_ANY, emit)):
                return False
            self._take()
        if mark:
            self._take()
        return bool(mark)

    def _value(self) -> Generator[None, None, tuple[str, bool]]:
        parts: list[str] = []
        limit = MAX_BODY_CHARS if self._kept_from is None else MAX_HEAD_CHARS
        is_whole = yield from self._emit_value(parts.append, limit)
        return "".join(parts), is_whole

    def _string(self) -> Generator[None, None, str | None]:
        if (yield from self._next()) != '"':
            return None
        text, is_whole = yield from self._value()
        value = decoded(text) if is_whole else None
        return value if isinstance(value, str) else None

    def _key(self) -> Generator[None, None, str | None]:
        key = yield from self._string()
        if key is None or (yield from self._skip_blanks()) != ":":
            return None
        self._at += 1
        yield from self._skip_blanks()
        return key


def decoded(text: str) -> object:
    """Return a JSON value of the model; None if it is not JSON."""
    try:
        return read_text(text, strict=False)
    except ValueError:
        return None


def _drop(text: str) -> None:
    pass
