"""Extracts long lists of numbers and long strings from a large JSON document before the rest is parsed: a parser blocks
all other threads until it is done. Extraction works in steps of about a millisecond. Each value is replaced by
an unguessable number, which identifies it later:

    {"prompt": [[1, 2, …], [3, …]]}  ──>  {"prompt": [340…001, 340…002]}, {"340…001": (1, 2, …), …}"""

import json
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec

from fairlane.gateway.errors import ApiError, invalid

# Strings, field names included, lists and objects of one document.
MAX_PARTS = 50_000
MAX_TOKEN_ID = 2**31
PIECE_BYTES = 64 * 1024
_SHORT_BYTES = 64
# Commas outside strings and extracted lists.
_MAX_LOOSE = 2 * MAX_PARTS
# Bytes outside strings and extracted lists.
_MAX_LOOSE_BYTES = 2 * 2**20
_QUOTE, _LIST_END = b'"]'
# A list that may be extracted, up to its end or the end of the searched piece.
_LONG_LIST = re.compile(rb"\[[^\[\]{]{%d,}+(\]|\Z)" % _SHORT_BYTES)
_NO_BRACKETS = re.compile(rb"[^\[\]{]*+")
_BLANKS = re.compile(rb"[ \t\r\n]*+")
# Stops only between escapes.
_TEXT_PIECE = re.compile(rb'[^"\\]*+(?:\\(?:u[0-9a-fA-F]{4}|[^u])[^"\\]*+)*+', re.DOTALL)
_REST_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_read_ids = msgspec.json.Decoder(tuple[Annotated[int, msgspec.Meta(ge=0, lt=MAX_TOKEN_ID)], ...]).decode

TokenIds = tuple[int, ...]
_read_scalars = msgspec.json.Decoder(list[int | float | bool | None]).decode
Scalars = list[int | float | bool | None]
_HIGH = frozenset(map(chr, range(0xD800, 0xDC00)))
# Halves of a surrogate pair.
_LOW = frozenset(map(chr, range(0xDC00, 0xE000)))


class NoTokenIds:
    """Placeholder for a very long list of values that are not token ids. No field accepts it."""


Value = TokenIds | Scalars | NoTokenIds | str


class Lifted:
    """A document without its long lists and strings."""

    def __init__(self, body: bytes, most_ids: int | None) -> None:
        """Extract long lists and strings from `body` and read them; if `most_ids` is None, drop them unread.

        Raises ApiError `request_too_large` for more than `most_ids` token ids or too many other values; 400 for a long
        string that is not valid JSON."""
        self.values: dict[str, Value] = {}
        self._body = body
        self._most_ids, self._ids = most_ids, 0
        self._parts = self._loose = self._loose_bytes = 0
        self._mark = (1 << 128) + secrets.randbits(128)
        self._kept: list[bytes] = []
        self._taken_to = self._left = 0
        # (position in the remaining text, bytes extracted there)
        self._cuts: list[tuple[int, int]] = []
        start = 0
        while (opening := body.find(b'"', start)) >= 0:
            self._look_at(start, opening)
            start, has_escapes = _end_of_string(body, opening + 1)
            if has_escapes and PIECE_BYTES < start - opening <= len(body) - opening:
                self._take_text(opening, start)
        self._look_at(start, len(body))
        self._kept.append(body[self._taken_to :])
        self.text = b"".join(self._kept)
        del self._body, self._kept

    def position(self, of_text: int) -> int:
        return of_text + sum(missing for at, missing in self._cuts if at < of_text)

    def _look_at(self, start: int, end: int) -> None:
        self._count_parts(start, end)
        loose_from = start
        for opening, closing in self._flat_lists(start, end) if end - start > _SHORT_BYTES else ():
            self._count_loose(loose_from, opening)
            self._take(opening, closing + 1, self._read)
            loose_from = closing + 1
        self._count_loose(loose_from, end)

    def _flat_lists(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        while start < end:
            until = min(end, start + PIECE_BYTES)
            found = _LONG_LIST.search(self._body, start, until)
            if found is None:
                start = until if until == end else until - _SHORT_BYTES  # a list may start there
                continue
            start = found.end() - 1 if found[1] else self._next_bracket(until, end)
            if start < end and self._body[start] == _LIST_END:
                yield found.start(), start

    def _next_bracket(self, at: int, end: int) -> int:
        while at < end:
            until = min(end, at + PIECE_BYTES)
            found = _NO_BRACKETS.match(self._body, at, until)
            at = until if found is None else found.end()
            if at < until:
                return at
        return end

    def _take_text(self, start: int, end: int) -> None:
        blanks = _BLANKS.match(self._body, end)
        if blanks is not None and self._body[blanks.end() : blanks.end() + 1] == b":":
            raise invalid(None, f"A field's name is longer than {PIECE_BYTES} bytes.")
        self._take(start, end, self._text)

    def _text(self, start: int, end: int) -> str:
        body, at, pieces = self._body, start + 1, [""]
        while at < end - 1:
            most = min(end - 1, at + PIECE_BYTES)
            while most < end - 1 and body[most] & 0xC0 == 0x80:  # inside a UTF-8 character
                most -= 1
            found = _TEXT_PIECE.match(body, at, most)
            until = at if found is None else found.end()
            try:
                piece = json.loads(b'"%b"' % body[at:until]) if until > at else None
            except ValueError:
                piece = None
            if piece is None:
                raise invalid(None, f"The body is not valid JSON, in the text at byte {at}.")
            if pieces[-1][-1:] in _HIGH and piece[:1] in _LOW:
                joined = (pieces[-1][-1] + piece[0]).encode("utf-16", "surrogatepass").decode("utf-16")
                pieces[-1], piece = pieces[-1][:-1], joined + piece[1:]
            pieces.append(piece)
            at = until
        return "".join(pieces)

    def _take(self, start: int, end: int, read: Callable[[int, int], Value]) -> None:
        mark = "0"
        if self._most_ids is not None:
            mark = str(self._mark + len(self.values))
            self.values[mark] = read(start, end)
        self._kept += self._body[self._taken_to : start], mark.encode()
        self._left += start - self._taken_to + len(mark)
        self._cuts.append((self._left, end - start - len(mark)))
        self._taken_to = end

    def _read(self, start: int, end: int) -> TokenIds | Scalars | NoTokenIds:
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
            return NoTokenIds() if end - start > PIECE_BYTES else self._scalars(start, end)
        return tuple(ids)

    def _scalars(self, start: int, end: int) -> Scalars | NoTokenIds:
        self._count_loose(start, end)
        try:
            return _read_scalars(self._body[start:end])
        except (msgspec.MsgspecError, ValueError):
            return NoTokenIds()

    def _check_ids(self) -> None:
        if self._most_ids is not None and self._ids > self._most_ids:
            raise ApiError(f"The body has more than {self._most_ids} token ids.", "request_too_large")

    def _count_parts(self, start: int, end: int) -> None:
        count, self._parts = self._body.count, self._parts + 1
        for at in range(start, max(end, start + 1), PIECE_BYTES):
            until = min(end, at + PIECE_BYTES)
            self._parts += count(b"[", at, until) + count(b"{", at, until)
            if self._parts > MAX_PARTS + 1:  # there is one more part outside strings than there are strings
                raise ApiError(f"The body has more than {MAX_PARTS} strings, lists and objects.", "request_too_large")

    def _count_loose(self, start: int, end: int) -> None:
        count = self._body.count
        for at in range(start, end, PIECE_BYTES):
            self._loose += count(b",", at, min(end, at + PIECE_BYTES))
        self._loose_bytes += end - start
        if self._loose > _MAX_LOOSE or self._loose_bytes > _MAX_LOOSE_BYTES:
            message = f"The body has more than {_MAX_LOOSE} values, or {_MAX_LOOSE_BYTES} bytes outside its strings."
            raise ApiError(message, "request_too_large")


def _end_of_string(body: bytes, start: int) -> tuple[int, bool]:
    """Return the position after a string's closing quote, and whether the string has escapes.

    `start` is its first character. The position is past the document's end if the string does not end."""
    closing = body.find(b'"', start)
    if closing < 0:
        return len(body) + 1, False
    if body.find(b"\\", start, closing) < 0:
        return closing + 1, False
    while (rest := _REST_OF_STRING.match(body, start, start + PIECE_BYTES)) is not None:
        at = rest.end()
        if at >= len(body) or body[at] == _QUOTE:
            return at + 1, True
        if at == start:  # a backslash at the very end
            break
        start = at
    return len(body) + 1, True
