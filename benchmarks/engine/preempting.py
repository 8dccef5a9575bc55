"""A load that preempts for sure: urgent prompts arrive, every few steps, amid work that fills the KV pool.

Each preemption's predicted cost stands beside the actual one, its way back included. Without a host pool all of them
recompute.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from benchmarks.common.leases import greedy_lease
from benchmarks.common.turns import Request
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Lease
from fairlane.worker.engine.engine import Engine
from fairlane.worker.telemetry import PreemptionCost, PreemptionCosts

STEPS_APART = 6
"""From one urgent arrival to the next."""
STEP_MS = 1.0
"""By the planner's clock, so that what is planned does not depend on the machine."""


@dataclass
class Preempted:
    """What came of it."""

    costs: list[PreemptionCost] = field(default_factory=list)
    outputs: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


def preempt(
    engine: Engine, costs: CostModel, requests: Sequence[Request], urgent: Sequence[Request], tenant: str = "benchmark"
) -> Preempted:
    """Serve all to their ends; `costs` is what the engine's planner predicts by."""
    found, number = Preempted(), 0
    watch = PreemptionCosts(costs, engine.planner.pool_sizes.block_size, found.costs.append)
    for place, (prompt, tokens) in enumerate(requests):
        engine.add(greedy_lease(place, prompt, tokens, tenant=tenant), 0.0)
    waiting = [_urgent(greedy_lease(len(requests) + place, *one, tenant=tenant)) for place, one in enumerate(urgent)]
    while engine.has_work:
        number += 1
        if waiting and number % STEPS_APART == 0:
            engine.add(waiting.pop(), number * STEP_MS)
        report = engine.step(number * STEP_MS)
        watch.stepped(report)
        for one in report.outcome.produced:
            found.outputs[one.seq.job_id].append(one.token_id)
    return found


def _urgent(lease: Lease) -> Lease:
    return replace(lease, job=replace(lease.job, lane=LaneName.LATENCY))
