"""The running lines of one batch: one task per line, up to a maximum number at a time.

A line that is refused for a temporary reason is retried later, and no new line starts before that."""

import asyncio
import heapq
import logging
import time
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect

from fairlane.gateway.batches import results
from fairlane.gateway.batches.batch import Batch
from fairlane.gateway.batches.host import BatchHost
from fairlane.gateway.batches.line_call import AnswerTooLarge
from fairlane.gateway.batches.lines import BatchLine
from fairlane.gateway.batches.results import LineEnd
from fairlane.gateway.errors import ApiError, internal_error, invalid_api_key
from fairlane.gateway.http.disconnect import Disconnect
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.middleware.request_id import log_fault
from fairlane.quotas.store import Once
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

# Seconds before a refused line is retried, if the refusal names no time, and the maximum.
RETRY_S, LONGEST_RETRY_S = 1.0, 30.0
MOST_FAULTS = 3
MOST_ENDED = 256
LANDING_S = 10.0
# Statuses of temporary refusals, which do not depend on the line itself.
_PASSING = frozenset({429, 503, 504})


@dataclass(slots=True, eq=False)
class _Run:
    place: int
    line: BatchLine
    tries: int = 0
    faults: int = 0
    leave: Disconnect = field(default_factory=lambda: Disconnect(lambda: None))


@dataclass(frozen=True, slots=True)
class _Refused:
    after_s: float
    is_fault: bool = False


@dataclass(slots=True, eq=False)
class LineRunner:
    """The running lines of one batch under one owner."""

    _batch: Batch
    _root: str
    _host: BatchHost
    # An earlier owner may have started any of the lines.
    _may_have_run: bool
    _running: dict[asyncio.Task[LineEnd | _Refused], _Run] = field(default_factory=dict)
    # A heap of (time on the event loop's clock, line index, run).
    _again: list[tuple[float, int, _Run]] = field(default_factory=list)
    _ended: list[LineEnd] = field(default_factory=list)
    _held_until_s: float = 0.0
    tenant_is_deleted: bool = False

    @property
    def is_busy(self) -> bool:
        return bool(self._running or self._again or self._ended)

    @property
    def rests_s(self) -> float:
        """Return the seconds until a line can run, if all wait for a retry; 0 if one runs or may start."""
        if self._running or self._ended:
            return 0.0
        at_s = min([self._held_until_s, *(at_s for at_s, _, _ in self._again[:1])])
        return max(0.0, at_s - asyncio.get_running_loop().time())

    @property
    def may_begin(self) -> bool:
        if len(self._ended) >= MOST_ENDED or self._held_until_s > asyncio.get_running_loop().time():
            return False
        return len(self._running) + len(self._again) < self._host.share

    def begin(self, place: int, line: BatchLine) -> None:
        if line.refusal is not None:
            self._ended.append(results.refused(self._batch, place, line.custom_id, line.refusal))
        else:
            self._start(_Run(place, line))

    async def step(self, within_s: float) -> list[LineEnd]:
        now_s = asyncio.get_running_loop().time()
        while self._again and self._again[0][0] <= now_s and len(self._running) < self._host.share:
            self._start(heapq.heappop(self._again)[2])
        if not self._ended:
            await self._wait(min([within_s, *(max(0.001, at_s - now_s) for at_s, _, _ in self._again[:1])]))
        ended, self._ended = self._ended, []
        return ended

    async def end(self) -> list[LineEnd]:
        """Start no more lines; wait up to LANDING_S for running ones, then abandon the rest."""
        until_s = asyncio.get_running_loop().time() + LANDING_S
        while self._running and (left_s := until_s - asyncio.get_running_loop().time()) > 0:
            await self._wait(left_s)
        await self.abandon()
        ended, self._ended = self._ended, []
        return ended

    async def abandon(self) -> None:
        for run in self._running.values():
            run.leave.left()
        if self._running:
            await self._wait(LANDING_S, all_of_them=True)
        for task in self._running:
            task.cancel()
        self._again = []

    def _start(self, run: _Run) -> None:
        self._running[asyncio.create_task(self._run(run), name="batch line")] = run

    async def _wait(self, within_s: float, *, all_of_them: bool = False) -> None:
        if not self._running:
            await asyncio.sleep(within_s)
            return
        when = asyncio.ALL_COMPLETED if all_of_them else asyncio.FIRST_COMPLETED
        done, _ = await asyncio.wait(self._running, timeout=within_s, return_when=when)
        for task in done:
            self._take(self._running.pop(task), task.result())

    def _take(self, run: _Run, ended: LineEnd | _Refused) -> None:
        if isinstance(ended, LineEnd):
            self._ended.append(ended)
            return
        run.tries += 1
        run.faults += ended.is_fault
        if run.faults >= MOST_FAULTS:
            self._ended.append(results.refused(self._batch, run.place, run.line.custom_id, internal_error()))
            return
        at_s = asyncio.get_running_loop().time() + ended.after_s
        self._held_until_s = max(self._held_until_s, at_s)
        heapq.heappush(self._again, (at_s, run.place, run))

    async def _run(self, run: _Run) -> LineEnd | _Refused:
        batch, line, name = self._batch, run.line, results.request_id(self._batch, run.place)
        try:
            caller = await self._caller(run)
            answer = await self._host.calls.run(batch.endpoint, line.body, caller, name, run.leave, batch.traceparent)
            return results.answered(batch, run.place, line.custom_id, *answer)
        except ApiError as error:
            if error.code == "tenant_deleted":  # not caused by the line: the batch ends without it
                self.tenant_is_deleted = True
                return _Refused(RETRY_S)
            if error.status in _PASSING or error.code == "tenant_suspended":
                return _Refused(min(LONGEST_RETRY_S, error.retry_after_s or RETRY_S))
            if error.status >= 500:
                return _Refused(RETRY_S, is_fault=True)
            return results.refused(batch, run.place, line.custom_id, error)
        except AnswerTooLarge:
            message = "The line was served and charged, but its answer exceeds the size limit."
            return results.failed(batch, run.place, line.custom_id, "answer_too_large", message)
        except (*STORE_ERRORS, ClientDisconnect):
            return _Refused(RETRY_S)
        except Exception as error:  # noqa: BLE001 - an internal error in one line must not end its batch
            log_fault(name, error)
            return _Refused(RETRY_S, is_fault=True)

    async def _caller(self, run: _Run) -> Caller:
        batch = self._batch
        identity = await self._host.identity(batch)
        if identity is None:
            raise invalid_api_key()
        once = Once(batch.line_name(run.place), batch.once_until_ms)
        runs = await self._host.earlier.runs_of(self._root, once.name) if self._may_have_run or run.tries else ()
        due_ms = max(1.0, (batch.expires_at - time.time()) * 1e3)
        return Caller(identity, once=once, runs=runs, batch_due_ms=due_ms)
