"""Equals take turns: rows change hands, and prompts begin, only as often as that is worth what it costs."""

import random

import pytest

from fairlane.scheduler.planner.priority import CROWD
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Preempted, Resumed
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job

TOKENS = 120


def shared(lane: LaneName, tenants: int, rows: int, jobs: int = 1) -> World:
    """Tenants with a stream more than there are rows, or several each, until all are over."""
    world = World(blocks=600, max_sequences=rows, max_step_tokens=64, window=800.0)
    for number in range(tenants * jobs):
        world.add(job(f"j{number:02}", lane, tenant=f"t{number % tenants}", max_tokens=TOKENS))
        world.step()
    world.finish(10_000)
    return world


@pytest.mark.parametrize("seed", [2, 5])
def test_two_tenants_that_share_two_rows_seldom_take_one_from_each_other(seed: int) -> None:
    """Whenever a prompt was charged, by counters alone, and in every step where three of theirs had begun."""
    world, draws = World(blocks=600, max_sequences=2, max_step_tokens=64, window=800.0), random.Random(seed)
    for number in range(10):
        prompt, tokens = draws.randint(8, 60), draws.randint(30, TOKENS)
        world.add(job(f"j{number:02}", tenant=f"t{number % 2}", prompt=prompt, max_tokens=tokens))
        for _ in range(draws.randint(0, 6)):
            world.step()
    world.finish()

    assert len(world.events(Preempted)) <= 10


@pytest.mark.parametrize("jobs", [1, 4])
def test_three_tenants_that_share_two_rows_of_the_throughput_lane_take_turns(jobs: int) -> None:
    """By counters alone they would change rows in every step."""
    world = shared(THROUGHPUT, tenants=3, rows=2, jobs=jobs)

    assert 1 <= len(world.events(Preempted)) <= 6 * jobs


@pytest.mark.parametrize(("lane", "most_ms"), [(LATENCY, 500.0), (THROUGHPUT, 3_000.0)])
def test_one_tenants_streams_take_turns_among_themselves_too(lane: LaneName, most_ms: float) -> None:
    """Its counter is the same for all of them: the one that was stopped first goes on first."""
    world = World(blocks=900, max_sequences=8, max_step_tokens=64, window=800.0)
    for number in range(8):
        world.add(job(f"crowd-{number}", lane, tenant=f"t{number % 2}", max_tokens=400))
    for _ in range(10):
        world.step()
    for number in range(5):
        world.add(job(f"late-{number}", lane, tenant=f"late-{number}", max_tokens=400))
    for _ in range(450):
        world.step()

    assert len(world.events(Resumed)) > 10
    assert max(event.stalled_ms for event in world.events(Resumed)) <= most_ms


def test_turns_of_the_latency_lane_are_short_enough_to_read_by() -> None:
    world = shared(LATENCY, tenants=3, rows=2)

    assert 3 <= len(world.events(Preempted)) <= TOKENS // 4
    assert max(event.stalled_ms for event in world.events(Resumed)) <= 500.0


@pytest.mark.parametrize("lane", [LATENCY, THROUGHPUT])
def test_who_comes_again_and_again_does_not_keep_a_stream_without_a_row(lane: LaneName) -> None:
    """Each of its requests is a newcomer's, and takes a row; the stream's turn comes nevertheless."""
    world = World(blocks=600, max_sequences=2, max_step_tokens=64, window=200.0)
    for number in range(3):
        world.add(job(f"stream-{number}", lane, tenant=f"t{number}", max_tokens=400))
    for number in range(60):
        world.add(job(f"again-{number}", lane, tenant="again", max_tokens=8))
        for _ in range(10):
            world.step()

    assert max(event.stalled_ms for event in world.events(Resumed)) <= 10.0 * 200
    assert min(len(world.outputs[seq]) for seq in world.outputs if seq.job_id.startswith("stream")) > 100


@pytest.mark.parametrize("lane", [LATENCY, THROUGHPUT])
def test_no_more_tenants_begin_than_can_take_turns(lane: LaneName) -> None:
    world = World(blocks=600, max_sequences=4, max_step_tokens=64, window=10_000.0)
    for number in range(60):
        world.add(job(f"j{number}", lane, tenant=f"t{number}", max_tokens=200))

    for _ in range(80):
        world.step()
        own = world.planner.capacity().yielding[lane]
        assert len(own.begun) <= CROWD * 4
        assert len(own.begun) < CROWD * 4 or own.jobs == 0, "no more are asked for"


@pytest.mark.parametrize("lane", [LATENCY, THROUGHPUT])
def test_a_prompt_is_done_before_the_next_of_its_length_begins(lane: LaneName) -> None:
    world = World(blocks=600, max_sequences=32, max_step_tokens=16, window=10_000.0)
    for number in range(20):
        world.add(job(f"j{number:02}", lane, tenant=f"t{number:02}", prompt=40, max_tokens=2))

    for _ in range(12):
        world.step()

    begun = {row.seq.job_id for plan in world.plans for row in plan.rows}
    assert len([job_id for job_id in begun if not world.outputs[SeqId(job_id, 0)]]) <= 2


def test_prompts_of_the_first_lane_do_not_share_out_what_is_left_to_the_lanes_below_token_by_token() -> None:
    world = World(blocks=600, max_sequences=64, max_step_tokens=640, window=10_000.0)
    world.add(job("batch", THROUGHPUT, prompt=600, max_tokens=4))
    for number in range(60):
        world.add(job(f"j{number:02}", LATENCY, tenant=f"t{number:02}", prompt=100, max_tokens=2))

    plan, _ = world.step()

    assert sum(len(row.token_ids) == 1 for row in plan.rows) <= 1
