"""Reads `multipart/form-data` with one file as it arrives: fields are kept, the file is passed on part by part.

Memory does not depend on the file's size: one read of the connection and one write to the sink."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from fairlane.gateway.errors import ApiError, invalid, request_timeout
from fairlane.gateway.http.body import declared_length
from fairlane.gateway.http.body_budget import PART_BYTES, BodyHold
from fairlane.gateway.http.encodings import DecodedBody, coding_of

FILE = "file"
MAX_PARTS = 16
MAX_FIELD_BYTES = 1_024
MAX_HEADER_BYTES = 4_096
# Everything in a body except the file.
AROUND_BYTES = 64 * 1024

Sink = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class Form:
    """A form's fields, and the name and size of its file."""

    fields: dict[str, str] = field(default_factory=dict)
    # The client's name for the file; None without a file.
    file_name: str | None = None
    file_bytes: int = 0


class FormReader:
    """Feeds the multipart parser and sorts its output into fields and the file."""

    def __init__(self, content_type: bytes, *, max_file_bytes: int) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not boundary:
            raise invalid("content-type", "The body must be multipart/form-data with a boundary.")
        self.form = Form()
        self.is_whole = False
        self._max_file_bytes = max_file_bytes
        self._parts = 0
        self._name = ""
        self._is_file = False
        self._value = bytearray()
        self._header, self._header_value = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._taken: list[bytes] = []
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._header_value.extend(data[start:end]),
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._named,
                    "on_part_data": self._data,
                    "on_part_end": self._end,
                    "on_end": self._finish,
                },
                max_header_size=MAX_HEADER_BYTES,
            )
        except FormParserError:
            raise invalid("content-type", "The body's boundary is too long.") from None

    def push(self, body: bytes) -> bytes:
        """Parse the next bytes of the body and return those of the file. Raises ApiError."""
        self._taken = []
        try:
            self._parser.write(body)
        except FormParserError:
            raise invalid(None, "The body is not valid multipart/form-data.") from None
        return b"".join(self._taken)

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise invalid(None, f"The body has more than {MAX_PARTS} parts.")
        self._headers, self._value, self._is_file = {}, bytearray(), False

    def _end_header(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._header_value)
        self._header, self._header_value = bytearray(), bytearray()

    def _named(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = _text(options.get(b"name", b""))
        self._is_file = self._name == FILE
        if self._name in self.form.fields or (self._is_file and self.form.file_name is not None):
            raise invalid(self._name[:64], "The field is given twice.")
        if self._is_file:
            if b"filename" not in options:
                raise invalid(FILE, f"`{FILE}` must be a file.")
            self.form.file_name = _text(options[b"filename"])

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.form.file_bytes += end - start
            if self.form.file_bytes > self._max_file_bytes:
                raise _file_too_large(self._max_file_bytes)
            self._taken.append(data[start:end])
        elif len(self._value) + end - start > MAX_FIELD_BYTES:
            raise invalid(self._name[:64], f"The field is longer than {MAX_FIELD_BYTES} bytes.")
        else:
            self._value += data[start:end]

    def _end(self) -> None:
        if not self._is_file:
            self.form.fields[self._name] = _text(bytes(self._value))

    def _finish(self) -> None:
        self.is_whole = True


async def read_form(
    receive: Receive,
    headers: Sequence[tuple[bytes, bytes]],
    sink: Sink,
    *,
    max_file_bytes: int,
    timeout_s: float,
    hold: BodyHold,
    tenant: str,
    arrived: bytes | None = None,
) -> Form:
    """Read a form and write its file to `sink`.

    `arrived` is the body, if all of it has arrived already. `hold` is its place in the budget of bodies: only bytes
    that were not passed on yet count.

    Raises ApiError: 400 if it is not a valid form or cannot be decoded, 413 as soon as it is known to be too large, 408
    if it does not arrive in time, `unsupported_encoding`. Raises starlette's ClientDisconnect."""
    given, coding = dict(headers), coding_of(headers)
    reader = FormReader(given.get(b"content-type", b""), max_file_bytes=max_file_bytes)
    max_bytes = max_file_bytes + AROUND_BYTES
    try:
        declared_length(given.get(b"content-length", b""), max_bytes)
    except ApiError:
        raise _file_too_large(max_file_bytes) from None
    hold.claim(tenant, 0)
    if coding is not None:
        receive, arrived = DecodedBody(coding, receive, arrived, max_bytes=max_bytes, hold=hold), None
    if arrived is not None:
        await sink(reader.push(arrived))
    else:
        try:
            async with asyncio.timeout(timeout_s):
                await _stream(receive, reader, sink, hold, max_file_bytes)
        except TimeoutError:
            raise request_timeout(timeout_s) from None
    if not reader.is_whole:
        raise invalid(None, "The body ends before its closing boundary.")
    return reader.form


async def _stream(receive: Receive, reader: FormReader, sink: Sink, hold: BodyHold, max_file_bytes: int) -> None:
    more, around = True, 0
    while more:
        message = await receive()
        hold.check()  # a refused part does not arrive here
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body, more = message.get("body", b""), message.get("more_body", False)
        taken = reader.push(body)
        around += len(body) - len(taken)
        if around > AROUND_BYTES:
            raise _file_too_large(max_file_bytes)
        if taken:
            await sink(taken)
        hold.pass_on(len(body))
        if len(body) >= PART_BYTES:
            await hold.turn()


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _file_too_large(max_bytes: int) -> ApiError:
    return ApiError(f"The file is larger than {max_bytes} bytes.", "request_too_large", FILE)
