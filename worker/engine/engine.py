"""The engine: the planner, which decides what each step computes, and a `StepRunner`, which computes it.

One thread calls both in turns, and waits only for the runner."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import Ended, Row, StepOutcome, StepPlan, StepResult
from fairlane.scheduler.protocol.media import MediaKind
from fairlane.scheduler.protocol.messages import Event, Job, Lease, ModelCard, Outcome, TokenDelta

LookAhead = Callable[[], Sequence[Row]]


class StepRunner(ABC):
    """Computes the steps. The engine's thread calls it, except for `wake`."""

    def prepare(self, job: Job) -> Future[Any] | None:
        """Start the preparation that must finish before the job is registered; None if there is none."""
        return None

    @abstractmethod
    def register(self, lease: Lease) -> None:
        """Accept rows of this job, which continue the output that earlier holders have published."""

    @abstractmethod
    def forget(self, job_id: str) -> None: ...

    def forget_tenant(self, tenant: str) -> None:
        return

    @abstractmethod
    def run(self, plan: StepPlan, on_forward: Callable[[], None], look_ahead: LookAhead) -> StepResult:
        """Compute the plan's tokens, as far as they are available; a row that cannot be computed fails without the
        others.

        `on_forward` is called once, when other threads may run. `look_ahead` predicts the next step's rows."""

    def wake(self) -> None:
        """Return from `run` soon, because a command is waiting. May be called from any thread."""
        return


@dataclass(frozen=True, slots=True)
class StepReport:
    """A completed step: its plan, its result, and the events to send."""

    plan: StepPlan
    result: StepResult
    outcome: StepOutcome
    epochs: tuple[int, ...] = ()

    @property
    def events(self) -> list[Event]:
        """Build the gateways' events, in order: state changes of choices, then their new tokens, without ended jobs."""
        logprobs, embeddings = self.result.logprobs, self.result.embeddings
        events: list[Event] = [*self.plan.events, *self.result.prompt_logprobs.values()]
        for produced, epoch in zip(self.outcome.produced, self.epochs, strict=True):
            job_id, choice = produced.seq
            delta = TokenDelta(
                job_id=job_id,
                epoch=epoch,
                choice=choice,
                first_index=produced.index,
                token_ids=(produced.token_id,),
                logprobs=(logprobs[produced.seq],) if produced.seq in logprobs else (),
                finish_reason=produced.finish_reason,
                cached_tokens=produced.cached_tokens,
            )
            if produced.seq in embeddings:  # its token is a placeholder
                vector = embeddings[produced.seq]
                delta = msgspec.structs.replace(delta, token_ids=(), finish_reason="stop", embedding=vector)
            events.append(delta)
        return events

    def __repr__(self) -> str:
        return f"StepReport({self.plan.number}, {len(self.plan.rows)} rows, {len(self.epochs)} tokens)"


@dataclass(slots=True)
class _Preparing:
    lease: Lease
    came_ms: float
    ready: Future[Any]

    def grant(self, granted_until: int) -> None:
        job = self.lease.job
        granted = msgspec.structs.replace(job, granted_until=max(granted_until, job.granted_until))
        self.lease = msgspec.structs.replace(self.lease, job=granted)


class Engine:
    """Continuous batching of leased jobs. Call `add` and the like between steps, from the thread that steps."""

    def __init__(self, planner: Planner, runner: StepRunner) -> None:
        self.planner = planner
        self.runner = runner
        # Called from any thread when a job that had to be prepared can run.
        self.on_ready: Callable[[], None] = lambda: None
        self.epochs: dict[str, int] = {}
        self._preparing: dict[str, _Preparing] = {}

    def add(self, lease: Lease, now_ms: float) -> None:
        self.epochs[lease.job.job_id] = lease.epoch
        ready = self.runner.prepare(lease.job)
        if ready is None or ready.done():
            self._start(lease, now_ms)
        else:
            self._preparing[lease.job.job_id] = _Preparing(lease, now_ms, ready)
            ready.add_done_callback(lambda _: self.on_ready())

    def _start(self, lease: Lease, now_ms: float) -> None:
        self.planner.add(lease, now_ms)
        self.runner.register(lease)

    def _start_prepared(self, now_ms: float) -> None:
        for waiting in [one for one in self._preparing.values() if one.ready.done()]:
            lease = waiting.lease
            del self._preparing[lease.job.job_id]
            waited_ms = lease.arrived_ms_ago + now_ms - waiting.came_ms
            self._start(msgspec.structs.replace(lease, arrived_ms_ago=waited_ms), now_ms)

    def cancel(self, job_id: str) -> Ended | None:
        if self._preparing.pop(job_id, None) is not None:
            self._forget(job_id)
            return Ended(job_id, Outcome.CANCELLED)
        ended = self.planner.cancel(job_id)
        if ended is not None:  # otherwise it is unknown, or its end is still to be reported
            self._forget(job_id)
        return ended

    def grant(self, job_id: str, granted_until: int) -> None:
        waiting = self._preparing.get(job_id)
        if waiting is not None:
            waiting.grant(granted_until)
        self.planner.grant(job_id, granted_until)

    def drop(self, job_id: str) -> None:
        self._preparing.pop(job_id, None)
        self.planner.drop(job_id)
        self._forget(job_id)

    @property
    def has_work(self) -> bool:
        return self.planner.has_work or any(waiting.ready.done() for waiting in self._preparing.values())

    def step(self, now_ms: float, on_forward: Callable[[], None] = lambda: None) -> StepReport:
        """Plan, run, learn, report. `now_ms` is the caller's clock at the start of the step."""
        self._start_prepared(now_ms)
        plan = self.planner.plan(now_ms)
        result = self.runner.run(plan, on_forward, self.planner.look_ahead)
        outcome = self.planner.apply(result, now_ms + result.copy_ms + result.run_ms)
        epochs = self.epochs
        report = StepReport(plan, result, outcome, tuple([epochs[one.seq.job_id] for one in outcome.produced]))
        if outcome.ended:
            self._forget(*(ended.job_id for ended in outcome.ended))
        return report

    def _forget(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.epochs.pop(job_id, None)
            self.runner.forget(job_id)


class RemotePart(Protocol):
    """The connection to an external server."""

    # The content of each item that a job in the engine names, by digest.
    media: dict[bytes, bytes]

    def measure(self, kind: MediaKind, data: bytes) -> Future[int]:
        """Return the number of tokens that an item becomes; 0 if the server cannot read it."""

    def watch(self, on_presence: Callable[[bool], object], on_change: Callable[[str], object]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """An engine that is ready to take jobs, with its card and costs."""

    engine: Engine
    card: ModelCard
    costs: CostModel
    max_step_tokens: int
    remote: RemotePart | None = None

    def watch(self, on_presence: Callable[[bool], object], on_change: Callable[[str], object]) -> None:
        """Set callbacks, which any thread may call, for a lost or returned server and for a replaced one."""
        if self.remote is not None:
            self.remote.watch(on_presence, on_change)

    def close(self) -> None:
        if self.remote is not None:
            self.remote.close()
