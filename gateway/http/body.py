"""A request's body, whole: bounded in bytes and in time, within its tenant's budget, and never decompressed.

Reading a JSON body strictly: UTF-8, no doubled key, no lone surrogate in a key, bounded depth and bounded detail.

What is wrong in a body is told with the field it stands in, found by a bounded scan of what came before it.

Long lists of token ids, taken out of a large JSON body before the rest is parsed.

A parser keeps every other thread waiting until it is done, and a body may hold a million numbers. Here such a body is
looked through and its lists are read in steps of PIECE_BYTES, of at most about a millisecond each; between two of them
others have their turn. In the place of each list a number is left that no caller can guess, by which it is found again:

    {"prompt": [[1, 2, …], [3, …]]}  ──>  {"prompt": [340…001, 340…002]}, {"340…001": (1, 2, …), …}

What is left is bounded, in bytes and in values: its parser holds nobody up either.
"""

import asyncio
import json
import math
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from fairlane.gateway.errors import ApiError, invalid, request_timeout, request_too_large
from fairlane.gateway.http.body_budget import BodyHold

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


_read_scalars = msgspec.json.Decoder(list[int | float | bool | None]).decode
Scalars = list[int | float | bool | None]


class NoTokenIds:
    """In the place of a very long list that is none of token ids: no field takes one."""


class Lifted:
    """A body without its long lists."""

    def __init__(self, body: bytes, most_ids: int) -> None:
        """Raises ApiError `request_too_large` for more than `most_ids` token ids, or more of all else than is read."""
        self.lists: dict[str, TokenIds | Scalars | NoTokenIds] = {}
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
        """Other numbers, as a tool's arguments may hold them: they count as if they had stayed where they were."""
        self._count(start, end)
        try:
            return _read_scalars(self._body[start:end])
        except (msgspec.MsgspecError, ValueError):
            return NoTokenIds()

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


_MAX_DIGITS = 18
"""Of a declared length that is worth reading."""


async def read_body(
    receive: Receive,
    headers: Sequence[tuple[bytes, bytes]],
    *,
    max_bytes: int,
    timeout_s: float,
    arrived: bytes | None = None,
    hold: BodyHold | None = None,
    tenant: str = "",
) -> bytes:
    """The whole body. `headers`: the ASGI scope's; `arrived`: the body where all of it is there already; `hold`: its
    place in the budget, which becomes the `tenant`'s before anything is waited for, and stays the caller's to release.

    Raises ApiError: `request_too_large` before reading it all (by Content-Length, or as soon as the count is over),
    `concurrency_limit_exceeded` or `overloaded_memory` where the budget has no room for it, `request_timeout` if it is
    not there in time, 400 where it is compressed; starlette's ClientDisconnect.
    """
    declared = b""
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() != b"identity":
            raise invalid("content-encoding", "`content-encoding` is not supported: send the body as it is.")
        if name == b"content-length":
            declared = declared or value
    length = declared_length(declared, max_bytes)
    if arrived is not None and len(arrived) > max_bytes:
        raise request_too_large(max_bytes)
    if hold is not None:
        hold.claim(tenant, length)
    if arrived is not None:
        return arrived
    try:
        async with asyncio.timeout(timeout_s):
            return await _received(receive, max_bytes, hold)
    except TimeoutError:
        raise request_timeout(timeout_s) from None


def declared_length(declared: bytes, max_bytes: int) -> int:
    """Bytes that a body is said to have; 0 where it says nothing. Raises ApiError for too many."""
    if not declared.isdigit():
        return 0
    if len(declared) > _MAX_DIGITS or int(declared) > max_bytes:
        raise request_too_large(max_bytes)
    return int(declared)


async def _received(receive: Receive, max_bytes: int, hold: BodyHold | None) -> bytes:
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if hold is not None:
            hold.check()  # what was not taken in has not come here
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        del message  # else this part is held twice while the next is waited for
        if len(body) > max_bytes:
            raise request_too_large(max_bytes)
    return bytes(body)


MAX_FIELD_NAME = 64
"""Characters of a caller's field name that an error message repeats."""
MAX_DEPTH = 256
"""Lists and objects within each other: far more than any field has, and far fewer than Python's recursion takes, which
ends between 500 and 1,000 levels in whoever reads or writes JSON from the deepest stack."""
MAX_FIELDS = 1_000
"""Of one object; the largest that we know has some fifty."""
LARGE_BODY_BYTES = 16 * 1024
"""A body of this size is parsed at once, whatever it holds; of a larger one its lists are taken out before."""
_SCAN_TOKENS = 10_000
"""Strings and brackets that the search for a broken field looks at: what a hostile body costs is bounded by it."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|$)|[\[\]{}:,]', re.DOTALL)
_SCAN_BYTES = 2**20
"""The same in bytes."""
_DIGITS = 4000
"""Digits of a whole number; Python refuses to read more than 4,300."""
_LONGEST_NUMBER = 100
"""Characters of a number in a large body; a longer one is read as infinity."""
_INT64 = 2**63


def shown_name(name: str) -> str:
    """A field name from a body, as a message or `param` may repeat it."""
    printable = "".join(character if character.isprintable() else "?" for character in name[:MAX_FIELD_NAME])
    return printable + ("…" if len(name) > MAX_FIELD_NAME else "")


def is_unicode(text: str) -> bool:
    """Whether text can be written as UTF-8: JSON's escapes can spell lone surrogates, which cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_object(body: bytes, *, token_ids: int = 0) -> dict[str, Any]:
    """The JSON object that a body holds. NaN and Infinity pass as floats: each field's own rule refuses them. In a
    large body a long list of token ids is a tuple. `token_ids`: how many of them it may hold.

    Raises ApiError naming the top-level field in which the body goes wrong, where that can be told.
    """
    lifted = Lifted(body, token_ids) if len(body) > LARGE_BODY_BYTES else None
    try:
        value = _read(body.decode("utf-8")) if lifted is None else _read_rest(lifted)
    except (ApiError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        refused = _explain(error, body, lifted)  # raised below, so that no traceback chains to what quotes the body
    else:
        text = body if lifted is None else lifted.text
        is_deep = text.count(b"[") + text.count(b"{") > MAX_DEPTH and _is_deep(value)
        if isinstance(value, dict) and not is_deep:
            return value
        refused = _too_deep(text) if is_deep else invalid(None, "The body must be a JSON object.")
    try:
        raise refused
    finally:
        del refused  # it has this frame in its traceback, and with it the body, until the next collection otherwise


def _read(text: str) -> object:
    try:
        return _decode(text)
    except (json.JSONDecodeError, ApiError):
        raise
    except ValueError:  # a whole number of thousands of digits; as infinity it meets its field's own rule
        return json.loads(text, object_pairs_hook=_no_doubles, parse_int=_whole_number, parse_float=_number)


def _read_rest(lifted: Lifted) -> object:
    lists = lifted.lists

    def whole(digits: str) -> object:
        if digits in lists:
            return lists[digits]
        return int(digits) if len(digits) <= _LONGEST_NUMBER else math.inf

    return json.loads(
        lifted.text.decode("utf-8"), object_pairs_hook=_no_doubles, parse_int=whole, parse_float=_short_number
    )


def _number(digits: str) -> float:
    """A number that is written with a point or an exponent; a whole one is an integer, as JSON Schema has it."""
    value = float(digits)
    return int(value) if value.is_integer() and abs(value) < _INT64 else value


def _short_number(digits: str) -> float:
    return _number(digits) if len(digits) <= _LONGEST_NUMBER else math.inf


def _whole_number(digits: str) -> float:
    return int(digits) if len(digits) < _DIGITS else math.inf


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_FIELDS:
        raise invalid(None, f"An object in the body has more than {MAX_FIELDS} fields.")
    fields = dict(pairs)
    if len(fields) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        doubled = next(name for name, count in counts.items() if count > 1)
        raise invalid(shown_name(doubled), "The field is given twice.")
    if not is_unicode("\n".join(fields)):
        broken = next(name for name in fields if not is_unicode(name))
        raise invalid(shown_name(broken), "The field's name is not valid Unicode.")
    return fields


_decode = json.JSONDecoder(object_pairs_hook=_no_doubles, parse_float=_number).decode


def _explain(error: Exception, body: bytes, lifted: Lifted | None) -> ApiError:
    if lifted is not None:
        body = lifted.text
    match error:
        case ApiError():
            return error
        case UnicodeDecodeError():
            return invalid(_field_of(body[: error.start]), "The body is not valid UTF-8.")
        case json.JSONDecodeError():
            before = error.doc[: error.pos].encode("utf-8", "replace")
            position = error.pos if lifted is None else lifted.position(error.pos)
            return invalid(_field_of(before), f"The body is not valid JSON, at character {position}.")
        case _:
            return _too_deep(body)


def _too_deep(body: bytes) -> ApiError:
    return invalid(_field_of(body), f"The body is nested too deeply: {MAX_DEPTH} levels are the most.")


def _is_deep(value: object) -> bool:
    """Whether it nests past MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH):
        within = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [inner for each in within for inner in each]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def _field_of(before: bytes) -> str | None:
    """The top-level field that is open at the end of `before`, or where it first nests past MAX_DEPTH."""
    field, string, depth = None, "", 0
    if len(before) > _SCAN_BYTES:
        return None
    text = before.decode("utf-8", "replace")
    for count, token in enumerate(_TOKEN.finditer(text)):
        mark = token[0]
        if count >= _SCAN_TOKENS:
            return None
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                break
        elif mark in "]}":
            depth -= 1
        elif depth == 1 and mark == ":":
            field = string
        elif depth == 1 and mark == ",":
            field = None
        string = mark.strip('"')
    return None if field is None else shown_name(field)
