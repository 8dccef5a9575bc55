"""Virtual time: the same arrivals give the same records, every request ends once, and time is what steps cost."""

import random
from itertools import pairwise

import pytest

from fairlane.scheduler.admission.decide import Admitted
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.simulate import SimulatedStep, Simulation, StuckError
from fairlane.scheduler.simulation.workload import Arrival, Hardware, Record
from tests.support.scheduler.simulated import BLOCK_SIZE, BLOCKS, HARDWARE, Idler, arrival, planner, simulation


def many(count: int = 60, seed: int = 1, gap_ms: float = 25.0) -> list[Arrival]:
    draws = random.Random(seed)
    return [
        arrival(
            f"r{number}",
            number * gap_ms,
            tenant=f"t{draws.randrange(3)}",
            lane=draws.choice(list(LaneName)),
            prompt=draws.randint(1, 24),
            output=draws.randint(1, 12),
            deadline_ms=draws.choice([None, None, 400.0]),
        )
        for number in range(count)
    ]


class Watcher:
    """Notes what an observer is told."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.over: list[str] = []
        self.steps: list[SimulatedStep] = []

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        self.came.append(arrival.job_id)

    def stepped(self, step: SimulatedStep) -> None:
        self.steps.append(step)

    def ended(self, record: Record) -> None:
        self.over.append(record.arrival.job_id)


def test_a_request_takes_what_its_steps_cost() -> None:
    records = simulation([arrival("a", 5.0, prompt=8, output=3)]).run()

    record = records["a"]
    assert record.outcome is Outcome.FINISHED
    assert record.ttft_ms == 10.0 + 1.0 + 8 * 0.5 + 1.0  # a step, a row, its prompt, the overhead
    assert record.tpot_ms == 10.0 + 1.0 + 1.0
    assert (record.tokens, record.computed, record.late_tokens) == (3, 10, 0)


@pytest.mark.parametrize("workers", [None, 1, 3])
def test_the_same_seed_gives_the_same_records_bit_for_bit(workers: int | None) -> None:
    noisy = Hardware(step=HARDWARE.step, copy=HARDWARE.copy, noise=0.1)

    first, again, other = (simulation(many(), workers=workers, hardware=noisy, seed=seed).run() for seed in (1, 1, 2))

    assert first == again
    assert first != other


@pytest.mark.parametrize("workers", [None, 1, 3])
def test_every_request_ends_exactly_once(workers: int | None) -> None:
    watcher = Watcher()

    records = simulation(many(gap_ms=8.0), workers=workers, observers=[watcher]).run()

    assert {record.outcome for record in records.values()} == {Outcome.FINISHED, Outcome.EXPIRED}
    assert sorted(watcher.over) == sorted(watcher.came) == sorted(records)
    for record in records.values():
        if record.outcome is Outcome.FINISHED:
            assert record.tokens == record.arrival.output_tokens
            assert record.computed >= record.arrival.prompt_tokens + record.tokens - 1
        else:
            assert record.arrival.deadline_ms is not None


def test_two_workers_are_faster_than_one() -> None:
    arrivals = [arrival(f"r{number}", prompt=16, output=10) for number in range(16)]

    ends = [max(record.end_ms or 0.0 for record in simulation(arrivals, workers=n).run().values()) for n in (1, 2)]

    assert ends[1] < 0.7 * ends[0]


def test_idle_workers_share_what_comes() -> None:
    watcher = Watcher()

    simulation(many(200, gap_ms=200.0), workers=50, observers=[watcher]).run()

    assert len({step.worker for step in watcher.steps}) > 25


def test_what_the_woken_worker_cannot_hold_another_is_woken_for() -> None:
    wide = arrival("wide", prompt=BLOCK_SIZE * BLOCKS // 2)
    workers = [planner(blocks=2), planner(blocks=2), planner(), planner(blocks=2)]

    for seed in range(20):
        records = Simulation([wide], workers, HARDWARE, LaneQueue(DEFAULT_LANES), seed=seed).run()

        assert records["wide"].outcome is Outcome.FINISHED


def test_steps_of_one_worker_never_overlap() -> None:
    watcher = Watcher()

    simulation(many(gap_ms=5.0), workers=3, observers=[watcher]).run()

    for worker in range(3):
        own = [step for step in watcher.steps if step.worker == worker]
        assert all(one.ended_ms <= after.started_ms for one, after in pairwise(own))


def test_a_wait_in_the_queue_that_is_too_long_ends_the_request() -> None:
    blocking = arrival("long", prompt=4, output=58, max_tokens=60)
    late = arrival("late", 1.0, prompt=4, output=50, max_tokens=60, deadline_ms=100.0)

    records = Simulation([blocking, late], [planner(max_sequences=1)], HARDWARE, LaneQueue(DEFAULT_LANES)).run()

    assert (records["long"].outcome, records["late"].outcome) == (Outcome.FINISHED, Outcome.EXPIRED)
    assert records["late"].tokens == 0
    assert 100.0 <= (records["late"].end_ms or 0.0) - 1.0 < 150.0


def test_what_the_door_refuses_is_rejected_and_never_runs() -> None:
    watcher, seen = Watcher(), []

    def door(one: Arrival, now_ms: float) -> Admitted | None:
        seen.append((one.job_id, now_ms))
        return None if one.job_id == "b" else Admitted(guaranteed=True, expected_ttft_ms=None)

    records = simulation([arrival("a"), arrival("b", 3.0)], admission=door, observers=[watcher]).run()

    assert seen == [("a", 0.0), ("b", 3.0)]
    assert (records["a"].outcome, records["b"].outcome) == (Outcome.FINISHED, Outcome.REJECTED)
    assert (records["b"].end_ms, records["b"].computed) == (3.0, 0)
    assert watcher.came == watcher.over == ["a"]


def test_a_full_lane_rejects() -> None:
    arrivals = [arrival(f"r{number}") for number in range(DEFAULT_LANES[LaneName.LATENCY].max_queued + 5)]

    records = simulation(arrivals, workers=1, until_ms=0.0).run()

    assert [record.outcome for record in records.values()].count(Outcome.REJECTED) == 5


def test_what_can_never_fit_fails_at_a_worker() -> None:
    records = simulation([arrival("huge", prompt=BLOCK_SIZE * BLOCKS), arrival("small", 500.0)]).run()

    assert (records["huge"].outcome, records["small"].outcome) == (Outcome.FAILED, Outcome.FINISHED)
    assert records["small"].ttft_ms == 16.0


def test_what_no_worker_of_the_queue_can_hold_is_an_error() -> None:
    with pytest.raises(StuckError, match="1 jobs wait, and no worker takes them"):
        simulation([arrival("huge", prompt=BLOCK_SIZE * BLOCKS)], workers=2).run()


def test_a_policy_that_never_does_anything_is_found_out() -> None:
    with pytest.raises(StuckError, match="worker 0 has work but planned nothing"):
        Simulation(arrivals=[arrival("a")], policies=[Idler()], hardware=HARDWARE).run()


def test_it_stops_when_told_to() -> None:
    arrivals = many()

    stopped = simulation(arrivals, until_ms=300.0)
    records = stopped.run()

    assert stopped.now_ms <= 300.0
    assert list(records) == [one.job_id for one in arrivals if one.at_ms <= 300.0]
    assert any(record.outcome is None for record in records.values())


def test_many_workers_need_a_queue() -> None:
    with pytest.raises(ValueError, match="2 policies need a queue"):
        Simulation(arrivals=[], policies=[planner(), planner()], hardware=HARDWARE)


@pytest.mark.parametrize("second", [arrival("b", 1.0), arrival("a", 9.0)])
def test_arrivals_out_of_order_or_twice_are_refused(second: Arrival) -> None:
    with pytest.raises(ValueError, match="out of order or twice"):
        simulation([arrival("a", 5.0), second]).run()


def test_jobs_in_the_queue_are_forgotten_when_they_end() -> None:
    queue = LaneQueue(DEFAULT_LANES)

    records = Simulation(many(), [planner(), planner()], HARDWARE, queue=queue).run()

    assert all(queue.record(job_id) is None for job_id in records)
