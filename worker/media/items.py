"""The images and sounds of jobs: fetched from their gateways over links, and kept while the worker holds the jobs.

A job starts when the engine has all its items. Jobs of the same item share it. While jobs hold MOST_BYTES, others
wait. An item that a gateway wants measured is kept for that alone."""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from fairlane.scheduler.links.frames import UNMEASURED, Fetch, Measured, MediaPart
from fairlane.scheduler.protocol.media import MeasureMedia
from fairlane.worker.engine.engine import RemotePart

log = logging.getLogger(__name__)

# Items of jobs. The jobs whose items are being fetched may exceed it.
MOST_BYTES = 256 * 2**20
MOST_ITEM_BYTES = 64 * 2**20
# Jobs of a gateway whose items are fetched at a time, and items that are measured.
FETCHING = MEASURING = 4
# Time limit to fetch and measure an item, from the request on. Its gateway asks another worker before.
MEASURE_S = 30.0
MOST_TO_MEASURE = 256

JobKey = tuple[str, int]


@dataclass(slots=True, eq=False)
class _Coming:
    """An item whose parts arrive."""

    whole: "asyncio.Future[bytes | None]"
    data: bytearray = field(default_factory=bytearray)
    # Of the parts so far: to hash all at once would keep the tokens of other jobs waiting.
    hash: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    waiting: int = 0


class Items:
    """What one gateway is asked for. Each part is asked for when the one before it has arrived, and after a redial."""

    def __init__(self, send: Callable[[Sequence[msgspec.Struct]], None]) -> None:
        self.send = send
        self.fetching, self.measuring = asyncio.Semaphore(FETCHING), asyncio.Semaphore(MEASURING)
        self._coming: dict[bytes, _Coming] = {}

    async def fetch(self, digest: bytes) -> bytes | None:
        """Return an item; None if its gateway does not hold it any more."""
        item = self._coming.get(digest)
        if item is None:
            item = self._coming[digest] = _Coming(asyncio.get_running_loop().create_future())
            self.send([Fetch(digest, 0)])
        item.waiting += 1
        try:
            return await asyncio.shield(item.whole)
        finally:
            item.waiting -= 1
            if not item.waiting:
                del self._coming[digest]

    def linked(self) -> None:
        """Ask anew: messages on the lost link may be lost."""
        asks = [Fetch(digest, len(item.data)) for digest, item in self._coming.items() if not item.whole.done()]
        if asks:
            self.send(asks)

    def received(self, part: MediaPart) -> None:
        item = self._coming.get(part.digest)
        if item is None or item.whole.done() or part.start != len(item.data):
            return  # nobody waits for it any more, or it was asked for twice
        item.data += part.data
        item.hash.update(part.data)
        if part.data and len(item.data) < part.total <= MOST_ITEM_BYTES:
            self.send([Fetch(part.digest, len(item.data))])
            return
        item.whole.set_result(bytes(item.data) if item.hash.digest() == part.digest else None)


class Media:
    """The items of one worker's jobs. Used only on the event loop."""

    def __init__(self, engine: RemotePart | None) -> None:
        self._engine = engine
        # Each job's items, and the number of jobs of each item.
        self._digests: dict[JobKey, frozenset[bytes]] = {}
        self._jobs: Counter[bytes] = Counter()
        self._bytes = 0
        self._freed = asyncio.Event()
        self._fetches: dict[JobKey, asyncio.Task[None]] = {}
        self._measures: dict[MeasureMedia, asyncio.Task[None]] = {}

    def hold(self, job: JobKey, digests: frozenset[bytes], items: Items, then: Callable[[bool], None]) -> bool:
        """Keep a job's items until its `release`. Return whether the engine has all of them; if not, fetch them, and
        call `then` with whether their gateway had them."""
        if job not in self._digests:
            self._digests[job] = digests
            self._jobs.update(digests)
        if job in self._fetches:
            return False
        if self._engine is not None and self._engine.media.keys() >= digests:
            return True
        self._fetches[job] = asyncio.create_task(self._fetch(job, digests, items, then))
        return False

    def release(self, job: JobKey) -> None:
        """Drop the items that no other job holds, and stop fetching them."""
        fetch = self._fetches.pop(job, None)
        if fetch is not None:
            fetch.cancel()
        for digest in self._digests.pop(job, ()):
            self._jobs[digest] -= 1
            if not self._jobs[digest]:
                del self._jobs[digest]
                if self._engine is not None:
                    self._bytes -= len(self._engine.media.pop(digest, b""))
        self._freed.set()

    def measure(self, asked: MeasureMedia, items: Items) -> None:
        """Report the number of tokens of an item to its gateway, or that the engine failed."""
        if asked not in self._measures and len(self._measures) < MOST_TO_MEASURE:
            task = self._measures[asked] = asyncio.create_task(self._measure(asked, items))
            task.add_done_callback(lambda _: self._measures.pop(asked))

    async def aclose(self) -> None:
        tasks = [*self._fetches.values(), *self._measures.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, job: JobKey, digests: frozenset[bytes], items: Items, then: Callable[[bool], None]) -> None:
        async with items.fetching:
            # Without a job that has all its items, none would free any: those that wait hold items too.
            while self._bytes >= MOST_BYTES and len(self._digests) > len(self._fetches):
                self._freed.clear()
                await self._freed.wait()
            # One after another, so that what is sent to other jobs waits behind few parts.
            found = [await self._item(digest, items) for digest in digests]
        for digest, data in zip(digests, found, strict=True):
            if data is not None and self._engine is not None and digest not in self._engine.media:
                self._engine.media[digest] = data
                self._bytes += len(data)
        del self._fetches[job]
        then(self._engine is not None and None not in found)

    async def _item(self, digest: bytes, items: Items) -> bytes | None:
        held = None if self._engine is None else self._engine.media.get(digest)
        return await items.fetch(digest) if held is None else held

    async def _measure(self, asked: MeasureMedia, items: Items) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(MEASURE_S), items.measuring:
                data = await self._item(asked.digest, items)
                if data is None or self._engine is None:
                    return
                try:
                    tokens = await asyncio.wrap_future(self._engine.measure(asked.kind, data))
                except Exception as error:  # noqa: BLE001 - the gateway asks another worker
                    log.warning("the engine did not measure an item: error=%s", type(error).__name__)
                    tokens = UNMEASURED
                items.send([Measured(asked.digest, tokens)])
