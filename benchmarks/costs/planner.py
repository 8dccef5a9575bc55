"""What one plan() costs, by the jobs that wait."""

import random

from benchmarks.costs.counting import CallCounter
from benchmarks.scheduling.lines.cost import RUNNING, STEP_MS, full_planner, job
from fairlane.scheduler.planner.steps import StepResult
from fairlane.scheduler.protocol.messages import Lease

WAITING = (1_000, 10_000, 100_000)
WARM_UP, STEPS = 30, 60


def calls_of_plan(waiting: int) -> float:
    """Mean calls of one plan() with 256 rows running, 1,000 tenants, and so many jobs waiting.

    Jobs that end are replaced by new ones, so that each step has rows to place.
    """
    draws, planner = random.Random(1), full_planner()
    counter = CallCounter()
    now_ms, added, ended = 0.0, 0, 0
    for step in range(WARM_UP + STEPS):
        while added - ended < waiting + RUNNING:
            planner.add(Lease(job=job(added, draws), epoch=1, arrived_ms_ago=0.0), now_ms)
            added += 1
        if step == WARM_UP:
            counter.calls = 0
        with counter.counting():
            plan = planner.plan(now_ms)
        now_ms += STEP_MS
        tokens = {row.seq: 0 for row in plan.rows if row.samples}
        ended += len(planner.apply(StepResult(number=plan.number, tokens=tokens, run_ms=STEP_MS), now_ms).ended)
    return counter.calls / STEPS


def measure() -> dict[str, float]:
    """Calls by entry of the book."""
    return {f"plan() at {waiting:,} waiting, calls": calls_of_plan(waiting) for waiting in WAITING}
