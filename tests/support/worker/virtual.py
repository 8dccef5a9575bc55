"""Real workers in virtual time: server, intake, engine, planner and outlet, on the queue's rules in memory.

The event loop's clock jumps from timer to timer: a minute takes milliseconds, and a seed is one schedule. A schedule
draws delays: of each request to the store, of each answer, of each write on a link, of each step of an engine, and of
each report from an engine to its worker's loop. Any order in which the real processes' events may interleave follows
from some delays.
"""

import asyncio
import selectors
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from random import Random
from typing import Any, NoReturn, TypeVar, cast

from fairlane.scheduler.links.dialer import GatewayPeer
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Job, Lease, WorkerStatus
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.scheduler.queue.rooms import CALL_PATIENCE_MS
from fairlane.scheduler.queue.shards import LaneFloor
from fairlane.scheduler.queue.types import News, Progress, Turn, in_rank_order
from fairlane.store.retry import StoreLink
from fairlane.worker.engine_thread import REST_S, Command, EngineThread
from fairlane.worker.heartbeat import Heartbeat
from fairlane.worker.reports import Report
from fairlane.worker.server import WorkerServer
from tests.support.scheduler.model_queue import ModelQueue
from tests.support.worker.gateway_end import GatewayEnd
from tests.support.worker.memory_link import MemoryLink
from tests.support.worker.scripted import ScriptedRunner, engine
from tests.support.worker.serving import CARD

T = TypeVar("T")
START_MS = 1_700_000_000_000
LEASE_S = 6.0
STORE_S = (0.0, 0.0001, 0.001, 0.004)
"""Durations of one way to the store or back, and of a report's way to the event loop."""
STEPS_S = (0.005, 0.02, 0.08)


class VirtualSelector(selectors.DefaultSelector):
    """Returns at once, and moves the time to the next timer."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("every task waits, and no timer runs")
        if not ready and timeout:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def in_virtual_time(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a scenario to its end."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario)


class VirtualStore:
    """The queue's rules behind drawn delays, as gateways and workers call them. `on_take` sees each take as it runs."""

    def __init__(
        self, random: Random, on_take: Callable[["VirtualStore", Capacity, list[Lease]], None] | None = None
    ) -> None:
        self.random = random
        self.queue = ModelQueue(DEFAULT_LANES, lease_ms=int(LEASE_S * 1e3))
        self.lanes = [lane.name for lane in in_rank_order(DEFAULT_LANES)]
        self.share_floors = [lane.share_floor for lane in in_rank_order(DEFAULT_LANES)]
        self.gateway = GatewayEnd()
        self.takes = 0
        self._serials = count()
        self.put_s: dict[str, float] = {}
        self.taken_s: dict[str, float] = {}
        """When each job was first leased."""
        self.gave_s: dict[str, float] = {}
        """When each worker last got a lease."""
        self.links: dict[str, MemoryLink] = {}
        """Each worker's last link."""
        self.violations: list[str] = []
        """For `on_take` to add to."""
        self._on_take = on_take
        self._changed = asyncio.Condition()

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def now_ms(self) -> int:
        return START_MS + round(self.now_s * 1e3)

    async def put(self, job: Job) -> None:
        """What a gateway does: put the job, and watch that it is started."""

        def put() -> str:
            self.put_s[job.job_id] = self.now_s
            self.gateway.expect(job)
            worker_id = self.queue.put(self.now_ms, job).called
            for given in self.queue.rooms.given.values():
                if any(lease.job.job_id == job.job_id for lease in given):
                    self._leased(worker_id, job.job_id)
            return worker_id

        is_watched = bool(await self._call(put))
        while is_watched:
            await asyncio.sleep(CALL_PATIENCE_MS / 1e3)
            if self.gateway.jobs[job.job_id].fence:
                return
            is_watched = bool(await self._call(lambda: self.queue.rouse(self.now_ms, [job.job_id])))

    async def turn(
        self,
        worker_id: str,
        capacity: Capacity,
        items: Sequence[Progress] = (),
        *,
        called: Sequence[str],
        unreached: Sequence[str],
        last_id: str,
        serial: str,
        floors: Sequence[LaneFloor] = (),
        elsewhere: Sequence[int] = (),
    ) -> Turn:
        def take() -> Turn:
            turn = self.queue.turn(self.now_ms, worker_id, capacity, items, called=called, unreached=unreached)
            for lease in turn.leases:
                self._leased(worker_id, lease.job.job_id)
            if self._on_take is not None:
                self._on_take(self, capacity, turn.leases)
            return turn

        self.takes += 1
        return await self._call(take)

    def _leased(self, worker_id: str, job_id: str) -> None:
        self.taken_s.setdefault(job_id, self.now_s)
        self.gave_s[worker_id] = self.now_s

    def new_serial(self) -> str:
        return str(next(self._serials))

    async def retire(self, worker_id: str) -> None:
        await self._call(lambda: self.queue.retire(worker_id))

    async def renew(self, worker_id: str, holding: Collection[str] | None = None, *, serial: str) -> bool:
        return await self._call(lambda: self.queue.renew_lease(self.now_ms, worker_id, holding))

    async def report(self, worker_id: str, items: Sequence[Progress], *, serial: str) -> set[str]:
        return await self._call(lambda: self.queue.report(worker_id, items))

    def dial(self, worker_id: str, _gateway_id: str, _address: str, peer: GatewayPeer) -> MemoryLink:
        """Return a worker's link to the gateway, whose writes take drawn times in each direction."""
        link, loop, due_s = MemoryLink(self.gateway, peer, worker_id), asyncio.get_running_loop(), [0.0, 0.0]

        def written(to_worker: bool) -> None:
            due_s[to_worker] = max(due_s[to_worker], loop.time() + self.random.choice(STORE_S))
            loop.call_at(due_s[to_worker], link.deliver_to_worker if to_worker else link.deliver_to_gateway)

        link.on_write = written
        self.links[worker_id] = link
        return link

    async def release(self, worker_id: str, job_ids: Iterable[str]) -> None:
        given = list(job_ids)
        await self._call(lambda: self.queue.release(self.now_ms, worker_id, given))

    async def read_news(self, worker_id: str, last_id: str, block_ms: int) -> News:
        await self._pass_time()
        async with self._changed:
            with suppress(TimeoutError):
                async with asyncio.timeout(block_ms / 1e3):
                    await self._changed.wait_for(lambda: any(worker_id in each for each in self._streams))
        controls, given, calls = (each.pop(worker_id, []) for each in self._streams)
        await self._pass_time()
        return News("", controls, given, calls)

    @property
    def _streams(self) -> tuple[dict[str, list[Any]], ...]:
        return self.queue.controls, self.queue.rooms.given, self.queue.rooms.calls

    async def _call(self, call: Callable[[], T]) -> T:
        await self._pass_time()
        answer = call()
        async with self._changed:
            self._changed.notify_all()
        await self._pass_time()
        return answer

    async def _pass_time(self) -> None:
        await asyncio.sleep(self.random.choice(STORE_S))


class VirtualThread(EngineThread):
    """The engine's turns as a task of the event loop; how long a step takes is drawn."""

    def __init__(self, worker_id: str, random: Random, max_sequences: int, blocks: int) -> None:
        super().__init__(engine(ScriptedRunner(), max_sequences=max_sequences, blocks=blocks), worker_id)
        self._random = random

    def start(self, on_report: Callable[[Report], None], on_failure: Callable[[Exception], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._on_report, self._on_failure = on_report, on_failure
        self._news = asyncio.Event()
        self._task = self._loop.create_task(self._live())

    def send(self, *commands: Command) -> None:
        super().send(*commands)
        self._news.set()

    async def stop(self) -> None:
        self._task.cancel()

    async def _live(self) -> NoReturn:
        self._report()
        could_run = True
        while True:
            if not (could_run and self._engine.has_work):
                self._flush_reports()
                await self._rest(None if could_run else REST_S)
            commands, self._commands = self._commands, []
            could_run = self._turn(commands)
            await asyncio.sleep(self._random.choice(STEPS_S))

    async def _rest(self, limit_s: float | None) -> None:
        """Wait for commands."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not self._commands:
                    self._news.clear()
                    await self._news.wait()

    def _call_on_loop(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._loop.call_later(self._random.choice(STORE_S), self._make_calls)


class NoRegistry:
    async def beat(self, *_: object) -> None: ...

    async def announce(self, *_: object) -> None: ...

    async def leave(self, *_: object) -> None: ...


def virtual_worker(store: VirtualStore, worker_id: str, *, max_sequences: int, blocks: int = 256) -> WorkerServer:
    about = WorkerStatus(
        worker_id=worker_id, model="tiny", queue="q", card_sha256="0", started_at_ms=0.0, blocks_total=blocks
    )
    return WorkerServer(
        worker_id=worker_id,
        engine=VirtualThread(worker_id, store.random, max_sequences, blocks),
        queues=[cast(RedisQueue, store)],
        registry=cast(RedisRegistry, NoRegistry()),
        card=CARD,
        link=StoreLink(60.0),
        dial=partial(store.dial, worker_id),
        heartbeat=Heartbeat(about, CostModel()),
        lease_s=LEASE_S,
        drain_s=1.0,
        block_s=1.0,
    )
