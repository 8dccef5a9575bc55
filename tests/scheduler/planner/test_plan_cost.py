"""The work of `plan()` depends on what runs, not on how much waits. Bytecodes are counted: the same in every run."""

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import StepPlan, StepResult
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Job, Lease
from tests.support.scheduler.planner_world import job

LATENCY, THROUGHPUT = LaneName.LATENCY, LaneName.THROUGHPUT
ROWS, WARM_UP, COUNTED = 48, 16, 2
FEW, MANY = 1_000, 10_000
MOST_GROWTH = 1.33
"""As log n from 1,000 to 10,000."""
MOST_PER_ROW, MOST_WHERE_SHORT = 2_000, 5_000
"""Bytecodes; the second where blocks are short, or most that runs shares a row with others."""


def either(number: int) -> LaneName:
    return THROUGHPUT if number % 3 else LATENCY


def one_lane(number: int, draws: random.Random) -> Job:
    return job(f"f{number}", prompt=draws.randint(10, 60), tenant=f"t{number % 500}", max_tokens=40)


def both_lanes(number: int, draws: random.Random) -> Job:
    return job(f"f{number}", either(number), prompt=draws.randint(10, 60), tenant=f"t{number % 500}", max_tokens=40)


def a_tenant_each(number: int, draws: random.Random) -> Job:
    return job(f"f{number}", either(number), prompt=draws.randint(10, 60), tenant=f"t{number}", max_tokens=40)


def few_tenants(number: int, draws: random.Random) -> Job:
    return job(f"f{number}", either(number), prompt=draws.randint(10, 60), tenant=f"t{number % 4}", max_tokens=40)


def deadlines(number: int, draws: random.Random) -> Job:
    return job(
        f"f{number}",
        either(number),
        prompt=draws.randint(10, 60),
        tenant=f"t{number % 500}",
        max_tokens=40,
        guaranteed=number % 4 == 0,
        deadline_ms=draws.uniform(1e5, 1e6) if number % 2 == 0 else None,
        hard_ttft_ms=draws.uniform(1e5, 1e6) if number % 3 == 0 else None,
    )


def short_of_blocks(number: int, draws: random.Random) -> Job:
    return job(f"f{number}", either(number), prompt=draws.randint(10, 60), tenant=f"t{number % 500}", max_tokens=60)


def exact(number: int, draws: random.Random) -> Job:
    """Of these, most wait for host slots to be counted."""
    tenant = f"t{number % 500}"
    return job(f"f{number}", either(number), prompt=draws.randint(10, 60), tenant=tenant, max_tokens=60, exact=True)


def at_their_grant(number: int, draws: random.Random) -> Job:
    """Half may not begin, a quarter pauses at the first token."""
    granted = (0, 1, 0, 40)[number % 4]
    tenant = f"t{number % 499}"
    return job(f"f{number}", either(number), prompt=20, tenant=tenant, max_tokens=40, granted_until=granted)


def choices(number: int, draws: random.Random) -> Job:
    """Three of four wait for the first to compute the prompt that they share."""
    return job(f"f{number}", either(number), prompt=40, tenant=f"t{number % 500}", max_tokens=40, n=4)


Shape = Callable[[int, random.Random], Job]
SHAPES: list[Shape] = [
    one_lane,
    both_lanes,
    a_tenant_each,
    few_tenants,
    deadlines,
    short_of_blocks,
    exact,
    at_their_grant,
    choices,
]


class Bytecodes:
    """Counts what the interpreter runs, in loops and comprehensions too."""

    def __init__(self) -> None:
        self.count = 0

    def during(self, call: Callable[[], StepPlan]) -> StepPlan:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> "Callable[[FrameType, str, Any], Any]":
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self._trace


def bytecodes(shape: Shape, waiting: int, short: bool) -> float:
    """Of one plan with so many waiting, in the mean of a few steps."""
    planner = Planner(
        lanes=DEFAULT_LANES,
        block_size=16,
        blocks=ROWS * (3 if short else 20),
        host_slots=ROWS * 2,
        max_sequences=ROWS,
        max_step_tokens=1_024,
        costs=CostModel(),
    )
    draws, counted, now_ms = random.Random(1), Bytecodes(), 0.0
    for number in range(waiting):
        planner.add(Lease(job=shape(number, draws), epoch=1, arrived_ms_ago=0.0), now_ms)
    for step in range(WARM_UP + COUNTED):
        now_ms += 20.0
        plan = counted.during(lambda: planner.plan(now_ms)) if step >= WARM_UP else planner.plan(now_ms)  # noqa: B023
        tokens = {row.seq: 0 for row in plan.rows if row.samples}
        planner.apply(StepResult(number=plan.number, tokens=tokens, run_ms=20.0), now_ms)
    return counted.count / COUNTED


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_plan_does_no_more_for_ten_times_as_many_that_wait(shape: Shape) -> None:
    short = shape in (short_of_blocks, exact)
    few, many = (bytecodes(shape, waiting, short) for waiting in (FEW, MANY))

    assert few <= ROWS * (MOST_WHERE_SHORT if short or shape is choices else MOST_PER_ROW)
    assert many <= MOST_GROWTH * few, f"{few:,.0f} bytecodes with {FEW:,} waiting, {many:,.0f} with {MANY:,}"
