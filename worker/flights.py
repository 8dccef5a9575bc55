"""The leases in the engine's hands, and what a step means for each: publications under the lease's epoch."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from scheduler.messages import Event, Finished, Lease
from scheduler.queue_types import Publication
from scheduler.steps import Ended
from worker.engine import StepReport
from worker.outbox import token_runs
from worker.report import LaneTokens, Parts


class Flights:
    """Touched by the engine thread only. A flight leaves with its end, or when it is removed."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease: Lease) -> None:
        """A job came in."""
        self._leases[lease.job.flight_id] = lease

    def epoch(self, flight_id: str) -> int | None:
        """Under which epoch a flight is here; None if it is not."""
        lease = self._leases.get(flight_id)
        return None if lease is None else lease.epoch

    def remove(self, flight_id: str) -> None:
        """The flight is no longer ours."""
        self._leases.pop(flight_id, None)

    def ids(self) -> list[str]:
        """Every flight that is here, oldest first."""
        return list(self._leases)

    def count(self, step: StepReport) -> dict[str, LaneTokens]:
        """A step's tokens by lane; to be asked before `say`, which lets go of flights that ended."""
        leases, prefill = self._leases, Counter[str]()
        for row in step.plan.rows:
            if len(row.token_ids) > 1:
                prefill[leases[row.seq.flight_id].job.lane] += len(row.token_ids)
        output: Counter[str] = Counter([leases[produced.seq.flight_id].job.lane for produced in step.outcome.produced])
        return {lane: LaneTokens(prefill[lane], output[lane]) for lane in prefill.keys() | output.keys()}

    def say(self, step: StepReport) -> Parts:
        """What a step means for each flight, by gateway; flights that ended leave."""
        return self._say(step.events, step.outcome.charges, step.outcome.ended)

    def end(self, ended: Ended) -> Parts:
        """The end of one flight, between steps."""
        return self._say((), {}, (ended,))

    def _say(self, events: Iterable[Event], charges: Mapping[str, float], ended: Iterable[Ended]) -> Parts:
        said: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            said[event.flight_id].append(event)
        ends = {end.flight_id: end for end in ended}
        parts: dict[str, list[Publication]] = defaultdict(list)
        for flight_id in dict.fromkeys([*said, *charges, *ends]):
            lease = self._leases.get(flight_id)
            if lease is not None:
                publication = self._publication(
                    lease, said[flight_id], charges.get(flight_id, 0.0), ends.get(flight_id)
                )
                parts[lease.job.gateway_id].append(publication)
        for flight_id in ends:
            self.remove(flight_id)
        return parts

    def _publication(self, lease: Lease, said: list[Event], cost: float, end: Ended | None) -> Publication:
        events = (*said,) if end is None else (*said, self._finished(lease, end))
        return Publication(
            flight_id=lease.job.flight_id,
            epoch=lease.epoch,
            events=events,
            tokens=token_runs(events),
            cost=cost,
            ends=None if end is None else end.outcome,
        )

    def _finished(self, lease: Lease, end: Ended) -> Finished:
        return Finished(
            flight_id=lease.job.flight_id,
            epoch=lease.epoch,
            outcome=end.outcome,
            error=end.error,
            cached_tokens=end.cached_tokens,
            preemptions=end.preemptions,
            worker_id=self._worker_id,
        )
