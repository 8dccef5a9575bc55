"""One simulated installation under a trace: what `fairlane simulate` and the console run, once for each load."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import require
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, Lane, LaneName
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.calibration import Calibration
from fairlane.scheduler.simulation.results import ServiceMeter, Summary, summarize
from fairlane.scheduler.simulation.simulate import Simulation, SimulationObserver
from fairlane.scheduler.simulation.simulated_admission import SimulatedAdmission
from fairlane.scheduler.simulation.synthetic_tenants import SyntheticTenants
from fairlane.scheduler.simulation.trace import TraceRow, scale_load
from fairlane.scheduler.simulation.workload import Record

MAX_WORKERS = 1_000
MAX_LOAD = 10_000.0
CURVE_POINTS = 100
PREFIX_SHARE = 0.25
# Interval at which tenants' service is compared.
LOOK_MS = 1_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The requests of a trace, their tenants, and the workers that serve them."""

    rows: Sequence[TraceRow]
    overlay: SyntheticTenants
    calibration: Calibration
    workers: int
    seed: int
    lanes: Mapping[LaneName, Lane] = field(default_factory=lambda: DEFAULT_LANES)

    def __post_init__(self) -> None:
        require("workers", self.workers, 1, MAX_WORKERS)

    @property
    def prefix_cache(self) -> bool:
        return any(row.hash_ids for row in self.rows)

    def run(self, load: float, on_end: Callable[[], object]) -> Summary:
        """Replay the trace `load` times as fast. Calls `on_end` for each admitted request that has ended. Raises
        StuckError."""
        # A whole number of seconds such that a curve of CURVE_POINTS covers the arrivals.
        bucket_ms = 1e3 * max(1, math.ceil(self.rows[-1].at_ms / load / 1e3 / CURVE_POINTS))
        meter = ServiceMeter(bucket_ms=bucket_ms, every_ms=LOOK_MS, on_end=on_end)
        return summarize(self.records(load, meter), meter)

    def records(self, load: float, *observers: SimulationObserver) -> Collection[Record]:
        """Return the result of each request at this load, in order of arrival. Raises StuckError.

        Admission rejects requests with limits that cannot be kept; without any limits it is off. One worker gets its
        jobs directly; several are behind the global queue."""
        planners, sizes = [self.planner() for _ in range(self.workers)], self.calibration
        admission = SimulatedAdmission(
            planners,
            kv_tokens=sizes.kv_tokens,
            block_size=sizes.block_size,
            max_sequences=sizes.max_sequences,
            costs=sizes.costs(),
        )
        decides = any(tier.deadline_ms or tier.hard_ttft_ms for tier in self.overlay.tiers) or any(
            row.deadline_ms or row.ttft_ms for row in self.rows
        )
        records = Simulation(
            arrivals=self.overlay.arrivals(scale_load(self.rows, load)),
            policies=planners,
            hardware=self.calibration,
            queue=LaneQueue(dict(self.lanes)) if self.workers > 1 else None,
            admission=admission.decide if decides else None,
            has_affinity=self.prefix_cache,
            observers=(*observers, admission) if decides else observers,
            seed=self.seed,
        ).run()
        return records.values()

    def planner(self) -> Planner:
        sizes = self.calibration
        return Planner(
            lanes=dict(self.lanes),
            block_size=sizes.block_size,
            blocks=sizes.blocks,
            host_slots=sizes.host_slots,
            max_sequences=sizes.max_sequences,
            max_step_tokens=sizes.max_step_tokens,
            costs=sizes.costs(),
            prefix_share=PREFIX_SHARE if self.prefix_cache else None,
        )


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a trace that represents the whole trace in a simulation."""

    # Times start at 0.
    rows: Sequence[TraceRow]
    from_s: float
    # In the whole trace.
    to_s: float


def busiest(rows: Sequence[TraceRow], most: int, calibration: Calibration) -> Stretch:
    """Return the `most` consecutive requests with the highest rate of work, or all if there are no more.

    The gaps between them are kept: dropping every other request would smooth out bursts."""
    if len(rows) <= most:
        return Stretch(rows, 0.0, rows[-1].at_ms / 1e3)
    works = [0.0, *accumulate(work_ms(row, calibration) for row in rows)]
    rates = (
        (works[first + most] - works[first]) / max(1.0, rows[first + most - 1].at_ms - rows[first].at_ms)
        for first in range(len(rows) - most + 1)
    )
    first = max(enumerate(rates), key=lambda found: found[1])[0]
    chosen, from_ms = rows[first : first + most], rows[first].at_ms
    return Stretch([replace(row, at_ms=row.at_ms - from_ms) for row in chosen], from_ms / 1e3, chosen[-1].at_ms / 1e3)


def work_ms(row: TraceRow, calibration: Calibration) -> float:
    """Return the time that a request adds to its steps, without cache hits and without the steps' fixed time."""
    _, per_row, token, context, pair = calibration.step
    prompt, output = row.prompt_tokens, row.choices * row.output_tokens
    decode = output * (per_row + context * (prompt + row.output_tokens / 2.0))
    return prompt * token + pair * prompt * prompt / 2.0 + decode


def check_load(load: float) -> float:
    """Return a valid speed-up factor of a trace. Raises ValueError."""
    if not 0.0 < load <= MAX_LOAD:
        raise ValueError(f"load must be above 0 and at most {MAX_LOAD:g}, not {load:g}")
    return load
