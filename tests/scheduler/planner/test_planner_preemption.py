"""A lane is a lane all the way down: who yields slots, blocks and prefills to whom, how, and what comes of it."""

import pytest

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import Preempted, Resumed, YieldMode
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job
from tests.support.scheduler.victim_shop import recompute_is_cheap, swap_is_cheap

# What a waiting latency request takes.


def test_it_takes_the_slot_of_running_throughput_work_which_keeps_its_blocks() -> None:
    world = World(max_sequences=2, max_step_tokens=64)
    batch = [job("b1", max_tokens=12), job("b2", max_tokens=12)]
    for one in batch:
        world.add(one)
    world.step()
    chat = job("chat", LATENCY, max_tokens=4)
    world.add(chat)

    world.step()

    assert world.rows()[0] == "chat"
    assert len(world.rows()) == 2
    assert [(event.job_id, event.mode, event.blocks) for event in world.events(Preempted)] == [("b2", "keep", 0)]
    assert world.planner.counts().preempted[THROUGHPUT] == 1
    world.finish()
    assert [event.job_id for event in world.events(Resumed)] == ["b2"], "said once, however long it waited"
    world.check_outputs(chat, *batch)


def test_it_takes_the_blocks_of_running_throughput_work() -> None:
    world = World(blocks=8, block_size=4, max_step_tokens=64)
    batch = [job("b1", prompt=12, max_tokens=12), job("b2", prompt=12, max_tokens=12)]
    for one in batch:
        world.add(one)
    world.step()
    chat = job("chat", LATENCY, prompt=14, max_tokens=4)
    world.add(chat)

    plan, _ = world.step()

    assert [event.job_id for event in plan.events if isinstance(event, Preempted)] == ["b2"]
    assert world.rows() == ["chat", "b1"]
    world.finish()
    world.check_outputs(chat, *batch)


def test_it_takes_the_blocks_of_a_prefill_in_progress() -> None:
    world = World(blocks=16, block_size=4, max_step_tokens=8, host_slots=16)
    batch, chat = job("batch", prompt=56, max_tokens=4), job("chat", LATENCY, prompt=24, max_tokens=2)
    world.add(batch)
    world.step()
    world.step()
    world.add(chat)

    plan, _ = world.step()

    assert [(event.job_id, event.blocks) for event in world.events(Preempted)] == [("batch", 4)]
    assert not plan.swap_out, "nothing was computed in these blocks yet"
    assert world.rows() == ["chat"]
    world.finish()
    world.check_outputs(batch, chat)


@pytest.mark.parametrize("prompt", [1, 10, 30])
@pytest.mark.parametrize("host_slots", [0, 4, 32])
def test_its_first_token_comes_within_its_own_prefill_and_two_steps(prompt: int, host_slots: int) -> None:
    world = World(blocks=24, block_size=4, max_sequences=4, max_step_tokens=16, host_slots=host_slots)
    for number in range(12):
        world.add(job(f"batch-{number}", prompt=9 + number, max_tokens=20))
    waits = []
    for number in range(8):
        for _ in range(7 + number):
            world.step()
        world.add(job(f"chat-{number}", LATENCY, prompt=prompt, max_tokens=1))
        begun = len(world.plans)
        while f"chat-{number}" not in world.ended:
            world.step()
        waits.append(len(world.plans) - begun)

    own = -(-prompt // world.max_step_tokens)
    assert max(waits) <= own + 2
    world.finish()


def test_it_takes_nothing_from_its_own_lane() -> None:
    world = World(blocks=8, block_size=4, max_step_tokens=64)
    running, waiting = job("chat", LATENCY, prompt=20, max_tokens=6), job("next", LATENCY, prompt=20)
    world.add(running)
    world.step()
    world.add(waiting)

    world.step()

    assert world.rows() == ["chat"]
    assert world.plans[-1].waits == {"blocks": 1}
    world.finish()
    assert world.events(Preempted) == []


# How work yields, and comes back.


@pytest.mark.parametrize(("costs", "mode"), [(swap_is_cheap(), "swap"), (recompute_is_cheap(), "recompute")])
def test_victims_yield_by_the_cheaper_mode(costs: CostModel, mode: YieldMode) -> None:
    world = World(blocks=8, block_size=4, max_step_tokens=64, costs=costs)
    jobs = [job("leader", prompt=12, max_tokens=12), job("batch", prompt=8, max_tokens=12)]
    for one in jobs:
        world.add(one)
        world.step()
    jobs.append(job("chat", LATENCY, prompt=12, max_tokens=2))
    world.add(jobs[-1])

    world.step()

    assert [(event.job_id, event.mode) for event in world.events(Preempted)] == [("batch", mode)]
    world.finish()
    world.check_outputs(*jobs)


def test_a_swapped_sequence_resumes_without_computing_anything_again() -> None:
    world = World(costs=swap_is_cheap())
    one = job("a", prompt=12, max_tokens=6)
    world.add(one)
    world.step()
    world.planner.preempt(SeqId("a", 0), "swap")

    out, _ = world.step()
    back, _ = world.step()

    assert len(out.swap_out) == len(back.swap_in) == 3
    assert [len(row.token_ids) for row in back.rows] == [1]
    assert [event.stalled_ms for event in world.events(Resumed)] == [10.0]
    world.finish()
    world.check_outputs(one)
    assert world.planner.host_slots_free == world.host_slots


def test_a_dropped_sequence_computes_prompt_and_output_again() -> None:
    world = World(max_step_tokens=64)
    one = job("a", prompt=12, max_tokens=6)
    world.add(one)
    world.step()
    world.step()
    world.planner.preempt(SeqId("a", 0), "recompute")
    world.step()

    plan, _ = world.step()

    assert [(row.first_position, len(row.token_ids), row.output_index) for row in plan.rows] == [(0, 14, 2)]
    world.finish()
    world.check_outputs(one)


def test_a_swapped_choice_takes_its_shared_blocks_along() -> None:
    world = World(blocks=24, block_size=4, host_slots=16, max_step_tokens=64)
    one = job("a", prompt=14, n=3, max_tokens=8)
    world.add(one)
    for choice in (0, 2, 1):
        world.step()
        world.step()
        world.planner.preempt(SeqId("a", choice), "swap")

    world.finish()

    assert len(world.events(Preempted)) == 3
    world.check_outputs(one)


def test_preempted_work_resumes_before_fresh_work_of_its_lane() -> None:
    world = World(blocks=8, block_size=4, max_step_tokens=64)
    first = job("z-first", prompt=16, max_tokens=12)
    world.add(first)
    world.step()
    chat, fresh = job("chat", LATENCY, prompt=20, max_tokens=2), job("a-fresh", prompt=16, max_tokens=12)
    world.add(chat)
    world.add(fresh, arrived_ms_ago=100_000.0)

    world.finish()

    ends = list(world.ended)
    assert ends == ["chat", "z-first", "a-fresh"]
    world.check_outputs(first, chat, fresh)


def test_growth_takes_from_the_last_ranked_of_the_same_lane() -> None:
    world = World(blocks=8, block_size=4, max_step_tokens=64)
    jobs = [job("a", prompt=8, max_tokens=16), job("b", prompt=8, max_tokens=16)]
    for one in jobs:
        world.add(one)
        world.step()

    world.finish()

    assert {event.job_id for event in world.events(Preempted)} == {"b"}
    assert list(world.ended) == ["a", "b"]
    world.check_outputs(*jobs)


# Exact work.


def test_exact_work_is_swapped_and_never_recomputed() -> None:
    world = World(blocks=12, block_size=4, host_slots=12, max_step_tokens=64, costs=recompute_is_cheap())
    jobs = [job(f"batch-{number}", prompt=12, max_tokens=10, exact=True) for number in range(3)]
    jobs += [job(f"chat-{number}", LATENCY, prompt=16, max_tokens=4) for number in range(3)]
    for one in jobs:
        world.add(one)
        world.step()

    world.finish()

    assert {event.mode for event in world.events(Preempted)} == {"swap"}
    world.check_outputs(*jobs)


def test_with_the_host_full_exact_work_keeps_its_blocks_and_the_request_waits() -> None:
    world = World(blocks=8, block_size=4, host_slots=0, max_step_tokens=64)
    batch, chat = job("batch", prompt=16, max_tokens=8, exact=True), job("chat", LATENCY, prompt=20, max_tokens=2)
    world.add(batch)
    world.step()
    world.add(chat)

    world.step()

    assert world.rows() == ["batch"]
    assert world.plans[-1].waits == {"blocks": 1}
    world.finish()
    assert world.events(Preempted) == []
    world.check_outputs(batch, chat)


def test_exact_work_that_could_lock_itself_out_waits_rather_than_be_recomputed() -> None:
    world = World(blocks=8, block_size=4, host_slots=0, max_step_tokens=64)
    jobs = [job(f"short-{number}", prompt=4, max_tokens=2) for number in range(8)]
    for one in jobs:
        world.add(one)
    world.finish()
    both = [job("a", prompt=8, max_tokens=16, exact=True), job("b", prompt=8, max_tokens=16, exact=True)]
    jobs += both
    for one in both:
        world.add(one)  # both are expected to end as soon as the others did, and do not

    world.finish()

    assert world.events(Preempted) == []
    assert list(world.ended)[-2:] == ["a", "b"]
    world.check_outputs(*jobs)


# Under pressure.


@pytest.mark.parametrize("host_slots", [0, 6, 40])
def test_many_streams_on_a_small_pool_all_finish_with_their_own_tokens(host_slots: int) -> None:
    world = World(blocks=20, block_size=4, host_slots=host_slots, max_sequences=8, max_step_tokens=32)
    jobs = [
        job(f"stream-{number}", LATENCY if number % 4 == 0 else "throughput", prompt=5 + number % 13, max_tokens=12)  # type: ignore[arg-type]
        for number in range(32)
    ]
    for one in jobs:
        world.add(one)
        if len(world.planner.job_ids()) > 12:
            world.step()

    world.finish()

    taken = sum(event.blocks for event in world.events(Preempted))
    assert taken > 2 if host_slots else taken <= 2, "what began in its share of the rows may be computed twice"
    world.check_outputs(*jobs)
    assert world.planner.blocks_free == 20
    assert world.planner.host_slots_free == host_slots


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("blocks", [None, 1, 2])
def test_preemption_at_every_step_changes_no_token(mode: YieldMode, blocks: int | None) -> None:
    world = World(blocks=32, block_size=4, host_slots=32, max_step_tokens=32)
    jobs = [job("a", prompt=9, n=2, max_tokens=8), job("b", LATENCY, prompt=15, max_tokens=8)]
    for one in jobs:
        world.add(one)

    turn = 0
    while world.planner.has_work:
        for seq_id in (SeqId("a", turn % 2), SeqId("b", 0)):
            if turn % 3 == 0:
                world.planner.preempt(seq_id, mode, blocks)
        world.step()
        turn += 1

    assert {event.mode for event in world.events(Preempted)} == {mode}
    world.check_outputs(*jobs)
