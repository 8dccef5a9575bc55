"""What must never happen is counted where it happens, and random crowds show none of it."""

import random

import pytest

from benchmarks.scheduling.lines.safety import HARDWARE, Case, crowd, digest_elsewhere, play
from benchmarks.scheduling.lines.watch import Waits, Watched
from fairlane.scheduler.planner.kv.blocks import IntegrityError
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.simulation.simulate import IDLE_MS, Simulation
from fairlane.scheduler.simulation.workload import Record


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 6))])
def test_nothing_of_it_happens_in_a_crowd(seed: int) -> None:
    found = play(Case(seed, 60))

    assert (found.unended, found.integrity, found.over_budget, found.stuck, found.starved) == (0, 0, 0, 0, 0)
    assert sum(found.outcomes.values()) == 60


def test_a_process_with_another_hash_seed_plays_it_bit_for_bit() -> None:
    case = Case(5, 40)

    assert digest_elsewhere(case) == play(case).digest != play(Case(6, 40)).digest


def test_a_step_over_its_budget_is_counted() -> None:
    worker, arrivals = crowd(Case(0, 40))
    watched = Watched(worker.planner(), worker._replace(max_step_tokens=3), random.Random(0))

    Simulation(arrivals, [watched], HARDWARE).run()

    assert 0 < watched.over_budget <= watched.steps


def test_broken_accounts_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(planner: Planner) -> None:
        raise IntegrityError("references", "for a test")

    monkeypatch.setattr(Planner, "check_integrity", broken)

    assert play(Case(0, 20)).integrity > 0


def test_blocks_that_are_not_free_in_the_end_are_counted() -> None:
    worker, _ = crowd(Case(0, 1))
    watched = Watched(worker.planner(), worker._replace(blocks=worker.blocks + 1), random.Random(0))

    watched.audit()

    assert watched.integrity == 1


def test_a_wait_is_measured_to_the_first_row_or_the_end_in_parts_of_the_bound() -> None:
    _, [arrival] = crowd(Case(0, 1))
    record = Record(arrival, outcome=Outcome.EXPIRED, end_ms=arrival.at_ms + 4_000.0)
    waits = Waits(longest_step_ms=30.0)

    waits.ended(record)

    bound_ms = (4_000.0 if arrival.lane == "latency" else 12_000.0) + 2 * IDLE_MS
    assert waits.waited(record) == pytest.approx(4_000.0 / bound_ms)
