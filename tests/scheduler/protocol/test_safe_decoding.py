"""A stream goes on behind what cannot be read."""

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.scheduler.protocol.messages import Cancel, Event, TokenDelta, controls_of, encode, events_of

DELTAS: list[Event] = [
    TokenDelta(job_id=f"f{number}", epoch=1, choice=0, first_index=0, token_ids=(number,)) for number in range(3)
]


def test_one_damaged_event_of_a_step_is_left_out_and_the_others_are_read(caplog: pytest.LogCaptureFixture) -> None:
    step = msgspec.msgpack.encode([DELTAS[0], {"type": "of another release"}, 7, DELTAS[1]])

    with caplog.at_level(logging.ERROR):
        found = events_of([b"\xc1", step, b"", msgspec.msgpack.encode([DELTAS[2]])])

    assert found == DELTAS
    assert len(caplog.records) == 4
    assert "another" not in caplog.text


def test_a_damaged_command_is_left_out() -> None:
    cancel = Cancel(job_id="f1")

    assert controls_of([b"\xff\xff", encode(cancel), b"\x81\xa4type\xa1\xff"]) == [cancel]


@given(st.lists(st.binary(max_size=60)))
def test_whatever_stands_in_a_stream_what_is_sound_comes_through(garbage: list[bytes]) -> None:
    sound = msgspec.msgpack.encode([DELTAS[0]])

    assert DELTAS[0] in events_of([*garbage, sound])
    assert Cancel(job_id="f1") in controls_of([*garbage, encode(Cancel(job_id="f1"))])
