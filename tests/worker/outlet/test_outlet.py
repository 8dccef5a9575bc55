"""The outlet: a gateway gets each token once and in order, and one end, whatever happens to links, leases and store."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from fairlane.gateway.errors import ApiError
from fairlane.scheduler.links.frames import Open
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
from tests.support.worker import scripted
from tests.support.worker.outlets import PATIENCE_S, OutletWorker, World, quiet, script
from tests.support.worker.virtual import in_virtual_time

Scenario = Callable[[World], Awaitable[None]]


def job(
    job_id: str = "job", *, max_tokens: int = 6, n: int = 1, granted_until: int | None = None,
    logprobs: int | None = None, prompt_print: str = "",
) -> Job:  # fmt: skip
    plain = scripted.job(job_id, max_tokens=max_tokens, n=n, granted_until=granted_until)
    return msgspec.structs.replace(plain, sampling=Sampling(logprobs=logprobs), prompt_print=prompt_print)


def play(scenario: Scenario, *, workers: int = 2) -> World:
    """Run a scenario in virtual time."""

    async def whole() -> World:
        world = World(workers)
        try:
            await scenario(world)
        finally:
            await world.aclose()
        return world

    return in_virtual_time(whole())


async def begun(world: World, tokens: int, a_job: Job | None = None) -> OutletWorker:
    """Let the first worker take a job, and its gateway receive so many tokens."""
    worker = world.all[0]
    world.store.put(a_job or job())
    await worker.take()
    await quiet()
    worker.link.deliver()
    worker.work(tokens)
    return worker


async def taken_over(world: World) -> OutletWorker:
    """The first worker's lease expires, and the second takes its job."""
    world.store.expire("w0")
    await world.all[1].take()
    await quiet()
    return world.all[1]


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


def test_a_job_that_is_taken_over_waits_for_its_gateway_and_starts_with_its_tokens() -> None:
    async def scenario(world: World) -> None:
        await begun(world, 3)
        second = await taken_over(world)
        assert second.started["job"] == 0
        second.link.deliver()
        assert second.runs["job"].lease.generated == (tuple(script(job(), 0)[:3]),)
        second.work()
        assert world.gateway.tokens["job", 0] == script(job(), 0)[:4]
        assert world.gateway.epochs["job"] == {1, 3}
        await world.finish()
        assert world.gateway.ends["job"].worker_id == "w1"

    play(scenario)


def test_the_worker_that_lost_a_job_is_refused_and_keeps_nothing_of_it() -> None:
    async def scenario(world: World) -> None:
        first = await begun(world, 2)
        second = await taken_over(world)
        second.link.deliver()
        first.step()
        first.turns()
        first.link.deliver()
        assert first.runs == {}
        await quiet()
        assert first.held.ids() == []
        second.work()
        assert world.gateway.tokens["job", 0] == script(job(), 0)[:3]
        await world.finish()

    play(scenario)


def test_a_later_lease_that_the_store_forgot_is_taken_again_and_not_ended() -> None:
    """The gateway has seen a later epoch than the store knows: the job must neither end nor hang."""

    async def scenario(world: World) -> None:
        world.store.put(job())
        before = world.store.saved()
        await world.all[0].take()
        await quiet()
        world.all[0].work(2)
        second = await taken_over(world)  # under epoch 3
        second.work(1)
        await world.all[0].hand_back()
        await quiet()
        world.store.forget(before)
        await world.all[0].take()  # under epoch 1
        await quiet()
        world.all[0].link.deliver()
        await quiet()
        assert (world.store.records["job"].state, world.store.records["job"].epoch) == ("queued", 2)
        await world.finish()
        assert world.gateway.ends["job"].outcome is Outcome.FINISHED

    play(scenario)


def test_a_gateway_with_more_tokens_than_the_worker_restarts_the_job_from_them() -> None:
    """The store forgot a lease, and so gave the job out as one that nobody has run."""

    async def scenario(world: World) -> None:
        world.store.put(job())
        before = world.store.saved()
        await world.all[0].take()
        await quiet()
        world.all[0].work(4)
        world.store.forget(before)
        world.all[0].link.switch(is_up=False)
        second = world.all[1]
        await second.take()
        await quiet()
        second.step(2)
        second.turn()
        second.link.deliver()
        assert (second.started["job"], second.runs["job"].lease.generated) == (2, (tuple(script(job(), 0)[:4]),))
        second.turns()  # the engine's report of the run that was replaced
        second.work()
        second.link.cut()
        await quiet()
        second.link.deliver()
        assert world.gateway.tokens["job", 0] == script(job(), 0)[:5]
        await world.finish()

    play(scenario)


def test_the_end_of_a_run_that_was_replaced_does_not_end_the_job() -> None:
    async def scenario(world: World) -> None:
        world.store.put(job())
        before = world.store.saved()
        await world.all[0].take()
        await quiet()
        world.all[0].work(3)
        world.store.forget(before)
        world.all[0].link.switch(is_up=False)
        second = world.all[1]
        await second.take()
        await quiet()
        second.step(6)  # the engine has ended it, and nobody knows yet
        second.link.deliver()
        assert second.started["job"] == 2
        second.turns()
        await world.finish()
        assert world.gateway.ends["job"].outcome is Outcome.FINISHED

    play(scenario)


def test_the_report_of_a_lease_that_the_store_forgot_does_not_end_its_successor() -> None:
    """Both have epoch 1: the report of the first one's end is confirmed while the second one runs."""

    async def scenario(world: World) -> None:
        worker = world.all[0]
        world.store.put(job())
        before = world.store.saved()
        await worker.take()
        world.gateway.accept(Finished(job_id="job", epoch=1, outcome=Outcome.CANCELLED))
        world.store.away = True
        await quiet()
        worker.link.deliver()
        await quiet()  # the report has failed, and will be repeated
        world.store.away = False
        for _ in range(2):  # the first time, it holds the lease already, and returns it
            world.store.forget(before)
            await worker.take()
        assert (worker.held.epochs(["job"]), list(worker.runs)) == ([("job", 1)], ["job"])
        await asyncio.sleep(1.0)
        assert worker.held.ids() == list(worker.runs)
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


def test_a_report_is_repeated_under_its_serial_until_the_store_answers_and_counted_once() -> None:
    async def scenario(world: World) -> None:
        worker = await begun(world, 5)
        world.store.loses_answers = 2
        worker.work()
        await asyncio.sleep(1.0)
        calls = [(items, serial) for _, items, serial in world.store.reports]
        assert len(calls) == 3
        assert calls[0] == calls[1] == calls[2]
        assert world.store.records["job"].cost == 6.0
        await world.finish()
        assert world.store.records["job"].cost == 6.0

    play(scenario)


def test_an_absent_store_stops_no_stream() -> None:
    async def scenario(world: World) -> None:
        worker = await begun(world, 1)
        world.store.away = True
        worker.work(5)
        await quiet()
        assert world.gateway.ends["job"].outcome is Outcome.FINISHED
        assert worker.held.ids() == ["job"]
        await world.finish()
        assert world.store.records["job"].outcome is Outcome.FINISHED

    play(scenario)


@pytest.mark.parametrize("reports", [False, True], ids=["unreported", "report under way"])
def test_a_job_that_is_leased_again_to_the_same_worker_replaces_its_older_stream(reports: bool) -> None:
    async def scenario(world: World) -> None:
        worker = await begun(world, 2)
        if reports:
            world.store.away = True
            await worker.hand_back()
            await quiet()
        world.store.expire("w0")
        world.store.away = False
        await worker.take()
        assert worker.runs == {}
        worker.step()
        worker.turns()
        await asyncio.sleep(1.0)  # the report is repeated, and refused
        assert worker.outlet.waiting() == ["job"]
        worker.work(2)
        assert world.gateway.tokens["job", 0] == script(job(), 0)[: len(world.gateway.tokens["job", 0])]
        assert [open_.epoch for open_ in world.gateway.addressed if isinstance(open_, Open)] == [1, 3]
        assert "job" in worker.runs
        assert world.store.records["job"].state == "leased"
        await world.finish()

    play(scenario, workers=1)


def test_a_refused_report_of_one_lease_does_not_end_the_next() -> None:
    """The store names refused jobs by id."""

    async def scenario(world: World) -> None:
        worker = await begun(world, 2)
        world.store.away = True
        stream = worker.outlet._streams["job"]
        stream.reports.want(stream)
        await quiet()
        world.store.expire("w0")
        await worker.take()
        await quiet()
        worker.link.deliver()
        world.store.away = False
        await asyncio.sleep(1.0)
        assert worker.runs["job"].lease.epoch == 3
        await world.finish()

    play(scenario, workers=1)


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


def test_a_drain_returns_running_and_waiting_jobs_and_announces_it() -> None:
    async def scenario(world: World) -> None:
        first = await begun(world, 2, job("running", prompt_print="p"))
        world.store.put(job("waiting"), generated=1)
        await first.take()
        await quiet()
        await first.hand_back()
        first.link.deliver()  # the answer for the waiting job comes too late
        await first.outlet.flushed()
        first.link.deliver()
        assert (first.runs, first.held.ids(), first.outlet.waiting()) == ({}, [], [])
        assert {record.state for record in world.store.records.values()} == {"queued"}
        assert world.store.records["running"].output == (tuple(script(job(), 0)[:2]),)
        assert all(live.stream is None for live in world.gateway.jobs.values())
        await asyncio.wait_for(first.outlet.emptied(), 1.0)
        await world.finish()

    play(scenario)


def test_a_worker_that_leaves_returns_what_its_gateways_did_not_confirm() -> None:
    async def scenario(world: World) -> None:
        worker = await begun(world, 2)
        worker.step(4)
        worker.turns()
        worker.link.switch(is_up=False)
        await worker.outlet.hand_back_all()
        assert world.store.records["job"].state == "queued"
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


def test_a_guarantees_first_token_is_reported_at_once() -> None:
    async def scenario(world: World) -> None:
        await begun(world, 1, msgspec.structs.replace(job(), guaranteed=True))
        await quiet()
        (report,) = world.store.reports
        assert [(item.generated, item.ends) for item in report[1]] == [(1, None)]
        await world.finish()

    play(scenario)
