"""What can be read of a stream: a damaged message is lost to its own request, and must not stop the stream for all."""

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from scheduler.messages import Control, Event, decode_control, decode_event

log = logging.getLogger(__name__)

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
Message = TypeVar("Message")
_events: msgspec.msgpack.Decoder[list[Event]] = msgspec.msgpack.Decoder(list[Event])
_parts: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])


def events_of(blobs: Iterable[bytes]) -> list[Event]:
    """Entries of a gateway's stream, each the events of one job's step."""
    found: list[Event] = []
    for blob in blobs:
        try:
            found += _events.decode(blob)
        except UNREADABLE:
            parts = [bytes(part) for parts in _sound(_parts.decode, [blob]) for part in parts]
            found += _sound(decode_event, parts)
    return found


def controls_of(blobs: Iterable[bytes]) -> list[Control]:
    """Entries of a worker's stream, each one command."""
    return _sound(decode_control, blobs)


def _sound(decode: Callable[[bytes], Message], blobs: Iterable[bytes]) -> list[Message]:
    found = []
    for blob in blobs:
        try:
            found.append(decode(blob))
        except UNREADABLE as error:
            log.error("a message of %d bytes cannot be read (%s)", len(blob), type(error).__name__)
    return found
