"""The product's admission at the door of a simulated worker: what a gateway would know of it decides each arrival."""

from collections import Counter
from typing import Protocol

from scheduler.admission import Admitted, Request, assess
from scheduler.capacity import Counts
from scheduler.lanes import DEFAULT_LANES, LaneName
from scheduler.messages import WorkerStatus
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
    """Observes a simulation, and is its door. Unlike a gateway's, its knowledge is never stale."""

    def __init__(self, policy: Counted, *, kv_tokens: int, block_size: int, max_sequences: int) -> None:
        self.guaranteed: set[str] = set()
        """Flights that were promised their deadlines."""
        self._policy = policy
        self._blocks = kv_tokens // block_size
        self._block_size = block_size
        self._max_sequences = max_sequences
        self._queued: dict[str, Arrival] = {}
        """Let in, without a first token."""
        self._queued_tokens: Counter[LaneName] = Counter()
        self._steps = self._steps_ms = self._prefilled = self._prefill_s = 0.0

    def decide(self, arrival: Arrival, now_ms: float) -> bool | None:
        """True admits as guaranteed, False as best effort, None refuses."""
        asked = Request(
            lane=arrival.lane,
            prompt_tokens=arrival.prompt_tokens,
            max_tokens=arrival.max_tokens,
            deadline_ms=arrival.deadline_ms,
            ttft_ms=arrival.hard_ttft_ms,
        )
        answer = assess(
            asked, workers=[self._status()], depths={}, lanes=DEFAULT_LANES, queued_tokens=self._queued_tokens
        )
        if not isinstance(answer, Admitted):
            return None
        if answer.guaranteed:
            self.guaranteed.add(arrival.flight_id)
        return answer.guaranteed

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        """A request came, and was let in."""
        self._queued[arrival.flight_id] = arrival
        self._queued_tokens[arrival.lane] += arrival.prompt_tokens

    def stepped(self, step: Step) -> None:
        """A worker ran a step: learn how fast it is."""
        self._steps = FADING * self._steps + 1.0
        self._steps_ms = FADING * self._steps_ms + step.run_ms + step.copy_ms
        prefilled = sum(len(row.token_ids) for row in step.plan.rows if row.output_index == 0)
        if prefilled:
            self._prefilled = FADING * self._prefilled + prefilled
            self._prefill_s = FADING * self._prefill_s + step.run_ms / 1e3
        for produced in step.outcome.produced:
            if produced.index == 0:
                self._begun(produced.seq.flight_id)

    def ended(self, record: Record) -> None:
        """A request that was let in is over."""
        self._begun(record.arrival.flight_id)

    def _begun(self, flight_id: str) -> None:
        arrival = self._queued.pop(flight_id, None)
        if arrival is not None:
            self._queued_tokens[arrival.lane] -= arrival.prompt_tokens

    def _status(self) -> WorkerStatus:
        counts = self._policy.counts()
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
            prefill_tokens_per_s=self._prefilled / self._prefill_s if self._prefill_s else 0.0,
        )
