"""A job's life in a worker: how it runs, in choices, from grant to grant, and goes on from elsewhere."""

import pytest

from fairlane.scheduler.planner.planner import StepOrderError
from fairlane.scheduler.planner.steps import SeqId, StepResult
from fairlane.scheduler.protocol.messages import Outcome, Paused, Preempted, Resumed
from tests.support.scheduler.kv_runner import expected_output
from tests.support.scheduler.planner_world import LATENCY, World, job

# How one job runs.


def test_a_prompt_is_prefilled_in_chunks_and_then_decoded_token_by_token() -> None:
    world = World(max_step_tokens=16)
    one = job("a", prompt=40, max_tokens=3)
    world.add(one)

    steps = world.finish()

    assert [len(plan.rows[0].token_ids) for plan in world.plans] == [16, 16, 8, 1, 1]
    assert [plan.rows[0].samples for plan in world.plans] == [False, False, True, True, True]
    assert steps == 5
    world.check_outputs(one)


def test_prefill_and_decode_share_a_step() -> None:
    world = World(max_step_tokens=16)
    world.add(job("a", prompt=8))
    world.step()
    world.add(job("b", prompt=40))

    plan, _ = world.step()

    assert [(row.seq.job_id, len(row.token_ids)) for row in plan.rows] == [("a", 1), ("b", 15)]


def test_an_empty_worker_plans_nothing() -> None:
    world = World()

    assert world.planner.plan(0.0).is_empty
    assert not world.planner.has_work


def test_a_plan_says_what_it_expects_to_take() -> None:
    world = World()
    world.add(job("a"))

    assert world.step()[0].predicted_ms > 0.0


def test_the_next_plan_waits_for_the_last_result() -> None:
    world = World()
    world.add(job("a"))
    plan = world.planner.plan(0.0)

    with pytest.raises(StepOrderError):
        world.planner.plan(1.0)
    with pytest.raises(StepOrderError):
        world.planner.apply(StepResult(number=plan.number + 1), 1.0)

    world.planner.apply(world.runner.run(plan), 1.0)


def test_a_stop_token_ends_a_choice_early() -> None:
    world = World()
    plain = job("a", max_tokens=8)
    stop = expected_output(plain, 0)[3]
    one = job("a", max_tokens=8, stop=(stop,))
    world.add(one)

    world.finish()

    assert world.outputs[SeqId("a", 0)][-1] == stop
    world.check_outputs(one)


# Choices.


def test_choices_share_the_full_blocks_of_their_prompt() -> None:
    world = World(block_size=4, max_step_tokens=64)
    one = job("a", prompt=14, n=3, max_tokens=4)
    world.add(one)

    first, _ = world.step()
    second, _ = world.step()

    assert [row.seq.choice for row in first.rows] == [0]
    assert {row.block_table[:3] for row in second.rows} == {first.rows[0].block_table[:3]}
    assert [(row.first_position, len(row.token_ids)) for row in second.rows] == [(14, 1), (12, 2), (12, 2)]
    world.finish()
    world.check_outputs(one)


def test_choices_with_a_prompt_within_one_block_run_side_by_side_at_once() -> None:
    world = World(block_size=4)
    one = job("a", prompt=4, n=3)
    world.add(one)

    plan, _ = world.step()

    assert [row.seq.choice for row in plan.rows] == [0, 1, 2]
    world.finish()
    world.check_outputs(one)


def test_choices_share_the_prompt_even_if_the_first_ends_with_its_prefill() -> None:
    world = World(block_size=4, max_step_tokens=64)
    one = job("a", prompt=14, n=2, max_tokens=1)
    world.add(one)

    world.step()
    plan, _ = world.step()

    assert [(row.seq.choice, row.first_position) for row in plan.rows] == [(1, 12)]
    world.check_outputs(one)


def test_a_job_ends_with_its_last_choice() -> None:
    world = World(max_sequences=1)
    one = job("a", n=2, prompt=4, max_tokens=2)
    world.add(one)

    world.step()
    _, outcome = world.step()
    assert (outcome.produced[-1].finish_reason, outcome.ended) == ("length", ())

    world.finish()
    world.check_outputs(one)


# Grants.


def test_at_its_grant_a_choice_pauses_gives_up_its_slot_and_resumes_with_the_next() -> None:
    world = World(max_sequences=1)
    one, other = job("a", LATENCY, max_tokens=6, granted_until=2), job("b", max_tokens=2)
    world.add(one)
    world.add(other)

    world.step()
    world.step()
    plan, _ = world.step()
    assert plan.events == (Paused(job_id="a", choice=0),)
    assert world.rows() == ["b"]
    assert world.plans[-1].waits == {"grant": 1}

    world.planner.grant("a", 6)
    plan, _ = world.step()
    assert [(event.job_id, type(event)) for event in plan.events] == [("a", Resumed), ("b", Preempted)]
    world.finish()
    world.check_outputs(one, other)


def test_nothing_runs_before_the_first_grant() -> None:
    world = World()
    world.add(job("a", granted_until=0))

    assert world.step()[0].is_empty
    assert world.plans[-1].waits == {"grant": 1}


def test_paused_work_yields_its_blocks_to_anybody() -> None:
    world = World(blocks=8, block_size=4)
    paused, other = job("a", LATENCY, prompt=20, max_tokens=6, granted_until=1), job("b", prompt=20)
    world.add(paused)
    world.step()
    world.step()
    world.add(other)

    world.step()
    assert world.rows() == ["b"]

    world.planner.grant("a", 6)
    world.finish()
    world.check_outputs(paused, other)


# Work that began elsewhere.


def test_a_job_goes_on_from_what_was_published_elsewhere() -> None:
    world = World()
    one = job("a", prompt=8, max_tokens=6)
    world.add(one, generated=(tuple(expected_output(one, 0)[:3]),))

    plan, outcome = world.step()

    assert len(plan.rows[0].token_ids) == 11
    assert [(token.index, token.token_id) for token in outcome.produced] == [(3, expected_output(one, 0)[3])]
    world.finish()
    world.check_outputs(one)


def test_choices_that_had_ended_are_not_run_again() -> None:
    world = World()
    one = job("a", prompt=8, n=2, max_tokens=4)
    world.add(one, generated=(tuple(expected_output(one, 0)), tuple(expected_output(one, 1)[:1])))

    world.finish()

    assert {row.seq.choice for plan in world.plans for row in plan.rows} == {1}
    world.check_outputs(one)


def test_a_job_that_was_complete_ends_at_once() -> None:
    world = World()
    one = job("a", max_tokens=4)
    world.add(one, generated=(tuple(expected_output(one, 0)),))

    assert world.planner.has_work
    plan, outcome = world.step()

    assert plan.is_empty
    assert [(end.job_id, end.outcome) for end in outcome.ended] == [("a", Outcome.FINISHED)]
    assert not world.planner.has_work


def test_ends_without_a_step_can_be_collected() -> None:
    world = World()
    one = job("a", max_tokens=4)
    world.add(one, generated=(tuple(expected_output(one, 0)),))

    assert [end.job_id for end in world.planner.collect().ended] == ["a"]
    assert world.planner.collect().ended == ()


def test_taking_a_job_again_replaces_it() -> None:
    world = World()
    one = job("a", max_tokens=4)
    world.add(one)
    world.step()
    world.add(one, generated=(tuple(expected_output(one, 0)[:1]),))

    world.finish()

    world.check_outputs(one)
