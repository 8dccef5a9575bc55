"""The only thread that touches the engine: it receives commands from the event loop and sends reports back.

Commands are applied between steps. Because only one thread runs Python at a time, the engine wakes the loop when it
enters a forward pass or becomes idle: the loop sends a step's tokens while the next one computes."""

import asyncio
import ctypes
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.messages import Cancel, ForgetPrompts, Grant, Lease
from fairlane.worker.accounts import StepAccounts
from fairlane.worker.engine.engine import Engine, StepReport
from fairlane.worker.reports import Dropped, JobChange, Report, ReportBuilder, WorkerLoad

_write = ctypes.PyDLL(None).write
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_WAKE_UPS_AT_ONCE = 4096
T = TypeVar("T")
# Pause of the engine when none of its sequences can run, for example because all are paused.
REST_S = 0.05
# After this time without work the engine audits its KV blocks, once, so that a leak is found soon.
IDLE_S = 0.5
STOP_TIMEOUT_S = 10.0


class WakeUpPipe:
    """Wakes the event loop from any thread, without releasing the interpreter lock; `on_wake` runs there.

    `call_soon_threadsafe` releases the lock while it writes: the loop would take it, and the forward pass would wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_wake: Callable[[], None]) -> None:
        self._loop = loop
        self._on_wake = on_wake
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        loop.add_reader(self._read_end, self._woken)

    def wake(self) -> None:
        """Wake the loop. A full pipe drops the byte, because thousands of wake-ups are pending then."""
        _write(self._write_end, b"\0", 1)

    def close(self) -> None:
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        os.close(self._write_end)

    def _woken(self) -> None:
        os.read(self._read_end, _WAKE_UPS_AT_ONCE)
        self._on_wake()


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a job silently if it is still held under this epoch, because its lease was lost."""

    job_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class AskCapacity:
    """Change nothing. The engine reports its capacity, as it does after each command."""


@dataclass(frozen=True, slots=True)
class HandBack:
    """Forget every job, and return their ids once all their events have been reported."""

    reply: "asyncio.Future[list[str]]"
    job_ids: list[str] = field(default_factory=list)


Command = Lease | Cancel | Grant | Drop | AskCapacity | HandBack | ForgetPrompts


class EngineThread:
    """Runs the engine whenever it has work. The event loop calls `send`, `query` and `hand_back`."""

    def __init__(
        self, engine: Engine, worker_id: str, *, measured: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        engine.on_ready = self.send  # the thread then checks again whether a step can run
        self._clock = clock
        accounts = StepAccounts(engine.planner.pool_sizes.block_size) if measured else None
        self._reports = ReportBuilder(worker_id, accounts)
        self._unread: list[Report] = []
        self._calls: deque[Callable[[], None]] = deque()
        self._commands: list[Command] = []
        # Functions that read from the planner between two steps, with the futures of their results.
        self._queries: list[tuple[Callable[[Planner], Any], asyncio.Future[Any]]] = []
        # A report with the same `applied` reflects all of them.
        self.commands_sent = self._applied = 0
        self._stopping = self._audited = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, on_report: Callable[[Report], None], on_failure: Callable[[Exception], None]) -> None:
        """Start the thread. Both callbacks run on the running loop; no report follows a failure."""
        self._loop = asyncio.get_running_loop()
        self._on_report = on_report
        self._on_failure = on_failure
        self._pipe = WakeUpPipe(self._loop, self._make_calls)
        self._thread.start()

    def send(self, *commands: Command) -> None:
        for command in commands:
            if isinstance(command, Lease):
                self._reports.record_arrival(command, self._clock() * 1e3)
        with self._changed:
            self._commands.extend(commands)
            self.commands_sent += len(commands)
            self._changed.notify()
        self._engine.runner.wake()

    def query(self, find: Callable[[Planner], T]) -> "asyncio.Future[T]":
        reply: asyncio.Future[T] = self._loop.create_future()
        with self._changed:
            self._queries.append((find, reply))
            self._changed.notify()
        return reply

    async def hand_back(self) -> list[str]:
        """Forget every job and return their ids, after all their events have been reported."""
        command = HandBack(self._loop.create_future())
        self.send(command)
        return await command.reply

    async def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_S)
        self._make_calls()
        if not self._thread.is_alive():
            self._pipe.close()

    def _run(self) -> None:
        try:
            self._report()
            could_run = True
            while (commands := self._collect(resting=not could_run)) is not None:
                could_run = self._turn(commands)
        except Exception as error:  # noqa: BLE001 - any failure of the engine must end the process
            self._flush_reports()
            self._call_on_loop(partial(self._on_failure, error))

    def _collect(self, *, resting: bool) -> list[Command] | None:
        with self._changed:
            if resting or self._stopping or not self._engine.has_work:
                self._flush_reports()
            if resting:
                self._changed.wait_for(lambda: self._commands or self._stopping, REST_S)
            patience_s = None if self._audited else IDLE_S
            self._changed.wait_for(
                lambda: self._commands or self._queries or self._stopping or self._engine.has_work, patience_s
            )
            if self._stopping:
                return None
            commands, self._commands = self._commands, []
            return commands

    def _turn(self, commands: list[Command]) -> bool:
        """Apply commands, run a step, audit when idle; report each. Return false if a step found nothing to run."""
        if commands:
            changes = [change for command in commands for change in self._apply(command)]
            self._applied += len(commands)
            self._report(changes, began_ms=self._clock() * 1e3)
        for command in commands:
            if isinstance(command, HandBack):
                self._flush_reports()
                self._call_on_loop(partial(_settle, command.reply, command.job_ids))
        answered = self._answer_queries()
        if answered and not (commands or self._engine.has_work):
            return True  # a query must not shorten the pause
        self._audited = not (commands or self._engine.has_work)
        if self._audited:
            # Raises IntegrityError, which ends this worker; another one continues its jobs.
            self._engine.planner.check_integrity()
            self._report(audited=True)
        if not self._engine.has_work:
            return True
        began_ms = self._clock() * 1e3
        step = self._engine.step(began_ms, self._flush_reports)
        self._report(step=step, began_ms=began_ms)
        return not step.plan.is_empty

    def _answer_queries(self) -> bool:
        with self._changed:
            queries, self._queries = self._queries, []
        for find, reply in queries:
            try:
                self._call_on_loop(partial(_settle, reply, find(self._engine.planner)))
            except Exception as error:  # noqa: BLE001
                self._call_on_loop(partial(_refuse, reply, error))
        return bool(queries)

    def _report(
        self,
        changes: Sequence[JobChange] = (),
        step: StepReport | None = None,
        *,
        began_ms: float = 0.0,
        audited: bool = False,
    ) -> None:
        planner = self._engine.planner
        counts = planner.counts()
        load = WorkerLoad(
            running=counts.running,
            waiting=counts.waiting,
            preempted=counts.preempted,
            blocks_free=planner.blocks_free,
            blocks_cached=planner.blocks_cached,
            host_slots_free=planner.host_slots_free,
        )
        jobs, capacity = len(self._engine.epochs), planner.capacity()
        self._unread.append(Report(self._applied, jobs, capacity, load, changes, step, began_ms, audited))

    def _flush_reports(self) -> None:
        if self._unread:
            reports, self._unread = self._unread, []
            self._call_on_loop(partial(self._deliver, reports))

    def _call_on_loop(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._pipe.wake()

    def _make_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _deliver(self, reports: list[Report]) -> None:
        try:
            for report in reports:
                self._reports.complete(report)
                self._on_report(report)
        except Exception as error:  # noqa: BLE001 - a lost report would mean lost tokens
            self._on_failure(error)

    def _apply(self, command: Command) -> Iterator[JobChange]:
        engine = self._engine
        match command:
            case Lease():
                if command.job.job_id in engine.epochs:  # under an earlier epoch
                    engine.drop(command.job.job_id)
                engine.add(command, self._clock() * 1e3)
                yield command
            case Cancel():
                ended = engine.cancel(command.job_id)
                if ended is not None:
                    yield ended
            case Grant():
                engine.grant(command.job_id, command.granted_until)
            case Drop():
                if engine.epochs.get(command.job_id) == command.epoch:
                    yield self._forget(command.job_id)
            case ForgetPrompts():
                engine.planner.forget_prompts(command.tenant, command.tenant_since, command.share_group)
                engine.runner.forget_tenant(command.tenant)
            case HandBack():
                command.job_ids.extend(engine.epochs)
                for job_id in command.job_ids:
                    yield self._forget(job_id)

    def _forget(self, job_id: str) -> Dropped:
        self._engine.drop(job_id)
        return Dropped(job_id)


def _settle(reply: "asyncio.Future[Any]", found: object) -> None:
    if not reply.done():
        reply.set_result(found)


def _refuse(reply: "asyncio.Future[Any]", error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)


def describe_error(error: BaseException) -> str:
    """Describe an exception in one line, innermost frames first. Neither our messages nor torch's hold content."""
    frames = reversed(traceback.extract_tb(error.__traceback__)[-4:])
    places = " < ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in frames)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} in {places}"
