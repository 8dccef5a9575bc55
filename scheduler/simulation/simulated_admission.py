"""Admission in a simulation: a gateway decides each arrival from the workers' current state."""

from collections.abc import Sequence
from typing import Protocol

from fairlane.scheduler.admission.decide import Admitted, assess
from fairlane.scheduler.admission.open_requests import OpenRequests, Request
from fairlane.scheduler.planner.capacity import Counts
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.fading import FadingRatio
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Outcome, WorkerStatus
from fairlane.scheduler.simulation.simulate import SimulatedStep
from fairlane.scheduler.simulation.workload import Arrival, Record


class Counted(Protocol):
    """A policy that counts its sequences by state."""

    def counts(self) -> Counts: ...


class SimulatedAdmission:
    """The gateway of a simulation with identical workers, and an observer of it.

    `costs`: the workers' cost model at startup."""

    def __init__(
        self,
        policies: Sequence[Counted],
        *,
        kv_tokens: int,
        block_size: int,
        max_sequences: int,
        costs: CostModel | None = None,
    ) -> None:
        self.guaranteed: set[str] = set()
        self._policies = policies
        self._blocks = kv_tokens // block_size
        self._block_size = block_size
        self._max_sequences = max_sequences
        self._gateway = OpenRequests(DEFAULT_LANES)
        self._costs = costs or CostModel()
        self._step_ms = FadingRatio()
        self._promised = False

    def decide(self, arrival: Arrival, now_ms: float) -> Admitted | None:
        return self._decide(self._gateway, tuple(map(self._status, self._policies)), arrival, now_ms)

    def _decide(
        self, gateway: OpenRequests, workers: Sequence[WorkerStatus], arrival: Arrival, now_ms: float
    ) -> Admitted | None:
        request = request_of(arrival)
        answer = assess(request, workers=workers, open_requests=gateway, now_ms=now_ms)
        if isinstance(answer, Admitted):
            self._promised = answer.guaranteed
            return answer
        if answer.code == "deadline_unattainable" and answer.retry_after_ms is not None:
            gateway.refuse(request, now_ms)
        return None

    def _gateway_of(self, job_id: str) -> OpenRequests:
        return self._gateway

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        if self._promised:
            self.guaranteed.add(arrival.job_id)
        gateway = self._gateway_of(arrival.job_id)
        gateway.enter(arrival.job_id, request_of(arrival), guaranteed=self._promised, now_ms=now_ms)

    def stepped(self, step: SimulatedStep) -> None:
        self._step_ms.add(step.run_ms + step.copy_ms)
        self._costs.observe(step.plan.features, step.run_ms, step.plan.copies, step.copy_ms)
        for produced in step.outcome.produced:
            job_id = produced.seq.job_id
            self._gateway_of(job_id).produced(job_id, produced.index + 1, step.ended_ms)

    def ended(self, record: Record) -> None:
        job_id = record.arrival.job_id
        self._gateway_of(job_id).leave(job_id, finished=record.outcome is Outcome.FINISHED)

    def _status(self, policy: Counted) -> WorkerStatus:
        counts = policy.counts()
        return WorkerStatus(
            worker_id="worker",
            model="model",
            queue="queue",
            card_sha256="",
            started_at_ms=0.0,
            block_size=self._block_size,
            blocks_total=self._blocks,
            max_sequences=self._max_sequences,
            running=counts.running,
            waiting=counts.waiting,
            preempted=counts.preempted,
            step_ms=self._step_ms.value,
            single_stream_ms=self._costs.single_stream_ms,
            step_weights=self._costs.step_weights() if self._costs.has_learnt else (),
        )


def request_of(arrival: Arrival) -> Request:
    """Return an arrival as admission sees it."""
    return Request(
        lane=arrival.lane,
        tenant=arrival.tenant,
        prompt_tokens=arrival.prompt_tokens,
        max_tokens=arrival.max_tokens,
        choices=arrival.choices,
        deadline_ms=arrival.deadline_ms,
        ttft_ms=arrival.hard_ttft_ms,
    )
