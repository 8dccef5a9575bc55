"""A lane's share floor counts what is computed: what a job was charged for and did not compute changes nothing."""

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Lease, Outcome
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.queue.types import QUANTUM_COST
from tests.support.scheduler.queues import Queue, job, progress, room, taken

BATCH, CHAT = LaneName.THROUGHPUT, LaneName.LATENCY
SHARE = DEFAULT_LANES[BATCH].share_floor
PROMPT = 10
COST = PROMPT + QUANTUM_COST
"""What taking a job of one choice is charged."""


async def leased(queue: Queue, capacity: Capacity) -> list[Lease]:
    """All that a worker can take."""
    found: list[Lease] = []
    while leases := await queue.take("w1", capacity):
        found += leases
    return found


async def give_up(queue: Queue, leases: Sequence[Lease]) -> None:
    """End these jobs, of which nothing was computed."""
    for lease in leases:
        await queue.report("w1", [progress(lease, ends=Outcome.CANCELLED)])


async def turns(queue: Queue) -> list[list[str]]:
    """Who goes next of a batch and many chats of 1,000 tokens."""
    for index in range(8):
        await queue.put(job(f"chat{index}", "other", prompt=tuple(range(1_000))))
    return [await taken(queue, room(latency=1, throughput=1)) for _ in range(4)]


FAIR = [["chat0"], ["chat1"], ["chat2"], ["batch", "chat3"]]
"""5 % of three times 1,128 tokens pays for a batch of 138."""


@pytest.mark.anyio
async def test_what_others_never_computed_is_not_taken_from_a_lane_that_did_not_wait_when_it_was_charged(
    queue: Queue,
) -> None:
    for index in range(8):
        await queue.put(job(f"wide{index}", n=16))
    leases = await leased(queue, room(latency=128))
    await queue.put(job("batch", lane=BATCH))
    await give_up(queue, leases)

    assert await turns(queue) == FAIR


@pytest.mark.anyio
async def test_a_lane_is_not_given_back_what_it_was_forgiven(queue: Queue) -> None:
    for index in range(40):
        await queue.put(job(f"earlier{index}", lane=BATCH))
    leases = await leased(queue, room(throughput=40))
    await queue.put(job("batch", lane=BATCH))
    await give_up(queue, leases)

    assert await turns(queue) == FAIR


@pytest.mark.anyio
async def test_a_lane_is_given_back_no_more_than_it_was_charged(queue: Queue) -> None:
    """It was charged more than its account may be behind by."""
    await queue.put(job("batch", lane=BATCH, ttft_ms=900_000.0))
    for index in range(56):
        await queue.put(job(f"earlier{index}", lane=BATCH))
    leases = [lease for _ in range(7) for lease in await queue.take("w1", room(throughput=8))]
    await give_up(queue, leases)

    assert await turns(queue) == FAIR


class Race:
    """One row that is always free, and two lanes in which somebody always waits."""

    def __init__(self, before: Sequence[LaneName]) -> None:
        """`before`: jobs that were taken while nobody waited, of which nothing is computed yet."""
        self._queue, self._numbers = LaneQueue(DEFAULT_LANES), itertools.count()
        self.served = Counter[LaneName]()
        self._held: list[Lease] = []
        for lane in before:
            self._put(lane, n=1 if lane is BATCH else 16)
            self._held += self._queue.take(0, "w1", room(latency=16, throughput=1))

    def begin(self) -> None:
        """Let somebody wait in both lanes."""
        for lane in (BATCH, CHAT):
            self._put(lane)

    def give_up(self) -> None:
        """End one of the earlier jobs."""
        if self._held:
            self._compute(self._held.pop(), 0.0, Outcome.CANCELLED)

    def turn(self, parts: Sequence[float]) -> None:
        """Take what goes next, and compute it: these parts of what each was charged, one after the other. The lower
        lane's jobs compute at least all of it: who does not use a turn is behind without being wronged."""
        for lease in self._queue.take(0, "w1", room(latency=1, throughput=1)):
            self._put(lease.job.lane)
            for part in (*parts, 1.0) if lease.job.lane is BATCH else parts:
                self._compute(lease, part * COST, None)
            self._compute(lease, 0.0, Outcome.FINISHED)

    @property
    def debt(self) -> float:
        """What the lower lane is behind its share of all that was computed since both waited."""
        return SHARE * sum(self.served.values()) - self.served[BATCH]

    def _put(self, lane: LaneName, n: int = 1) -> None:
        self._queue.put(0, job(f"j{next(self._numbers):06}", lane=lane, n=n))

    def _compute(self, lease: Lease, cost: float, ends: Outcome | None) -> None:
        assert not self._queue.report("w1", [progress(lease, cost=cost, ends=ends)])
        self.served[lease.job.lane] += cost  # type: ignore[assignment]


parts = st.lists(st.floats(0.0, 1.0), max_size=3)


@given(
    before=st.lists(st.sampled_from([BATCH, CHAT]), max_size=24),
    turns=st.lists(st.tuples(parts, st.booleans()), min_size=30, max_size=80),
)
@settings(max_examples=30, deadline=None)
def test_a_lane_has_its_share_whatever_is_charged_and_given_back(
    before: list[LaneName], turns: list[tuple[list[float], bool]]
) -> None:
    """To within three times the charge of one job, and a share of what was computed since the last take."""
    race = Race(before)
    race.begin()
    for computed, gives_up in turns:
        if gives_up:
            race.give_up()
        race.turn(computed)

        assert -3 * COST <= race.debt <= COST + SHARE * 6 * COST
