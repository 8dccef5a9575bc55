"""Closed and open loop over a pool of connections.

In a closed loop each client sends its next request after a response, or after the retry time of a refusal. In an
open loop requests are sent at their times; those beyond `most_open` at once are counted as unsent."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fairlane.cli.bench.connection import CANCELLED, CLOSED, BenchConnection, Endpoint
from fairlane.cli.bench.load import BenchRequest, PromptMaker, TenantKey
from fairlane.cli.bench.results import Gaps, Measured

TIMEOUT = "timeout"
UNREACHABLE = "unreachable"
# Upper bound of the pause after a refusal, so that a daily limit does not end the load.
LONGEST_PAUSE_S = 5.0
PAUSE_S = 0.5
# First tokens that the progress line summarises.
RECENT = 256

BodyOf = Callable[[BenchRequest, Sequence[int] | str], dict[str, object]]


@dataclass(slots=True)
class Tally:
    """The progress of a run."""

    done: list[Measured] = field(default_factory=list)
    gaps: dict[str, Gaps] = field(default_factory=dict)
    running: int = 0
    sent: int = 0
    failed: int = 0
    unsent: int = 0
    recent_ttft_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    began_s: float = 0.0
    ended_s: float | None = None

    @property
    def tokens(self) -> int:
        """Tokens received so far, except the first of each response."""
        return sum(gaps.count for gaps in self.gaps.values())

    @property
    def seconds(self) -> float:
        return (time.perf_counter() if self.ended_s is None else self.ended_s) - self.began_s


@dataclass(slots=True)
class BenchRun:
    """One load on one endpoint. `tally` is consistent at any moment, so a run may be stopped early."""

    endpoint: Endpoint
    keys: Sequence[TenantKey]
    body: BodyOf
    prompts: PromptMaker
    timeout_s: float
    tally: Tally = field(default_factory=Tally)
    _idle: list[BenchConnection] = field(default_factory=list)

    async def closed(self, requests: Iterator[BenchRequest], clients: int, duration_s: float | None) -> None:
        self.tally.began_s = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(clients):
                    tasks.create_task(self._client(requests, duration_s))
        finally:
            self._end()

    async def opened(self, requests: Iterator[BenchRequest], most_open: int, duration_s: float | None = None) -> None:
        self.tally.began_s = began_s = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as tasks:
                for request in requests:
                    if duration_s is not None and request.at_s >= duration_s:
                        return
                    wait_s = began_s + request.at_s - time.perf_counter()
                    if wait_s > 0:
                        await asyncio.sleep(wait_s)
                    if self.tally.running >= most_open:
                        self.tally.unsent += 1
                        continue
                    tasks.create_task(self._ask(request, request.at_s))
                    if wait_s <= 0:
                        await asyncio.sleep(0)  # lets responses be read even if the load is late
        finally:
            self._end()

    def _end(self) -> None:
        self.tally.ended_s = time.perf_counter()
        while self._idle:
            self._idle.pop().close()

    async def _client(self, requests: Iterator[BenchRequest], duration_s: float | None) -> None:
        for request in requests:
            if duration_s is not None and self.tally.seconds >= duration_s:
                return
            measured = await self._ask(request, None)
            if measured.code is not None:
                await asyncio.sleep(min(measured.retry_ms / 1e3 or PAUSE_S, LONGEST_PAUSE_S))

    async def _ask(self, request: BenchRequest, due_s: float | None) -> Measured:
        tally, key = self.tally, self.keys[request.key]
        body = self.body(request, self.prompts.prompt(request))
        wire = self.endpoint.request(body, key.key, request.lane.value)
        gaps = tally.gaps.setdefault(request.lane.value, Gaps())
        tally.running += 1
        tally.sent += 1
        at_s = tally.seconds
        measured = Measured(number=request.number, lane=request.lane.value, tenant=key.name, at_s=at_s)
        measured.lag_s = 0.0 if due_s is None else max(0.0, at_s - due_s)
        try:
            await self._send(wire, measured, gaps)
        except asyncio.CancelledError:
            measured.code = CANCELLED
            raise
        finally:
            tally.running -= 1
            tally.done.append(measured)
            tally.failed += measured.code is not None
            if measured.ttft_ms is not None:
                tally.recent_ttft_ms.append(measured.ttft_ms)
        return measured

    async def _send(self, wire: bytes, measured: Measured, gaps: Gaps) -> None:
        connection = self._reused()
        was_idle = connection is not None
        try:
            async with asyncio.timeout(self.timeout_s):
                connection = connection or await self.endpoint.connect()
                await connection.ask(wire, measured, gaps)
                # The server may have closed the idle connection.
                if was_idle and measured.code == CLOSED and not measured.output_tokens:
                    connection = await self.endpoint.connect()
                    await connection.ask(wire, measured, gaps)
        except OSError as error:
            measured.code = TIMEOUT if isinstance(error, TimeoutError) else UNREACHABLE
        finally:
            if connection is not None and measured.code not in (TIMEOUT, CANCELLED) and connection.is_open:
                self._idle.append(connection)
            elif connection is not None:
                connection.close()

    def _reused(self) -> BenchConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None
