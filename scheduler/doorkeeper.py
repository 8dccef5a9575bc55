"""Admission at the door of a simulation: what a gateway would know of the workers decides each arrival."""

from collections.abc import Sequence
from typing import Protocol

from scheduler.admission import Admitted, assess
from scheduler.capacity import Counts
from scheduler.commitments import Commitments, Request
from scheduler.costs import CostModel
from scheduler.lanes import DEFAULT_LANES
from scheduler.messages import WorkerStatus
from scheduler.outcomes import Outcome
from scheduler.simulate import Step
from scheduler.workload import Arrival, Record

FADING = 0.95
"""What an older step counts for beside the next, as in a worker's heartbeat."""


class Counted(Protocol):
    """A policy that tells how many sequences stand where."""

    def counts(self) -> Counts:
        """Sequences running, waiting and preempted, by lane."""
        ...


class Doorkeeper:
    """Observes a simulation of workers that are alike, and is its door. Unlike a gateway's, its knowledge is never
    stale."""

    def __init__(self, policies: Sequence[Counted], *, kv_tokens: int, block_size: int, max_sequences: int) -> None:
        self.guaranteed: set[str] = set()
        """Flights that were promised their deadlines."""
        self._policies = policies
        self._blocks = kv_tokens // block_size
        self._block_size = block_size
        self._max_sequences = max_sequences
        self._commitments = Commitments(DEFAULT_LANES)
        self._costs = CostModel()
        self._steps = self._steps_ms = 0.0
        self._promised = False
        """What was said to the last arrival."""

    def decide(self, arrival: Arrival, now_ms: float) -> bool | None:
        """True admits as guaranteed, False as best effort, None refuses."""
        asked = _request(arrival)
        answer = assess(
            asked, workers=[*map(self._status, self._policies)], depths={}, commitments=self._commitments, now_ms=now_ms
        )
        if isinstance(answer, Admitted):
            self._promised = answer.guaranteed
            return answer.guaranteed
        if answer.code == "deadline_unattainable" and answer.retry_after_ms is not None:
            self._commitments.turned_away(asked, now_ms)
        return None

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        """The request that was decided upon last was let in, by the queue too."""
        if self._promised:
            self.guaranteed.add(arrival.flight_id)
        self._commitments.enter(arrival.flight_id, _request(arrival), guaranteed=self._promised, now_ms=now_ms)

    def stepped(self, step: Step) -> None:
        """A worker ran a step: learn how fast it is, and how far its requests have come."""
        self._steps = FADING * self._steps + 1.0
        self._steps_ms = FADING * self._steps_ms + step.run_ms + step.copy_ms
        self._costs.observe(step.plan.features, step.run_ms, step.plan.copies, step.copy_ms)
        for produced in step.outcome.produced:
            self._commitments.produced(produced.seq.flight_id, produced.index + 1, step.ended_ms)

    def ended(self, record: Record) -> None:
        """A request that was let in is over."""
        finished, ended_ms = record.outcome is Outcome.FINISHED, record.end_ms or 0.0
        self._commitments.leave(record.arrival.flight_id, finished=finished, now_ms=ended_ms)

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
            step_ms=self._steps_ms / self._steps if self._steps else 0.0,
            single_stream_ms=self._costs.single_stream_ms,
            step_weights=self._costs.step_weights() if self._costs.has_learnt else (),
        )


def _request(arrival: Arrival) -> Request:
    return Request(
        lane=arrival.lane,
        tenant=arrival.tenant,
        prompt_tokens=arrival.prompt_tokens,
        max_tokens=arrival.max_tokens,
        deadline_ms=arrival.deadline_ms,
        ttft_ms=arrival.hard_ttft_ms,
    )
