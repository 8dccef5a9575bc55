"""How a job ends, what it is charged, and what the worker reports of all of them."""

from dataclasses import replace

import pytest

from fairlane.scheduler.planner.steps import SeqId, StepPlan, StepResult
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Outcome, Paused
from tests.support.scheduler.kv_runner import expected_output
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job

# How a job ends.


def test_a_cancelled_job_frees_its_blocks_at_once() -> None:
    world = World()
    world.add(job("a", n=2))
    world.step()

    ended = world.planner.cancel("a")

    assert ended is not None
    assert ended.outcome is Outcome.CANCELLED
    assert world.planner.blocks_free == world.blocks
    assert world.planner.cancel("a") is None


def test_nothing_is_said_of_a_job_after_its_end() -> None:
    world = World()
    world.add(job("a", granted_until=1))
    world.add(job("b"))
    world.step()
    world.planner.cancel("a")

    plan, _ = world.step()

    assert [event for event in plan.events if isinstance(event, Paused)] == []


def test_tokens_of_a_job_cancelled_while_its_step_runs_are_dropped() -> None:
    world = World()
    world.add(job("a"))
    world.add(job("b"))
    plan = world.planner.plan(0.0)
    result = world.runner.run(plan)
    world.planner.cancel("a")

    outcome = world.planner.apply(result, 1.0)

    assert [token.seq.job_id for token in outcome.produced] == ["b"]
    world.planner.check_integrity()


def test_a_dropped_job_leaves_without_a_word() -> None:
    world = World()
    world.add(job("a"))
    world.step()

    world.planner.drop("a")

    assert world.planner.blocks_free == world.blocks
    assert world.planner.collect().ended == ()


def test_a_failed_row_ends_its_job_and_no_other() -> None:
    world = World(max_step_tokens=64)
    bad, good = job("bad", n=2), job("good")
    world.add(bad)
    world.add(good)
    world.step()

    _, outcome = world.step({SeqId("bad", 1): "logits are not finite"})

    assert [(end.outcome, end.error) for end in outcome.ended] == [(Outcome.FAILED, "logits are not finite")]
    assert {token.seq.job_id for token in outcome.produced} == {"good"}
    world.finish()
    world.check_outputs(good)


def test_a_row_without_its_token_fails_its_job() -> None:
    world = World()
    world.add(job("a"))
    plan = world.planner.plan(0.0)

    outcome = world.planner.apply(StepResult(number=plan.number), 1.0)

    assert outcome.ended[0].outcome is Outcome.FAILED


def test_what_can_never_fit_fails_with_the_limit() -> None:
    world = World(blocks=16, block_size=4)
    world.add(job("a", prompt=60, max_tokens=5))

    (end,) = world.planner.collect().ended

    assert (end.outcome, end.error) == (
        Outcome.FAILED,
        "prompt and max_tokens need 65 KV tokens, and the worker holds 64",
    )


def test_what_fits_exactly_runs_alone_to_its_end() -> None:
    world = World(blocks=16, block_size=4)
    one = job("a", prompt=52, max_tokens=12)
    world.add(one)

    world.finish()

    world.check_outputs(one)


@pytest.mark.parametrize(
    ("deadlines", "error"),
    [
        ({"deadline_ms": 45.0}, "the deadline of 45 ms has passed"),
        ({"hard_ttft_ms": 45.0}, "no token within 45 ms"),
    ],
)
def test_a_stated_deadline_ends_a_waiting_job(deadlines: dict[str, float], error: str) -> None:
    world = World(max_sequences=1)
    world.add(job("a", LATENCY, max_tokens=30))
    world.add(job("b", **deadlines))  # type: ignore[arg-type]

    for _ in range(6):
        world.step()

    assert (world.ended["b"].outcome, world.ended["b"].error) == (Outcome.EXPIRED, error)


@pytest.mark.parametrize("kind", ["deadline_ms", "hard_ttft_ms"])
def test_a_stated_deadline_replaces_the_lanes_longest_wait(kind: str) -> None:
    lanes = {**DEFAULT_LANES, LATENCY: replace(DEFAULT_LANES[LATENCY], max_wait_ms=45.0)}
    world = World(max_sequences=1, lanes=lanes)
    world.add(job("a", LATENCY, max_tokens=30))
    world.add(job("patient", LATENCY, **{kind: 1_000.0}))  # type: ignore[arg-type]
    world.add(job("other", LATENCY))

    world.finish()

    assert world.ended["other"].outcome is Outcome.EXPIRED
    assert world.ended["patient"].outcome is Outcome.FINISHED


def test_a_first_token_in_time_satisfies_its_deadline() -> None:
    world = World()
    one = job("a", hard_ttft_ms=45.0, max_tokens=20)
    world.add(one)

    world.finish()

    world.check_outputs(one)


def test_a_deadline_ends_a_running_job() -> None:
    world = World()
    world.add(job("a", deadline_ms=45.0, max_tokens=20))

    world.finish()

    assert world.ended["a"].outcome is Outcome.EXPIRED
    assert len(world.outputs[SeqId("a", 0)]) == 4


def test_a_missed_lane_target_ends_nothing() -> None:
    world = World()
    one = job("a", LATENCY)
    world.add(one, arrived_ms_ago=30_000.0)

    world.finish()

    world.check_outputs(one)


def test_work_that_never_began_expires_with_its_lanes_longest_wait() -> None:
    world = World()
    world.add(job("a", LATENCY), arrived_ms_ago=60_000.0)

    world.finish()

    assert world.ended["a"].outcome is Outcome.EXPIRED


# What is charged.


def test_prompt_tokens_count_once_and_output_tokens_twice() -> None:
    world = World(max_step_tokens=8)
    world.add(job("a", prompt=12, max_tokens=3))

    charges = []
    while world.planner.has_work:
        charges.append(world.step()[1].charges["a"])

    assert charges == [8.0, 4.0 + 2.0, 2.0, 2.0]


def test_all_choices_together_pay_the_prompt_once() -> None:
    world = World(max_step_tokens=64)
    world.add(job("a", prompt=14, n=3, max_tokens=2))

    total = 0.0
    while world.planner.has_work:
        total += world.step()[1].charges["a"]

    assert total == 14.0 + 3 * 2 * 2.0


def test_our_own_recompute_is_free_of_charge() -> None:
    world = World(max_step_tokens=8)
    world.add(job("a", prompt=12, max_tokens=6))

    total, steps = 0.0, 0
    while world.planner.has_work:
        if steps in (1, 4, 8):
            world.planner.preempt(SeqId("a", 0), "recompute")
        total += world.step()[1].charges.get("a", 0.0)
        steps += 1

    assert world.ended["a"].preemptions == 3
    assert total == 12.0 + 6 * 2.0


def test_a_job_taken_over_pays_only_for_new_tokens() -> None:
    world = World()
    one = job("a", prompt=12, max_tokens=6)
    world.add(one, generated=(tuple(expected_output(one, 0)[:4]),))

    total = 0.0
    while world.planner.has_work:
        total += world.step()[1].charges["a"]

    assert total == 2 * 2.0


# What a worker reports.


def test_counts_and_capacity_of_an_empty_worker() -> None:
    world = World(blocks=16, block_size=4, max_sequences=4)

    capacity = world.planner.capacity()

    assert capacity.sequences == {LATENCY: 4, THROUGHPUT: 4}
    assert capacity.kv_tokens == {LATENCY: 64, THROUGHPUT: 64}
    assert world.planner.counts().running == {"latency": 0, "throughput": 0}


def test_a_lane_could_take_what_lower_lanes_hold() -> None:
    world = World(blocks=16, block_size=4, max_sequences=4, max_step_tokens=64)
    for name in "abcd":
        world.add(job(name, THROUGHPUT, prompt=12, max_tokens=3))
    world.step()

    capacity = world.planner.capacity()

    assert capacity.sequences == {LATENCY: 4, THROUGHPUT: 0}
    assert capacity.kv_tokens[LATENCY] == 64
    assert capacity.kv_tokens[THROUGHPUT] == 0
    assert world.planner.counts().running == {"latency": 0, "throughput": 4}


def test_a_row_whose_next_token_is_its_last_is_room_for_another() -> None:
    world = World(blocks=16, block_size=4, max_sequences=2, max_step_tokens=64)
    world.add(job("ends", THROUGHPUT, prompt=4, max_tokens=2))
    world.add(job("stays", THROUGHPUT, prompt=4, max_tokens=3))
    world.step()

    assert world.planner.capacity().sequences[THROUGHPUT] == 1
    world.add(job("next", THROUGHPUT, prompt=4, max_tokens=2))
    assert world.planner.capacity().sequences[THROUGHPUT] == 0

    steps = [{row.seq.job_id for row in world.step()[0].rows} for _ in range(2)]
    assert steps == [{"ends", "stays"}, {"stays", "next"}]


def test_work_that_waits_here_already_is_no_room() -> None:
    world = World(blocks=16, block_size=4, max_sequences=4)
    world.add(job("a", LATENCY, prompt=20, n=2))

    capacity = world.planner.capacity()

    assert capacity.sequences[LATENCY] == 2
    assert capacity.kv_tokens[LATENCY] == 64 - 2 * 24


def test_counts_tell_running_waiting_and_preempted_apart() -> None:
    world = World(max_sequences=1, max_step_tokens=64)
    world.add(job("a", n=2, prompt=4))
    world.step()
    world.planner.preempt(SeqId("a", 0), "swap")
    world.step()

    counts = world.planner.counts()

    assert (counts.running["throughput"], counts.waiting["throughput"]) == (1, 1)
    assert counts.preempted["throughput"] == 1


def test_the_same_calls_give_the_same_plans() -> None:
    def history() -> list[StepPlan]:
        world = World(blocks=12, host_slots=4)
        for number in range(6):
            lane = LATENCY if number % 3 == 2 else THROUGHPUT
            world.add(job(f"job-{number}", lane, prompt=9 + number, n=1 + number % 2, tenant=f"t{number % 2}"))
            world.step()
        world.finish()
        return world.plans

    assert history() == history()
