"""What a worker can say of each decision: for whom somebody yields and what was short, and what its steps came to."""

import dataclasses

from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Cause, JobSteps, Preempted, Resumed
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job
from tests.support.scheduler.victim_shop import swap_is_cheap


def steps_of(world: World, job_id: str) -> JobSteps:
    steps = world.ended[job_id].steps
    assert steps is not None
    return steps


def test_who_yields_a_slot_is_told_for_whom() -> None:
    world = World(max_sequences=2, max_step_tokens=64)
    for name in ("b1", "b2"):
        world.add(job(name, max_tokens=12))
    world.step()
    world.add(job("chat", LATENCY, max_tokens=4, tenant="globex"))

    world.step()

    [event] = world.events(Preempted)
    assert event.cause == Cause(resource="slots", lane=LATENCY, tenant="globex", job_id="chat")
    assert (event.mode, event.bytes) == ("keep", 0)


def test_who_yields_blocks_is_told_for_whom_and_how_many_bytes() -> None:
    world = World(blocks=8, block_size=4, max_step_tokens=64, costs=swap_is_cheap())
    world.planner = Planner(
        lanes=DEFAULT_LANES,
        block_size=4,
        blocks=8,
        host_slots=8,
        max_sequences=4,
        max_step_tokens=64,
        costs=swap_is_cheap(),
        bytes_per_block=1_000,
    )
    for name in ("leader", "batch"):
        world.add(job(name, prompt=12, max_tokens=12))
    world.step()
    world.add(job("chat", LATENCY, prompt=14, max_tokens=4, tenant="globex"))

    world.step()

    [event] = world.events(Preempted)
    assert event.cause == Cause(resource="blocks", lane=LATENCY, tenant="globex", job_id="chat")
    assert event.blocks > 0
    assert event.bytes == event.blocks * 1_000


def test_who_comes_back_tells_all_that_it_gave_up_since_it_was_stopped() -> None:
    """One that is first set aside, for want of a block, and gives some up later, has had but one event till then."""
    world = World(blocks=6, block_size=4, max_step_tokens=64, host_slots=6, costs=swap_is_cheap())
    world.add(job("batch", prompt=7, max_tokens=16))
    for _ in range(9):
        world.step()
    world.add(job("chat", LATENCY, prompt=5, max_tokens=14, tenant="globex"))

    world.finish()

    [stopped], [back] = world.events(Preempted), world.events(Resumed)
    assert stopped.cause == back.cause == Cause(resource="blocks", lane=LATENCY, tenant="globex", job_id="chat")
    assert (stopped.mode, stopped.blocks) == ("keep", 0)
    taken = sum(len({*range(one.first // 4, -(-one.end // 4))}) for plan in world.plans for one in plan.yields)
    assert (back.mode, back.blocks) == ("swap", taken)
    assert back.predicted_ms == sum(one.predicted_ms for plan in world.plans for one in plan.yields)


def test_blocks_for_a_lanes_floor_are_for_that_lane_and_no_tenant() -> None:
    lanes = {name: dataclasses.replace(lane, share_floor=0.5) for name, lane in DEFAULT_LANES.items()}
    world = World(blocks=8, block_size=4, max_sequences=4, max_step_tokens=64, lanes=lanes)
    for name in ("c1", "c2"):
        world.add(job(name, LATENCY, prompt=13, max_tokens=3))
    world.step()
    world.add(job("batch", THROUGHPUT, prompt=12, max_tokens=2, tenant="globex"))

    world.step()

    causes = [event.cause for event in world.events(Preempted)]
    assert causes == [Cause(resource="blocks", lane=THROUGHPUT)]
    world.finish()


def test_a_job_ends_with_its_steps_and_the_reasons_it_waited_for() -> None:
    world = World(max_sequences=1, max_step_tokens=4, block_size=4)
    world.add(job("first", LATENCY, prompt=8, max_tokens=5))
    world.add(job("second", LATENCY, prompt=8, max_tokens=3))

    world.finish()

    first, second = steps_of(world, "first"), steps_of(world, "second")
    assert (first.prefill_steps, first.prefill_tokens, first.decode_steps) == (2, 8, 4)
    assert first.waits_ms == {}
    assert (second.prefill_steps, second.prefill_tokens, second.decode_steps) == (2, 8, 2)
    waited = sum("first" in rows for rows in ([row.seq.job_id for row in plan.rows] for plan in world.plans))
    assert second.waits_ms == {"slots": waited * 10.0}


def test_what_came_with_a_lease_is_no_step_of_this_worker() -> None:
    world = World()
    world.add(job("moved", prompt=8, max_tokens=6), generated=((11, 12, 13),))

    world.finish()

    steps = steps_of(world, "moved")
    assert steps.prefill_tokens == 11
    assert steps.prefill_steps + steps.decode_steps >= 3
    assert steps.decode_steps == 2


def test_a_pause_counts_as_a_wait_for_a_grant() -> None:
    world = World()
    world.add(job("paused", prompt=4, max_tokens=4, granted_until=2))
    world.add(job("other", prompt=4, max_tokens=20))
    for _ in range(6):
        world.step()
    world.planner.grant("paused", 4)

    world.finish()

    assert steps_of(world, "paused").waits_ms["grant"] > 0.0


def test_nothing_is_kept_of_a_job_that_is_taken_away() -> None:
    world = World(max_sequences=1)
    world.add(job("first", prompt=4, max_tokens=4))
    world.add(job("second", prompt=4, max_tokens=4))
    world.step()
    world.step()
    world.planner.drop("second")
    world.outputs = {seq: [] if seq.job_id == "second" else ids for seq, ids in world.outputs.items()}
    world.add(job("second", prompt=4, max_tokens=4))
    world.planner.drop("first")

    world.finish()

    assert steps_of(world, "second").waits_ms == {}
