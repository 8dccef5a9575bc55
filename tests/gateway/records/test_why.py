"""A record in words."""

from typing import Any

import pytest

from fairlane.gateway.insight.request_records.record import RecordedEvent, RecordedPreemption, RequestRecord
from fairlane.gateway.insight.request_records.time_account import TimeParts
from fairlane.gateway.insight.request_records.why import waits_of, why


def record(**fields: Any) -> RequestRecord:
    known: dict[str, Any] = {"id": "a", "request_id": "r", "tenant": "acme", "key": "k", "arrived_s": 0.0}
    return RequestRecord(**{**known, **fields})


def finished(**fields: Any) -> RequestRecord:
    known = {
        "state": "ended",
        "outcome": "finished",
        "total_ms": 4_200.0,
        "ttft_ms": 1_500.0,
        "ttft_target_ms": 1_000.0,
    }
    return record(**{**known, **fields})


def preemption(**fields: Any) -> RecordedPreemption:
    known: dict[str, Any] = {
        "at_ms": 1.0,
        "mode": "swap",
        "blocks": 12,
        "stall_ms": 450.0,
        "resource": "blocks",
        "lane": "latency",
        "tenant": "globex",
    }
    return RecordedPreemption(**{**known, **fields})


def test_what_took_the_time_is_named_the_longest_first() -> None:
    time = TimeParts(queue=1_400.0, prefill=100.0, decode=2_698.6, network=1.4)
    told = why(finished(time=time, queue_ms=1_400.0, taken_ms=1.0, waits_ms={"slots": 1_390.0, "grant": 0.2}))

    assert "Its first token arrived after 1.5 s (target 1.0 s)." in told
    assert (
        "Of 4.2 s, 2.7 s to generate, 1.4 s in the queue, 100 ms to compute its prompt and 1 ms to be received, "
        "admitted and sent. At its worker it waited 1.4 s for a slot in the worker's batch." in told
    )
    assert told.endswith("It ended after 4.2 s.")


def test_who_displaced_it_is_named() -> None:
    told = why(finished(preemptions=[preemption()], preempted=1))

    assert "It was preempted once by the latency lane of tenant globex, which needed KV blocks" in told
    assert "12 blocks by swap, a stall of 450 ms" in told


def test_of_many_preemptions_the_longest_is_told() -> None:
    short, away = preemption(stall_ms=1.0), preemption(stall_ms=None, mode="keep", blocks=0, resource=None)
    told = why(finished(preemptions=[short, preemption(), away], preempted=7))

    assert "It was preempted 7 times, the longest by" in told
    assert "450 ms" in told


def test_of_several_takers_the_one_that_took_most_often_is_named_beside_the_longest() -> None:
    long = preemption(tenant="acme", lane="throughput", stall_ms=9_000.0)
    told = why(finished(preemptions=[long, preemption(), preemption()], preempted=3))

    assert (
        "It was preempted 3 times, 2 of them by the latency lane of tenant globex, the longest by the throughput"
        in told
    )


def test_workers_that_were_lost_are_told() -> None:
    moved = RecordedEvent(900.0, "moved", 6_200.0)
    once = why(finished(workers=["w1", "w2"], events=[moved], takings=2))
    twice = why(finished(workers=["w1", "w2", "w3"], events=[moved, RecordedEvent(2_000.0, "moved", 90.0)], takings=3))

    assert "Its worker was lost or gave it back: it continued at w2, and no token arrived for 6.2 s." in once
    assert "gave it back 2 times: it continued at w3, and no token arrived for 6.2 s at the longest." in twice
    assert "Workers took it 2 times before it began." in why(finished(workers=["w2"], takings=2))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"outcome": "rejected", "code": "overloaded", "message": "Full."}, "It was refused (overloaded): Full."),
        ({"outcome": "expired", "code": "deadline_exceeded", "message": "Late."}, "expired (deadline_exceeded): Late."),
        ({"outcome": "cancelled", "code": "client_closed"}, "Its client left before the end."),
        ({"outcome": "cancelled", "message": "Its gateway was lost."}, "It ended as cancelled: Its gateway was lost."),
        ({"ttft_ms": None}, "It produced no token."),
    ],
)
def test_how_it_ended_is_told(fields: dict[str, Any], expected: str) -> None:
    assert expected in why(finished(**fields))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"events": [RecordedEvent(1.0, "queued", 4), RecordedEvent(2.0, "position", 2)]}, "for a worker, at place 2"),
        ({"state": "paused", "ttft_ms": 10.0}, "It waits for its own limits, 3.0 s after it arrived."),
        ({"state": "running"}, "It runs, 3.0 s after it arrived."),
        ({"state": "lost"}, "Its gateway has gone silent"),
    ],
)
def test_one_that_runs_says_what_it_does_now(fields: dict[str, Any], expected: str) -> None:
    assert expected in why(record(**fields), 3_000.0)


def test_pauses_count_where_a_worker_does_not_say_why_it_waited() -> None:
    assert waits_of(record(paused_ms=30.0)) == [("grant", 30.0)]
    assert waits_of(record(paused_ms=30.0, waits_ms={"grant": 31.0}, queue_ms=5.0)) == [("grant", 31.0), ("queue", 5.0)]
