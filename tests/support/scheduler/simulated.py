"""Small simulations: a worker of few blocks, whose steps take round times."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import Capacity, StepOutcome, StepPlan, StepResult
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.simulate import AdmissionCheck, Simulation, SimulationObserver
from fairlane.scheduler.simulation.workload import Arrival, Hardware

HARDWARE = Hardware(step=(10.0, 1.0, 0.5, 0.0, 0.0), copy=(1.0, 0.5), overhead_ms=1.0)
BLOCK_SIZE, BLOCKS = 4, 16


def planner(*, blocks: int = BLOCKS, host_slots: int = 32, max_sequences: int = 4) -> Planner:
    return Planner(
        lanes=DEFAULT_LANES,
        block_size=BLOCK_SIZE,
        blocks=blocks,
        host_slots=host_slots,
        max_sequences=max_sequences,
        max_step_tokens=16,
        costs=CostModel(),
    )


def arrival(
    job_id: str, at_ms: float = 0.0, *, tenant: str = "acme", lane: LaneName = LaneName.LATENCY, prompt: int = 8,
    output: int = 4, max_tokens: int = 16, ttft_ms: float = 1_000.0, tpot_ms: float = 100.0, weight: float = 1.0,
    deadline_ms: float | None = None,
) -> Arrival:  # fmt: skip
    return Arrival(
        at_ms=at_ms,
        job_id=job_id,
        tenant=tenant,
        lane=lane,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=max_tokens,
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        weight=weight,
        deadline_ms=deadline_ms,
        tier="gold",
    )


def simulation(
    arrivals: Sequence[Arrival], *, workers: int | None = None, admission: AdmissionCheck | None = None, seed: int = 0,
    hardware: Hardware = HARDWARE, observers: Sequence[SimulationObserver] = (), until_ms: float = float("inf"),
) -> Simulation:  # fmt: skip
    """With `workers`, they are behind the queue; without, one gets the jobs directly."""
    return Simulation(
        arrivals=arrivals,
        policies=[planner() for _ in range(workers or 1)],
        hardware=hardware,
        queue=LaneQueue(DEFAULT_LANES) if workers else None,
        admission=admission,
        observers=observers,
        seed=seed,
        until_ms=until_ms,
    )


@dataclass
class Idler:
    """A policy that takes everything up and never does anything."""

    taken: list[Lease] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        return bool(self.taken)

    def add(self, lease: Lease, now_ms: float) -> None:
        self.taken.append(lease)

    def plan(self, now_ms: float) -> StepPlan:
        return StepPlan(number=0)

    def apply(self, result: StepResult, now_ms: float) -> StepOutcome:
        raise AssertionError("it plans nothing")

    def collect(self) -> StepOutcome:
        return StepOutcome()

    def capacity(self) -> Capacity:
        return Capacity(sequences={}, kv_tokens={})
