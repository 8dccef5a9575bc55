"""Finds the end of a JSON value in streamed text.

It follows strings and brackets, and accepts all else that looks like JSON: validation is left to the reader of the
value. Time is linear in the text, and memory in the depth."""

import re
from enum import Enum

MAX_DEPTH = 256
_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r"[^\s0-9A-Za-z.+\-:,]")
_AFTER_SCALAR = re.compile(r"[^0-9A-Za-z.+\-]")
_CLOSING = {"{": "}", "[": "]"}


class Found(Enum):
    """The state after a piece of text."""

    MORE = "more"
    DONE = "done"
    # The next character is not JSON.
    BROKEN = "broken"


class JsonScanner:
    """Finds the end of one value."""

    def __init__(self) -> None:
        # The closing brackets of the open lists and objects.
        self._open: list[str] = []
        self._in_string = self._escaped = self._in_scalar = False

    def scan(self, text: str, at: int, most: int) -> tuple[int, Found]:
        """Continue at a position in a text, up to `most`; return the end of the scanned part and the state."""
        most = min(most, len(text))
        while at < most:
            if self._in_string:
                at, found = self._string(text, at, most)
            elif self._open:
                at, found = self._container(text, at, most)
            elif self._in_scalar:
                after = _AFTER_SCALAR.search(text, at, most)
                return (most, Found.MORE) if after is None else (after.start(), Found.DONE)
            else:
                at, found = self._first(text, at)
            if found is not Found.MORE:
                return at, found
        return at, Found.MORE

    @property
    def may_end(self) -> bool:
        return self._in_scalar

    def _first(self, text: str, at: int) -> tuple[int, Found]:
        character = text[at]
        if character == '"':
            self._in_string = True
        elif character in _CLOSING:
            self._open.append(_CLOSING[character])
        elif _AFTER_SCALAR.match(character):
            return at, Found.BROKEN
        else:
            self._in_scalar = True
        return at + 1, Found.MORE

    def _string(self, text: str, at: int, most: int) -> tuple[int, Found]:
        if self._escaped:
            self._escaped = False
            return at + 1, Found.MORE
        mark = _IN_STRING.search(text, at, most)
        if mark is None:
            return most, Found.MORE
        self._escaped = mark[0] == "\\"
        self._in_string = self._escaped
        return mark.end(), Found.MORE if self._in_string or self._open else Found.DONE

    def _container(self, text: str, at: int, most: int) -> tuple[int, Found]:
        mark = _OUTSIDE.search(text, at, most)
        if mark is None:
            return most, Found.MORE
        character = mark[0]
        if character == '"':
            self._in_string = True
        elif character in _CLOSING and len(self._open) < MAX_DEPTH:
            self._open.append(_CLOSING[character])
        elif character == self._open[-1]:
            self._open.pop()
            return mark.end(), Found.MORE if self._open else Found.DONE
        else:
            return mark.start(), Found.BROKEN
        return mark.end(), Found.MORE
