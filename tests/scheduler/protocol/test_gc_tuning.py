"""No step of a worker is interrupted by a collection of garbage."""

import gc
from collections.abc import Iterator
from contextlib import suppress

import pytest

from benchmarks.scheduling.lines.world import World
from fairlane.scheduler.planner.steps import StepResult
from fairlane.scheduler.protocol.gc_tuning import OF_A_WORKER, collect_seldom, no_collection
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Job, Lease, Sampling

STREAMS, STEPS = 200, 20


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations of all collections; afterwards the interpreter collects as before."""
    found: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        found.append(about["generation"])

    before = gc.get_threshold()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.set_threshold(*before)
    gc.unfreeze()


def stepped(steps: int) -> None:
    planner = World().policy("fairlane", [])
    for number in range(STREAMS):
        job = Job(
            job_id=f"f{number}",
            gateway_id="gateway",
            tenant="acme",
            lane=LaneName.LATENCY,
            prompt=(0,) * 8,
            max_tokens=2 * STEPS,
            granted_until=2 * STEPS,
            sampling=Sampling(),
            ttft_ms=1e6,
            tpot_ms=1e3,
        )
        planner.add(Lease(job=job, epoch=1, arrived_ms_ago=0.0), 0.0)
    for step in range(steps):
        plan = planner.plan(20.0 * step)
        tokens = {row.seq: 0 for row in plan.rows if row.samples}
        planner.apply(StepResult(number=plan.number, tokens=tokens, run_ms=10.0), 20.0 * step + 10.0)


def test_steps_of_hundreds_of_streams_set_off_no_collection(collections: list[int]) -> None:
    stepped(STEPS)
    assert collections, "by the interpreter's defaults they do"
    collect_seldom(OF_A_WORKER)
    collections.clear()
    stepped(STEPS)
    assert collections == []


def test_collection_rests_only_so_long() -> None:
    with no_collection():
        assert not gc.isenabled()

    with suppress(ImportError), no_collection():
        raise ImportError

    assert gc.isenabled()
