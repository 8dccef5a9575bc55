"""The outlet: a gateway gets each token once and in order, and one end, whatever happens to links, leases and store."""

import asyncio

import msgspec
import pytest

from fairlane.gateway.errors import ApiError
from fairlane.scheduler.protocol.messages import (
    Finished,
    Job,
    Outcome,
    Paused,
    PositionLogprobs,
    PromptLogprobs,
    Sampling,
    TokenDelta,
)
from fairlane.worker import output_stream
from fairlane.worker.outlet import LINGER_S, REDIAL_PATIENCES, REDIAL_S, UNREACHED_S
from fairlane.worker.reports import Publication
from tests.support.worker.outlets import PATIENCE_S, OutletWorker, World, quiet, script
from tests.worker.outlet.scenarios import begun, job, play, taken_over


def test_a_job_that_nobody_ran_starts_before_its_gateway_answers() -> None:
    async def scenario(world: World) -> None:
        world.store.put(job())
        await world.all[0].take()
        await quiet()
        world.all[0].step(2)
        world.all[0].turns()
        assert world.gateway.tokens["job", 0] == []
        world.all[0].link.deliver()
        assert world.gateway.tokens["job", 0] == script(job(), 0)[:2]
        await world.finish()

    play(scenario)


def test_a_pause_before_the_gateways_answer_is_sent_with_it() -> None:
    async def scenario(world: World) -> None:
        world.store.put(job(granted_until=2))
        await world.all[0].take()
        await quiet()
        world.all[0].step(2)
        world.all[0].turns()
        world.all[0].link.deliver()
        assert [type(event) for event in world.gateway.events] == [TokenDelta, Paused]
        await world.finish()

    play(scenario)


@pytest.mark.parametrize("a_job", [job(), job(n=3), job(n=2, logprobs=1), job(granted_until=3)], ids=str)
@pytest.mark.parametrize("when", range(14))
def test_a_link_that_is_cut_at_any_point_loses_and_repeats_nothing(when: int, a_job: Job) -> None:
    """Point by point: each write of either end, and each step of the engine."""

    async def scenario(world: World) -> None:
        worker = world.all[0]
        world.store.put(a_job)
        await worker.take()
        await quiet()
        for moment in range(40):
            if moment == when:
                worker.link.cut()
                await quiet()
            worker.link.deliver_to_gateway()
            if moment + 20 == when:
                worker.link.cut()
                await quiet()
            worker.link.deliver_to_worker()
            worker.step()
            worker.turns()
            world.check()
        await world.finish()
        assert worker.started["job"] == 1
        assert (world.store.records["job"].outcome, world.store.records["job"].generated) == (
            Outcome.FINISHED,
            sum(len(script(a_job, choice)) for choice in range(a_job.n)),
        )

    play(scenario, workers=1)


def test_an_end_that_the_gateway_has_is_reported_as_it_was_though_the_link_was_cut_before_its_answer() -> None:
    async def scenario(world: World) -> None:
        worker = await begun(world, 5)
        worker.step()
        worker.turns()
        worker.link.deliver_to_gateway()  # the end; its answer is lost
        assert world.gateway.ends["job"].outcome is Outcome.FINISHED
        worker.link.cut()
        await quiet()
        worker.link.deliver()
        await quiet()
        assert world.store.records["job"].outcome is Outcome.FINISHED
        assert worker.dropped == []
        await world.finish()

    play(scenario)


def test_a_job_that_fails_before_its_gateway_answers_fails_there_too() -> None:
    """Its client would wait for ever otherwise: the store does not notify the gateway of ends that a worker reports."""

    async def scenario(world: World) -> None:
        world.store.put(job())
        worker = world.all[0]
        await worker.take()
        await quiet()
        worker.link.cut()
        worker.fail("job", "it needs too much")
        worker.turns()
        await quiet()
        assert world.store.records["job"].outcome is None
        worker.link.deliver()
        await quiet()
        assert (world.gateway.ends["job"].outcome, world.gateway.ends["job"].error) == (
            Outcome.FAILED,
            "it needs too much",
        )
        assert world.store.records["job"].outcome is Outcome.FAILED

    play(scenario)


def test_a_job_that_its_gateway_does_not_know_is_dropped_and_ended() -> None:
    async def scenario(world: World) -> None:
        worker = await begun(world, 2)
        world.gateway.jobs.clear()
        worker.link.cut()
        await quiet()
        worker.link.deliver()
        await quiet()
        assert (worker.runs, worker.held.ids()) == ({}, [])
        assert world.store.records["job"].outcome is Outcome.CANCELLED

    play(scenario)


def test_a_job_that_its_client_left_ends_once() -> None:
    async def scenario(world: World) -> None:
        worker = await begun(world, 2)
        world.gateway.settle("job")
        worker.step()
        worker.turns()
        worker.link.deliver()
        worker.turns()
        worker.link.deliver()
        await quiet()
        assert world.store.records["job"].outcome is Outcome.CANCELLED
        ends = [item for _, items, _ in world.store.reports for item in items if item.ends is not None]
        assert len(ends) == 1

    play(scenario)


def test_jobs_of_a_gateway_that_stays_out_of_reach_return_to_the_queue_with_what_is_kept() -> None:
    async def scenario(world: World) -> None:
        worker = await begun(world, 2, job(prompt_print="p"))
        worker.link.switch(is_up=False)
        worker.step()
        worker.turns()
        await asyncio.sleep(REDIAL_S - 0.1)
        assert "job" in worker.runs
        await asyncio.sleep(0.2)
        record = world.store.records["job"]
        assert (worker.runs, worker.held.ids()) == ({}, [])
        assert (record.state, record.generated, record.output) == ("queued", 3, (tuple(script(job(), 0)[:3]),))
        await world.finish()

    play(scenario)


def test_a_job_that_never_ran_here_does_not_replace_the_output_that_is_kept() -> None:
    async def scenario(world: World) -> None:
        first = await begun(world, 3, job(prompt_print="p"))
        await first.hand_back()
        await quiet()
        second = world.all[1]
        second.is_up = False
        await second.take()
        await asyncio.sleep(PATIENCE_S + 0.1)
        record = world.store.records["job"]
        assert (record.state, record.output) == ("queued", (tuple(script(job(), 0)[:3]),))
        await world.finish()

    play(scenario)


def test_new_jobs_do_not_postpone_the_return_of_others() -> None:
    """A gateway that one worker cannot reach goes on to queue jobs."""

    async def scenario(world: World) -> None:
        worker = world.all[0]
        worker.is_up = False
        world.store.put(job("first"))
        await worker.take()
        for number in range(8):
            await asyncio.sleep(PATIENCE_S / 4)
            world.store.put(job(f"more-{number}"))
            await worker.take()
        assert "first: gateway gateway cannot be reached" in worker.dropped
        await world.finish()

    play(scenario)


def test_a_finished_job_whose_gateway_is_out_of_reach_returns_and_ends_elsewhere() -> None:
    async def scenario(world: World) -> None:
        worker = await begun(world, 3)
        worker.link.switch(is_up=False)
        worker.step(3)
        worker.turns()
        await asyncio.sleep(PATIENCE_S + 0.1)
        assert world.store.records["job"].state == "queued"
        await world.all[1].take()
        await world.finish()
        assert world.gateway.ends["job"].worker_id == "w1"

    play(scenario)


def test_logprobs_go_on_where_they_were_after_a_takeover_and_a_cut() -> None:
    async def scenario(world: World) -> None:
        await begun(world, 2, job(logprobs=1))
        second = await taken_over(world)
        second.link.deliver()
        second.work()
        second.step()
        second.turns()  # on its way
        second.link.cut()
        await quiet()
        second.link.deliver()
        world.check()
        assert len(world.gateway.logprobs["job", 0]) == 4
        await world.finish()

    play(scenario)


def test_log_probabilities_of_a_prompt_arrive_once_though_a_link_is_cut_and_another_worker_begins_anew() -> None:
    whole = tuple(PositionLogprobs(-float(place), (), 1) for place in range(1, 5))
    asked = msgspec.structs.replace(job(), sampling=Sampling(prompt_logprobs=0))

    def found(worker: OutletWorker, first: int, end: int) -> None:
        event = PromptLogprobs(job_id="job", first=first, logprobs=whole[first - 1 : end - 1])
        worker.outlet.put([Publication(worker.runs["job"].lease, (event,))])

    async def scenario(world: World) -> None:
        world.store.put(asked)
        one = world.all[0]
        await one.take()
        await quiet()
        one.link.deliver()
        found(one, 1, 3)
        one.link.cut()  # before they arrive
        await quiet()
        one.link.deliver()
        live = world.gateway.jobs["job"]
        assert live.prompt_logprobs == [*whole[:2]]
        other = await taken_over(world)
        other.link.deliver()
        found(other, 1, 4)
        found(other, 4, 5)
        other.step(2)
        other.turns()
        other.link.cut()
        await quiet()
        other.link.deliver()
        world.check()
        assert (live.prompt_logprobs, live.choices[0].published) == ([*whole], 2)
        await world.finish()

    play(scenario)


def test_tokens_before_the_log_probabilities_of_their_prompt_fail_the_request() -> None:
    """A worker of an earlier release sends none."""

    async def scenario(world: World) -> None:
        await begun(world, 1, msgspec.structs.replace(job(), sampling=Sampling(prompt_logprobs=0)))
        assert isinstance(world.gateway.fault, ApiError)
        assert world.gateway.tokens == {}

    play(scenario)


def test_a_long_output_is_sent_again_in_messages_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_stream, "TOKENS_PER_MESSAGE", 7)
    many = job(max_tokens=40, n=2, logprobs=1)

    async def scenario(world: World) -> None:
        worker = await begun(world, 1, many)
        worker.link.switch(is_up=False)
        worker.step(60)
        worker.turns()
        worker.link.switch(is_up=True)
        await quiet()
        worker.link.deliver()
        deltas = [event for event in world.gateway.events if isinstance(event, TokenDelta)]
        assert max(len(delta.token_ids) for delta in deltas) == 7
        await quiet()
        assert world.store.records["job"].outcome is Outcome.FINISHED
        await world.finish()

    play(scenario)


def test_an_embedding_arrives_once_though_the_link_is_cut() -> None:
    async def scenario(world: World) -> None:
        world.store.put(job(max_tokens=1))
        worker = world.all[0]
        await worker.take()
        await quiet()
        run = worker.runs.pop("job")
        delta = TokenDelta(
            job_id="job", epoch=1, choice=0, first_index=0, token_ids=(), finish_reason="stop", embedding=b"vec"
        )
        end = Finished(job_id="job", epoch=1, outcome=Outcome.FINISHED)
        worker.link.cut()
        worker.outlet.put([Publication(run.lease, (delta, end), ends=Outcome.FINISHED)])
        await quiet()
        worker.link.deliver_to_gateway()
        worker.link.deliver_to_worker()
        worker.link.deliver_to_gateway()
        worker.link.cut()  # before its answer
        await quiet()
        worker.link.deliver()
        await quiet()
        assert sum(isinstance(event, TokenDelta) and bool(event.embedding) for event in world.gateway.events) == 1
        assert world.gateway.embeddings["job"] == b"vec"
        assert world.store.records["job"].outcome is Outcome.FINISHED

    play(scenario)


@pytest.mark.parametrize("is_linked", [True, False])
def test_a_cancel_while_a_job_waits_for_its_gateway_ends_it_without_starting_it(is_linked: bool) -> None:
    async def scenario(world: World) -> None:
        await begun(world, 2)
        world.all[1].is_up = is_linked
        second = await taken_over(world)
        world.store.cancel("job")
        second.controls()
        if is_linked:
            second.link.deliver()
        await quiet()
        assert second.started["job"] == 0
        assert world.gateway.ends["job"].outcome is Outcome.CANCELLED
        assert world.store.records["job"].outcome is Outcome.CANCELLED
        await world.finish()

    play(scenario)


def test_a_link_without_jobs_is_closed_after_a_while_and_dialled_again() -> None:
    async def scenario(world: World) -> None:
        worker = await begun(world, 6)
        await quiet()
        link = worker.link
        await asyncio.sleep(LINGER_S - 1.0)
        was_open = link.is_open
        await asyncio.sleep(2.0)
        assert (was_open, link.is_open) == (True, False)
        world.store.put(job("next"))
        await worker.take()
        await world.finish()
        assert worker.link is not link

    play(scenario)


def test_a_job_that_comes_back_while_its_gateway_is_out_of_reach_returns_soon() -> None:
    async def scenario(world: World) -> None:
        worker = await begun(world, 2)
        worker.link.switch(is_up=False)
        await asyncio.sleep(PATIENCE_S + 0.1)
        await worker.take()
        assert world.store.records["job"].state == "leased"
        await asyncio.sleep(REDIAL_S + 0.1)
        assert world.store.records["job"].state == "queued"
        await world.finish()

    play(scenario)


def test_a_gateway_is_out_of_reach_from_the_return_of_its_jobs_until_it_is_linked_or_for_a_while() -> None:
    async def scenario(world: World) -> None:
        worker = await begun(world, 2)
        assert worker.outlet.unreached == []
        worker.link.switch(is_up=False)
        await asyncio.sleep(REDIAL_S + 0.1)
        assert (worker.outlet.unreached, worker.reached) == (["gateway"], 0)
        worker.link.switch(is_up=True)
        await quiet()
        assert (worker.outlet.unreached, worker.reached) == ([], 1)
        await worker.take()
        worker.link.switch(is_up=False)
        await asyncio.sleep(REDIAL_S + UNREACHED_S + 0.1)
        assert (worker.outlet.unreached, worker.reached) == ([], 2)
        await world.finish()

    play(scenario)


def test_a_gateway_that_is_gone_is_not_redialled_once_its_jobs_have_returned() -> None:
    async def scenario(world: World) -> None:
        worker = await begun(world, 2)
        worker.link.switch(is_up=False)
        await asyncio.sleep(PATIENCE_S + 0.1)
        assert world.store.records["job"].state == "queued"
        await asyncio.sleep(REDIAL_PATIENCES * PATIENCE_S)
        assert worker.outlet._gateways == {}
        await world.finish()

    play(scenario)
