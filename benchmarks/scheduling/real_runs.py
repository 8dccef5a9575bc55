"""Real runs of the worker's engine: requests come by the clock, and leave the same records as simulated ones.

The engine steps in its own thread and reports to an event loop, as in a worker process; only the store is left out.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.messages import Lease, Sampling
from fairlane.scheduler.simulation.calibration import Calibration
from fairlane.scheduler.simulation.simulate import Policy
from fairlane.scheduler.simulation.workload import Arrival, Record
from fairlane.worker.engine.engine import Engine
from fairlane.worker.engine.runner import Runner
from fairlane.worker.engine_thread import EngineThread
from fairlane.worker.heartbeat import CostReport
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.model.interface import Model
from fairlane.worker.reports import Report


class Learner:
    """Learns what a worker costs from the steps of several runs, whatever policy plans them; all count alike."""

    def __init__(self) -> None:
        self._costs = CostModel(forgetting=1.0)
        self._report = CostReport(self._costs)

    def turned(self, report: Report) -> None:
        """The engine has moved on."""
        if report.step is not None and report.ran:
            plan, result = report.step.plan, report.step.result
            self._costs.observe(plan.features, result.run_ms, plan.copies, result.copy_ms)
        self._report.turned(report)

    def calibration(self) -> Calibration:
        """The worker in figures, as its metrics port would show it."""
        return self._report.calibration()


@dataclass(frozen=True, slots=True)
class Bench:
    """A model, and the sizes of the worker that runs it."""

    model: Model
    block_size: int
    blocks: int
    host_slots: int

    def play(self, policy: Policy, arrivals: Sequence[Arrival], learner: Learner | None = None) -> dict[str, Record]:
        """The arrivals, at their times, before a policy that fills its rows and holds nothing yet; the records.

        Outputs run to the arrival's `output_tokens`. Raises what the engine raises.
        """
        cache = KVCache(
            self.model.shape,
            blocks=self.blocks,
            host_slots=self.host_slots,
            block_size=self.block_size,
            device=self.model.device,
        )
        planner = cast(Planner, policy)  # the engine thread asks nothing of it that the policies do not have too
        engine = Engine(planner, Runner(self.model, cache))
        leases = [_lease(arrival, self.model.vocab_size) for arrival in arrivals]
        return asyncio.run(_Run(engine, learner).play(arrivals, leases))


@dataclass
class _Run:
    engine: Engine
    learner: Learner | None
    records: dict[str, Record] = field(default_factory=dict)
    began_s: float = 0.0
    left: int = 0

    async def play(self, arrivals: Sequence[Arrival], leases: Sequence[Lease]) -> dict[str, Record]:
        """Tell the engine of each request when its time has come, and wait until all are over."""
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.left = len(leases)
        thread = EngineThread(self.engine, "benchmark", measured=False)
        thread.start(self._turned, self._over.set_exception)
        self.began_s = time.monotonic()
        for arrival, lease in zip(arrivals, leases, strict=True):
            await asyncio.sleep(max(0.0, arrival.at_ms - self._now_ms) / 1e3)
            self.records[arrival.job_id] = Record(arrival)
            thread.send(lease)
        await self._over
        await thread.stop()
        return self.records

    @property
    def _now_ms(self) -> float:
        return (time.monotonic() - self.began_s) * 1e3

    def _turned(self, report: Report) -> None:
        now_ms = self._now_ms
        if self.learner is not None:
            self.learner.turned(report)
        if report.step is None:
            return
        for produced in report.step.outcome.produced:
            self.records[produced.seq.job_id].produced(produced.index, now_ms)
        for end in report.step.outcome.ended:
            record = self.records[end.job_id]
            record.outcome, record.end_ms, record.preemptions = end.outcome, now_ms, end.preemptions
            self.left -= 1
        if not self.left and not self._over.done():
            self._over.set_result(None)


def _lease(arrival: Arrival, vocab_size: int) -> Lease:
    """A greedy request of random tokens that ends at its last token only."""
    chooser = random.Random(arrival.job_id)
    job = msgspec.structs.replace(
        arrival.job(),
        prompt=tuple(chooser.randrange(vocab_size) for _ in range(arrival.prompt_tokens)),
        sampling=Sampling(temperature=0.0),
    )
    return Lease(job=job, epoch=1, arrived_ms_ago=0.0)
