"""The lines of a batch's file: `LineScanner` indexes them during the upload, `read_line` validates a line when it runs.

One token is estimated per BYTES_PER_TOKEN bytes of the line's body. Only `enqueued_batch_tokens` uses the
estimate: a line is charged like any request, by counted tokens."""

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.http.json_reader import raw_fields, scalar, scalars

MAX_LINES = 50_000
MAX_LINE_BYTES = 2**20
MAX_CUSTOM_ID = 512
BYTES_PER_TOKEN = 4
# Flags of a line: an earlier line has the same custom_id; it is longer than MAX_LINE_BYTES.
DUPLICATE, TOO_LONG = 1, 2
_BOM = b"\xef\xbb\xbf"
_ENTRY = struct.Struct("<QIIIIHH")
_MOST = 2**32 - 1
_MOST_CHOICES = 2**16 - 1
_OUTPUT_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class LineEntry(NamedTuple):
    """One line's position and estimated size."""

    start: int
    # Bytes without the line ending.
    length: int
    # Line number, counted from 1, including blank lines.
    number: int
    prompt_tokens: int
    # Stated maximum, for all choices together; 0: not stated.
    output_tokens: int
    choices: int
    flags: int

    def tokens(self, unstated: int) -> int:
        """Return prompt and output tokens. `unstated`: output tokens to assume for a choice if the line states none."""
        return self.prompt_tokens + (self.output_tokens or unstated * self.choices)


class LineIndex:
    """The packed entries of all lines of a file."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed) // _ENTRY.size

    def __getitem__(self, place: int) -> LineEntry:
        return LineEntry(*_ENTRY.unpack_from(self.packed, place * _ENTRY.size))

    def __iter__(self) -> Iterator[LineEntry]:
        return (LineEntry(*fields) for fields in _ENTRY.iter_unpack(self.packed))


class LineScanner:
    """Finds the lines of a file that arrives in parts. It buffers one line at most."""

    def __init__(self) -> None:
        self._packed = bytearray()
        self._seen: set[bytes] = set()
        self._line = bytearray()
        # Length of the current line, also of one that is too long to be buffered.
        self._length = 0
        self._start = 0
        self._number = 1
        self.readable = 0

    def feed(self, data: bytes) -> None:
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._take(data[start:end])
            self._end_line()
            self._start += self._length + 1
            self._number += 1
            self._length, start = 0, end + 1
            if self._number > 2 * MAX_LINES:
                raise _too_many_lines()
        self._take(data[start:])

    def finish(self) -> LineIndex:
        self._end_line()
        return LineIndex(bytes(self._packed))

    def _take(self, part: bytes) -> None:
        self._length += len(part)
        if self._length <= MAX_LINE_BYTES:
            self._line += part

    def _end_line(self) -> None:
        line, self._line = bytes(self._line), bytearray()
        start, length = self._start, self._length
        if self._number == 1 and line.startswith(_BOM):
            line, start, length = line[len(_BOM) :], start + len(_BOM), length - len(_BOM)
        if length > MAX_LINE_BYTES:
            self._add(LineEntry(start, min(length, _MOST), self._number, 0, 0, 0, TOO_LONG))
        elif line.strip():
            self._add(self._looked_at(line, start))

    def _looked_at(self, line: bytes, start: int) -> LineEntry:
        nothing = LineEntry(start, len(line), self._number, 0, 0, 0, 0)
        try:
            fields = raw_fields(line)
            self.readable += 1
            body = fields.get("body", b"")
            asked = scalars(body, (*_OUTPUT_FIELDS, "n"))
        except ValueError:
            return nothing
        flags, custom_id = 0, _custom_id(fields)
        if custom_id is not None:
            mark = hashlib.blake2b(custom_id.encode("utf-8", "replace"), digest_size=12).digest()
            flags = DUPLICATE if mark in self._seen else 0
            self._seen.add(mark)
        choices = max(1, min(_whole(asked.get("n")), _MOST_CHOICES))
        stated = max(_whole(asked.get(name)) for name in _OUTPUT_FIELDS)
        prompt = -(-len(body) // BYTES_PER_TOKEN)
        return LineEntry(start, len(line), self._number, prompt, min(stated * choices, _MOST), choices, flags)

    def _add(self, entry: LineEntry) -> None:
        if len(self._packed) >= MAX_LINES * _ENTRY.size:
            raise _too_many_lines()
        self._packed += _ENTRY.pack(*entry)


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line that can run, or the reason why it cannot."""

    custom_id: str | None
    body: bytes = field(default=b"", repr=False)
    refusal: ApiError | None = None


def read_line(raw: bytes, entry: LineEntry, endpoint: str) -> BatchLine:
    """Parse and validate a line. `raw`: its bytes, or empty if it is too long; `endpoint`: the batch's endpoint."""
    if entry.flags & TOO_LONG:
        too_long = ApiError(f"The line is longer than {MAX_LINE_BYTES} bytes.", "request_too_large")
        return BatchLine(None, refusal=too_long)
    try:
        fields = raw_fields(raw)
    except ValueError:
        return BatchLine(None, refusal=invalid(None, "The line is not a valid JSON object."))
    custom_id = _custom_id(fields)
    if custom_id is None:
        rule = f"`custom_id` must be a string of 1 to {MAX_CUSTOM_ID} characters."
        return BatchLine(None, refusal=invalid("custom_id", rule))
    return BatchLine(custom_id, fields.get("body", b""), _refusal(fields, endpoint))


def _custom_id(fields: Mapping[str, bytes]) -> str | None:
    custom_id = scalar(fields.get("custom_id", b""))
    return custom_id if isinstance(custom_id, str) and 0 < len(custom_id) <= MAX_CUSTOM_ID else None


def _refusal(fields: Mapping[str, bytes], endpoint: str) -> ApiError | None:
    if scalar(fields.get("method", b"")) != "POST":
        return invalid("method", "`method` must be POST.")
    if scalar(fields.get("url", b"")) != endpoint:
        return invalid("url", f"`url` must be the batch's endpoint, {endpoint}.")
    body = fields.get("body", b"")
    if not body.lstrip().startswith(b"{"):
        return invalid("body", "`body` must be an object.")
    if b'"stream"' in body and scalars(body, ["stream"]).get("stream") is True:
        return invalid("stream", "`stream` must be false in a batch.")
    return None


def _whole(value: object) -> int:
    return value if type(value) is int and 0 < value < _MOST else 0


def _too_many_lines() -> ApiError:
    return invalid("file", f"The file has more than {MAX_LINES} lines.")
