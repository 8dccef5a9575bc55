"""A server's response to a GET, parsed by llhttp: in C, so that many small chunks cost little."""

import httptools

from fairlane.gateway.media.refusal import MediaRefused

MAX_HEAD_BYTES = 32 * 1024
# Chunks of less than this many bytes on average are refused: they cost more time than bytes.
_MIN_CHUNK_BYTES = 64
_FREE_CHUNKS = 1_000


class Response:
    """Consumes a response, part by part. Interim responses are skipped. Call `close` at the end.

    What one part adds to the body is not bounded here, so read small parts and check `body` after each."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.has_head = self.is_complete = False
        self._head_bytes = self._chunks = 0
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.status = 0

    def feed(self, data: bytes) -> None:
        """Parse the next part; an empty one is the end of the connection. Raises MediaRefused."""
        assert self._parser is not None  # noqa: S101 - not closed
        if not data:
            self._end()
            return
        if not self.has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self.is_complete:  # what follows a complete response does not count
                raise MediaRefused("cannot be fetched: the host does not answer in HTTP/1.1.") from None
        if not self.has_head and self._head_bytes > MAX_HEAD_BYTES:
            raise MediaRefused("cannot be fetched: the host answers with too many headers.")
        if self._chunks > _FREE_CHUNKS + len(self.body) // _MIN_CHUNK_BYTES:
            raise MediaRefused("cannot be fetched: the host answers in too small chunks.")

    def close(self) -> None:
        self._parser = None  # ends the reference cycle with it, which would keep the body

    def _end(self) -> None:
        is_framed = b"content-length" in self.headers or b"transfer-encoding" in self.headers
        if not self.has_head or is_framed:
            raise MediaRefused("cannot be fetched: the connection closed before the end.")
        self.is_complete = True

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise ValueError("a second response")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        assert self._parser is not None  # noqa: S101 - not closed
        self.status = self._parser.get_status_code()
        self.has_head = self.status >= 200
        if not self.has_head:
            self.headers.clear()

    def on_body(self, body: bytes) -> None:
        self.body += body
        self._chunks += 1

    def on_message_complete(self) -> None:
        self.is_complete = self.has_head
