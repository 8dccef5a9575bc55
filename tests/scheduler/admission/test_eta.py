"""What a waiting request is told of its wait, against what it then waits, in simulated loads."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from fairlane.scheduler.admission.eta import Queued, TenantLane, Waits, time_to_start_ms
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.simulate import SimulatedStep
from fairlane.scheduler.simulation.workload import Arrival, Record
from tests.support.scheduler.fleet import Watcher, asks, play

LATENCY, THROUGHPUT = LaneName.LATENCY, LaneName.THROUGHPUT
FIRST_MS, EVERY_MS = 2_000.0, 5_000.0
"""When a stream is told of its wait: as gateways do by default."""
SHORT_MS = 200.0


@dataclass
class Told(Watcher):
    """Asks for every request that waits what a stream's comments would say."""

    queue: LaneQueue
    waits: Waits = field(default_factory=Waits)
    told: list[tuple[str, float, float]] = field(default_factory=list)
    """Job, when it was told, and what, in milliseconds."""
    unknown: int = 0
    first_ms: dict[str, float] = field(default_factory=dict)
    _next_ms: dict[str, float] = field(default_factory=dict)
    _arrivals: dict[str, Arrival] = field(default_factory=dict)

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        self._arrivals[arrival.job_id] = arrival
        self._next_ms[arrival.job_id] = now_ms + FIRST_MS
        self._see(arrival, now_ms)

    def _see(self, arrival: Arrival, now_ms: float) -> int | None:
        place = self.queue.position(arrival.job_id)
        if place is not None:
            self.waits.seen(arrival.job_id, DEFAULT_LANES[arrival.lane].rank, arrival.tenant, place, now_ms)
        return place

    def stepped(self, step: SimulatedStep) -> None:
        now_ms = step.ended_ms
        for one in step.outcome.produced:
            job_id = one.seq.job_id
            if self._next_ms.pop(job_id, None) is not None:
                self.first_ms[job_id] = now_ms
                self.waits.begun(job_id, now_ms)
        for job_id in [job_id for job_id, at_ms in self._next_ms.items() if at_ms <= now_ms]:
            arrival = self._arrivals[job_id]
            self._next_ms[job_id] = now_ms + EVERY_MS
            place = self._see(arrival, now_ms)
            if place is not None:
                eta_ms = self.waits.eta_ms(DEFAULT_LANES[arrival.lane].rank, arrival.tenant, place)
                self.unknown += eta_ms is None
                if eta_ms is not None:
                    self.told.append((job_id, now_ms, eta_ms))

    def ended(self, record: Record) -> None:
        self.waits.left(record.arrival.job_id)

    def honest(self) -> list[bool]:
        """Of all that was said of waits that were not short, whether it was within a factor of two."""
        waits = [(self.first_ms[job_id] - at_ms, eta_ms) for job_id, at_ms, eta_ms in self.told]
        return [left_ms / 2 <= eta_ms <= 2 * left_ms for left_ms, eta_ms in waits if left_ms > SHORT_MS]


def told_of(arrivals: list[Arrival], workers: int) -> Told:
    queue = LaneQueue(DEFAULT_LANES)
    told = Told(queue)
    play(sorted(arrivals, key=lambda one: one.at_ms), queue, told, workers=workers)
    return told


def lengths(seed: int, mean: float) -> list[int]:
    draw = random.Random(seed)
    return [max(2, round(draw.lognormvariate(math.log(mean), 0.6))) for _ in range(400)]


def one_flood(lane: LaneName) -> tuple[list[Arrival], int]:
    """One tenant's, with newcomers beside it."""
    outputs = lengths(1, 100)
    flood = [asks(n * 5.0, f"crowd-{n}", "crowd", lane, 40, outputs[n], max_tokens=1_000) for n in range(250)]
    people = [asks(3_000.0 + 470.0 * n, f"new-{n}", f"person-{n}", lane, 20, 5, max_tokens=1_000) for n in range(20)]
    return flood + people, 1


def several_tenants(lane: LaneName) -> tuple[list[Arrival], int]:
    """Whose outputs are of different lengths, so that some are done before others."""
    outputs = lengths(2, 60)
    return [
        asks(n * 20.0 + one, f"t{one}-{n}", f"t{one}", lane, 60, outputs[n] * (one + 1), max_tokens=1_000)
        for n in range(70)
        for one in range(4)
    ], 2


def long_outputs(lane: LaneName) -> tuple[list[Arrival], int]:
    outputs = lengths(3, 400)
    return [asks(n * 50.0, f"c{n}", f"t{n % 3}", lane, 500, outputs[n], max_tokens=1_000) for n in range(120)], 2


Load = Callable[[LaneName], tuple[list[Arrival], int]]


@pytest.mark.slow
@pytest.mark.parametrize("lane", [LATENCY, pytest.param(THROUGHPUT, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("load", [one_flood, several_tenants, long_outputs])
def test_nine_of_ten_comments_are_right_to_a_factor_of_two(load: Load, lane: LaneName) -> None:
    told = told_of(*load(lane))

    honest = told.honest()

    assert len(honest) > 100
    assert told.unknown == 0
    assert sum(honest) >= 0.9 * len(honest), (sum(honest), len(honest), told.unknown)


def test_a_queue_goes_faster_once_another_of_its_lane_is_empty() -> None:
    mine, other = Queued(30, 0.01), {TenantLane(0, "other"): Queued(10, 0.01)}

    assert time_to_start_ms(TenantLane(0, "me"), mine, {}) == pytest.approx(3_000.0)
    assert time_to_start_ms(TenantLane(0, "me"), mine, other) == pytest.approx(1_000.0 + 20 / 0.02)


def test_what_an_empty_lane_had_goes_to_those_below() -> None:
    above = {TenantLane(0, "a"): Queued(10, 0.01), TenantLane(0, "b"): Queued(20, 0.01)}

    waited_ms = time_to_start_ms(TenantLane(1, "me"), Queued(22, 0.001), above)

    assert waited_ms == pytest.approx(2_000.0 + 20 / 0.021)


def test_who_begins_at_once_says_nothing_of_a_wait() -> None:
    waits = Waits()
    for number in range(16):
        waits.seen(f"first-{number}", 0, "a", 1, 0.0)
        waits.begun(f"first-{number}", 20.0)

    assert waits.eta_ms(0, "a", 5) is None


def test_a_tenant_that_has_not_moved_yet_is_taken_to_move_as_the_others_do() -> None:
    waits = Waits()
    for number in range(9):
        waits.seen(f"one-{number}", 0, "one", number + 1, 0.0)
    for number in range(4):
        waits.begun(f"one-{number}", 1_000.0 * (number + 1))

    assert waits.eta_ms(0, "new", 1) == pytest.approx(1_000.0, rel=0.1)
    assert waits.eta_ms(1, "new", 1) is None
