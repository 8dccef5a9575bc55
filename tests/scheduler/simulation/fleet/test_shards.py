"""Shards of one queue: where tenants live, which shard a worker offers room to, and counters that stay level."""

from collections import Counter

import pytest

from fairlane.scheduler.queue.shards import FRESH_MS, LaneFloor, LaneHead, Rivals, ShardCounters, divided, home_of
from fairlane.scheduler.simulation.workload import Arrival
from tests.support.scheduler.simulated import arrival

WINDOW = 100.0
IDLE = LaneHead(0.0, -1.0)


def waiting(counter: float, oldest_ms: float = 1_000.0, *, guaranteed: bool = False) -> LaneHead:
    return LaneHead(counter, oldest_ms, guaranteed)


def chosen(home: tuple[LaneHead, LaneHead], other: tuple[LaneHead, LaneHead], *, floor: float = 0.0) -> str:
    rivals = Rivals(WINDOW, (0.0, floor))
    rivals.receive(0, home, 0.0)
    rivals.receive(1, other, 0.0)
    return ("home", "other")[rivals.choose(0, 1, 1.0)]


def test_tenants_are_spread_evenly_and_stay_where_they_are() -> None:
    homes = Counter(home_of(f"tenant-{number}", 4) for number in range(4_000))

    assert sorted(homes) == [0, 1, 2, 3]
    assert max(homes.values()) < 1_200
    assert home_of("acme", 4) == home_of("acme", 4)


@pytest.mark.parametrize(
    ("home", "other", "expected"),
    [
        ((IDLE, waiting(500.0)), (IDLE, waiting(450.0)), "home"),  # behind by less than the window
        ((IDLE, waiting(500.0)), (IDLE, waiting(350.0)), "other"),
        ((IDLE, IDLE), (IDLE, waiting(900.0)), "other"),
        ((IDLE, IDLE), (IDLE, waiting(900.0, 10.0)), "home"),  # its own workers will end something soon
        ((IDLE, waiting(0.0)), (waiting(900.0), IDLE), "other"),  # the lane above comes first
        ((waiting(0.0), IDLE), (waiting(900.0, guaranteed=True), IDLE), "other"),
        ((waiting(0.0), IDLE), (IDLE, waiting(0.0)), "home"),
    ],
)
def test_room_goes_to_the_shard_whose_work_comes_first(
    home: tuple[LaneHead, LaneHead], other: tuple[LaneHead, LaneHead], expected: str
) -> None:
    assert chosen(home, other) == expected


def test_a_shard_in_which_only_the_lower_lane_waits_gets_its_share_floor() -> None:
    rivals = Rivals(WINDOW, (0.0, 0.25))
    rivals.receive(0, (waiting(0.0), IDLE), 0.0)
    rivals.receive(1, (IDLE, waiting(0.0)), 0.0)

    choices = [rivals.choose(0, 1, 1.0) for _ in range(100)]

    assert sum(choices) == 25


def test_old_news_of_a_shard_moves_no_room() -> None:
    rivals = Rivals(WINDOW, (0.0,))
    rivals.receive(1, (waiting(0.0),), 0.0)

    assert [rivals.choose(0, 1, at_ms) for at_ms in (1.0, FRESH_MS)] == [1, 0]


def test_a_call_carries_the_highest_virtual_time_of_the_other_shards() -> None:
    rivals = Rivals(WINDOW, (0.0, 0.05))
    for shard, counter in ((0, 900.0), (1, 300.0), (2, 200.0)):
        rivals.receive(shard, (IDLE, waiting(counter)), 0.0)

    assert rivals.floors(0, 1.0) == [LaneFloor(0.0, False), LaneFloor(300.0, True)]
    assert rivals.floors(0, FRESH_MS) == [LaneFloor(0.0, False), LaneFloor(300.0, False)]


def test_a_tenant_that_comes_back_starts_level_with_the_other_shards() -> None:
    counters = ShardCounters(WINDOW)
    counters.charge("busy", 50.0, 1.0)
    counters.receive(LaneFloor(1_000.0, True), 0.0)

    assert counters.lift("newcomer", ["busy"]) == 1_000.0


def test_while_tenants_of_other_shards_wait_an_idle_shard_forgives_nothing() -> None:
    counters, alone = ShardCounters(WINDOW), ShardCounters(WINDOW)
    for each in (counters, alone):
        each.charge("heavy", 5_000.0, 1.0)
    counters.receive(LaneFloor(1_000.0, True), 0.0)
    alone.receive(LaneFloor(1_000.0, False), 0.0)

    for each in (counters, alone):
        each.level_out()

    assert [counters.lift(tenant, ()) for tenant in ("heavy", "light")] == [5_000.0, 1_000.0]
    assert [alone.lift(tenant, ()) for tenant in ("heavy", "light")] == [5_000.0, 5_000.0]


def test_a_shard_promises_its_part_of_the_workers_time() -> None:
    one: Arrival = arrival("a")
    job = one.job()

    assert divided(job, 1) is job
    assert divided(job, 4).work_ms == 4.0 * job.work_ms
