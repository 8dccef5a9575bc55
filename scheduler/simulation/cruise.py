"""A simulated worker that runs without plans, and the updates of its requests, the queue and observers.

Each step's charges are reported to the queue at once, since they decide which tenant is served next. Requests are
updated once, when the batch lands."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from fairlane.scheduler.planner.coast import Coast
from fairlane.scheduler.planner.ordering import DECODE_WEIGHT
from fairlane.scheduler.planner.sequence import Sequence as Choice
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.queue.types import Progress
from fairlane.scheduler.simulation.workload import Arrival, Record

ALWAYS = -1


class Coasted(NamedTuple):
    """A step of one worker that repeats each row of the previous step, one token further."""

    worker: int
    ended_ms: float
    rows: int
    # Number of rows of one tenant, lane and weight, with one of their requests.
    shares: Sequence[tuple[Arrival, int]]
    run_ms: float


@runtime_checkable
class CoastObserver(Protocol):
    """An observer that does not need the plan of a step that repeats the last one."""

    def coasted(self, step: Coasted) -> None: ...

    def landed(self, gained: Mapping[str, int]) -> None: ...


class _Row(NamedTuple):
    seq: Choice
    record: Record
    epoch: int
    first: int
    # First step that is charged to its tenant: the charge when it was taken covers the earlier ones.
    spends_from: int

    @property
    def payer(self) -> tuple[str, LaneName, float]:
        arrival = self.record.arrival
        return arrival.tenant, arrival.lane, arrival.weight

    def progress(self, cost: float) -> Progress:
        return Progress(self.seq.id.job_id, self.epoch, self.record.tokens, cost)


class Cruise:
    """The steps of one worker without plans. `begin` and `end` alternate, as for `Coast`."""

    def __init__(
        self, coast: Coast, records: Mapping[str, Record], queue: LaneQueue | None, held: Mapping[str, int]
    ) -> None:
        # Start and duration of the running step.
        self.started_ms = 0.0
        self.run_ms = 0.0
        self.coast, self._queue = coast, queue
        self._rows = [_row(seq, records[seq.id.job_id], queue, held) for seq in coast.sequences]
        self._most = min([row.record.arrival.output_tokens - row.first for row in self._rows]) - 1
        self._ends_ms: list[float] = []
        payers = Counter([row.payer for row in self._rows])
        arrivals = {row.payer: row.record.arrival for row in self._rows}
        self._shares = [(arrivals[payer], count) for payer, count in payers.items()]
        self._starts: defaultdict[int, list[_Row]] = defaultdict(list)
        self._spending: dict[tuple[str, LaneName, float], list[_Row]] = {}
        for row in self._rows if queue else ():
            if row.spends_from == ALWAYS:
                self._spending.setdefault(row.payer, []).append(row)
            else:
                self._starts[row.spends_from].append(row)

    def begin(self, now_ms: float) -> StepFeatures | None:
        if len(self._ends_ms) >= self._most:
            return None
        self.started_ms = now_ms
        return self.coast.begin(now_ms)

    def end(self, number: int, now_ms: float, observers: Iterable[CoastObserver]) -> None:
        self.coast.end(self.run_ms)
        self._ends_ms.append(now_ms)
        step = Coasted(number, now_ms, len(self._rows), self._shares, self.run_ms)
        for observer in observers:
            observer.coasted(step)
        if self._queue is not None:
            self._queue.report(str(number), self._spent())

    def land(self, number: int, now_ms: float, observers: Iterable[CoastObserver]) -> None:
        steps = len(self._ends_ms)
        if not steps:
            return
        for row in self._rows:
            row.record.computed += steps
            row.record.produced_at(row.first, self._ends_ms)
        for observer in observers:
            observer.landed({row.seq.id.job_id: steps for row in self._rows})
        if self._queue is not None:
            prepaid = [DECODE_WEIGHT * steps if row.spends_from >= steps else 0.0 for row in self._rows]
            progress = [row.progress(cost) for row, cost in zip(self._rows, prepaid, strict=True)]
            self._queue.report(str(number), progress)

    def _spent(self) -> list[Progress]:
        """Return the charges of the last step: one job per payer represents all that have used up their advance
        charge."""
        steps = len(self._ends_ms)
        spent = [rows[0].progress(DECODE_WEIGHT * len(rows)) for rows in self._spending.values()]
        for row in self._starts.pop(steps - 1, ()):
            spent.append(row.progress(DECODE_WEIGHT * steps))
            self._spending.setdefault(row.payer, []).append(row)
        return spent


def _row(seq: Choice, record: Record, queue: LaneQueue | None, held: Mapping[str, int]) -> _Row:
    job_id = seq.id.job_id
    credit = 0.0 if queue is None else queue.credit(job_id)
    return _Row(seq, record, held.get(job_id, 1), len(seq.output), int(credit // DECODE_WEIGHT) if credit else ALWAYS)
