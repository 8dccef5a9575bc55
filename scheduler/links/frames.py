"""The messages of a link, and how they are framed.

A frame is its length (4 bytes, big-endian) and a msgpack list of messages; an empty list is a ping. The worker numbers
its streams from 1, per link; messages about media belong to none, and have the number 0."""

import struct
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from fairlane.scheduler.protocol.messages import Event

VERSION = 1
# A frame of an authenticated peer; a prompt's whole output, with log-probabilities, stays far below it.
MAX_FRAME_BYTES = 16 * 2**20
MAX_HANDSHAKE_BYTES = 1_024
# In place of an item's number of tokens.
UNMEASURED = -1
_LENGTH = struct.Struct(">I")


class FrameError(Exception):
    """The peer broke the protocol: its link is closed."""


# From worker to gateway.


class Open(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The sender holds the job under this epoch. The gateway refuses older epochs, and answers with its tokens."""

    stream: int
    job_id: str
    epoch: int


class Tokens(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The next tokens of one choice, without further details."""

    stream: int
    choice: int
    first_index: int
    token_ids: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Tokens({self.stream}/{self.choice} from {self.first_index}, {len(self.token_ids)} tokens)"


class Events(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Events of one job, in order. `Finished` is the stream's last."""

    stream: int
    events: tuple[Event, ...]


class Left(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The worker has returned or lost the job: the stream ends, but the job does not."""

    stream: int


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The worker asks for a part of a media item. It asks for the next one when it has this."""

    digest: bytes
    start: int
    stream: int = 0


class Measured(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The number of tokens that an item becomes; 0: the engine cannot read it; UNMEASURED: it failed."""

    digest: bytes
    tokens: int
    stream: int = 0


# From gateway to worker.


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The stream is open: its worker may produce up to `granted_until` tokens of each choice, and continues from
    `generated`, the tokens that the gateway has."""

    stream: int
    granted_until: int
    generated: tuple[tuple[int, ...], ...]

    def __repr__(self) -> str:
        return f"Opened({self.stream}, granted_until={self.granted_until}, {[len(ids) for ids in self.generated]})"


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The gateway does not know the job, or has ended it: the worker drops it.

    `superseded`: it has seen a later epoch. Then the worker returns the job, in case the store has lost that epoch."""

    stream: int
    superseded: bool = False


class Granted(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Each choice may grow to this number of tokens."""

    stream: int
    granted_until: int


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The job is cancelled: its worker ends it within a step."""

    stream: int


class Closed(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The gateway has the stream's end."""

    stream: int


class MediaPart(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """A part of a media item of `total` bytes; 0: the gateway does not hold it any more."""

    digest: bytes
    start: int
    total: int
    data: bytes
    stream: int = 0

    def __repr__(self) -> str:
        return f"MediaPart(from {self.start} of {self.total} bytes)"


ToGateway = Open | Tokens | Events | Left | Fetch | Measured
ToWorker = Opened | Refused | Granted | Stop | Closed | MediaPart
Message = ToGateway | ToWorker
M = TypeVar("M")


class Codec:
    """Encodes messages as frames, and decodes frames from bytes that arrive in any pieces."""

    def __init__(self, incoming: object, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self.expect(incoming, max_frame_bytes)
        self._buffer = bytearray()

    def expect(self, incoming: object, max_frame_bytes: int) -> None:
        self._decoder: msgspec.msgpack.Decoder[list[object]] = msgspec.msgpack.Decoder(list[incoming])  # type: ignore[valid-type]
        self._max_frame_bytes = max_frame_bytes

    def encode(self, messages: Sequence[msgspec.Struct]) -> bytes:
        """Return one frame, or several if one would be too long. Raises FrameError for a message that is too long."""
        body = self._encoder.encode(messages)
        if len(body) <= MAX_FRAME_BYTES:
            return _LENGTH.pack(len(body)) + body
        if len(messages) == 1:
            raise FrameError("message too long")
        half = len(messages) // 2
        return self.encode(messages[:half]) + self.encode(messages[half:])

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> list[object] | None:
        """Return the messages of the next whole frame, or None. Raises FrameError."""
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(buffer)
        if length > self._max_frame_bytes:
            raise FrameError("frame too long")
        end = _LENGTH.size + length
        if len(buffer) < end:
            return None
        frame = bytes(buffer[_LENGTH.size : end])
        del buffer[:end]
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError("unreadable frame") from error
