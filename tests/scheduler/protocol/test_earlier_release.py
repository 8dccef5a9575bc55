"""Messages that an earlier release wrote are read, and it reads those of this one.

`records.txt` has one message of each kind, as the release before wrote it. Record it anew only with a new SCHEMA or
link VERSION, or before the first release with a line in the changelog that asks for a stop of the fleet."""

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.scheduler.samples import KINDS, sample

RECORDS = dict(line.split(" ") for line in Path(__file__).with_name("records.txt").read_text().splitlines())
BY_NAME = {kind.__name__: kind for kind in KINDS}


@pytest.mark.parametrize("name", RECORDS)
def test_a_recorded_message_is_read(name: str) -> None:
    recorded = base64.b64decode(RECORDS[name])

    read = msgspec.msgpack.decode(recorded, type=BY_NAME[name])

    assert contains(msgspec.msgpack.decode(msgspec.msgpack.encode(read)), msgspec.msgpack.decode(recorded))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_field_that_a_later_release_adds_is_ignored(kind: type[msgspec.Struct]) -> None:
    message = sample(kind)
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    later = [*fields, 1] if isinstance(fields, list) else {**fields, "of_a_later_release": {"x": 1}}

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(later), type=kind) == message


def contains(whole: Any, part: Any) -> bool:
    """Return whether a message has all fields of another one, with the same values."""
    if isinstance(part, dict):
        return part.keys() <= whole.keys() and all(contains(whole[name], part[name]) for name in part)
    if isinstance(part, list):
        return len(part) <= len(whole) and all(map(contains, whole, part))
    return bool(whole == part)
