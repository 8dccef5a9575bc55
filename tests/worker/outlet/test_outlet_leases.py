"""The outlet's jobs in the store: leases that end or are forgotten, reports, and returns to the queue."""

import asyncio

import msgspec
import pytest

from fairlane.scheduler.links.frames import Open
from fairlane.scheduler.protocol.messages import Finished, Outcome
from tests.support.worker.outlets import World, quiet, script
from tests.worker.outlet.scenarios import begun, job, play, taken_over


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


def test_a_guarantees_first_token_is_reported_at_once() -> None:
    async def scenario(world: World) -> None:
        await begun(world, 1, msgspec.structs.replace(job(), guaranteed=True))
        await quiet()
        (report,) = world.store.reports
        assert [(item.generated, item.ends) for item in report[1]] == [(1, None)]
        await world.finish()

    play(scenario)
