"""An engine with a real planner whose arithmetic is a script: for tests in which torch is not the subject."""

import threading
from collections.abc import Callable

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import StepPlan, StepResult
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Job, Lease
from fairlane.worker.engine.engine import Engine, LookAhead, StepRunner

LIMIT_S = 10.0


class ScriptedRunner(StepRunner):
    """Token `i` of any choice is 100 + i. While `gated`, a step runs only when `allow` is called."""

    def __init__(self, *, gated: bool = False) -> None:
        self.gated = gated
        self.error: Exception | None = None
        self.steps = 0
        self.forgotten: list[str] = []
        """Deleted tenants."""
        self.entered = threading.Event()
        """A step has begun."""
        self._allowed = threading.Semaphore(0)

    def allow(self, steps: int = 1) -> None:
        """Let so many more steps run."""
        self._allowed.release(steps)

    def open(self) -> None:
        """Let all steps run from now on."""
        self.gated = False
        self.allow()

    def register(self, lease: Lease) -> None:
        pass

    def forget(self, job_id: str) -> None:
        pass

    def forget_tenant(self, tenant: str) -> None:
        self.forgotten.append(tenant)

    def run(self, plan: StepPlan, on_forward: Callable[[], None], look_ahead: LookAhead) -> StepResult:
        on_forward()
        self.entered.set()
        if self.gated:
            assert self._allowed.acquire(timeout=LIMIT_S), "a gated step was never allowed"
        if self.error is not None:
            raise self.error
        self.steps += 1
        tokens = {row.seq: 100 + row.output_index for row in plan.rows if row.samples}
        return StepResult(number=plan.number, tokens=tokens, run_ms=1.0)


def engine(
    runner: ScriptedRunner, *, blocks: int = 64, max_sequences: int = 8, prefix_share: float | None = None
) -> Engine:
    planner = Planner(
        lanes=DEFAULT_LANES,
        block_size=4,
        blocks=blocks,
        host_slots=16,
        max_sequences=max_sequences,
        max_step_tokens=64,
        costs=CostModel(),
        prefix_share=prefix_share,
    )
    return Engine(planner, runner)


def job(
    job_id: str = "job", *, max_tokens: int = 4, gateway_id: str = "gateway", n: int = 1,
    granted_until: int | None = None, lane: LaneName = LaneName.LATENCY,
) -> Job:  # fmt: skip
    return Job(
        job_id=job_id,
        gateway_id=gateway_id,
        tenant="tenant",
        lane=lane,
        prompt=(1, 2, 3, 4, 5),
        n=n,
        max_tokens=max_tokens,
        granted_until=max_tokens if granted_until is None else granted_until,
        ttft_ms=1_000.0,
        tpot_ms=100.0,
    )


def lease(job_id: str = "job", *, epoch: int = 1, max_tokens: int = 4, gateway_id: str = "gateway") -> Lease:
    return Lease(job=job(job_id, max_tokens=max_tokens, gateway_id=gateway_id), epoch=epoch, arrived_ms_ago=0.0)
