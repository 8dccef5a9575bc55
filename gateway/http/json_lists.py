"""Long lists of token ids, taken out of a large JSON body before the rest is parsed.

A parser keeps every other thread waiting until it is done, and a body may hold a million numbers. Here such a body is
looked through and its lists are read in steps of PIECE_BYTES, of at most about a millisecond each; between two of them
others have their turn. In the place of each list a number is left that no caller can guess, by which it is found again:

    {"prompt": [[1, 2, …], [3, …]]}  ──>  {"prompt": [340…001, 340…002]}, {"340…001": (1, 2, …), …}

What is left is bounded, in bytes and in values: its parser holds nobody up either.
"""

import re
import secrets
from collections.abc import Iterator
from typing import Annotated

import msgspec

from fairlane.gateway.errors import ApiError

MAX_PARTS = 50_000
"""Strings, names of fields among them, lists and objects of one body: checking them holds up every other thread,
which even the longest texts hardly do."""
MAX_TOKEN_ID = 2**31
PIECE_BYTES = 64 * 1024
_SHORT_BYTES = 64
"""A list that is no longer may stay where it is."""
_MAX_LOOSE = 2 * MAX_PARTS
"""Commas outside strings and lists that are taken out."""
_MAX_LOOSE_BYTES = 2 * 2**20
"""All that is outside of those."""
_QUOTE = ord('"')
_REST_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_read_ids = msgspec.json.Decoder(tuple[Annotated[int, msgspec.Meta(ge=0, lt=MAX_TOKEN_ID)], ...]).decode

TokenIds = tuple[int, ...]


class NoTokenIds:
    """In the place of a long list that is none of token ids: no field takes one."""


class Lifted:
    """A body without its long lists."""

    def __init__(self, body: bytes, most_ids: int) -> None:
        """Raises ApiError `request_too_large` for more than `most_ids` token ids, or more of all else than is read."""
        self.lists: dict[str, TokenIds | NoTokenIds] = {}
        """Each by the number that stands for it."""
        self._body = body
        self._most_ids, self._ids = most_ids, 0
        self._parts = self._loose = self._loose_bytes = self._ends = 0
        self._mark = (1 << 128) + secrets.randbits(128)
        self._kept: list[bytes] = []
        self._taken_to = self._left = 0
        self._cuts: list[tuple[int, int]] = []
        """(position in what is left, bytes that are missing from there on)"""
        for start, end in _outside_strings(body):
            self._look_at(start, end)
        self._kept.append(body[self._taken_to :])
        self.text = b"".join(self._kept)
        """What is left."""
        del self._body, self._kept

    def position(self, of_text: int) -> int:
        """Where in the body that is which is at this position of what is left."""
        return of_text + sum(missing for at, missing in self._cuts if at < of_text)

    def _look_at(self, start: int, end: int) -> None:
        """What stands between two strings."""
        self._part(1)
        loose_from = start
        for opening, closing in self._flat_lists(start, end) if end - start > _SHORT_BYTES else ():
            self._count(loose_from, opening)
            self._take(opening, closing + 1)
            loose_from = closing + 1
        self._count(loose_from, end)

    def _flat_lists(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Where long lists begin and end in which there is neither list nor object."""
        find = self._body.find
        while (closing := find(b"]", start, end)) >= 0:
            self._ends += 1
            if self._ends > MAX_PARTS:
                raise _too_many_parts()
            opening = self._body.rfind(b"[", start, closing)
            if 0 <= opening < closing - _SHORT_BYTES and find(b"{", opening, closing) < 0:
                yield opening, closing
            start = closing + 1

    def _take(self, start: int, end: int) -> None:
        mark = str(self._mark + len(self.lists))
        self._part(1)
        self.lists[mark] = self._read(start, end)
        self._kept += self._body[self._taken_to : start], mark.encode()
        self._left += start - self._taken_to + len(mark)
        self._cuts.append((self._left, end - start - len(mark)))
        self._taken_to = end

    def _read(self, start: int, end: int) -> TokenIds | NoTokenIds:
        ids: list[int] = []
        try:
            if end - start <= PIECE_BYTES:
                read = _read_ids(self._body[start:end])
                self._ids += len(read)
                self._check_ids()
                return read
            at, last = start + 1, end - 1
            while at < last:
                cut = last if last - at <= PIECE_BYTES else self._body.rfind(b",", at, at + PIECE_BYTES)
                piece = _read_ids(b"[%b]" % self._body[at:cut]) if cut > at else ()
                if not piece:
                    return NoTokenIds()
                ids += piece
                self._ids += len(piece)
                self._check_ids()
                at = cut + 1
        except (msgspec.MsgspecError, ValueError):
            return NoTokenIds()
        return tuple(ids)

    def _check_ids(self) -> None:
        if self._ids > self._most_ids:
            raise ApiError(f"The body holds more than {self._most_ids} token ids.", "request_too_large")

    def _count(self, start: int, end: int) -> None:
        """What stays where it is."""
        count, self._loose_bytes = self._body.count, self._loose_bytes + end - start
        while start < end:
            until = min(end, start + PIECE_BYTES)
            self._loose += count(b",", start, until)
            self._part(count(b"[", start, until) + count(b"{", start, until))
            start = until
        if self._loose > _MAX_LOOSE or self._loose_bytes > _MAX_LOOSE_BYTES:
            message = f"The body holds more than {_MAX_LOOSE} values, or {_MAX_LOOSE_BYTES} bytes outside its texts."
            raise ApiError(message, "request_too_large")

    def _part(self, more: int) -> None:
        self._parts += more
        if self._parts > MAX_PARTS + 1:  # there is one stretch more outside of strings than there are strings
            raise _too_many_parts()


def _too_many_parts() -> ApiError:
    return ApiError(f"The body holds more than {MAX_PARTS} strings, lists and objects.", "request_too_large")


def _outside_strings(body: bytes) -> Iterator[tuple[int, int]]:
    """Each stretch before, between and after strings."""
    start = 0
    while (opening := body.find(b'"', start)) >= 0:
        yield start, opening
        start = _end_of_string(body, opening + 1)
    yield start, len(body)


def _end_of_string(body: bytes, start: int) -> int:
    """Behind the quote that ends the string whose first character is at `start`."""
    closing = body.find(b'"', start)
    if closing < 0:
        return len(body)
    if body.find(b"\\", start, closing) < 0:
        return closing + 1
    while (rest := _REST_OF_STRING.match(body, start, start + PIECE_BYTES)) is not None:
        at = rest.end()
        if at >= len(body) or body[at] == _QUOTE:
            return at + 1
        if at == start:  # a backslash at the very end
            break
        start = at
    return len(body)
