"""A sample of each message, with a value in every field, as lines of name and base64 of its msgpack:

python -m tests.support.scheduler.samples > tests/scheduler/protocol/records.txt"""

import base64
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from fairlane.scheduler.links import frames, handshake
from fairlane.scheduler.protocol.block_map import BlockMap
from fairlane.scheduler.protocol.messages import Control, Event, Finished, Job, ModelCard, WorkerStatus

KINDS: tuple[type[msgspec.Struct], ...] = (
    *(Job, WorkerStatus, ModelCard, BlockMap),
    *get_args(Control),
    *get_args(Event),
    *get_args(frames.ToGateway),
    *get_args(frames.ToWorker),
    *(handshake.Challenge, handshake.Hello, handshake.Welcome, handshake.Unwelcome),
)


def sample(kind: type[msgspec.Struct]) -> msgspec.Struct:
    """Return a message with other than default values."""
    return _struct(kind, count(1))


def _struct(kind: type[msgspec.Struct], numbers: Iterator[int]) -> msgspec.Struct:
    types = get_type_hints(kind)
    return kind(**{field.name: _value(types[field.name], numbers) for field in msgspec.structs.fields(kind)})


def _value(kind: Any, numbers: Iterator[int]) -> Any:
    number, origin, args = next(numbers), get_origin(kind), get_args(kind)
    if kind in (simple := {str: f"s{number}", int: number, float: number + 0.5, bool: True, bytes: b"%d" % number}):
        return simple[kind]
    if origin is Literal:
        return args[-1]
    if origin is tuple:
        return tuple(_value(each, numbers) for each in args if each is not ...)
    if origin is dict:
        return {_value(args[0], numbers): _value(args[1], numbers)}
    if args:  # a union: of events the end, of others the first kind
        return _value(Finished if Finished in args else args[0], numbers)
    return _struct(kind, numbers) if issubclass(kind, msgspec.Struct) else list(kind)[-1]


if __name__ == "__main__":
    for each in KINDS:
        sys.stdout.write(f"{each.__name__} {base64.b64encode(msgspec.msgpack.encode(sample(each))).decode()}\n")
