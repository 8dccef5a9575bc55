"""Reports of one shard's jobs to the store, and their return to its queue."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from fairlane.scheduler.queue.types import Progress
from fairlane.store.retry import StoreLink
from fairlane.worker.output_stream import OutputStream

Report = Callable[[Sequence[Progress], str], Awaitable[set[str]]]
Release = Callable[[Sequence[str]], Awaitable[None]]


class StoreCalls(NamedTuple):
    """One shard of the queue, as its jobs' reports need it."""

    report: Report
    release: Release
    new_serial: Callable[[], str]


class ReportedStreams(Protocol):
    """The streams whose jobs are reported."""

    def holds(self, stream: OutputStream) -> bool:
        """Whether this is the stream of its job. Another one may have the same epoch, if the store lost its writes."""

    def lost(self, jobs: Sequence[tuple[str, int]]) -> None:
        """Called with jobs that the store has assigned to other workers."""

    def drop(self, jobs: Iterable[tuple[str, int]]) -> None: ...


class StoreReports:
    """The reports to one shard, one call at a time."""

    def __init__(self, streams: ReportedStreams, calls: StoreCalls, link: StoreLink) -> None:
        self._streams = streams
        self._calls = calls
        self._link = link
        self._due: dict[tuple[str, int], OutputStream] = {}
        self._returning: list[OutputStream] = []
        self._wanted = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()

    def want(self, stream: OutputStream) -> None:
        self._due[stream.key] = stream
        self.wake()

    def give_back(self, stream: OutputStream) -> bool:
        """Return a job to the queue soon. Return False if it is returning already."""
        self.wake()
        if stream in self._returning:
            return False
        self._returning.append(stream)
        return True

    def forget(self, stream: OutputStream) -> None:
        self._due.pop(stream.key, None)
        if stream in self._returning:
            self._returning.remove(stream)

    def wake(self) -> None:
        """Send a report, be it empty, since its answer may bring jobs."""
        self._flushed.clear()
        self._wanted.set()

    async def flushed(self) -> None:
        await self._flushed.wait()

    async def run(self) -> None:
        """Report progress, ask for jobs, and return jobs to the queue, as long as the worker serves."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            due, self._due = self._due, {}
            returning, self._returning = self._returning, []
            for stream in returning:
                due.pop(stream.key, None)
            await self._send(list(due.values()), returning)
            if not self._wanted.is_set():
                self._flushed.set()

    async def _send(self, due: Sequence[OutputStream], returning: Sequence[OutputStream]) -> None:
        calls, holds = self._calls, self._streams.holds
        sent = [(stream, stream.progress(returns=False)) for stream in due]
        sent += [(stream, stream.progress(returns=True)) for stream in returning]
        items = [item for _, item in sent]
        refused = await self._link.persist("report", partial(calls.report, items, calls.new_serial()))
        held = [stream.job_id for stream in returning if stream.job_id not in refused and holds(stream)]
        if held:
            await self._link.persist("release", partial(calls.release, held))
        known = [(stream, item) for stream, item in sent if holds(stream)]
        lost = [stream.key for stream, item in known if stream.job_id in refused and item.ends is None]
        if lost:
            self._streams.lost(lost)
        over = [stream.key for stream, item in known if item.ends is not None or stream in returning]
        self._streams.drop([*lost, *over])
