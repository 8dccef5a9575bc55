"""The one thread that touches the engine, and how the event loop gives it commands and hears its reports.

The loop never waits for a step, nor the engine for the loop: commands are handed over between steps, and the loop
reads reports, of commands obeyed and of steps run, when it comes to them. Reports arrive in order.

Only one thread runs Python at a time: a loop that is woken at a step's end keeps the engine from planning the next
one for as long as it takes to publish; so the engine wakes it when it goes into a forward pass, or to rest. What a turn
means for each job the loop works out by itself, while the engine computes.

`WakeUpPipe` wakes the loop without releasing the interpreter lock. `call_soon_threadsafe` releases it while it writes
to the loop's socket: the loop takes the lock and publishes, and the forward pass that was to begin waits, up to 5 ms.
"""

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
from fairlane.worker.reports import Dropped, EngineTurn, JobChange, Report, ReportBuilder, WorkerLoad

_write = ctypes.PyDLL(None).write
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_WAKE_UPS_AT_ONCE = 4096
"""Bytes read from the pipe at once; each is a wake-up."""
T = TypeVar("T")
REST_S = 0.05
"""How long the engine rests when nothing that it holds can run: all paused, say."""
IDLE_S = 0.5
"""After so long without work the engine audits its KV blocks, once; a leak is found while it is one request old."""
STOP_TIMEOUT_S = 10.0


class WakeUpPipe:
    """Wakes the event loop from any thread; `on_wake` is called on the loop, once for any number of wake-ups."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_wake: Callable[[], None]) -> None:
        self._loop = loop
        self._on_wake = on_wake
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        loop.add_reader(self._read_end, self._woken)

    def wake(self) -> None:
        """Wake the loop. A full pipe drops the byte: the loop has thousands of wake-ups before it then."""
        _write(self._write_end, b"\0", 1)

    def close(self) -> None:
        """Call it on the loop, once no thread wakes it any more."""
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        os.close(self._write_end)

    def _woken(self) -> None:
        os.read(self._read_end, _WAKE_UPS_AT_ONCE)
        self._on_wake()


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a job silently if it is still held under this epoch: its lease was lost."""

    job_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class HandBack:
    """Forget every job, and name them once all that was said of them has been reported."""

    reply: "asyncio.Future[list[str]]"
    job_ids: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Look:
    """Find something out of the planner between two steps. It is no command: it changes nothing."""

    find: Callable[[Planner], Any]
    reply: "asyncio.Future[Any]"


Command = Lease | Cancel | Grant | Drop | HandBack | ForgetPrompts


class EngineThread:
    """Runs the engine whenever it has work. `tell`, `hold` and `hand_back` are for the event loop."""

    def __init__(
        self,
        engine: Engine,
        worker_id: str,
        *,
        measured: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`measured`: the steps are computed on this machine, and each job is told what it took of it."""
        self._engine = engine
        engine.on_ready = self.tell  # which looks again whether a step can be run
        self._clock = clock
        accounts = StepAccounts(engine.planner.pool_sizes.block_size) if measured else None
        self._reports = ReportBuilder(worker_id, accounts)
        self._unread: list[EngineTurn] = []
        self._calls: deque[Callable[[], None]] = deque()
        """To make on the loop, in order."""
        self._commands: list[Command] = []
        self._looks: list[Look] = []
        self._told = self._obeyed = 0
        self._held = self._stopping = self._audited = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, on_report: Callable[[Report], None], on_failure: Callable[[Exception], None]) -> None:
        """Begin. Both functions are called on the running loop; after a failure nothing more is reported."""
        self._loop = asyncio.get_running_loop()
        self._on_report = on_report
        self._on_failure = on_failure
        self._pipe = WakeUpPipe(self._loop, self._make_calls)
        self._thread.start()

    @property
    def told(self) -> int:
        """Commands told since the start; a report that obeyed as many counts them all in its capacity."""
        return self._told

    def tell(self, *commands: Command) -> None:
        """Have commands obeyed before the next step."""
        for command in commands:
            if isinstance(command, Lease):
                self._reports.told(command, self._clock() * 1e3)
        with self._changed:
            self._commands.extend(commands)
            self._told += len(commands)
            self._changed.notify()
        self._engine.runner.wake()

    def hold(self, held: bool) -> None:
        """Stop stepping, or go on. Commands are obeyed either way."""
        with self._changed:
            self._held = held
            self._changed.notify()

    def look(self, find: Callable[[Planner], T]) -> "asyncio.Future[T]":
        """What is found out of the planner before the next step, or while there is none; it must change nothing."""
        reply: asyncio.Future[T] = self._loop.create_future()
        with self._changed:
            self._looks.append(Look(find, reply))
            self._changed.notify()
        return reply

    async def hand_back(self) -> list[str]:
        """Forget every job and name them. All that was said of them is in the loop's hands by then."""
        command = HandBack(self._loop.create_future())
        self.tell(command)
        return await command.reply

    async def stop(self) -> None:
        """End after the step that runs."""
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
        except Exception as error:  # noqa: BLE001 - whatever broke the engine, the process must hear of it and end
            self._hand_over()
            self._send(partial(self._on_failure, error))

    def _collect(self, *, resting: bool) -> list[Command] | None:
        """The commands, as soon as there are some, a step to run or an audit to make; None to end."""
        with self._changed:
            if resting or self._stopping or not self._can_step:
                self._hand_over()
            if resting:
                self._changed.wait_for(lambda: self._commands or self._stopping, REST_S)
            patience_s = None if self._audited else IDLE_S
            self._changed.wait_for(
                lambda: self._commands or self._looks or self._stopping or self._can_step, patience_s
            )
            if self._stopping:
                return None
            commands, self._commands = self._commands, []
            return commands

    @property
    def _can_step(self) -> bool:
        return self._engine.has_work and not self._held

    def _turn(self, commands: list[Command]) -> bool:
        """Obey and report, step and report, audit when idle. False where a step found nothing that could run."""
        if commands:
            changes = [change for command in commands for change in self._obey(command)]
            self._obeyed += len(commands)
            self._report(changes, began_ms=self._clock() * 1e3)
        for command in commands:
            if isinstance(command, HandBack):
                self._hand_over()
                self._send(partial(_answer, command))
        looked = self._look_around()
        if looked and not (commands or self._can_step):
            return True  # who only looks keeps nobody from resting
        self._audited = not (commands or self._can_step)
        if self._audited:
            self._audit()
        if not self._can_step:
            return True
        began_ms = self._clock() * 1e3
        step = self._engine.step(began_ms, self._hand_over)
        self._report(step=step, began_ms=began_ms)
        return not step.plan.is_empty

    def _look_around(self) -> bool:
        """Find out what was asked. Whether anything was; what cannot be found is the asker's trouble."""
        with self._changed:
            looks, self._looks = self._looks, []
        for look in looks:
            try:
                self._send(partial(_settle, look.reply, look.find(self._engine.planner)))
            except Exception as error:  # noqa: BLE001
                self._send(partial(_refuse, look.reply, error))
        return bool(looks)

    def _audit(self) -> None:
        """Compare KV blocks with what is held. Raises IntegrityError, which ends this worker: another takes over."""
        self._engine.planner.check_integrity()
        self._report(audited=True)

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
        self._unread.append(EngineTurn(self._obeyed, jobs, capacity, load, changes, step, began_ms, audited))

    def _hand_over(self) -> None:
        """Wake the loop, if there is anything to tell it."""
        if self._unread:
            turns, self._unread = self._unread, []
            self._send(partial(self._deliver, turns))

    def _send(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._pipe.wake()

    def _make_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _deliver(self, turns: list[EngineTurn]) -> None:
        try:
            for turn in turns:
                self._on_report(self._reports.report(turn))
        except Exception as error:  # noqa: BLE001 - a report that got lost would be lost tokens
            self._on_failure(error)

    def _obey(self, command: Command) -> Iterator[JobChange]:
        engine = self._engine
        match command:
            case Lease():
                if command.job.job_id in engine.epochs:  # under an earlier one
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


def _answer(command: HandBack) -> None:
    if not command.reply.done():
        command.reply.set_result(command.job_ids)


def described(error: BaseException) -> str:
    """An exception in one line: what, and where, innermost first. Our messages hold no content, nor do torch's."""
    frames = reversed(traceback.extract_tb(error.__traceback__)[-4:])
    places = " < ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in frames)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} in {places}"
