"""Equal workers behind the queue, and what is asked of them with the targets of its lane."""

import math
from collections.abc import Iterable

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.simulate import SimulatedStep, Simulation, SimulationObserver
from fairlane.scheduler.simulation.workload import Arrival, Hardware, Record

HARDWARE = Hardware(step=(8.0, 0.2, 0.05, 1e-4, 0.0), copy=(0.05, 0.02), overhead_ms=0.3)


class Watcher:
    """Sees everything and notes nothing: what an observer does not say itself."""

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        """A request was let in."""

    def stepped(self, step: SimulatedStep) -> None:
        """A worker ran a step."""

    def ended(self, record: Record) -> None:
        """A request is over."""


def asks(
    at_ms: float, job_id: str, tenant: str, lane: LaneName, prompt: int, output: int, *,
    max_tokens: int = 0, ttft_ms: float | None = None,
) -> Arrival:  # fmt: skip
    """Its output may be as long as `max_tokens`, and is no longer than it may be."""
    targets = DEFAULT_LANES[lane]
    return Arrival(
        at_ms=at_ms,
        job_id=job_id,
        tenant=tenant,
        lane=lane,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=max(output, max_tokens),
        ttft_ms=targets.ttft_ms if ttft_ms is None else ttft_ms,
        tpot_ms=targets.tpot_ms,
    )


def play(
    arrivals: Iterable[Arrival], queue: LaneQueue, seen: SimulationObserver, *, workers: int, blocks: int = 4_000,
    until_ms: float = math.inf,
) -> None:  # fmt: skip
    """Through the queue to real planners of 16 rows."""
    planners = [
        Planner(
            lanes=DEFAULT_LANES,
            block_size=16,
            blocks=blocks,
            host_slots=blocks,
            max_sequences=16,
            max_step_tokens=512,
            costs=CostModel(),
        )
        for _ in range(workers)
    ]
    Simulation(list(arrivals), planners, HARDWARE, queue=queue, observers=[seen], until_ms=until_ms).run()
