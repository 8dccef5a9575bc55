"""The worker at work, against a real store: takes, streams, cancels, drains, and survives the store's absence."""

import asyncio
import hashlib
from pathlib import Path

import msgspec
import pytest
import redis

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.scheduler.protocol.media import MeasureMedia, MediaSpan
from fairlane.scheduler.protocol.messages import Job, Outcome, Paused
from fairlane.scheduler.queue.prefix_affinity import DIGEST_BYTES
from fairlane.scheduler.queue.types import JobState
from fairlane.worker.lifecycle import Phase
from fairlane.worker.reports import EngineObserver, Report
from tests.support.scheduler.queues import PLENTY, TakingQueue
from tests.support.store.crash import crash
from tests.support.worker.listener import Listener, listening
from tests.support.worker.outlets import MediaEngine
from tests.support.worker.scripted import ScriptedRunner, job
from tests.support.worker.serving import CARD, LIMIT_S, QUEUE, Worker, gateway, working

pytestmark = pytest.mark.anyio


def script(tokens: int) -> list[int]:
    """What the scripted runner generates."""
    return list(range(100, 100 + tokens))


async def begun(listener: Listener, worker: Worker, tokens: int, *, max_tokens: int) -> None:
    """A job is put, and has so many of its tokens; the runner makes no more before it is allowed to."""
    await listener.queue.put(job(max_tokens=max_tokens))
    worker.runner.allow(tokens)
    await listener.until(lambda: listener.count("job") == tokens)


async def put_waiting(listener: Listener, worker: Worker, given: Job) -> None:
    """Put a job that the worker has to ask for, since another waits that fits nowhere."""
    await listener.queue.put(job("elder", n=9))
    await listener.queue.put(given)
    worker.server.division.woken(0)


async def test_a_job_that_is_put_is_served_at_once(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url):
        await listener.queue.put(job(max_tokens=5))
        await listener.ended("job")
        assert listener.tokens["job", 0] == script(5)
        assert listener.ends["job"].outcome is Outcome.FINISHED
        record = await listener.record_of_end("job")
        assert (record.state, record.outcome, record.generated) == (JobState.ENDED, Outcome.FINISHED, 5)


async def test_a_job_whose_home_is_full_is_served_by_another(valkey_url: str) -> None:
    prefixes = b"k" * DIGEST_BYTES
    async with gateway(valkey_url) as listener:
        full = working(valkey_url, runner=ScriptedRunner(gated=True), worker_id="full", max_sequences=1)
        async with full as home:
            await listener.queue.put(job("first", max_tokens=1), prefixes=prefixes)
            home.runner.allow()
            await listener.ended("first")
            await listener.queue.put(job("fills", max_tokens=50))
            home.runner.allow()
            await listener.until(lambda: listener.count("fills") == 1)
            async with working(valkey_url, worker_id="another"):
                put = await listener.queue.put(job("next"), prefixes=prefixes)
                await listener.ended("next")
                record = await listener.queue.record("next")

    assert record is not None
    assert (put.preferred, record.worker_id) == ("full", "another")


async def test_a_job_whose_image_is_here_already_is_served(valkey_url: str) -> None:
    image = b"an image"
    span = MediaSpan("image", hashlib.sha256(image).digest(), 1, 2)
    first, second = (msgspec.structs.replace(job(name), media=(span,)) for name in ("first", "second"))
    runner, engine = ScriptedRunner(gated=True), MediaEngine()
    async with gateway(valkey_url) as listener, working(valkey_url, runner=runner, remote=engine):
        listener.media[span.digest] = image
        await listener.queue.put(first)
        runner.allow()
        await listener.until(lambda: listener.count("first") == 1)
        await listener.queue.put(second)
        runner.open()
        await listener.ended("first")
        await listener.ended("second")
        assert listener.tokens["second", 0] == script(4)


async def test_an_image_is_measured_for_a_gateway_that_asks_through_the_store(valkey_url: str) -> None:
    image = b"an image"
    digest = hashlib.sha256(image).digest()
    async with gateway(valkey_url) as listener, working(valkey_url, remote=MediaEngine()) as worker:
        listener.media[digest] = image
        asked = MeasureMedia(
            gateway_id=listener.gateway_id, gateway_address=listener.address, kind="image", digest=digest
        )
        await worker.registry.measure_media(QUEUE, "worker", asked)
        await listener.until(lambda: listener.measured == [(digest, len(image))])


async def test_every_choice_is_served(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url):
        await listener.queue.put(job(max_tokens=5, n=3))
        await listener.ended("job")
        assert [listener.tokens["job", choice] for choice in range(3)] == [script(5)] * 3


async def test_jobs_of_several_gateways_go_each_to_its_own(valkey_url: str) -> None:
    async with (
        gateway(valkey_url) as listener,
        listening(valkey_url, QUEUE, lease_s=20.0, gateway_id="another") as another,
        working(valkey_url),
    ):
        await another.queue.put(job("theirs", gateway_id="another"))
        await listener.queue.put(job("ours"))
        await listener.ended("ours")
        await another.ended("theirs")
        assert listener.ends.keys() == {"ours"}
        assert another.ends.keys() == {"theirs"}


async def test_a_cancelled_job_ends_within_a_step(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url, runner=ScriptedRunner(gated=True)) as worker:
        await begun(listener, worker, 1, max_tokens=50)
        await listener.queue.cancel("job")
        worker.runner.allow()
        await listener.ended("job")
        assert listener.ends["job"].outcome is Outcome.CANCELLED
        assert listener.count("job") <= 2


class AuditWatch(EngineObserver):
    """Set once the idle engine has audited its blocks, after which it reports nothing by itself."""

    def __init__(self) -> None:
        self.audited = asyncio.Event()

    def turned(self, report: Report) -> None:
        if report.audited:
            self.audited.set()


async def put_for_absent_gateway(listener: Listener, worker: Worker, watch: AuditWatch) -> None:
    """Give an idle worker a begun job that waits for the answer of a gateway that does not exist."""
    await asyncio.wait_for(watch.audited.wait(), LIMIT_S)
    await TakingQueue.put(listener.queue, job("waits", gateway_id="away"), generated=1)
    async with asyncio.timeout(LIMIT_S):
        while not worker.server._outlet.waiting():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


async def test_after_a_cancel_of_a_job_that_waits_for_its_gateway_others_are_served(valkey_url: str) -> None:
    watch = AuditWatch()
    async with gateway(valkey_url) as listener, working(valkey_url, observers=[watch]) as worker:
        await put_for_absent_gateway(listener, worker, watch)
        await listener.queue.cancel("waits")
        assert (await listener.record_of_end("waits")).outcome is Outcome.CANCELLED
        await listener.queue.put(job())
        await listener.ended("job")
        await asyncio.wait_for(worker.server._jobs.idle.wait(), LIMIT_S)


async def test_while_a_job_waits_for_its_gateway_others_are_asked_for(valkey_url: str) -> None:
    watch = AuditWatch()
    async with gateway(valkey_url) as listener, working(valkey_url, observers=[watch]) as worker:
        await put_for_absent_gateway(listener, worker, watch)
        takes = worker.queue.takes
        await put_waiting(listener, worker, job())
        await listener.ended("job")
        assert worker.server._outlet.waiting() == ["waits"]
        assert worker.queue.takes > takes


async def test_a_job_that_is_restarted_while_it_is_handed_back_does_not_stay(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url, drain_s=0.0) as worker:
        await listener.queue.put(job(max_tokens=6, granted_until=2))
        await listener.until(lambda: any(isinstance(event, Paused) for event in listener.events))
        [lease] = worker.queue.given
        hand_back = worker.thread.hand_back

        async def restarted() -> list[str]:
            handed_back = asyncio.ensure_future(hand_back())
            await asyncio.sleep(0)
            worker.server._jobs.start_job(lease, again=True)
            return await handed_back

        monkeypatch.setattr(worker.thread, "hand_back", restarted)
        worker.server.lifecycle.drain()
        await worker.server.lifecycle.until(Phase.DRAINED)
        async with asyncio.timeout(LIMIT_S):
            while await worker.thread.query(lambda planner: planner.held_by_tenant()):
                pass


async def test_a_grant_lets_a_paused_job_go_on(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url):
        await listener.queue.put(job(max_tokens=6, granted_until=2))
        await listener.until(lambda: any(isinstance(event, Paused) for event in listener.events))
        assert listener.count("job") == 2
        listener.grant("job", 6)
        await listener.ended("job")
        assert listener.tokens["job", 0] == script(6)


async def test_a_busy_worker_asks_for_work_only_when_there_is_room(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url, max_sequences=1) as worker:
        await listener.queue.put(job("first", max_tokens=200))
        await listener.queue.put(job("second", max_tokens=1))
        await listener.ended("first", "second")
        assert worker.queue.takes <= 8


async def test_an_idle_worker_does_not_ask_at_all(valkey_url: str) -> None:
    lease_s = 60.0  # each heartbeat asks once, and none is to come meanwhile
    async with gateway(valkey_url, lease_s=lease_s) as listener, working(valkey_url, lease_s=lease_s) as worker:
        await listener.queue.put(job("warm"))
        await listener.ended("warm")
        before = worker.queue.takes
        for _ in range(2):  # which is longer than two of the worker's own looks at what it is told
            await listener.queue.read_news("somebody else", "$", 1_250)
        assert worker.queue.takes <= before + 1


async def test_a_take_whose_answer_was_lost_is_answered_again(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url) as worker:
        worker.queue.lose_next_take = True
        await listener.queue.put(job())
        await listener.ended("job")
        assert listener.tokens["job", 0] == script(4)
        assert len(listener.epochs["job"]) == 1


async def test_what_a_store_gives_out_again_after_it_forgot_goes_back_for_another_epoch(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url, runner=ScriptedRunner(gated=True)) as worker:
        await begun(listener, worker, 3, max_tokens=12)
        worker.queue.forgets = True
        await put_waiting(listener, worker, job("other"))
        async with asyncio.timeout(10):
            while worker.queue.forgets:
                await listener.queue.read_news("somebody else", "$", 10)
        worker.runner.open()
        await listener.ended("other")
        await listener.ended("job")
        assert listener.tokens["job", 0] == script(12)
        assert len(listener.epochs["job"]) == 2


async def test_what_a_worker_cannot_hold_it_hands_back_for_one_that_can(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url) as worker:
        await listener.queue.put(job(max_tokens=300))  # its pool holds 256 tokens
        worker.queue.overstates = 1
        worker.server.division.woken(0)
        await listener.queue.put(job("small"))
        await listener.ended("small")
        async with asyncio.timeout(10):
            while not (leases := await listener.queue.take("large", PLENTY)):
                await listener.queue.read_news("somebody else", "$", 10)
        record = await listener.queue.record("job")
        assert [lease.job.job_id for lease in leases] == ["job"]
        assert record is not None
        assert (record.state, record.worker_id) == (JobState.LEASED, "large")


async def test_what_comes_back_though_it_cannot_be_held_ends_with_a_reason(valkey_url: str) -> None:
    """A rule that the queue breaks twice is broken for good: no job goes to and fro for ever."""
    async with gateway(valkey_url) as listener, working(valkey_url) as worker:
        worker.queue.overstates = 2
        await listener.queue.put(job(max_tokens=300))
        await listener.ended("job")
        assert listener.ends["job"].outcome is Outcome.FAILED
        assert "the worker holds 256" in listener.ends["job"].error


async def test_a_registry_that_is_away_costs_no_lease(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster it may be on another node than the queue."""
    beats = asyncio.Event()

    async def away(*_: object) -> None:
        beats.set()
        raise redis.ConnectionError("away")

    async with (
        gateway(valkey_url, lease_s=0.4) as listener,
        working(valkey_url, lease_s=0.4, runner=ScriptedRunner(gated=True)) as worker,
    ):
        await begun(listener, worker, 3, max_tokens=9)
        monkeypatch.setattr(worker.registry, "beat", away)
        await beats.wait()
        for _ in range(2):  # which is longer than two leases
            await listener.queue.read_news("somebody else", "$", 1_250)
        worker.runner.open()
        await listener.ended("job")
        assert len(listener.epochs["job"]) == 1


async def test_a_job_that_was_taken_away_is_dropped_and_may_come_again(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url, runner=ScriptedRunner(gated=True)) as worker:
        await begun(listener, worker, 3, max_tokens=12)
        await listener.queue.release("worker", ["job"])
        await worker.told(3)  # to drop the job, and to start it from what its gateway has
        worker.runner.open()
        await listener.ended("job")
        assert listener.tokens["job", 0] == script(12)
        assert len(listener.epochs["job"]) == 2


async def test_stopping_lets_what_runs_finish_and_takes_no_more(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url, runner=ScriptedRunner(gated=True)) as worker:
        await listener.queue.put(job("running", max_tokens=3))
        worker.runner.allow()
        await listener.until(lambda: listener.count("running") == 1)
        worker.server.lifecycle.stop()
        await listener.queue.put(job("late"))
        worker.runner.open()
        assert await worker.ended() == 0
        await listener.ended("running")
        late = await listener.queue.record("late")
        assert late is not None
        assert late.state is JobState.QUEUED
        assert await worker.registry.workers() == []


async def test_what_does_not_finish_in_time_is_handed_back_with_its_tokens(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener:
        async with working(valkey_url, runner=ScriptedRunner(gated=True), drain_s=0.0, worker_id="old") as old:
            await listener.queue.put(job(max_tokens=9))
            old.runner.allow(4)
            await listener.until(lambda: listener.count("job") == 4)
            old.server.lifecycle.stop()
            await old.told(2)  # the job, and to hand it back
            old.runner.allow()
            assert await old.ended() == 0
        record = await listener.queue.record("job")
        assert record is not None
        assert (record.state, record.generated) == (JobState.QUEUED, 5)
        async with working(valkey_url, worker_id="new"):
            await listener.ended("job")
        assert listener.tokens["job", 0] == script(9)
        assert listener.ends["job"].worker_id == "new"


async def test_a_worker_evicts_what_it_has_cached_of_a_deleted_tenant(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url, prefix_share=0.5) as worker:
        await listener.queue.put(job())
        await listener.ended("job")
        assert await worker.thread.query(lambda planner: planner.blocks_cached) > 0
        await worker.status()
        told = worker.thread.commands_sent

        assert await worker.registry.forget_prompts("tenant", 0.0, "") == 1
        await worker.told(told + 1)

        assert await worker.thread.query(lambda planner: planner.blocks_cached) == 0
        assert worker.runner.forgotten == ["tenant"]


async def test_a_drained_worker_stays_until_it_is_stopped(valkey_url: str) -> None:
    async with gateway(valkey_url, lease_s=0.4) as listener, working(valkey_url, lease_s=0.4) as worker:
        await listener.queue.put(job())
        await listener.ended("job")
        assert await worker.registry.drain("worker")
        async with asyncio.timeout(10):
            while not (await worker.status()).draining:
                pass
        await listener.queue.put(job("late"))
        await listener.queue.read_news("somebody else", "$", 500)
        late = await listener.queue.record("late")
        assert late is not None
        assert late.state is JobState.QUEUED
        worker.server.lifecycle.stop()
        assert await worker.ended() == 0


async def test_a_drained_worker_takes_jobs_again_once_it_is_undrained(valkey_url: str) -> None:
    async with gateway(valkey_url, lease_s=0.4) as listener, working(valkey_url, lease_s=0.4) as worker:
        await listener.queue.put(job())
        await listener.ended("job")
        for number in range(3):
            assert await worker.registry.drain("worker")
            async with asyncio.timeout(10):
                while not (await worker.status()).draining:
                    pass
            await listener.queue.put(job(f"late-{number}"))
            assert await worker.registry.undrain("worker")
            await listener.ended(f"late-{number}")
            async with asyncio.timeout(10):
                while (await worker.status()).draining:
                    pass
        worker.server.lifecycle.stop()
        assert await worker.ended() == 0


async def test_what_runs_goes_on_where_a_drain_is_taken_back(valkey_url: str) -> None:
    runner = ScriptedRunner(gated=True)
    async with gateway(valkey_url) as listener, working(valkey_url, runner=runner) as worker:
        await listener.queue.put(job(max_tokens=9))
        runner.allow(3)
        await listener.until(lambda: listener.count("job") == 3)
        worker.server.lifecycle.drain()
        worker.server.lifecycle.undrain()
        await listener.queue.put(job("late"))
        runner.open()
        await listener.ended("job")
        await listener.ended("late")
        assert listener.tokens["job", 0] == script(9)


async def test_an_engine_that_goes_hands_its_jobs_back_at_once_and_takes_them_again_when_it_is_back(
    valkey_url: str,
) -> None:
    runner = ScriptedRunner(gated=True)
    async with gateway(valkey_url) as listener, working(valkey_url, runner=runner) as worker:
        await listener.queue.put(job(max_tokens=200))
        runner.allow(3)
        await listener.until(lambda: listener.count("job") == 3)
        worker.server.lifecycle.engine_changed(False)
        async with asyncio.timeout(LIMIT_S):
            while (record := await listener.queue.record("job")) is None or record.state is not JobState.QUEUED:
                runner.allow()  # the step that runs ends first
        worker.server.lifecycle.engine_changed(True)
        runner.open()
        await listener.ended("job")
        assert listener.tokens["job", 0] == script(200)
        worker.server.lifecycle.stop()
        assert await worker.ended() == 0


@pytest.mark.parametrize("was_away", [False, True])
async def test_an_engine_that_is_another_gets_no_job_and_ends_the_worker(valkey_url: str, was_away: bool) -> None:
    """Its jobs are handed back at once, and not as lost."""
    runner = ScriptedRunner(gated=True)
    async with gateway(valkey_url) as listener:
        async with working(valkey_url, runner=runner, worker_id="before") as worker:
            await listener.queue.put(job(max_tokens=9))
            runner.allow(3)
            await listener.until(lambda: listener.count("job") == 3)
            if was_away:
                worker.server.lifecycle.engine_changed(False)
                async with asyncio.timeout(LIMIT_S):
                    while (record := await listener.queue.record("job")) is None or record.state is not JobState.QUEUED:
                        runner.allow()
            worker.server.lifecycle.engine_replaced("its root was one, and is two")
            runner.open()
            assert await worker.ended() == 1
        async with working(valkey_url, worker_id="next"):
            await listener.ended("job")
        assert listener.tokens["job", 0] == script(9)


async def test_a_worker_whose_engine_is_gone_can_be_stopped(valkey_url: str) -> None:
    async with gateway(valkey_url), working(valkey_url) as worker:
        await worker.status()
        worker.server.lifecycle.engine_changed(False)
        worker.server.lifecycle.stop()
        assert await worker.ended() == 0


@pytest.fixture
def long_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test of a worker that waits for the reports of jobs that cannot end."""
    monkeypatch.setattr("fairlane.worker.server.FLUSH_S", 2 * LIMIT_S)


@pytest.mark.usefixtures("long_flush")
async def test_an_engine_that_breaks_ends_the_worker_and_its_jobs_go_on_elsewhere(valkey_url: str) -> None:
    async with gateway(valkey_url, lease_s=0.4) as listener:
        runner = ScriptedRunner(gated=True)
        async with working(valkey_url, lease_s=0.4, runner=runner, worker_id="broken") as broken:
            await listener.queue.put(job(max_tokens=9))
            runner.allow(3)
            await listener.until(lambda: listener.count("job") == 3)
            runner.error = RuntimeError("the device is gone")
            runner.open()
            assert await broken.ended() == 1
        async with working(valkey_url, lease_s=0.4, worker_id="next"):
            await listener.ended("job")
        assert listener.tokens["job", 0] == script(9)
        assert listener.reclaimed == 1


@pytest.mark.usefixtures("long_flush")
async def test_a_failed_worker_keeps_its_leases_until_they_lapse(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs count as lost, also if its engine still answers."""
    async with gateway(valkey_url) as listener, working(valkey_url) as worker:

        async def leave(worker_id: str) -> None:
            for _ in range(20):  # longer than handing back would take
                await listener.queue.record("job")

        monkeypatch.setattr(worker.registry, "leave", leave)
        await listener.queue.put(job(max_tokens=9, granted_until=3))
        await listener.until(lambda: any(isinstance(event, Paused) for event in listener.events))
        worker.server.lifecycle.fail()
        assert await worker.ended() == 1
        record = await listener.queue.record("job")
    assert record is not None
    assert record.state is JobState.LEASED


async def test_a_loop_that_breaks_ends_the_worker(valkey_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url) as worker:
        worker.queue.fault = ValueError("not a lease")
        await listener.queue.put(job())
        assert await worker.ended() == 1
        assert "the worker failed: ValueError: not a lease in turn (serving.py:" in caplog.text


async def test_a_worker_announces_its_model(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url) as worker:
        await worker.status()
        await listener.queue.put(job())
        await listener.ended("job")
        entry = (await worker.registry.models())["tiny"]
        card = await worker.registry.card(entry.card_sha256)
        assert card is not None
        assert msgspec.structs.replace(card, created_s=0) == CARD


async def test_a_store_that_goes_and_comes_back_loses_no_token(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path)
    store.start()
    try:
        async with gateway(store.url) as listener, working(store.url, runner=ScriptedRunner(gated=True)) as worker:
            await begun(listener, worker, 5, max_tokens=30)
            crash(store)
            worker.runner.allow(10)  # tokens that only the worker knows of
            store.start()
            worker.runner.open()
            await listener.ended("job")
            assert listener.tokens["job", 0] == script(30)
            assert len(listener.epochs["job"]) == 1
    finally:
        store.stop()


async def test_a_heartbeat_says_how_full_and_how_fast_the_worker_is(valkey_url: str) -> None:
    async with (
        gateway(valkey_url, lease_s=0.4) as listener,
        working(valkey_url, lease_s=0.4, runner=ScriptedRunner(gated=True)) as worker,
    ):
        await begun(listener, worker, 10, max_tokens=50)
        async with asyncio.timeout(10):
            while not (status := await worker.status()).running.get("latency"):
                pass
        assert status.blocks_free < status.blocks_total == 64
        async with asyncio.timeout(10):
            while not (status := await worker.status()).tokens_per_s:
                pass
        assert status.step_ms == pytest.approx(1.0)
        assert status.prefill_tokens_per_s == pytest.approx(5_000.0)
