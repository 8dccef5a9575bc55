"""The engine thread: what the loop tells it holds from the next step on, reports miss nothing, its pipe is heard."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from threading import Thread

import pytest

from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.messages import Cancel, Finished, Grant, Lease, Outcome, Paused, TokenDelta
from fairlane.worker.engine_thread import Drop, EngineThread, WakeUpPipe
from fairlane.worker.reports import LaneTokens, Publication, Report
from tests.support.worker.scripted import LIMIT_S, ScriptedRunner, engine, job, lease

pytestmark = pytest.mark.anyio


@dataclass
class Desk:
    """The event loop's side of an engine thread."""

    runner: ScriptedRunner
    reports: list[Report] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.engine = engine(self.runner)
        self.thread = EngineThread(self.engine, "worker")

    def turned(self, report: Report) -> None:
        self.reports.append(report)
        self._news.set()

    def failed(self, error: Exception) -> None:
        self.failures.append(error)
        self._news.set()

    @property
    def said(self) -> list[Publication]:
        return [each for report in self.reports for each in report.publications]

    def tokens(self, job_id: str, epoch: int = 1) -> list[int]:
        publications = [each for each in self.said if (each.job_id, each.epoch) == (job_id, epoch)]
        deltas = [event for each in publications for event in each.events if isinstance(event, TokenDelta)]
        return [token for delta in deltas for token in delta.token_ids]

    def ends(self) -> dict[str, Outcome]:
        return {each.job_id: each.ends for each in self.said if each.ends}

    async def heard(self) -> Report:
        """The first report that has applied all that was told."""
        return await self.until(lambda: bool(self.reports) and self.reports[-1].applied == self.thread.commands_sent)

    async def until(self, holds: Callable[[], object]) -> Report:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._news.clear()
                await self._news.wait()
        return self.reports[-1]


@asynccontextmanager
async def desk(*, gated: bool = False) -> AsyncIterator[Desk]:
    made = Desk(ScriptedRunner(gated=gated))
    made.thread.start(made.turned, made.failed)
    try:
        yield made
    finally:
        made.runner.open()
        await made.thread.stop()


async def test_a_job_runs_to_its_end_and_every_token_is_reported_once() -> None:
    async with desk() as it:
        it.thread.send(lease(max_tokens=3))
        await it.until(it.ends)
        assert it.tokens("job") == [100, 101, 102]
        assert it.ends() == {"job": Outcome.FINISHED}
        assert it.reports[-1].jobs == 0
        finished = [event for each in it.said for event in each.events if isinstance(event, Finished)]
        assert [(event.epoch, event.worker_id) for event in finished] == [(1, "worker")]
        assert sum(each.cost for each in it.said) == 5 + 3 * 2.0


async def test_the_first_token_says_how_long_its_job_had_waited_when_its_prompt_was_begun() -> None:
    async with desk(gated=True) as it:
        it.thread.send(Lease(job=job(max_tokens=3), epoch=1, arrived_ms_ago=20_000.0))
        it.runner.open()
        await it.until(it.ends)
    deltas = [event for each in it.said for event in each.events if isinstance(event, TokenDelta)]
    begun = [report.begun["job"] for report in it.reports if report.begun]
    assert begun == [deltas[0].queued_ms]
    assert deltas[0].queued_ms is not None
    assert 20_000.0 <= deltas[0].queued_ms < 20_000.0 + LIMIT_S * 1e3
    assert [delta.queued_ms for delta in deltas[1:]] == [None, None]


@pytest.mark.parametrize(("generated", "taken_ms"), [((), 70.0), (((100,),), None)])
async def test_the_end_tells_the_steps_and_the_wait_of_who_had_nothing_yet(
    generated: tuple[tuple[int, ...], ...], taken_ms: float | None
) -> None:
    async with desk() as it:
        it.thread.send(Lease(job=job(max_tokens=3), epoch=1, arrived_ms_ago=70.0, generated=generated))
        await it.until(it.ends)
    (finished,) = [event for each in it.said for event in each.events if isinstance(event, Finished)]
    assert finished.steps is not None
    assert finished.steps.taken_ms == taken_ms
    assert finished.steps.prefill_steps == 1
    assert finished.steps.decode_steps == 2 - len(generated)


async def test_an_idle_engine_says_at_once_what_it_could_start() -> None:
    async with desk() as it:
        report = await it.heard()
        assert report.capacity.sequences["latency"] == 8
        assert report.load.blocks_free == 64


async def test_a_steps_tokens_are_reported_while_the_next_step_computes() -> None:
    async with desk(gated=True) as it:
        it.thread.send(lease(max_tokens=50))
        it.runner.allow()
        await it.until(lambda: it.tokens("job") == [100])
        it.runner.allow()
        await it.until(lambda: it.tokens("job") == [100, 101])
        assert it.runner.steps == 2


async def test_a_cancelled_job_ends_before_the_next_step_and_its_blocks_are_free() -> None:
    async with desk(gated=True) as it:
        it.thread.send(lease("doomed", max_tokens=50))
        it.runner.allow()
        await it.until(lambda: it.tokens("doomed"))
        it.thread.send(Cancel(job_id="doomed"))
        it.runner.allow()
        await it.until(it.ends)
        assert it.ends() == {"doomed": Outcome.CANCELLED}
        assert len(it.tokens("doomed")) <= 2
        assert it.reports[-1].load.blocks_free == 64


async def test_a_grant_lets_a_paused_job_go_on() -> None:
    async with desk() as it:
        it.thread.send(Lease(job=job(max_tokens=4, granted_until=2), epoch=1, arrived_ms_ago=0.0))
        await it.until(lambda: any(isinstance(event, Paused) for each in it.said for event in each.events))
        assert it.tokens("job") == [100, 101]
        it.thread.send(Grant(job_id="job", granted_until=4))
        await it.until(it.ends)
        assert it.tokens("job") == [100, 101, 102, 103]


async def test_an_idle_engine_audits_its_blocks_once_until_it_has_worked_again() -> None:
    async with desk() as it:
        await it.until(lambda: it.reports and it.reports[-1].audited)
        it.thread.send(lease(max_tokens=3))
        await it.until(it.ends)
        await it.until(lambda: it.reports[-1].audited)
        assert [report.audited for report in it.reports].count(True) == 2


async def test_a_lost_block_ends_the_worker_instead_of_shrinking_it() -> None:
    async with desk() as it:
        it.engine.planner._pool.allocate([], 1)  # nobody's table holds it
        await it.until(lambda: it.failures)
        assert "references" in str(it.failures[0])


async def test_a_paused_engine_rests() -> None:
    async with desk() as it:
        it.thread.send(Lease(job=job(max_tokens=4, granted_until=1), epoch=1, arrived_ms_ago=0.0))
        await it.until(lambda: it.reports and it.reports[-1].step and it.reports[-1].step.plan.is_empty)
        seen, began = len(it.reports), asyncio.get_running_loop().time()
        await it.until(lambda: len(it.reports) >= seen + 4)
        assert asyncio.get_running_loop().time() - began > 0.1


async def test_a_dropped_job_is_silent_and_only_its_own_epoch_is_dropped() -> None:
    async with desk(gated=True) as it:
        it.thread.send(lease(epoch=2, max_tokens=50))
        it.runner.allow()
        await it.until(lambda: it.tokens("job", 2))
        it.thread.send(Drop("job", epoch=1))
        it.runner.allow()
        assert (await it.heard()).jobs == 1
        it.thread.send(Drop("job", epoch=2))
        it.runner.allow()
        assert (await it.heard()).jobs == 0
        assert it.ends() == {}


async def test_a_lease_of_a_newer_epoch_replaces_the_job() -> None:
    async with desk(gated=True) as it:
        it.thread.send(lease(epoch=1, max_tokens=50))
        it.runner.allow()
        await it.until(lambda: it.tokens("job", 1))
        it.thread.send(lease(epoch=3, max_tokens=2))
        it.runner.open()
        await it.until(it.ends)
        assert it.tokens("job", 3) == [100, 101]
        assert {each.epoch for each in it.said if each.ends} == {3}


async def test_handing_back_names_what_is_left_after_all_that_was_said_of_it() -> None:
    async with desk(gated=True) as it:
        it.thread.send(lease("a", max_tokens=50), lease("b", max_tokens=50))
        it.runner.allow(2)
        await it.until(lambda: len(it.tokens("a")) == 2)
        handed_back = asyncio.ensure_future(it.thread.hand_back())
        await asyncio.sleep(0)  # it is told before a further step may run, so no step can be waiting for leave
        it.runner.allow(1)
        assert await asyncio.wait_for(handed_back, LIMIT_S) == ["a", "b"]
        assert len(it.tokens("a")) == len(it.tokens("b")) >= 2
        assert it.reports[-1].jobs == 0
        assert it.reports[-1].load.blocks_free == 64


async def test_a_step_counts_its_tokens_by_lane() -> None:
    async with desk() as it:
        it.thread.send(lease(max_tokens=2))
        await it.until(it.ends)
        assert [dict(report.tokens) for report in it.reports if report.ran] == [
            {"latency": LaneTokens(prefill=5, output=1)},
            {"latency": LaneTokens(prefill=0, output=1)},
        ]


async def test_an_engine_that_breaks_is_told_once_and_reports_no_more() -> None:
    async with desk() as it:
        it.runner.error = RuntimeError("out of memory")
        it.thread.send(lease())
        await it.until(lambda: it.failures)
        assert [str(error) for error in it.failures] == ["out of memory"]
        assert it.ends() == {}


async def test_a_wake_up_in_another_thread_is_heard_on_the_loop() -> None:
    heard = asyncio.Event()
    pipe = WakeUpPipe(asyncio.get_running_loop(), heard.set)

    Thread(target=pipe.wake).start()
    await heard.wait()

    pipe.close()


async def test_more_wake_ups_than_are_heard_neither_block_nor_fail() -> None:
    heard = asyncio.Event()
    pipe = WakeUpPipe(asyncio.get_running_loop(), heard.set)

    for _ in range(100_000):
        pipe.wake()
    await heard.wait()

    pipe.close()


async def test_a_look_is_answered_between_two_steps_and_while_there_is_none() -> None:
    async with desk(gated=True) as it:
        it.thread.send(lease(max_tokens=3))
        looking = it.thread.query(Planner.job_ids)
        it.runner.open()
        assert await looking == ["job"]
        await it.until(it.ends)
        assert await it.thread.query(Planner.job_ids) == []


async def test_a_look_that_fails_is_the_asker_s_trouble_alone() -> None:
    def fails(_: Planner) -> None:
        raise ValueError("a defect")

    async with desk() as it:
        with pytest.raises(ValueError, match="a defect"):
            await it.thread.query(fails)
        it.thread.send(lease(max_tokens=1))
        await it.until(it.ends)
    assert it.failures == []


async def test_who_looks_is_no_reason_to_audit_again() -> None:
    async with desk() as it:
        await it.until(lambda: any(report.audited for report in it.reports))
        for _ in range(20):
            await it.thread.query(Planner.job_ids)
    assert sum(report.audited for report in it.reports) == 1
