"""Admission by several gateways whose knowledge is as old as the last reports."""

import random
from collections.abc import Sequence

from benchmarks.common.mortal_simulation import Death
from fairlane.scheduler.admission.decide import Admitted
from fairlane.scheduler.admission.open_requests import OpenRequests
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import WorkerStatus
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.simulate import SimulatedStep
from fairlane.scheduler.simulation.simulated_admission import Counted, SimulatedAdmission
from fairlane.scheduler.simulation.workload import Arrival, Record


class SimulatedGateways(SimulatedAdmission):
    """Gateways that know each other's requests by reports, as real ones do; a request goes to a random one.

    With a `heartbeat_ms`, workers report at that interval, and each gateway reads the reports and exchanges its own
    twice as often. Without it, a gateway's knowledge is never stale. A dead worker is reported until its lease has
    expired."""

    def __init__(
        self,
        policies: Sequence[Counted],
        *,
        kv_tokens: int,
        block_size: int,
        max_sequences: int,
        queue: LaneQueue,
        gateways: int = 1,
        heartbeat_ms: float = 0.0,
        deaths: Sequence[Death] = (),
        seed: int = 0,
        costs: CostModel | None = None,
    ) -> None:
        super().__init__(policies, kv_tokens=kv_tokens, block_size=block_size, max_sequences=max_sequences, costs=costs)
        self._queue = queue
        self._lapses_ms = {death.worker: death.lapses_ms for death in deaths}
        self._gateways = [OpenRequests(DEFAULT_LANES) for _ in range(gateways)]
        self._chosen: dict[str, OpenRequests] = {}
        self._random = random.Random(seed)
        self._heartbeat_ms = heartbeat_ms
        # When each worker reports next.
        self._beats = [-self._random.random() * heartbeat_ms for _ in policies]
        self._look_ms = heartbeat_ms / 2.0
        # When each gateway reads the reports next.
        self._looks = [-self._random.random() * self._look_ms for _ in self._gateways]
        self._views: list[Sequence[WorkerStatus]] = [()] * gateways
        self._reported: dict[int, WorkerStatus] = {}

    def decide(self, arrival: Arrival, now_ms: float) -> Admitted | None:
        """Return the decision of the request's gateway; None rejects."""
        number = self._random.randrange(len(self._gateways)) if len(self._gateways) > 1 else 0
        gateway = self._gateways[number]
        decision = self._decide(gateway, self._workers_at(number, now_ms), arrival, now_ms)
        if decision is not None:
            self._chosen[arrival.job_id] = gateway
        return decision

    def _gateway_of(self, job_id: str) -> OpenRequests:
        return self._chosen.setdefault(job_id, self._gateways[0])

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        """Record that the last decided request was admitted, also by the queue."""
        record = self._queue.record(arrival.job_id)
        self._promised = record is not None and record.guaranteed
        super().arrived(arrival, now_ms)

    def stepped(self, step: SimulatedStep) -> None:
        super().stepped(step)
        if step.ended_ms >= self._beats[step.worker]:
            self._report(step.worker, step.ended_ms)

    def ended(self, record: Record) -> None:
        super().ended(record)
        del self._chosen[record.arrival.job_id]

    def _workers_at(self, number: int, now_ms: float) -> Sequence[WorkerStatus]:
        """Return the workers that a gateway knows now; if it reads their reports, it exchanges its own too."""
        if self._heartbeat_ms and now_ms < self._looks[number]:
            return self._views[number]
        for worker, beat_ms in enumerate(self._beats):
            if now_ms >= beat_ms:
                self._report(worker, now_ms)
        alive = (worker for worker in self._reported if now_ms < self._lapses_ms.get(worker, now_ms + 1.0))
        self._views[number] = tuple(self._reported[worker] for worker in sorted(alive))
        gateway = self._gateways[number]
        exchanged = self._queue.exchange_reports(int(now_ms), str(number), gateway.report(now_ms), gateway.refused_us())
        gateway.receive_reports(exchanged.reports, exchanged.asked, now_ms)
        self._looks[number] = _next(self._looks[number], self._look_ms, now_ms)
        return self._views[number]

    def _report(self, worker: int, now_ms: float) -> None:
        self._reported[worker] = self._status(self._policies[worker])
        self._beats[worker] = _next(self._beats[worker], self._heartbeat_ms, now_ms)


def _next(planned_ms: float, every_ms: float, now_ms: float) -> float:
    return planned_ms + every_ms * (1 + (now_ms - planned_ms) // every_ms) if every_ms else now_ms
