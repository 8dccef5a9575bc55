"""Where a request's time went: parts that are never negative and add up, whatever came in which order."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.insight.request_records.time_account import Stall, Start, Timeline, TimeParts, account

INSTANTS = st.floats(-1e4, 1e6, allow_nan=False)
UNKNOWN = st.none() | INSTANTS
STARTS = st.builds(Start, INSTANTS, UNKNOWN, UNKNOWN, UNKNOWN)
STALLS = st.builds(Stall, st.sampled_from(["preempted", "paused"]), INSTANTS, INSTANTS)
TIMELINES = st.builds(
    Timeline,
    total_ms=st.floats(0.0, 1e6),
    has_ended=st.booleans(),
    queued_ms=INSTANTS,
    starts=st.lists(STARTS, max_size=4),
    stalls=st.lists(STALLS, max_size=12),
    last_token_ms=UNKNOWN,
    begun_after_ms=UNKNOWN,
)


@given(TIMELINES)
def test_parts_are_never_negative_and_add_up_to_the_total(timeline: Timeline) -> None:
    parts = account(timeline)

    assert min(msgspec.structs.astuple(parts)) >= 0.0
    assert parts.total == pytest.approx(timeline.total_ms, abs=0.06)


@given(TIMELINES, st.randoms())
def test_the_order_in_which_stalls_were_heard_changes_nothing(timeline: Timeline, random: st.DataObject) -> None:
    shuffled = list(timeline.stalls)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    other = msgspec.structs.replace(timeline, stalls=shuffled)
    assert account(other) == account(timeline)


def timeline(**fields: object) -> Timeline:
    known = {"total_ms": 1_000.0, "has_ended": True, "queued_ms": 10.0, "last_token_ms": 900.0}
    return Timeline(**(known | fields))  # type: ignore[arg-type]


FIRST = Start(received_ms=400.0, waited_ms=200.0, prefill_ms=180.0)


def test_a_plain_request_is_received_waits_is_computed_and_sent() -> None:
    parts = account(timeline(starts=[FIRST]))

    assert parts == TimeParts(queue=200.0, prefill=180.0, decode=500.0, network=10.0 + 10.0 + 100.0)


def test_time_away_is_taken_from_what_it_interrupted() -> None:
    stalls = [Stall("preempted", 350.0, 380.0), Stall("paused", 500.0, 600.0), Stall("preempted", 550.0, 650.0)]
    parts = account(timeline(starts=[FIRST], stalls=stalls))

    assert (parts.prefill, parts.decode) == (150.0, 350.0)
    assert (parts.preempted, parts.paused) == (130.0, 50.0)


def test_a_lost_worker_puts_the_request_back_into_the_queue() -> None:
    again = Start(received_ms=800.0, waited_ms=700.0, prefill_ms=90.0, since_ms=500.0)
    parts = account(timeline(starts=[FIRST, again]))

    assert parts == TimeParts(queue=200.0 + 210.0, prefill=270.0, decode=200.0, network=120.0)


def test_one_that_no_worker_began_has_waited_until_its_end() -> None:
    assert account(timeline(last_token_ms=None)) == TimeParts(queue=990.0, network=10.0)
    begun = account(timeline(last_token_ms=None, begun_after_ms=690.0))
    assert begun == TimeParts(queue=690.0, prefill=300.0, network=10.0)


def test_a_worker_s_clock_that_runs_fast_takes_nothing_from_what_the_gateway_saw() -> None:
    fast = Start(received_ms=400.0, waited_ms=450.0, prefill_ms=300.0)

    assert account(timeline(starts=[fast])) == TimeParts(queue=390.0, decode=500.0, network=110.0)


def test_what_nobody_watched_is_added_to_the_end() -> None:
    assert TimeParts(queue=5.0).until(12.0) == TimeParts(queue=5.0, network=7.0)
    assert TimeParts(queue=5.0).until(5.0).total == 5.0
