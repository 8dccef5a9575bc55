"""A job by itself: which news it accepts, and what it comes to at each end."""

import asyncio

import msgspec
import pytest

from fairlane.gateway.errors import ApiError, internal_error
from fairlane.gateway.request.live_request import MAX_NOTICES, LiveJob, job_ids, total
from fairlane.quotas.store import Charge
from fairlane.scheduler.protocol.messages import (
    Finished,
    FinishReason,
    Outcome,
    PositionLogprobs,
    Preempted,
    TokenDelta,
)
from tests.support.gateway.one_request import job


def tokens(first: int, *ids: int, choice: int = 0, finish: FinishReason | None = None) -> TokenDelta:
    logprobs = tuple(PositionLogprobs(-float(token), ()) for token in ids)
    return TokenDelta(
        job_id="f",
        epoch=1,
        choice=choice,
        first_index=first,
        token_ids=ids,
        logprobs=logprobs,
        finish_reason=finish,
    )


def finished(outcome: Outcome = Outcome.FINISHED, epoch: int = 1, cached: int = 0) -> Finished:
    return Finished(job_id="f", epoch=epoch, outcome=outcome, cached_tokens=cached, preemptions=2)


def heard(airborne: LiveJob) -> list[object]:
    return [news for _, news in airborne.request.take_news()]


def test_tokens_told_twice_are_heard_once() -> None:
    airborne = job()
    for delta in (tokens(0, 5, 6), tokens(0, 5, 6), tokens(1, 6, 7), tokens(0, 5)):
        airborne.accept(delta)

    assert heard(airborne) == [tokens(0, 5, 6), tokens(2, 7)]
    assert airborne.choices[0].published == 3


def test_a_gap_ends_the_job_with_a_fault() -> None:
    airborne = job()
    airborne.accept(tokens(0, 5))
    airborne.accept(tokens(2, 7))

    first, fault = heard(airborne)
    assert first == tokens(0, 5)
    assert isinstance(fault, ApiError)
    assert fault.code == internal_error().code
    assert airborne.choices[0].published == 1


@pytest.mark.anyio
async def test_nothing_is_heard_after_the_end_or_of_a_choice_that_is_not_there() -> None:
    airborne = job(n=2)
    waiting = asyncio.create_task(airborne.end())
    await asyncio.sleep(0)
    for event in (tokens(0, 5, choice=1), tokens(0, 5, choice=2), finished(), tokens(0, 5)):
        airborne.accept(event)

    assert heard(airborne) == [tokens(0, 5, choice=1), finished()]
    await waiting
    await airborne.end()


def test_a_slow_client_loses_notices_and_never_tokens() -> None:
    airborne = job()
    for index in range(2 * MAX_NOTICES):
        airborne.accept(Preempted(job_id="f", choice=0, mode="swap", blocks=1, predicted_ms=1.0))
        airborne.accept(tokens(index, 5))

    told = heard(airborne)
    assert sum(isinstance(news, TokenDelta) for news in told) == 2 * MAX_NOTICES
    assert sum(isinstance(news, Preempted) for news in told) <= MAX_NOTICES


@pytest.mark.parametrize(
    ("outcome", "published", "taken", "prompt", "output"),
    [
        (Outcome.FINISHED, 4, True, 10, 4),
        (Outcome.CANCELLED, 4, True, 10, 4),
        (Outcome.CANCELLED, 0, True, 10, 0),  # its prompt was being computed
        (Outcome.CANCELLED, 0, False, 0, 0),  # it never left the queue
        (Outcome.EXPIRED, 4, True, 10, 4),
        (Outcome.EXPIRED, 0, True, 0, 0),
        (Outcome.FAILED, 4, True, 10, 4),
        (Outcome.FAILED, 0, True, 0, 0),
    ],
)
def test_an_end_charges_what_was_published(
    outcome: Outcome, published: int, taken: bool, prompt: int, output: int
) -> None:
    airborne = job()
    airborne.choices[0].published = published

    charge = airborne.charge(outcome, taken=taken)

    assert (charge.outcome, charge.prompt_tokens, charge.output_tokens) == (outcome.value, prompt, output)


def test_a_rejected_job_is_given_back_whole() -> None:
    airborne = job()
    airborne.choices[0].published = 4

    assert airborne.charge(Outcome.REJECTED) == Charge.refund()


def test_a_stop_string_bounds_the_charge() -> None:
    airborne = job(n=2)
    airborne.choices[0].published, airborne.choices[0].stopped_at = 7, 3
    airborne.choices[1].published = 5

    assert airborne.charge(Outcome.CANCELLED).output_tokens == 3 + 5


def test_the_end_tells_cached_tokens_and_preemptions() -> None:
    airborne = job()
    airborne.accept(tokens(0, 5))
    airborne.accept(finished(cached=99))

    charge = airborne.charge(Outcome.FINISHED)

    assert (charge.cached_tokens, charge.preemptions) == (10, 2)


def test_cached_tokens_are_known_before_the_end() -> None:
    """A stop string ends a request for its client before its worker has heard of that."""
    airborne = job()
    airborne.accept(msgspec.structs.replace(tokens(0, 5), cached_tokens=8))
    airborne.accept(tokens(1, 6))
    airborne.choices[0].stopped_at = 1

    assert airborne.charge(Outcome.FINISHED).cached_tokens == 8


def test_a_request_comes_to_the_sum_of_its_jobs_and_ends_as_the_worst_of_them() -> None:
    finished_one = Charge(prompt_tokens=5, cached_tokens=2, output_tokens=7, outcome="finished", preemptions=1)
    expired_one = Charge(prompt_tokens=0, output_tokens=0, outcome="expired", preemptions=2)
    cancelled_one = Charge(prompt_tokens=3, output_tokens=1, outcome="cancelled")

    assert total([finished_one, expired_one, cancelled_one, Charge.refund()]) == Charge(
        prompt_tokens=8, cached_tokens=2, output_tokens=8, outcome="expired", preemptions=3
    )
    assert total([finished_one]) == finished_one
    assert total([Charge.refund(), Charge.refund()]) == total([]) == Charge.refund()


def test_the_jobs_of_a_booking_are_known_by_its_id() -> None:
    assert job_ids("f", 3) == ["f", "f-001", "f-002"]
