"""A lane's share floor of KV blocks: what fits it begins and goes on, whatever the lanes above ask for."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, Lane, LaneName
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job

SIZE, BLOCKS, FLOOR = 4, 40, 10
"""Tokens of a block, blocks, and those of them that are the lower lane's own."""


def floors(share: float = FLOOR / BLOCKS) -> Mapping[LaneName, Lane]:
    """The default lanes with another share floor below the first."""
    return {**DEFAULT_LANES, THROUGHPUT: replace(DEFAULT_LANES[THROUGHPUT], share_floor=share)}


def small_world() -> World:
    return World(blocks=BLOCKS, block_size=SIZE, host_slots=200, max_sequences=8, max_step_tokens=32, lanes=floors())


def flood(world: World, requests: int = 12, *, guaranteed: bool = False) -> None:
    """Prompts of the first lane, each of another tenant: four of them hold all blocks."""
    for number in range(requests):
        deadline_ms = 1e6 if guaranteed else None
        name = f"chat-{number:02}"
        tenant = f"t{number}"
        world.add(
            job(
                name,
                LATENCY,
                prompt=39,
                max_tokens=60,
                tenant=tenant,
                deadline_ms=deadline_ms,
                guaranteed=guaranteed,
            )
        )


def gave(world: World, job_id: str) -> bool:
    return any(one.seq.job_id == job_id for plan in world.plans for one in plan.yields)


def test_whoever_fits_the_floor_begins_while_the_lane_above_holds_all_blocks() -> None:
    world = small_world()
    flood(world)
    for _ in range(8):
        world.step()
    assert world.planner.blocks_free == 0
    world.add(job("batch", prompt=20, max_tokens=4, tenant="b"))

    world.step()

    assert "batch" in world.rows()
    assert {one.seq.job_id for one in world.plans[-1].yields} < {f"chat-{number:02}" for number in range(12)}


def test_what_fits_the_floor_goes_on_beside_whatever_comes_above() -> None:
    world = small_world()
    batch = job("batch", prompt=12, max_tokens=24, tenant="b")
    world.add(batch)
    world.step()
    flood(world)
    while "batch" not in world.ended:
        world.step()

    assert not gave(world, "batch")
    left = {f"chat-{number:02}" for number in range(12)} - world.ended.keys()
    assert len(left) >= 6, "the flood is here still"
    world.check_outputs(batch)


def test_beyond_its_floor_a_lane_yields() -> None:
    world = small_world()
    for number in range(4):
        world.add(job(f"batch-{number}", prompt=34, max_tokens=12, tenant="b"))
    world.step()
    for _ in range(4):
        world.step()
    flood(world)

    for _ in range(3):
        world.step()

    assert sum(gave(world, f"batch-{number}") for number in range(4)) == 3, "one of them fits"
    assert "batch-0" in world.rows()


def test_what_does_not_fit_the_floor_has_no_part_in_it() -> None:
    world = small_world()
    world.add(job("large", prompt=80, max_tokens=12, tenant="b"))
    world.add(job("small", prompt=20, max_tokens=12, tenant="c"))
    for _ in range(4):
        world.step()
    flood(world)

    for _ in range(4):
        world.step()

    assert gave(world, "large")
    assert not gave(world, "small")


def test_a_promise_weighs_more_than_a_floor() -> None:
    world = small_world()
    world.add(job("batch", prompt=30, max_tokens=24, tenant="b"))
    world.step()
    flood(world, guaranteed=True)

    for _ in range(8):
        world.step()

    assert gave(world, "batch")


def test_who_needs_nearly_the_whole_pool_has_it() -> None:
    world = small_world()
    for number in range(3):
        world.add(job(f"batch-{number}", prompt=12, max_tokens=24, tenant="b"))
    world.step()
    huge = job("huge", LATENCY, prompt=SIZE * (BLOCKS - FLOOR) + 8, max_tokens=8, tenant="h")
    world.add(huge)

    assert world.planner.capacity().kv_tokens[LATENCY] < SIZE * (BLOCKS - FLOOR), "it waits for its own"
    for _ in range(14):
        world.step()

    assert "huge" in world.ended
    assert not gave(world, "huge")
    world.finish()
    world.check_outputs(huge)


def test_a_worker_offers_the_blocks_of_a_floor_that_others_hold() -> None:
    world = small_world()
    flood(world)
    for _ in range(8):
        world.step()

    capacity = world.planner.capacity()

    assert (capacity.kv_tokens[LATENCY], capacity.kv_tokens[THROUGHPUT]) == (0, FLOOR * SIZE)


def test_lanes_above_ask_for_the_whole_pool_or_leave_the_floor_that_is_used() -> None:
    world = small_world()
    for number in range(4):
        world.add(job(f"batch-{number}", prompt=34, max_tokens=12, tenant="b"))
    world.step()
    assert world.planner.capacity().kv_tokens[LATENCY] == BLOCKS * SIZE

    world.add(job("chat", LATENCY, prompt=3, max_tokens=4))
    world.step()

    held = 2  # by the chat: its block, and one to grow
    assert world.planner.capacity().kv_tokens[LATENCY] == (BLOCKS - FLOOR - held) * SIZE


@settings(max_examples=30, deadline=None)
@given(
    batch=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10), st.integers(1, 8)), min_size=1, max_size=2),
    chats=st.lists(st.tuples(st.integers(0, 20), st.integers(20, 96), st.integers(1, 24)), min_size=8, max_size=16),
    host_slots=st.sampled_from([0, 5, 200]),
    window=st.sampled_from([4.0, 4096.0]),
)
def test_a_lane_within_its_floor_has_its_first_token_in_time_and_never_gives_a_block(
    batch: list[tuple[int, int, int]],
    chats: list[tuple[int, int, int]],
    host_slots: int,
    window: float,
) -> None:
    """Two of it at most, which fit together at their longest, and have rows of their own; nothing above needs so much
    that it could not run beside the floor."""
    world = World(
        blocks=BLOCKS,
        block_size=SIZE,
        host_slots=host_slots,
        max_sequences=8,
        max_step_tokens=32,
        window=window,
        lanes=floors(),
    )
    first_at, longest = min(at for at, _, _ in batch), max(prompt for _, prompt, _ in batch)
    coming = [
        (at, job(f"b{k}", prompt=prompt, max_tokens=out, tenant="b")) for k, (at, prompt, out) in enumerate(batch)
    ]
    for k, (at, prompt, out) in enumerate(chats):
        coming.append((at, job(f"c{k:02}", LATENCY, prompt=prompt, max_tokens=out, tenant=f"t{k % 5}")))
    for step in range(60):
        for one in [one for at, one in coming if at == step]:
            world.add(one)
        world.step()
        assert not any(gave(world, f"b{k}") for k in range(len(batch)))
        if step >= first_at + longest:  # a token a step at the least
            assert any(world.outputs.get(SeqId(f"b{k}", 0)) for k in range(len(batch)))
    world.finish()
    world.check_outputs(*(one for _, one in coming))
