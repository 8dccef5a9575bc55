"""Delivers events to this gateway's jobs, and sends the gateway's heartbeats to the queues. Tokens come over links
(`streams.py`), ends that the store decided come from the queues.

Each queue has a line: a task that reads this gateway's events on its own connection, and a task for upkeep."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile

from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.request.live_request import LiveJob, LiveRequest
from fairlane.scheduler.protocol.messages import Event, TokenDelta
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.rooms import CALL_PATIENCE_MS
from fairlane.store.bounds import chunks
from fairlane.store.connections import BLOCK_S
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import every

log = logging.getLogger(__name__)

TEND_EVERY_S = 1.0
RETRY_AFTER_S = 0.1


@dataclass(slots=True)
class QueueConnections:
    """The connections to one queue: one for calls, and one for the task that blocks in `read_events`."""

    calls: RedisQueue
    reader: RedisQueue
    close: Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _Line:
    name: str
    link: QueueConnections
    # Of the last event that was read.
    last_id: str = "0-0"
    # Reading and upkeep.
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    # Runs the next round of upkeep at once.
    due: asyncio.Event = field(default_factory=asyncio.Event)
    # Settled and ended jobs whose records will be deleted, with the loop time of their end, oldest first.
    ended: dict[str, float] = field(default_factory=dict)
    # Jobs that one worker was given or called for, and has perhaps not started.
    watched: list[str] = field(default_factory=list)
    watching: asyncio.Task[None] | None = None

    def note_end(self, job_id: str) -> None:
        self.ended[job_id] = asyncio.get_running_loop().time()


@dataclass(eq=False)
class Dispatcher:
    """Delivers events to this gateway's jobs, over one line per queue.

    `kept_s` is how long a job's record outlives its settlement. A store that crashes may lose its last writes,
    including a settlement; the reaper then charges by the record. When a line closes, its records are left to expire
    after as long. `is_elected`: whether this gateway reclaims
    jobs for all."""

    gateway_id: str
    open_link: Callable[[str], QueueConnections]
    open_requests: AllOpenRequests
    kept_s: float
    is_elected: Callable[[], bool] = lambda: True
    # Where this gateway accepts links; set once it listens.
    address: str = field(default="", init=False)
    _jobs: dict[str, LiveJob] = field(default_factory=dict, init=False)
    # Jobs whose request was not answered and may be sent again, with the time (epoch ms of the store's clock) until
    # which their records are kept for it.
    _wanted: dict[str, int] = field(default_factory=dict, init=False)
    _lines: dict[str, _Line] = field(default_factory=dict, init=False)
    _closing: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    # Tokens received but not charged: after a stop string, of a rejected request, or of a settled job.
    wasted_tokens: int = field(default=0, init=False)

    @property
    def jobs(self) -> Mapping[str, LiveJob]:
        return self._jobs

    def queue(self, name: str) -> RedisQueue:
        if name not in self._lines:
            line = self._lines[name] = _Line(name, self.open_link(name))
            loop = asyncio.get_running_loop()
            reading = every(RETRY_AFTER_S, "reading events", partial(self._read, line))
            tending = every(TEND_EVERY_S, "tending a queue", partial(self.tend, name), woken=line.due)
            line.tasks = {loop.create_task(reading), loop.create_task(tending)}
        return self._lines[name].link.calls

    def keep_lines(self, names: set[str]) -> None:
        for name in names:
            self.queue(name)
        needed = names | {job.queue for job in self._jobs.values()}
        for name in self._lines.keys() - needed:
            closing = asyncio.get_running_loop().create_task(self._close(self._lines.pop(name)))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def register(self, job: LiveJob) -> None:
        """Deliver a job's events from now on. Call it before the job is enqueued."""
        self.queue(job.queue)
        self._jobs[job.id] = job
        self.open_requests.entered(job)

    def deliver(self, job: LiveJob, event: Event) -> None:
        """Pass an event to its job. The caller wakes the request after the last event of a batch."""
        job.accept(event)
        if isinstance(event, TokenDelta):
            self.open_requests.produced(job, ends=event.finish_reason is not None)

    def watch(self, job: LiveJob) -> None:
        """Watch that the worker that got a job, or was called for it, starts it soon. Others are called else."""
        line = self._lines.get(job.queue)
        if line is None:
            return
        line.watched.append(job.id)
        if line.watching is None or line.watching.done():
            line.watching = asyncio.get_running_loop().create_task(self._watch(line))

    async def position(self, job: LiveJob) -> int | None:
        """Return a job's place among its tenant's, from 1; None once a worker has it. Raises STORE_ERRORS."""
        return await self.queue(job.queue).position(job.id)

    def move(self, job: LiveJob, queue: str) -> None:
        """Move a job to another queue. Later events from its old queue and its workers are ignored."""
        self.queue(queue)
        _stop(job)
        job.queue = queue

    def release(self, job: LiveJob) -> None:
        """Forget a settled job. Its record is deleted soon after the job has ended.

        The record of an unanswered request with an idempotency key is kept as long as the key."""
        self._drop(job)
        once = job.request.ask.once
        if once is not None and job.message is not None and not all(each.is_complete for each in job.request.jobs):
            self._wanted[job.id] = once.until_ms
        self.forget(job.queue, job.id)

    def abandon(self, job: LiveJob) -> None:
        """Leave a job to a reaper: its reservation is no longer renewed, and its record is kept."""
        self._drop(job)

    def forget(self, queue: str, job_id: str, *, until_ms: int = 0) -> None:
        """Schedule the deletion of a settled job's record. Its tokens may be needed until `until_ms`."""
        if until_ms:
            self._wanted[job_id] = until_ms
        if queue in self._lines:
            self._lines[queue].note_end(job_id)

    async def aclose(self) -> None:
        for name in list(self._lines):
            await self._close(self._lines.pop(name))
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _drop(self, job: LiveJob) -> None:
        _stop(job)
        self._jobs.pop(job.id, None)
        self.open_requests.left(job)

    async def _close(self, line: _Line) -> None:
        tasks = [*line.tasks, *([line.watching] if line.watching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        until_ms = round((time.time() + self.kept_s) * 1e3)
        with suppress(*STORE_ERRORS):  # else the records expire later
            await line.link.calls.keep({job_id: self._wanted.pop(job_id, until_ms) for job_id in line.ended})
        await line.link.close()

    async def _read(self, line: _Line) -> None:
        block_ms = int(BLOCK_S * 1e3)
        while True:
            line.last_id, events = await line.link.reader.read_events(self.gateway_id, line.last_id, block_ms)
            self._deliver(line, events)

    def _deliver(self, line: _Line, events: Iterable[Event]) -> None:
        reached: dict[LiveRequest, None] = {}
        for event in events:
            job = self._jobs.get(event.job_id)
            if job is not None and job.queue == line.name:
                self.deliver(job, event)
                reached[job.request] = None
        for request in reached:
            request.ring()

    def _may_wait(self, job_id: str) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and not (job.begun or job.finished or job.stream)

    async def _watch(self, line: _Line) -> None:
        """Ask the store about jobs without a stream, every CALL_PATIENCE_MS. It stops while the store is away."""
        with suppress(*STORE_ERRORS):
            while line.watched:
                await asyncio.sleep(CALL_PATIENCE_MS / 1e3)
                waiting, line.watched = [job_id for job_id in line.watched if self._may_wait(job_id)], []
                if waiting:
                    line.watched += await line.link.calls.rouse(waiting)

    async def tend(self, name: str) -> None:
        """Run one round of upkeep for a queue with a line. Raises STORE_ERRORS."""
        line = self._lines[name]
        queue = line.link.calls
        if any(job.queue == name for job in self._jobs.values()):  # `put` counts as a heartbeat for several rounds
            await line.link.reader.gateway_alive(self.gateway_id)  # the reader tracks how far it has read
        if self.is_elected():
            await queue.reclaim()
            if 0 < queue.lapse_ms < TEND_EVERY_S * 1e3:  # a dead worker's jobs return when its lease expires, not later
                asyncio.get_running_loop().call_later(queue.lapse_ms / 1e3, line.due.set)
        until_s = asyncio.get_running_loop().time() - self.kept_s
        ended = [job_id for job_id, _ in takewhile(lambda one: one[1] <= until_s, line.ended.items())]
        for chunk in chunks(ended):
            wanted = {job_id: self._wanted[job_id] for job_id in chunk if job_id in self._wanted}
            unended = await queue.keep(wanted) if wanted else set()
            if len(wanted) < len(chunk):
                unended |= await queue.forget([job_id for job_id in chunk if job_id not in wanted])
            for job_id in chunk:  # not sent again if a later chunk fails
                line.ended.pop(job_id, None)
                if job_id in unended:  # its worker has yet to report the end
                    line.note_end(job_id)
                else:
                    self._wanted.pop(job_id, None)


def _stop(job: LiveJob) -> None:
    if job.stream is not None:
        job.stream.stop()
        job.stream = None
