"""A victim gives only the end of its KV: what that costs, and that nobody is locked out by what is left."""

import pytest

from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import Preempted
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job
from tests.support.scheduler.victim_shop import swap_is_cheap


def test_a_dropped_end_is_all_that_is_computed_again() -> None:
    world = World(blocks=16, block_size=4, host_slots=0, max_step_tokens=64)
    jobs = [job("a", max_tokens=12), job("b", prompt=24, max_tokens=16)]
    for one in jobs:
        world.add(one)
    world.step()
    jobs.append(job("chat", LATENCY, prompt=34, max_tokens=1))
    world.add(jobs[-1])

    world.step()
    (yielded,) = world.events(Preempted)
    while not any(row.seq.job_id == "b" for row in world.step()[0].rows):
        assert world.planner.counts().preempted[THROUGHPUT] == 1

    (row,) = (row for row in world.plans[-1].rows if row.seq.job_id == "b")
    assert (yielded.job_id, yielded.mode) == ("b", "recompute")
    assert sum(one.end - one.first for plan in world.plans for one in plan.yields) == 24 - 16
    assert (row.first_position, len(row.token_ids)) == (16, 9), "two blocks: for the chat, and for a's next token"
    world.finish()
    world.check_outputs(*jobs)


def test_a_swapped_end_is_all_that_is_copied() -> None:
    world = World(blocks=16, block_size=4, host_slots=16, max_step_tokens=64, costs=swap_is_cheap())
    jobs = [job("a", max_tokens=12), job("b", prompt=24, max_tokens=16)]
    for one in jobs:
        world.add(one)
    world.step()
    jobs.append(job("chat", LATENCY, prompt=34, max_tokens=1))
    world.add(jobs[-1])

    plan, _ = world.step()

    (yielded,) = world.events(Preempted)
    assert (yielded.job_id, yielded.mode) == ("b", "swap")
    assert len(plan.swap_out) == 16 - world.planner.host_slots_free == 2, "one for the chat, one for a's next token"
    world.finish()
    assert sum(len(plan.swap_in) for plan in world.plans) == sum(len(plan.swap_out) for plan in world.plans)
    assert world.planner.host_slots_free == 16
    world.check_outputs(*jobs)


@pytest.mark.parametrize("host_slots", [0, 3, 40])
def test_those_that_hold_the_pool_and_do_not_run_give_way_to_the_first_of_them(host_slots: int) -> None:
    world = World(blocks=12, block_size=4, host_slots=host_slots, max_sequences=8, max_step_tokens=64)
    jobs = [job(f"batch-{number}", prompt=8, max_tokens=20, granted_until=2) for number in range(4)]
    for one in jobs:
        world.add(one)
    for _ in range(6):
        world.step()
    chat = job("chat", LATENCY, prompt=16, max_tokens=2)
    world.add(chat)
    for one in jobs:
        world.planner.grant(one.job_id, 20)

    world.finish()

    world.check_outputs(chat, *jobs)
    assert (world.planner.blocks_free, world.planner.host_slots_free) == (12, host_slots)


def test_a_part_held_by_urgent_work_that_is_away_does_not_lock_out_what_runs() -> None:
    world = World(blocks=30, block_size=1, host_slots=6, max_sequences=1, max_step_tokens=11, window=4.0)
    first, second = job("a", LATENCY, prompt=14, max_tokens=12), job("b", LATENCY, prompt=1, max_tokens=1)
    world.add(first)
    for _ in range(6):
        world.step()
    urgent = job("c", LATENCY, prompt=16, max_tokens=1, guaranteed=True, tenant="globex")
    world.add(second)
    world.step()
    world.add(urgent)
    world.planner.drop("a")
    world.add(first, generated=(tuple(world.outputs[SeqId("a", 0)]),))

    world.finish()

    world.check_outputs(first, second, urgent)


def test_no_more_begins_than_both_pools_will_hold_with_what_is_away() -> None:
    world = World(blocks=16, block_size=4, host_slots=12, max_sequences=8, max_step_tokens=64, costs=swap_is_cheap())
    jobs = [job(f"batch-{number}", prompt=4, max_tokens=28) for number in range(5)]
    for one in jobs:
        world.add(one)

    world.step()
    assert len(world.rows()) == 3, "8 blocks each, of 28"

    begun: set[str] = set()
    while not world.ended:
        world.step()
        begun.update(world.rows())
        assert len(begun) == 3, "what was swapped out will need its blocks again"
    world.finish()
    world.check_outputs(*jobs)


def test_work_on_its_way_back_waits_for_room_that_lasts() -> None:
    world = World(blocks=20, block_size=4, host_slots=40, max_sequences=8, max_step_tokens=64, costs=swap_is_cheap())
    for number in range(8):
        world.add(job(f"short-{number}", prompt=4, max_tokens=2))
    world.finish()
    jobs = [job(f"batch-{number}", prompt=4, max_tokens=40) for number in range(6)]
    for one in jobs:
        world.add(one)

    world.finish()

    preempted = world.events(Preempted)
    assert 0 < len(preempted) <= 2 * len(jobs), "back and forth"
    world.check_outputs(*jobs)
