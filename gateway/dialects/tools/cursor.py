"""Reads a text that arrives in pieces: the primitives of the reader of calls."""

import re
from collections.abc import Callable, Generator, Sequence

from fairlane.gateway.dialects.tools.json_text import Found, JsonScanner
from fairlane.gateway.http.json_reader import read_text

MAX_HEAD_CHARS = 8 * 1024
MAX_BODY_CHARS = 2**20
# Whitespace kept until the next text is known.
_MAX_BLANKS = 1024
BLANKS = re.compile(r"\s*")

# Continues with each push.
Asking = Generator[None, None, bool]


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
    """A position in a text that arrives in pieces. Its generators wait for more text with a bare `yield`."""

    def __init__(self) -> None:
        self._text, self._at = "", 0
        # Start of a call whose name is not known yet.
        self._kept_from: int | None = None
        self._ended = False

    def _extend(self, text: str) -> None:
        keep_from = self._at if self._kept_from is None else self._kept_from
        self._text = self._text[keep_from:] + text
        self._at -= keep_from
        if self._kept_from is not None:
            self._kept_from = 0

    def _emit_until(
        self, marks: Marks, emit: Callable[[str], None], *, drops_partial: bool = False
    ) -> Generator[None, None, str | None]:
        while True:
            start, end, mark = marks.find(self._text, self._at, ended=self._ended and not drops_partial)
            emit(self._text[self._at : start])
            self._at = end
            if mark is not None or self._ended:
                return mark
            yield

    def _next(self) -> Generator[None, None, str]:
        while self._at >= len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def _until(self, end: str, most: int) -> Generator[None, None, str | None]:
        begin = self._at - (self._kept_from or 0)
        while (character := (yield from self._next())) and character != end:
            self._at += 1
            if self._at - (self._kept_from or 0) - begin > most:
                return None
        return self._text[(self._kept_from or 0) + begin : self._at] if character else None

    def _next_mark(self, marks: Sequence[str]) -> Asking:
        while True:
            at = _after_blanks(self._text, self._at, self._at + _MAX_BLANKS)
            for mark in marks:
                if self._text.startswith(mark, at):
                    self._at = at + len(mark)
                    return True
            if at >= self._at + _MAX_BLANKS:
                return False
            rest = self._text[at : at + max(map(len, marks), default=0)]
            if self._ended or not any(mark.startswith(rest) for mark in marks):
                return False
            yield

    def _next_brace(self, before: re.Pattern[str]) -> Asking:
        while True:
            skipped = before.match(self._text, self._at, self._at + _MAX_BLANKS)
            at = self._at if skipped is None else skipped.end()
            if at < len(self._text):
                if self._text[at] != "{":
                    return False
                self._kept_from, self._at = self._at, at
                return True
            if self._ended:
                return False
            yield

    def _skip_blanks(self) -> Generator[None, None, str]:
        """Skip whitespace and return the next character without taking it; empty at the end, or if a head is too
        long."""
        while True:
            most = len(self._text) if self._kept_from is None else self._kept_from + MAX_HEAD_CHARS
            self._at = max(self._at, _after_blanks(self._text, self._at, most))
            if self._at >= most and self._kept_from is not None:
                return ""
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            yield

    def _value(self) -> Generator[None, None, tuple[str, bool]]:
        parts, size, scanner = [], 0, JsonScanner()
        limit = MAX_BODY_CHARS if self._kept_from is None else MAX_HEAD_CHARS
        while True:
            end, found = scanner.scan(self._text, self._at, self._at + limit - size)
            parts.append(self._text[self._at : end])
            size += end - self._at
            self._at = end
            if found is not Found.MORE or self._ended or size >= limit:
                return "".join(parts), found is Found.DONE or (self._ended and scanner.may_end)
            yield

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


def _after_blanks(text: str, at: int, most: int) -> int:
    found = BLANKS.match(text, at, most)
    return at if found is None else found.end()


def decoded(text: str) -> object:
    """Return a JSON value of the model; None if it is not JSON."""
    try:
        return read_text(text, strict=False)
    except ValueError:
        return None
