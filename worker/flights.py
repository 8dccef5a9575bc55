"""The leases in the engine's hands, and what a turn of it means for each: publications under the lease's epoch."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from scheduler.messages import Event, Finished, Lease
from scheduler.queue_types import Publication
from scheduler.steps import Ended
from worker.engine import StepReport
from worker.outbox import token_runs
from worker.report import Change, LaneTokens, Left, Report, Turn


class Flights:
    """Kept by the event loop, which hears of the engine's turns in order: while it makes publications of one, the
    engine computes the next. A flight leaves with its end, or silently."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._leases: dict[str, Lease] = {}

    def report(self, turn: Turn) -> Report:
        """What the engine's next turn means."""
        parts: dict[str, list[Publication]] = defaultdict(list)
        for change in turn.changes:
            self._change(change, parts)
        tokens: dict[str, LaneTokens] = {}
        if turn.step is not None:
            tokens = self._count(turn.step)  # before flights that ended leave
            self._say(turn.step.events, turn.step.outcome.charges, turn.step.outcome.ended, parts)
        return Report(turn.obeyed, parts, turn.capacity, turn.flights, turn.load, turn.step, tokens, turn.audited)

    def _change(self, change: Change, parts: dict[str, list[Publication]]) -> None:
        match change:
            case Lease():
                self._leases[change.job.flight_id] = change
            case Ended():
                self._say((), {}, (change,), parts)
            case Left():
                self._leases.pop(change.flight_id, None)

    def _count(self, step: StepReport) -> dict[str, LaneTokens]:
        """A step's tokens by lane."""
        leases, prefill = self._leases, Counter[str]()
        for row in step.plan.rows:
            if len(row.token_ids) > 1:
                prefill[leases[row.seq.flight_id].job.lane] += len(row.token_ids)
        output: Counter[str] = Counter([leases[produced.seq.flight_id].job.lane for produced in step.outcome.produced])
        return {lane: LaneTokens(prefill[lane], output[lane]) for lane in prefill.keys() | output.keys()}

    def _say(
        self,
        events: Iterable[Event],
        charges: Mapping[str, float],
        ended: Iterable[Ended],
        parts: dict[str, list[Publication]],
    ) -> None:
        """Add to `parts` what these mean for each flight; those that ended leave."""
        said: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            said[event.flight_id].append(event)
        ends = {end.flight_id: end for end in ended}
        for flight_id in dict.fromkeys([*said, *charges, *ends]):
            lease = self._leases.get(flight_id)
            if lease is not None:
                publication = self._publication(
                    lease, said[flight_id], charges.get(flight_id, 0.0), ends.get(flight_id)
                )
                parts[lease.job.gateway_id].append(publication)
        for flight_id in ends:
            self._leases.pop(flight_id, None)

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
