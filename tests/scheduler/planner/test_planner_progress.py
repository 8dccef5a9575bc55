"""The worker as a whole goes forward, nobody waits beyond the lane's longest wait, and misuse changes nothing."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlane.scheduler.planner.planner import StepOrderError
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Job, Outcome
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job

STEP_MS = 10.0
LONGEST_PROMPT, LONGEST_OUTPUT = 20, 12

request = st.tuples(
    st.sampled_from([LATENCY, THROUGHPUT]),
    st.integers(1, LONGEST_PROMPT),
    st.integers(1, LONGEST_OUTPUT),
    st.sampled_from(["acme", "globex", "initech"]),
    st.booleans(),
    st.integers(0, 6),
)
"""Lane, prompt, output, tenant, exact, and steps until the next one comes."""
Request = tuple[str, int, int, str, bool, int]
crowds = st.lists(request, min_size=2, max_size=25)


def jobs(asked: list[Request]) -> list[tuple[int, Job]]:
    """Each with the number of the step that it comes before."""
    at, found = 0, []
    for number, (lane, prompt, output, tenant, exact, gap) in enumerate(asked):
        name = LATENCY if lane == LATENCY else THROUGHPUT
        found.append((at, job(f"r{number:02}", name, prompt=prompt, max_tokens=output, tenant=tenant, exact=exact)))
        at += gap
    return found


@dataclass
class Played:
    """A world stepped until everything is over."""

    world: World
    standstill: int = 0
    """Most steps in a row in which there was work, and no request gained a token or ended."""
    waited_ms: dict[str, float] = field(default_factory=dict)
    """From arrival to the first row, or to the end without one."""

    def through(self, coming: list[tuple[int, Job]], steps: int = 3_000) -> "Played":
        """Add each job before its step."""
        came_ms: dict[str, float] = {}
        still = 0
        for number in range(steps):
            while coming and coming[0][0] <= number:
                one = coming.pop(0)[1]
                came_ms[one.job_id] = self.world.now_ms
                self.world.add(one)
            if not coming and not self.world.planner.has_work:
                return self
            is_idle = not self.world.planner.has_work
            plan, outcome = self.world.step()
            still = 0 if is_idle or outcome.produced or outcome.ended else still + 1
            self.standstill = max(self.standstill, still)
            for job_id in (*(row.seq.job_id for row in plan.rows), *(end.job_id for end in outcome.ended)):
                self.waited_ms.setdefault(job_id, self.world.now_ms - came_ms[job_id])
        raise AssertionError(f"still at work after {steps} steps")


@settings(deadline=None, max_examples=60)
@given(
    asked=crowds,
    blocks=st.integers(8, 20),
    host_slots=st.sampled_from([0, 4, 40]),
    max_sequences=st.integers(1, 5),
    max_step_tokens=st.integers(1, 16),
    window=st.sampled_from([4.0, 64.0, 4096.0]),
)
@example(
    asked=[
        (LATENCY, 9, 9, "globex", False, 0),
        (LATENCY, 13, 1, "acme", False, 1),
        (THROUGHPUT, 1, 1, "acme", False, 0),
    ],
    blocks=8,
    host_slots=0,
    max_sequences=3,
    max_step_tokens=2,
    window=4.0,
)
def test_some_request_goes_forward_within_as_many_steps_as_the_longest_of_each_tenant_and_lane_has_tokens(
    asked: list[Request], blocks: int, host_slots: int, max_sequences: int, max_step_tokens: int, window: float
) -> None:
    world = World(
        blocks=blocks,
        host_slots=host_slots,
        block_size=4,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        window=window,
    )
    arrivals = jobs(asked)
    longest = max(one.max_total_tokens for _, one in arrivals)

    groups = len({(one.lane, one.tenant) for _, one in arrivals})
    assert Played(world).through(arrivals).standstill <= groups * longest, "each may begin a prompt before one is done"


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(asked=st.lists(request, min_size=10, max_size=40), host_slots=st.sampled_from([0, 40]))
def test_nobody_waits_longer_than_the_lane_lets_them_whatever_comes(asked: list[Request], host_slots: int) -> None:
    lanes = {
        LATENCY: replace(DEFAULT_LANES[LATENCY], max_wait_ms=10 * STEP_MS),
        THROUGHPUT: replace(DEFAULT_LANES[THROUGHPUT], max_wait_ms=30 * STEP_MS),
    }
    world = World(blocks=10, host_slots=host_slots, max_sequences=2, max_step_tokens=8, lanes=lanes)
    arrivals = jobs(asked)
    lane_of = {one.job_id: one.lane for _, one in arrivals}

    waited_ms = Played(world).through(arrivals).waited_ms

    assert waited_ms.keys() == lane_of.keys() == world.ended.keys()
    for job_id, ms in waited_ms.items():
        assert ms <= lanes[lane_of[job_id]].max_wait_ms + STEP_MS


def test_work_of_the_lower_lane_begins_under_an_endless_flood_of_the_upper_one() -> None:
    lanes = {**DEFAULT_LANES, THROUGHPUT: replace(DEFAULT_LANES[THROUGHPUT], max_wait_ms=60 * STEP_MS)}
    world = World(blocks=16, max_sequences=2, max_step_tokens=16, lanes=lanes)
    flood = [(step, job(f"chat-{step:03}", LATENCY, max_tokens=8)) for step in range(120)]

    played = Played(world).through(sorted([*flood, (5, job("batch", max_tokens=8))], key=lambda one: one[0]))

    assert world.ended["batch"].outcome is Outcome.FINISHED
    assert played.waited_ms["batch"] <= 40 * STEP_MS, "promoted after half its longest wait"


@pytest.mark.parametrize("misuse", ["plan twice", "another result", "a result twice"])
def test_a_call_out_of_order_raises_and_changes_nothing(misuse: str) -> None:
    worlds = [World(blocks=10, host_slots=4, max_sequences=3), World(blocks=10, host_slots=4, max_sequences=3)]
    for world in worlds:
        for number in range(6):
            world.add(job(f"r{number}", (LATENCY, THROUGHPUT)[number % 2], prompt=10, max_tokens=9))
    spoilt, clean = worlds
    for _ in range(8):
        spoilt.now_ms += STEP_MS
        plan = spoilt.planner.plan(spoilt.now_ms)
        result = spoilt.runner.run(plan)
        if misuse == "plan twice":
            with pytest.raises(StepOrderError):
                spoilt.planner.plan(spoilt.now_ms + 1_000_000.0)
        elif misuse == "another result":
            with pytest.raises(StepOrderError):
                spoilt.planner.apply(replace(result, number=plan.number + 1), spoilt.now_ms)
        outcome = spoilt.planner.apply(result, spoilt.now_ms)
        if misuse == "a result twice":
            with pytest.raises(StepOrderError):
                spoilt.planner.apply(replace(result, number=plan.number - 1), spoilt.now_ms)
        spoilt.planner.check_integrity()

        assert (plan, outcome) == clean.step()
