"""Planner and runner together: what clients asked for comes out, whatever happened on the way."""

import random

import msgspec
import pytest

from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Outcome, Preempted, Resumed, Sampling, YieldMode
from fairlane.worker.model.reference import TransformersModel
from tests.support.worker.hand import lease
from tests.support.worker.prompts import PROMPTS, alone
from tests.support.worker.stepped import Client


def test_each_job_gets_what_it_would_get_alone(tiny: TransformersModel) -> None:
    client = Client(tiny)
    for index, prompt in enumerate(PROMPTS):
        client.add(lease(str(index), prompt, max_tokens=10))

    client.run()

    assert [alone(tiny, prompt, 10) for prompt in PROMPTS] == [client.tokens[SeqId(str(i), 0)] for i in range(5)]
    assert {Outcome.FINISHED} == {ended.outcome for ended in client.ended.values()}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("mode", "copies_ahead"), [("swap", 0), ("swap", 2), ("recompute", 0), (None, 2)])
def test_preemption_at_any_step_changes_nothing(
    tiny: TransformersModel, mode: YieldMode | None, copies_ahead: int, seed: int
) -> None:
    chooser = random.Random(seed)
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=seed, frequency_penalty=0.3, repetition_penalty=1.1)
    jobs = [lease(str(index), prompt, max_tokens=12, sampling=sampling) for index, prompt in enumerate(PROMPTS)]
    undisturbed = Client(tiny)
    disturbed = Client(tiny, looks_ahead=True, copies_ahead=copies_ahead)
    for job in jobs:
        undisturbed.add(job)
        disturbed.add(job)

    def disturb(_: int) -> None:
        for job_id in disturbed.engine.planner.job_ids():
            if chooser.random() < 0.3:
                kind: YieldMode = mode or ("swap" if chooser.random() < 0.5 else "recompute")
                disturbed.engine.planner.preempt(SeqId(job_id, 0), kind)

    undisturbed.run()
    disturbed.run(disturb)

    assert undisturbed.tokens == disturbed.tokens
    seen = {event.mode for event in disturbed.events if isinstance(event, Preempted)}
    assert seen == ({mode} if mode else {"swap", "recompute"})
    assert any(isinstance(event, Resumed) for event in disturbed.events)


@pytest.mark.parametrize("host_slots", [0, 6, 32])
def test_a_pool_for_a_third_of_the_work_serves_it_all(tiny: TransformersModel, host_slots: int) -> None:
    client = Client(tiny, blocks=18, host_slots=host_slots)
    jobs = [
        lease(f"{lane}{index}", prompt[:20], max_tokens=16, lane=lane)
        for lane in (LaneName.THROUGHPUT, LaneName.LATENCY)
        for index, prompt in enumerate(PROMPTS)
    ]
    late = [job for job in jobs if job.job.lane == LaneName.LATENCY]
    for job in jobs:
        if job not in late:
            client.add(job)

    def arrive(number: int) -> None:
        if number >= 6 and number % 2 == 0 and late:
            client.add(late.pop())

    client.run(arrive)

    assert any(isinstance(event, Preempted) for event in client.events)
    assert {Outcome.FINISHED} == {ended.outcome for ended in client.ended.values()}
    for job in jobs:
        assert alone(tiny, list(job.job.prompt), 16) == client.tokens[SeqId(job.job.job_id, 0)]


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_choices_are_those_of_separate_requests_even_when_preempted(tiny: TransformersModel, mode: YieldMode) -> None:
    chooser = random.Random(1)
    sampling = Sampling(seed=9)
    client = Client(tiny)
    client.add(lease("a", PROMPTS[2], max_tokens=10, n=4, sampling=sampling))

    def disturb(_: int) -> None:
        client.engine.planner.preempt(SeqId("a", chooser.randrange(4)), mode)

    client.run(disturb)

    expected = Client(tiny)
    expected.add(lease("a", PROMPTS[2], max_tokens=10, n=4, sampling=sampling))
    expected.run()
    assert expected.tokens == client.tokens
    assert len({tuple(tokens) for tokens in client.tokens.values()}) == 4


def test_a_stop_token_ends_a_choice_and_is_delivered(tiny: TransformersModel) -> None:
    tokens = alone(tiny, PROMPTS[1], 8)
    stop = tokens[4]
    client = Client(tiny)
    client.add(lease("a", PROMPTS[1], max_tokens=8, sampling=Sampling(temperature=0.0, stop_token_ids=(stop,))))

    client.run()

    assert tokens[: tokens.index(stop) + 1] == client.tokens[SeqId("a", 0)]
    assert client.deltas[-1].finish_reason == "stop"


def test_min_tokens_holds_the_stop_token_back(tiny: TransformersModel) -> None:
    first = alone(tiny, PROMPTS[1], 1)[0]
    client = Client(tiny)
    sampling = Sampling(temperature=0.0, stop_token_ids=(first,), min_tokens=5)
    client.add(lease("a", PROMPTS[1], max_tokens=9, sampling=sampling))

    client.run()

    found = client.tokens[SeqId("a", 0)]
    assert first not in found[:5]
    assert len(found) >= 6


def test_deltas_carry_epoch_index_logprobs_and_the_end(tiny: TransformersModel) -> None:
    client = Client(tiny)
    job = lease("a", PROMPTS[1], max_tokens=3, sampling=Sampling(temperature=0.0, logprobs=2))
    client.add(msgspec.structs.replace(job, epoch=7))

    client.run()

    assert [(d.epoch, d.choice, d.first_index) for d in client.deltas] == [(7, 0, 0), (7, 0, 1), (7, 0, 2)]
    assert [delta.finish_reason for delta in client.deltas] == [None, None, "length"]
    assert all(len(delta.logprobs) == 1 and len(delta.logprobs[0].top) == 2 for delta in client.deltas)


def test_a_job_taken_over_continues_after_what_was_published(tiny: TransformersModel) -> None:
    sampling = Sampling(seed=4)
    whole = Client(tiny)
    whole.add(lease("a", PROMPTS[3], max_tokens=12, sampling=sampling))
    whole.run()
    tokens = whole.tokens[SeqId("a", 0)]

    heir = Client(tiny)
    heir.tokens[SeqId("a", 0)] = tokens[:5]
    heir.add(lease("a", PROMPTS[3], max_tokens=12, sampling=sampling, generated=(tuple(tokens[:5]),)))
    heir.run()

    assert whole.tokens == heir.tokens


def test_a_cancel_frees_the_blocks_at_once_and_silences_the_job(tiny: TransformersModel) -> None:
    client = Client(tiny)
    client.add(lease("a", PROMPTS[2], max_tokens=30))
    client.add(lease("b", PROMPTS[1], max_tokens=5))
    client.step()
    client.step()
    free = client.engine.planner.blocks_free

    ended = client.engine.cancel("a")

    assert ended is not None
    assert ended.outcome == Outcome.CANCELLED
    assert client.engine.planner.blocks_free > free
    said = len(client.tokens[SeqId("a", 0)])
    client.run()
    assert said == len(client.tokens[SeqId("a", 0)])
    assert client.engine.cancel("a") is None


def test_a_dropped_job_says_nothing_more(tiny: TransformersModel) -> None:
    client = Client(tiny)
    client.add(lease("a", PROMPTS[2], max_tokens=30))
    client.step()

    client.engine.drop("a")

    client.run()
    assert "a" not in client.ended


def test_a_job_that_cannot_be_computed_fails_and_the_others_go_on(tiny: TransformersModel) -> None:
    client = Client(tiny)
    client.add(lease("bad", [1, 500, 2], max_tokens=5))
    client.add(lease("good", PROMPTS[2], max_tokens=5))

    client.run()

    assert client.ended["bad"].outcome == Outcome.FAILED
    assert "token" in client.ended["bad"].error
    assert alone(tiny, PROMPTS[2], 5) == client.tokens[SeqId("good", 0)]


def test_without_a_grant_a_job_pauses_and_with_one_it_goes_on(tiny: TransformersModel) -> None:
    job = lease("a", PROMPTS[1], max_tokens=8)
    client = Client(tiny)
    client.add(msgspec.structs.replace(job, job=msgspec.structs.replace(job.job, granted_until=3)))
    for _ in range(8):
        client.step()
    assert len(client.tokens[SeqId("a", 0)]) == 3

    client.engine.grant("a", 8)
    client.run()

    assert alone(tiny, PROMPTS[1], 8) == client.tokens[SeqId("a", 0)]


def test_a_job_that_can_never_fit_ends_with_the_reason(tiny: TransformersModel) -> None:
    client = Client(tiny, blocks=4)
    client.add(lease("a", PROMPTS[4], max_tokens=50))

    client.run()

    assert client.ended["a"].outcome == Outcome.FAILED
    assert "KV tokens" in client.ended["a"].error
