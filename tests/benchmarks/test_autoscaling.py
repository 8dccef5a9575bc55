"""`benchmarks.autoscaling`: the scaling rule over time, simulated fleets, the day's load, and the gateways' rule."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.autoscaling import gateways, workers
from benchmarks.autoscaling.fleet import Autoscaler, FleetLoad, ScaledFleet, ScalingRule
from benchmarks.autoscaling.simulation import ScaledSimulation
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.simulate import Simulation
from fairlane.scheduler.simulation.workload import Arrival
from tests.support.scheduler.simulated import HARDWARE, arrival, planner

LATENCY, THROUGHPUT = LaneName.LATENCY, LaneName.THROUGHPUT
RULE = ScalingRule(least=1, most=8, queued_tokens={LATENCY: 1_000.0}, running={LATENCY: 10.0})


def load(tokens: int = 0, running: int = 0, batch: int = 0) -> FleetLoad:
    return FleetLoad({LATENCY: tokens, THROUGHPUT: batch}, {LATENCY: running})


@pytest.mark.parametrize(
    ("tokens", "running", "workers", "asked"),
    [
        (0, 0, 3, 1),  # nobody asks: as few as there may be
        (2_500, 0, 1, 3),
        (2_500, 45, 1, 5),  # the figure that asks for most counts
        (3_250, 0, 3, 3),  # within a tenth of what three keep
        (3_350, 0, 3, 4),
        (90_000, 0, 3, 8),  # as many as there may be
    ],
)
def test_as_many_are_asked_for_as_keep_every_target(tokens: int, running: int, workers: int, asked: int) -> None:
    assert RULE.asked(load(tokens, running), workers) == asked


def test_a_lane_without_a_target_asks_for_nobody() -> None:
    assert RULE.asked(load(batch=10**9), 2) == 1


def test_growth_is_at_most_a_doubling_in_its_period() -> None:
    scaler, now, sizes = Autoscaler(RULE), 0.0, [1]
    for _ in range(9):
        sizes.append(scaler.wanted(now, load(90_000), sizes[-1]))
        now += 15_000

    assert sizes == [1, 2, 2, 2, 2, 4, 4, 4, 4, 8]


def test_fewer_are_wanted_only_after_a_window_in_which_nobody_wanted_more_and_then_one_by_one() -> None:
    scaler = Autoscaler(replace(RULE, down_window_ms=60_000, down_period_ms=30_000))
    many = scaler.wanted(0, load(4_000), 4)
    sizes = [4]
    for look in range(1, 13):
        sizes.append(scaler.wanted(15_000.0 * look, load(), sizes[-1]))

    assert many == 4
    assert sizes[:5] == [4, 4, 4, 4, 3]
    assert min(sizes) == 1
    assert all(before - after <= 1 for before, after in pairwise(sizes))


def test_one_look_that_wants_more_keeps_those_there_are() -> None:
    scaler = Autoscaler(replace(RULE, down_window_ms=60_000))
    for look in range(20):
        assert scaler.wanted(15_000.0 * look, load(4_000 if look % 3 == 0 else 0), 4) == 4


def test_a_rule_has_at_least_one_worker() -> None:
    with pytest.raises(ValueError, match="1 <= least <= most"):
        replace(RULE, least=0)
    with pytest.raises(ValueError, match="cannot scale"):
        ScaledFleet(Autoscaler(RULE), 3)


def arrivals(many: int, every_ms: float) -> list[Arrival]:
    return [arrival(f"r{number}", number * every_ms, output=12) for number in range(many)]


def scaled(rule: ScalingRule, many: int = 300, every_ms: float = 15.0) -> tuple[ScaledSimulation, ScaledFleet]:
    fleet = ScaledFleet(Autoscaler(rule), rule.most)
    simulation = ScaledSimulation(
        arrivals=arrivals(many, every_ms),
        policies=[planner() for _ in range(rule.most)],
        hardware=HARDWARE,
        queue=LaneQueue(DEFAULT_LANES),
        fleet=fleet,
    )
    return simulation, fleet


QUICK = ScalingRule(
    least=1, most=4, queued_tokens={LATENCY: 40.0}, every_ms=100.0, start_ms=300.0,
    up_period_ms=100.0, down_period_ms=100.0, down_window_ms=500.0,
)  # fmt: skip


def test_under_load_workers_come_and_after_it_they_go_and_no_request_is_lost() -> None:
    simulation, fleet = scaled(QUICK)
    records = simulation.run()

    assert {record.outcome for record in records.values()} == {Outcome.FINISHED}
    assert max(size.serving for size in fleet.sizes) > 1
    assert fleet.sizes[0].serving == 1


def test_a_worker_serves_only_once_it_has_started_and_is_paid_from_the_decision_on() -> None:
    simulation, fleet = scaled(QUICK)
    simulation.run()
    grown = next(size for size in fleet.sizes if size.wanted > 1)
    serving = next(size for size in fleet.sizes if size.serving > 1)

    assert serving.at_ms >= grown.at_ms + QUICK.start_ms
    assert simulation.now_ms < fleet.paid_ms < QUICK.most * simulation.now_ms


def test_with_one_worker_at_most_all_is_as_without_an_autoscaler() -> None:
    simulation, fleet = scaled(replace(QUICK, most=1), many=20, every_ms=50.0)
    alone = Simulation(
        arrivals=arrivals(20, 50.0), policies=[planner()], hardware=HARDWARE, queue=LaneQueue(DEFAULT_LANES)
    )

    ends = [[record.end_ms for record in each.run().values()] for each in (simulation, alone)]

    assert ends[0] == ends[1]
    assert fleet.paid_ms == pytest.approx(simulation.now_ms)


def test_the_same_run_twice_gives_the_same_fleet() -> None:
    sizes = []
    for _ in range(2):
        simulation, fleet = scaled(QUICK)
        simulation.run()
        sizes.append(Counter(fleet.sizes))

    assert sizes[0] == sizes[1]


def test_workers_that_come_and_go_need_a_queue() -> None:
    with pytest.raises(ValueError, match="needs a queue"):
        ScaledSimulation(
            arrivals=[],
            policies=[planner()],
            hardware=HARDWARE,
            fleet=ScaledFleet(Autoscaler(replace(QUICK, most=1)), 1),
        )


def test_the_day_has_the_pace_of_each_stretch_and_comes_in_order() -> None:
    rows = list(workers.day())
    by_stretch = Counter(int(row.at_ms / 1e3 // workers.STRETCH_S) for row in rows)

    assert all(before.at_ms <= after.at_ms for before, after in pairwise(rows))
    for place, pace in enumerate(workers.PACES):
        assert by_stretch[place] / workers.STRETCH_S == pytest.approx(pace, rel=0.2)


def test_gateways_follow_the_load_within_their_bounds() -> None:
    found = gateways.play()

    assert gateways.RULE.least < found.most <= gateways.RULE.most
    hours = workers.STRETCH_S * len(workers.PACES) / 3600.0
    assert gateways.RULE.least * hours < found.gateway_hours < found.most * hours


def test_every_rule_of_a_fixed_size_stays_so() -> None:
    fixed = {name: rule for name, rule in workers.RULES.items() if name.endswith("workers")}

    assert fixed
    assert all(name == f"{rule.least} workers" and rule.least == rule.most for name, rule in fixed.items())
