"""Decodes compressed request bodies in steps, so that neither a step nor a body exceeds its bounds.

A body's bound holds before and after decoding. What a decoder keeps counts in the budget of bodies too."""

import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import brotli
from starlette.types import Message, Receive

from fairlane.gateway.errors import ENCODINGS, ApiError, invalid, request_too_large, unsupported_encoding
from fairlane.gateway.http.body_budget import PART_BYTES, BodyHold

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

HEADER = b"content-encoding"
# Batches whose lines share a long prompt reach 510 (brotli) and 330 (zstd); zeros reach 1,030 (gzip) and far more.
MAX_RATIO = 600
# Decoded without regard to the ratio.
FREE_BYTES = 2**20
# Input is decoded in slices: the ratio counts those that were used, and a decoder copies what it cannot use yet.
_SLICE_BYTES = 2 * 1024
# Returned by a decoder at once.
_STEP_BYTES = 32 * 1024
# Streams that follow each other in one body, as gzip and zstd allow. Each costs a new decoder.
MAX_STREAMS = 256
# RFC 9659: a decoder of `zstd` need not support larger windows.
_ZSTD_WINDOW_LOG = 23
# What a decoder keeps of its output.
_WINDOW_BYTES: Mapping[str, int] = {"gzip": 2**15, "deflate": 2**15, "br": 2**24, "zstd": 2**_ZSTD_WINDOW_LOG}
_SEVERAL = frozenset({"gzip", "zstd"})
_ERRORS = zlib.error, brotli.error, zstd.ZstdError


class _Stream(Protocol):
    """The decoder of one compressed stream."""

    @property
    def is_over(self) -> bool: ...

    @property
    def rest(self) -> bytes:
        """Input after the end of the stream."""

    def step(self, data: bytes) -> bytes:
        """Return the next decoded bytes, at most _STEP_BYTES; none once all input is used up.

        Pass input only after that, and nothing otherwise."""


class _Zlib:
    def __init__(self, window_bits: int) -> None:
        self._decoder = zlib.decompressobj(window_bits)

    @property
    def is_over(self) -> bool:
        return self._decoder.eof

    @property
    def rest(self) -> bytes:
        return self._decoder.unused_data

    def step(self, data: bytes) -> bytes:
        return self._decoder.decompress(data or self._decoder.unconsumed_tail, _STEP_BYTES)


class _Brotli:
    rest = b""  # it raises an error for input after its end

    def __init__(self) -> None:
        self._decoder = brotli.Decompressor()

    @property
    def is_over(self) -> bool:
        return bool(self._decoder.is_finished())

    def step(self, data: bytes) -> bytes:
        decoded: bytes = self._decoder.process(data, output_buffer_limit=_STEP_BYTES)
        return decoded


class _Zstd:
    def __init__(self) -> None:
        self._decoder = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})

    @property
    def is_over(self) -> bool:
        return self._decoder.eof

    @property
    def rest(self) -> bytes:
        return self._decoder.unused_data

    def step(self, data: bytes) -> bytes:
        return b"" if self._decoder.eof else self._decoder.decompress(data, _STEP_BYTES)


def _deflate(data: bytes) -> _Stream:
    """Return the decoder of `deflate`: in zlib's format by the standard, without it from some clients."""
    return _Zlib(zlib.MAX_WBITS if data[0] & 0x0F == zlib.DEFLATED else -zlib.MAX_WBITS)


# By coding: makes a decoder for a stream that begins like this.
_STREAMS: Mapping[str, Callable[[bytes], _Stream]] = {
    "gzip": lambda _: _Zlib(16 + zlib.MAX_WBITS),
    "deflate": _deflate,
    "br": lambda _: _Brotli(),
    "zstd": lambda _: _Zstd(),
}
_ALIASES = {"x-gzip": "gzip"}


def coding_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return how a body is compressed; None if it is not. Raises ApiError `unsupported_encoding`."""
    given = b",".join([value for name, value in headers if name == HEADER])
    named = [word.strip().lower() for word in given.decode("latin-1").split(",")]
    codings = [_ALIASES.get(word, word) for word in named if word not in ("", "identity")]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in ENCODINGS:
        raise unsupported_encoding()
    return codings[0]


class Decoder:
    """Decodes one body, given in parts, within the ratio. CPU time is in `work_s`."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._stream: _Stream | None = None
        self._streams = 0
        self._input = b""
        self._place = 0
        self.encoded_bytes = self.decoded_bytes = 0
        self.work_s = 0.0

    @property
    def kept_bytes(self) -> int:
        """An upper bound of the output that the decoder keeps."""
        return min(self.decoded_bytes, _WINDOW_BYTES[self._coding])

    def feed(self, data: bytes) -> None:
        """Take the next part of the body, once `step` has returned nothing."""
        self.encoded_bytes += len(data)
        self._input, self._place = data, 0

    def step(self) -> bytes:
        """Return the next decoded bytes; none if the next part is needed. Raises ApiError."""
        began_s, parts, size = time.thread_time(), [], 0
        try:
            while size < PART_BYTES and (decoded := self._next()):
                parts.append(decoded)
                size += len(decoded)
                self._count(len(decoded))
        except _ERRORS:
            raise _broken(self._coding) from None
        finally:
            self.work_s += time.thread_time() - began_s
        return b"".join(parts)

    def finish(self) -> None:
        """Raises ApiError if the body ends within a stream."""
        if self._stream is not None:
            raise _broken(self._coding)

    def _count(self, count: int) -> None:
        self.decoded_bytes += count
        used_bytes = self.encoded_bytes - len(self._input) + self._place
        if self.decoded_bytes > FREE_BYTES + MAX_RATIO * used_bytes:
            message = f"The body is more than {MAX_RATIO} times as large as its compressed form: send it uncompressed."
            raise ApiError(message, "request_too_large", "content-encoding")

    def _next(self) -> bytes:
        data = b""  # what an earlier slice decodes to comes first
        while True:
            if self._stream is not None:
                decoded = self._stream.step(data)
                if decoded:
                    return decoded
                if self._stream.is_over:
                    self._place -= len(self._stream.rest)
                    self._stream = None
            data = self._input[self._place : self._place + _SLICE_BYTES]
            if not data:
                return b""
            self._place += len(data)
            self._stream = self._stream or self._new_stream(data)

    def _new_stream(self, data: bytes) -> _Stream:
        self._streams += 1
        if self._streams > (MAX_STREAMS if self._coding in _SEVERAL else 1):
            raise _broken(self._coding)
        return _STREAMS[self._coding](data)


class DecodedBody:
    """The `receive` callable of a request whose body is compressed: the body's messages are decoded."""

    def __init__(
        self, coding: str, receive: Receive, arrived: bytes | None, *, max_bytes: int, hold: BodyHold | None
    ) -> None:
        """`arrived` is the body, if all of it has arrived already. `hold` has counted what arrives."""
        self._decoder = Decoder(coding)
        self._receive = receive
        self._arrived = arrived
        self._max_bytes = max_bytes
        self._hold = hold
        self._undecoded_bytes = self._kept_bytes = 0
        self._is_last = False

    async def __call__(self) -> Message:
        """Return the next message. Raises ApiError: `request_too_large`, 400 if the body is broken."""
        try:
            while not (decoded := self._step()) and not self._is_last:
                message = await self._next()
                if message["type"] == "http.disconnect":
                    return message
                self._feed(message)
        except ApiError as refused:
            refused.work_s = self._decoder.work_s
            raise
        return {"type": "http.request", "body": decoded, "more_body": bool(decoded)}

    async def _next(self) -> Message:
        if self._arrived is None:
            return await self._receive()
        body, self._arrived = self._arrived, None
        return {"type": "http.request", "body": body}

    def _feed(self, message: Message) -> None:
        body = message.get("body", b"")
        self._decoder.feed(body)
        self._undecoded_bytes, self._is_last = len(body), not message.get("more_body", False)
        self._check(self._decoder.encoded_bytes)

    def _step(self) -> bytes:
        decoder = self._decoder
        decoded = decoder.step()
        self._check(decoder.decoded_bytes)
        if self._hold is not None:
            self._count(self._hold, decoded)
        if self._is_last and not decoded:
            decoder.finish()
        return decoded

    def _check(self, count: int) -> None:
        if count > self._max_bytes:
            raise request_too_large(self._max_bytes)

    def _count(self, hold: BodyHold, decoded: bytes) -> None:
        """Count what was decoded, and what the decoder keeps until the body's end. Raises what `hold` refused."""
        kept_bytes = self._decoder.kept_bytes
        if not hold.takes(len(decoded) + kept_bytes - self._kept_bytes):
            hold.check()
        self._kept_bytes = kept_bytes
        if not decoded:
            over_bytes = self._kept_bytes if self._is_last else 0
            hold.pass_on(self._undecoded_bytes + over_bytes)
            self._undecoded_bytes, self._kept_bytes = 0, self._kept_bytes - over_bytes


def _broken(coding: str) -> ApiError:
    return invalid("content-encoding", f"The body is not valid {coding}.")
