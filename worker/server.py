"""The worker's event loop: takes jobs, reads control messages, sends tokens, renews the leases, and ends in order.

A drain or a signal lets running jobs end within `drain_s`, and returns the rest. After an engine failure the leases
expire instead, so that a job that breaks every engine counts as lost and is not retried forever."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fairlane.scheduler.protocol.block_map import WatchBlocks
from fairlane.scheduler.protocol.media import MeasureMedia
from fairlane.scheduler.protocol.messages import (
    Cancel,
    Drain,
    ForgetPrompts,
    Lease,
    ModelCard,
    Undrain,
    WorkerStatus,
)
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.scheduler.queue.shards import FRESH_MS
from fairlane.store.retry import StoreLink
from fairlane.worker.block_reports import BlockReports
from fairlane.worker.engine.engine import RemotePart
from fairlane.worker.engine_jobs import EngineJobs
from fairlane.worker.engine_thread import EngineThread, describe_error
from fairlane.worker.heartbeat import Heartbeat
from fairlane.worker.lifecycle import Lifecycle, Phase
from fairlane.worker.outlet import Dial, Outlet
from fairlane.worker.reports import EngineObserver, Report
from fairlane.worker.shards.division import Division
from fairlane.worker.shards.line import ShardLine

log = logging.getLogger(__name__)

# Time for the last ends to reach gateways and store when the worker ends, and then to leave the registry.
FLUSH_S = 3.0
LEAVE_S = 2.0
ANNOUNCE_S = 600.0
HEARTBEATS_PER_LEASE = 4
# At least this often, a worker of several shards asks each for news of what waits there.
NEWS_S = FRESH_MS / 3e3
# Time that a question waits for gateways to confirm ends, whose report then asks too.
CONFIRM_S = 0.005
# An engine that has work but completes no step for this long is considered failed.
STUCK_S = 300.0


class WorkerServer:
    """One worker process. `run` serves until stopped and returns the exit status. `queues`: the shards of its queue."""

    def __init__(
        self,
        *,
        worker_id: str,
        engine: EngineThread,
        queues: Sequence[RedisQueue],
        registry: RedisRegistry,
        card: ModelCard,
        link: StoreLink,
        dial: Dial,
        heartbeat: Heartbeat,
        observers: Sequence[EngineObserver] = (),
        remote: RemotePart | None = None,
        lease_s: float,
        drain_s: float,
        block_s: float,
    ) -> None:
        self._worker_id = worker_id
        self._engine = engine
        self._registry = registry
        self._card = card
        self._link = link
        self._heartbeat = heartbeat
        self._observers = (heartbeat, *observers)
        self._lease_s = lease_s
        self._drain_s = drain_s
        self._block_ms = int(block_s * 1e3)
        self._jobs = EngineJobs(engine, self._observers)
        first, shard_of = queues[0], self._jobs.leases.shard_of
        self.division = Division(first.lanes, first.share_floors, len(queues), shard_of)
        self.lifecycle = Lifecycle(self.division.close)
        self._lines = [
            ShardLine(
                *(shard, queue),
                worker_id=worker_id,
                division=self.division,
                link=link,
                accept=self._accept,
                unreached=lambda: self._outlet.unreached,
            )
            for shard, queue in enumerate(queues)
        ]
        self._outlet = Outlet(
            self._jobs,
            dial=dial,
            stores=[line.calls for line in self._lines],
            link=link,
            on_reached=self._wake,
            remote=remote,
            patience_s=lease_s / 2,
        )
        self._blocks = BlockReports(worker_id, engine, registry, heartbeat)
        self._last_turn_s = 0.0

    async def run(self) -> int:
        self._engine.start(self._turned, self._failed)
        try:
            await self._run_loops()
        except* Exception as faults:  # noqa: BLE001 - a failed task must end the worker
            for fault in faults.exceptions:
                log.error("the worker failed: %s", describe_error(fault))
            self.lifecycle.fail()
        await self._engine.stop()
        return 1 if self.lifecycle.phase is Phase.FAILED else 0

    async def _run_loops(self) -> None:
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(each)
                for each in (
                    self._serve(),
                    *map(self._control, self._lines),
                    self._outlet.run(),
                    *map(self._keep_leases, self._lines),
                    self._beat(),
                    self._announce(),
                    self._blocks.run(),
                )
            ]
            await self.lifecycle.until(Phase.LEAVING, Phase.LEFT, Phase.FAILED)
            await self._leave()
            for task in loops:
                task.cancel()

    async def _serve(self) -> None:
        # Takes jobs until a drain or the loss of the engine, returns the remaining jobs, and starts again if allowed.
        lifecycle = self.lifecycle
        while True:
            await asyncio.gather(*map(self._ask, self._lines))
            if lifecycle.phase is Phase.FAILED:
                return  # the leases expire, and the jobs count as lost
            await asyncio.gather(*(line.retire() for line in self._lines))
            if lifecycle.phase in (Phase.DRAINING, Phase.LEAVING) and lifecycle.is_engine_up:
                undrained = lifecycle.until(Phase.SERVING, Phase.ENGINE_AWAY, Phase.REPLACED, Phase.FAILED)
                await within(self._drain_s, _first(self._jobs.idle.wait(), undrained))
            if lifecycle.phase not in (Phase.SERVING, Phase.FAILED):
                await self._hand_back()
                lifecycle.handed_back()
            await lifecycle.until(Phase.SERVING, Phase.DRAINING, Phase.LEAVING, Phase.REPLACED)
            if lifecycle.phase is Phase.SERVING:
                self.division.open()
            elif lifecycle.phase is Phase.REPLACED:
                lifecycle.fail()

    async def _ask(self, line: ShardLine) -> None:
        """Ask for jobs whenever some may come, with the reports of ends that are about to be confirmed."""
        while await line.intake.due():
            if self._outlet.has_unconfirmed_ends:
                await asyncio.sleep(CONFIRM_S)
            if line.intake.is_due:
                self._outlet.ask(line.shard)
                await self._outlet.asked(line.shard)

    async def _accept(self, line: ShardLine, leases: Sequence[Lease]) -> None:
        """Give leases to the engine, but return what it cannot hold, and what a store that forgot them leased again, so
        that those jobs get another epoch."""
        held, large = self._jobs.leases, self._jobs.too_large(leases, self.division.capacity)
        if self.lifecycle.phase is not Phase.SERVING:
            large = list(leases)
        known = [lease.job.job_id for lease in held.known(leases)]
        returned = {lease.job.job_id for lease in large}.union(known)
        if returned:
            await line.release(sorted(returned))
        if lost := held.epochs(known):
            self._jobs.drop_jobs(lost, "the store leased them again")
            self._outlet.drop(lost)
        accepted = [lease for lease in leases if lease.job.job_id not in returned]
        if not accepted:
            return
        if self.lifecycle.phase is not Phase.SERVING:  # a drain ended while others were released
            await line.release([lease.job.job_id for lease in accepted])
            return
        early = held.took(accepted, line.shard)
        self.division.given(line.shard, accepted)
        self._jobs.idle.clear()
        self._last_turn_s = asyncio.get_running_loop().time()  # the engine was idle since its last turn
        for observer in self._observers:
            observer.took(accepted)
        self._outlet.took(accepted, line.shard)
        if all(lease.started or lease.job.media for lease in accepted):
            self._jobs.ask_capacity()
        self._cancel(early)

    async def _control(self, line: ShardLine) -> None:
        while True:
            news = await line.news(self._block_ms)
            await self._accept(line, news.leases)
            for message in news.controls:
                if isinstance(message, Drain):
                    self.lifecycle.drain()
                elif isinstance(message, Undrain):
                    self.lifecycle.undrain()
                elif isinstance(message, WatchBlocks):
                    self._blocks.watch(message.for_ms / 1e3)
                elif isinstance(message, ForgetPrompts):
                    self._engine.send(message)
                elif isinstance(message, MeasureMedia):
                    self._outlet.measure(message)
                elif self._jobs.leases.received(message):
                    self._cancel([message])
            if news.calls:
                self.division.called(line.shard, news.calls)

    def _turned(self, report: Report) -> None:
        self._last_turn_s = asyncio.get_running_loop().time()
        self._outlet.put(report.publications)
        self.division.turned(report, self._engine.commands_sent)
        if report.jobs == 0 and report.applied >= self._engine.commands_sent:
            self._jobs.idle.set()
        for observer in self._observers:
            observer.turned(report)

    def _wake(self) -> None:
        for line in self._lines:
            self.division.woken(line.shard)

    def _cancel(self, messages: Iterable[Cancel]) -> None:
        for message in messages:
            if self._outlet.cancel(message.job_id):
                self._jobs.cancel_job(message.job_id)

    async def _keep_leases(self, line: ShardLine) -> None:
        period_s = self._lease_s / HEARTBEATS_PER_LEASE
        if self.division.are_several:
            period_s = min(period_s, NEWS_S)
        while self.lifecycle.phase is not Phase.FAILED:
            if not await line.renew(self._jobs.leases.ids):
                log.warning("the lease has expired: dropping all %d jobs", len(self._jobs.leases))
                await self._hand_back()
            self.division.woken(line.shard)  # in case a call was lost with the store
            self._check_engine()
            await asyncio.sleep(period_s)

    async def _beat(self) -> None:
        # On a Cluster the registry may be on another node than the queue: its outage must not cost the leases.
        while True:
            beat = partial(self._registry.beat, self._status(), int(self._lease_s * 1e3))
            await self._link.persist("beat", beat)
            await asyncio.sleep(self._lease_s / HEARTBEATS_PER_LEASE)

    def _status(self) -> WorkerStatus:
        self._blocks.count(idle=self._jobs.idle.is_set())
        return self._heartbeat.status(draining=self.lifecycle.phase is not Phase.SERVING)

    async def _announce(self) -> None:
        while True:
            await self._link.persist("announce", partial(self._registry.announce, self._card))
            self._link.returned.clear()
            await within(ANNOUNCE_S, self._link.returned.wait())

    async def _hand_back(self) -> None:
        """Report what was computed and release every job; the store ignores jobs that this worker no longer owns."""
        waiting = self._outlet.waiting()
        self._outlet.give_back(waiting)  # before the engine answers, so that no gateway's answer starts one meanwhile
        job_ids = await self._engine.hand_back()
        self._jobs.drop_restarted(job_ids)
        self._outlet.give_back(job_ids)
        await self._outlet.flushed()
        self._jobs.notify_lost([*waiting, *job_ids])

    def _failed(self, error: Exception) -> None:
        log.error("the engine failed: %s", describe_error(error))
        self.lifecycle.fail()

    def _check_engine(self) -> None:
        silent_s = asyncio.get_running_loop().time() - self._last_turn_s
        if not self._jobs.idle.is_set() and silent_s > STUCK_S:
            self._failed(TimeoutError(f"no step ended for {silent_s:.0f} s"))

    async def _leave(self) -> None:
        await within(self._drain_s + FLUSH_S, self.lifecycle.until(Phase.LEFT, Phase.FAILED))
        if self.lifecycle.phase is Phase.FAILED:  # the leases of what runs expire
            await within(FLUSH_S, self._outlet.ends_reported())
        else:
            await within(FLUSH_S, self._outlet.emptied())
        if self.lifecycle.phase is Phase.LEFT:
            await within(LEAVE_S, self._outlet.hand_back_all())
        await self._outlet.aclose()
        await within(LEAVE_S, self._link.persist("leave", partial(self._registry.leave, self._worker_id)))


async def within(limit_s: float, what: Awaitable[object]) -> None:
    """Wait for `what`, and cancel it after `limit_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await what


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
