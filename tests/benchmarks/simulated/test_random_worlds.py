"""Random worlds over the queue, planners, simulated steps and doors keep what all of them together promise."""

import math
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, example, given, settings

from benchmarks.common.mortal_simulation import Death, MortalSimulation
from benchmarks.common.simulated_gateways import SimulatedGateways
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.simulate import SimulatedStep, Simulation
from fairlane.scheduler.simulation.workload import Arrival, Record
from tests.support.scheduler.fleet import HARDWARE, Watcher
from tests.support.scheduler.random_worlds import CONTEXT, requests, worker

HUNTS = "FAIRLANE_TEST_EXAMPLES" in os.environ
bounded = settings(
    max_examples=int(os.environ.get("FAIRLANE_TEST_EXAMPLES", "10")),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    derandomize=not HUNTS,
    database=None,
)
"""Nothing to shrink: a world is one number. The same ones each time, but where somebody hunts for others."""
randoms = st.builds(Random, st.integers(0, 2**32 - 1))


@dataclass
class Ends(Watcher):
    """How often each request was said to be over."""

    counts: Counter[str] = field(default_factory=Counter)

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        assert not self.counts[arrival.job_id]

    def stepped(self, step: SimulatedStep) -> None:
        assert not [one for one in step.outcome.produced if self.counts[one.seq.job_id]]

    def ended(self, record: Record) -> None:
        self.counts[record.arrival.job_id] += 1


@pytest.mark.slow
@bounded
@given(randoms)
@example(Random(1727616))  # unequal workers, the last request fits one of them
@example(Random(57))  # a worker dies, and its jobs continue elsewhere
def test_every_request_ends_once_nothing_leaks_and_no_worker_idles_beside_what_it_could_run(rng: Random) -> None:
    slots, pool_tokens, count = rng.choice([2, 4, 16]), CONTEXT * rng.choice([1, 2, 6]), rng.choice([1, 2, 3])
    workers = [worker(rng, slots, pool_tokens, rng.choice([1, 4, 16]))]
    workers += [worker(rng, rng.choice([2, slots]), CONTEXT // 2, rng.choice([1, 4, 16])) for _ in range(count - 1)]
    arrivals = requests(rng, slots, CONTEXT * rng.choice([0.4, 1.0, 3.0]) / count)
    queue, ends = LaneQueue(DEFAULT_LANES), Ends()
    for each in workers:
        each.queue, each.arrivals = queue, arrivals
    deaths = [Death(2_000.0, 1, 8_000.0)] if count == 3 and rng.random() < 0.5 else []

    records = MortalSimulation(arrivals, workers, HARDWARE, queue=queue, deaths=deaths, observers=[ends]).run()

    assert ends.counts == Counter(one for one, record in records.items() if record.outcome is not Outcome.REJECTED)
    assert all(record.outcome in (Outcome.FINISHED, Outcome.EXPIRED, Outcome.REJECTED) for record in records.values())
    assert all(record.tokens <= record.arrival.choices * record.arrival.output_tokens for record in records.values())
    for number, each in enumerate(workers):
        each.check_integrity()
        assert (deaths and number == 1) or (each.blocks_free, each.host_slots_free) == each.all_free


@pytest.mark.slow
@bounded
@given(randoms)
@example(Random(42))  # what was promised needs the whole pool, beside a floor
@example(Random(479001599))  # best effort that has not begun holds all the slots that a promise needs
def test_guarantees_hold_however_many_doors_give_them(rng: Random) -> None:
    slots, pool_tokens, count = rng.choice([2, 4, 16]), CONTEXT * rng.choice([1, 2, 6]), rng.choice([1, 2, 3])
    workers = [worker(rng, slots, pool_tokens, 4) for _ in range(count)]
    arrivals, queue = requests(rng, slots, CONTEXT * rng.choice([0.4, 1.0, 3.0]) / count), LaneQueue(DEFAULT_LANES)
    for each in workers:
        each.queue, each.arrivals = queue, arrivals
    doors = SimulatedGateways(
        workers,
        kv_tokens=pool_tokens,
        block_size=4,
        max_sequences=slots,
        queue=queue,
        gateways=rng.choice([1, 3]),
        heartbeat_ms=rng.choice([0.0, 500.0]),
        costs=workers[0]._costs,
    )

    records = Simulation(arrivals, workers, HARDWARE, queue=queue, admission=doors.decide, observers=[doors]).run()

    for record in map(records.__getitem__, doors.guaranteed):
        asked = record.arrival
        assert record.outcome is Outcome.FINISHED
        assert (record.ttft_ms or 0.0) <= (asked.hard_ttft_ms or math.inf)
        assert (record.end_ms or 0.0) - asked.at_ms <= (asked.deadline_ms or math.inf)


@bounded
@given(randoms)
def test_where_nobody_else_comes_a_request_runs_as_if_alone(rng: Random) -> None:
    asked = [replace(one, own_token=2 + number) for number, one in enumerate(requests(rng, 4, 1.0))][:10]
    seed, later = rng.random(), [replace(one, at_ms=60_000.0 * number) for number, one in enumerate(asked)]

    def play(arrivals: list[Arrival]) -> list[Record]:
        planner, queue = worker(Random(seed), 4, 6 * CONTEXT, 4), LaneQueue(DEFAULT_LANES)
        planner.queue, planner.arrivals = queue, arrivals
        return list(Simulation(arrivals, [planner], HARDWARE, queue=queue).run().values())

    both = zip(play(later), [record for one in asked for record in play([replace(one, at_ms=0.0)])], strict=True)

    for one, alone in both:
        assert (one.outcome, one.tokens, one.computed) == (alone.outcome, alone.tokens, alone.computed)
        assert times_ms(one) == pytest.approx(times_ms(alone), abs=1e-6)


def times_ms(record: Record) -> tuple[float, float]:
    """Of the first token and of the end, since its arrival."""
    return (record.first_ms or 0.0) - record.arrival.at_ms, (record.end_ms or 0.0) - record.arrival.at_ms
