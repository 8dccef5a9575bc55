"""One connection to a gateway: sends a request and records when each token of its stream arrives.

Reading a token costs a few byte searches; JSON is decoded once per request, for its usage or its error."""

import asyncio
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

from fairlane.cli.bench.results import Gaps, Measured

EVENT_END = b"\n\n"
DATA = b"data: "
DONE = b"data: [DONE]"
ERROR = b'data: {"error"'
# Start of the text in an event, by endpoint; an event with an empty text carries no token.
TEXTS = (b'"text":"', b'"content":"', b'"reasoning_content":"')
USAGE = b'"usage":{'
# Bytes of one event, or of a response that is not a stream.
MOST_ANSWER = 2**20
CANCELLED = "cancelled"
CLOSED = "connection_lost"
INCOMPLETE = "incomplete"
UNREADABLE = "unreadable"


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _LastEvent(msgspec.Struct):
    usage: _Usage | None = None


class _Refusal(msgspec.Struct):
    code: str | None = None
    type: str | None = None


class _ErrorAnswer(msgspec.Struct):
    error: _Refusal


class Endpoint:
    """The target of requests, and their common headers."""

    def __init__(self, url: str, path: str) -> None:
        place = urlsplit(url)
        self.host, self.is_tls = place.hostname or "", place.scheme == "https"
        self.port = place.port or (443 if self.is_tls else 80)
        self._head = (
            f"POST {place.path.rstrip('/')}{path} HTTP/1.1\r\nhost: {place.netloc.rpartition('@')[2]}\r\n"
            "content-type: application/json\r\naccept: text/event-stream\r\n"
        )

    def request(self, body: object, key: str, lane: str) -> bytes:
        content = msgspec.json.encode(body)
        named = f"authorization: Bearer {key}\r\nx-fairlane-lane: {lane}\r\ncontent-length: {len(content)}\r\n\r\n"
        return (self._head + named).encode() + content

    async def connect(self) -> "BenchConnection":
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if self.is_tls else None
        _, made = await loop.create_connection(BenchConnection, self.host, self.port, ssl=context)
        return made


class BenchConnection(asyncio.Protocol):
    """Runs one request at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] | None = None
        # None except during a response.
        self._parser: Any = None
        self._measured: Measured
        self._gaps: Gaps
        self._rest = b""
        self._status = 0
        # Of `time.perf_counter`: when the request was sent, and when the last bytes arrived.
        self._sent_s = self._now_s = 0.0
        # Outcome of a response that ends here; a stream is incomplete until its last event.
        self._code: str | None = INCOMPLETE

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # what TCP gives
        self.is_open, self._transport = True, transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._end(CLOSED)

    async def ask(self, request: bytes, measured: Measured, gaps: Gaps) -> None:
        """Send a request and read its response into `measured`, and the gaps between its tokens into `gaps`."""
        assert self._transport is not None  # noqa: S101 - asked once connected
        self._measured, self._gaps = measured, gaps
        self._rest, self._status, self._code = b"", 0, INCOMPLETE
        self._parser = httptools.HttpResponseParser(self)
        self._ended = asyncio.get_running_loop().create_future()
        self._sent_s = time.perf_counter()
        self._transport.write(request)
        try:
            await self._ended
        except asyncio.CancelledError:
            self._note(CANCELLED)
            raise

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._now_s = time.perf_counter()
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
            self._end(UNREADABLE)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after-ms" and value.isdigit():
            self._measured.retry_ms = int(value)

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        text = self._rest + body
        if self._status != 200:
            self._rest = text[:MOST_ANSWER]
            return
        *events, self._rest = text.split(EVENT_END)
        for event in events:
            self._take(event)
        if len(self._rest) > MOST_ANSWER:
            self.close()
            self._end(UNREADABLE)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        self._end(self._code if self._status == 200 else _code(self._rest) or f"http_{self._status}")

    def _take(self, event: bytes) -> None:
        start = event.find(DATA)
        if start < 0:  # a comment, or the newline that keeps the connection alive
            return
        if event.startswith(DONE, start):
            self._code = None if self._code == INCOMPLETE else self._code
        elif event.startswith(ERROR, start):
            self._code = _code(event[start + len(DATA) :]) or "error"
        else:
            for mark in TEXTS:
                found = event.find(mark, start)
                if found >= 0 and not event.startswith(b'"', found + len(mark)):
                    self._token()
                    break
            if USAGE in event:
                self._count(event[start + len(DATA) :])

    def _token(self) -> None:
        measured, at_s = self._measured, self._now_s - self._sent_s
        if measured.last_s is None:
            measured.first_s = at_s
        else:
            self._gaps.add(at_s - measured.last_s)
        measured.last_s = at_s
        measured.output_tokens += 1

    def _count(self, document: bytes) -> None:
        try:
            usage = msgspec.json.decode(document, type=_LastEvent).usage
        except msgspec.DecodeError:
            return
        if usage is not None:
            self._measured.prompt_tokens, self._measured.output_tokens = usage.prompt_tokens, usage.completion_tokens
            self._measured.cached_tokens = (usage.prompt_tokens_details or _Details()).cached_tokens

    def _end(self, code: str | None) -> None:
        if self._ended is not None and not self._ended.done():
            self._note(code)
            self._ended.set_result(None)

    def _note(self, code: str | None) -> None:
        self._measured.code = code
        self._measured.end_s = time.perf_counter() - self._sent_s
        self._parser = None


def _code(document: bytes) -> str | None:
    try:
        error = msgspec.json.decode(document, type=_ErrorAnswer).error
    except msgspec.DecodeError:
        return None
    return error.code or error.type
