"""Steps without a plan: whatever the world, a simulation that coasts tells the same as one that plans every step."""

from dataclasses import astuple
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import StepResult
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.cruise import Coasted
from fairlane.scheduler.simulation.results import ServiceMeter
from fairlane.scheduler.simulation.simulate import Simulation
from fairlane.scheduler.simulation.workload import Arrival, Hardware
from tests.support.scheduler.fleet import Watcher
from tests.support.scheduler.simulated import arrival

WINDOW = 12.0
"""Of fairness: so little that who was charged what decides who runs."""


class Counter(ServiceMeter):
    """Also knows how many steps were not planned."""

    coasted_steps = 0

    def coasted(self, step: Coasted) -> None:
        super().coasted(step)
        self.coasted_steps += 1


def planner(*, blocks: int, host_slots: int, max_sequences: int, prefix_share: float | None) -> Planner:
    return Planner(
        lanes=DEFAULT_LANES,
        block_size=4,
        blocks=blocks,
        host_slots=host_slots,
        max_sequences=max_sequences,
        max_step_tokens=24,
        costs=CostModel(),
        prefix_share=prefix_share,
        window=WINDOW,
    )


def asked(draw: st.DrawFn, number: int, at_ms: float, named: bool) -> Arrival:
    prompt, output = draw(st.integers(1, 30)), draw(st.one_of(st.integers(1, 40), st.integers(70, 120)))
    one = arrival(
        f"r{number}",
        at_ms,
        tenant=draw(st.sampled_from(["a", "b", "c"])),
        lane=draw(st.sampled_from(list(LaneName))),
        prompt=prompt,
        output=output,
        max_tokens=output + draw(st.integers(0, 20)),
        weight=draw(st.sampled_from([1.0, 1.0, 0.3, 2.0])),
        ttft_ms=draw(st.sampled_from([50.0, 1_000.0])),
        tpot_ms=draw(st.sampled_from([10.0, 15.0, 30.0, 100.0])),
        deadline_ms=draw(st.sampled_from([None, None, None, 400.0, 2_000.0])),
    )
    own: dict[str, Any] = {"own_token": -1 - number, "blocks": (draw(st.integers(2, 3)),)} if named else {}
    return Arrival(**{name: getattr(one, name) for name in Arrival.__slots__} | own)


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    named, workers = draw(st.booleans()), draw(st.sampled_from([None, 1, 2, 4]))
    gaps = draw(st.lists(st.sampled_from([0.0, 3.0, 40.0, 200.0, 900.0]), min_size=2, max_size=12))
    arrivals = [asked(draw, number, at_ms, named) for number, at_ms in enumerate(accumulate(gaps))]
    sizes = {
        "blocks": draw(st.integers(43, 80)),
        "host_slots": draw(st.sampled_from([0, 8, 40])),
        "max_sequences": draw(st.sampled_from([2, 4, 8])),
        "prefix_share": 0.25 if named else None,
    }
    return {
        "arrivals": arrivals,
        "workers": workers,
        "sizes": sizes,
        "hardware": Hardware(
            step=(5.0, draw(st.sampled_from([0.0, 1.0, 4.0])), 0.5, 0.01, 0.0),
            copy=(1.0, 0.5),
            overhead_ms=draw(st.sampled_from([0.0, 1.0])),
            noise=draw(st.sampled_from([0.0, 0.1])),
        ),
        "until_ms": draw(st.sampled_from([float("inf"), float("inf"), 700.0])),
    }


def run(world: dict[str, Any], *, is_stepwise: bool) -> tuple[Simulation, Counter, list[Planner]]:
    meter, planners = Counter(bucket_ms=100.0), [planner(**world["sizes"]) for _ in range(world["workers"] or 1)]
    simulation = Simulation(
        arrivals=world["arrivals"],
        policies=planners,
        hardware=world["hardware"],
        queue=LaneQueue(DEFAULT_LANES, window=WINDOW) if world["workers"] else None,
        observers=[meter, Watcher()] if is_stepwise else [meter],
        seed=1,
        until_ms=world["until_ms"],
    )
    simulation.run()
    return simulation, meter, planners


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(worlds())
def test_what_coasts_tells_the_same_as_what_is_planned(world: dict[str, Any]) -> None:
    coasting, meter, planners = run(world, is_stepwise=False)
    planned, planned_meter, others = run(world, is_stepwise=True)

    for one in planners:
        one.check_integrity()
    assert coasting.now_ms == pytest.approx(planned.now_ms)
    assert list(coasting.records) == list(planned.records)
    for job_id, record in planned.records.items():
        assert astuple(coasting.records[job_id])[1:] == pytest.approx(astuple(record)[1:]), job_id
    for figure in ("service", "curve", "max_gap", "computed_tokens", "recomputed_tokens", "run_ms", "copy_ms"):
        assert getattr(meter, figure) == _near(getattr(planned_meter, figure)), figure
    assert counters(coasting, planners) == pytest.approx(counters(planned, others))
    assert planned_meter.coasted_steps == 0


def counters(simulation: Simulation, planners: list[Planner]) -> list[float]:
    """What tenants were charged, at each worker and in the queue: it decides who is served next, in a longer run."""
    lanes = [lane for one in planners for lane in one._index.lanes.values()]
    queued = [] if simulation.queue is None else [*simulation.queue._book.places.values()]
    owed = [lane.floor.debt for lane in queued]
    places = [lane.counters for lane in lanes] + [lane.counters for lane in queued]
    return [one.value(tenant) for one in places for tenant in "abc"] + owed


def _near(figure: Any) -> Any:
    if isinstance(figure, dict):
        return {name: _near(one) for name, one in figure.items()}
    return pytest.approx(figure)


@pytest.mark.parametrize("workers", [None, 1, 2])
def test_most_steps_of_long_outputs_coast(workers: int | None) -> None:
    arrivals = [
        arrival(f"r{number}", 40.0 * number, tenant=f"t{number % 2}", lane=lane, output=40, max_tokens=44)
        for number, lane in enumerate(list(LaneName) * 6)
    ]
    world = {
        "arrivals": arrivals,
        "workers": workers,
        "sizes": {"blocks": 400, "host_slots": 0, "max_sequences": 16, "prefix_share": None},
        "hardware": Hardware(step=(2.0, 0.01, 0.05, 0.0, 0.0), copy=(1.0, 0.5)),
        "until_ms": float("inf"),
    }

    _, meter, _ = run(world, is_stepwise=False)

    produced = sum(one.output_tokens for one in arrivals)
    assert meter.coasted_steps * len(arrivals) > produced / 2


def test_a_full_worker_coasts_while_others_wait_in_the_queue() -> None:
    arrivals = [arrival(f"r{number}", tenant="t", prompt=4, output=30, max_tokens=30) for number in range(12)]
    world = {
        "arrivals": arrivals,
        "workers": 1,
        "sizes": {"blocks": 60, "host_slots": 0, "max_sequences": 4, "prefix_share": None},
        "hardware": Hardware(step=(2.0, 0.01, 0.05, 0.0, 0.0), copy=(1.0, 0.5)),
        "until_ms": float("inf"),
    }

    _, meter, _ = run(world, is_stepwise=False)

    assert meter.coasted_steps > 60, "of 90 steps"


def test_a_step_under_way_is_owed_its_result_once_it_lands() -> None:
    policy = planner(blocks=60, host_slots=0, max_sequences=4, prefix_share=None)
    policy.add(Lease(job=arrival("a", output=20, max_tokens=20).job(), epoch=1, arrived_ms_ago=0.0), 0.0)
    first = policy.plan(0.0)
    policy.apply(StepResult(number=first.number, tokens={row.seq: 7 for row in first.rows}, run_ms=5.0), 5.0)
    coast = policy.coast(5.0)
    assert coast is not None
    for step in range(6):
        assert coast.begin(5.0 + step) is not None
        coast.end(1.0)
    assert coast.begin(11.0) is not None

    plan = policy.land(coast)
    policy.add(Lease(job=arrival("b").job(), epoch=1, arrived_ms_ago=0.0), 11.5)

    assert [(row.token_ids, row.first_position, row.output_index) for row in plan.rows] == [((7,), 14, 7)]
    assert plan.number == first.number + 7
    outcome = policy.apply(StepResult(number=plan.number, tokens={row.seq: 9 for row in plan.rows}, run_ms=1.0), 12.0)
    assert [one.index for one in outcome.produced] == [7]
    policy.check_integrity()
