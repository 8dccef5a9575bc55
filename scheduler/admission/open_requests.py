"""Requests that this gateway admitted and that have not ended: admission's view of committed work.

A gateway knows its own requests to the token, and those of others by sums: each reports them as often as it looks at
workers and queues, with deadlines as time from then, since no two gateways have one clock. What is guaranteed between
two reports is booked where all gateways meet (`scheduler.queue.promises`). One `OpenRequests` for each gateway and
queue; the simulator's are the same.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from fairlane.scheduler.admission.demand import (
    BUCKET_MS,
    DemandLedger,
    FleetCapacity,
    LaneLoad,
    RequestCosts,
    ServiceClass,
    Sum,
    request_costs,
)
from fairlane.scheduler.admission.eta import Waits
from fairlane.scheduler.planner.costs import slowest_ms
from fairlane.scheduler.planner.fading import FadingSum
from fairlane.scheduler.planner.forecast import MeanLengths
from fairlane.scheduler.planner.ordering import next_due_ms
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import WorkerStatus
from fairlane.scheduler.queue.promises import MARGIN, MOST_TAKEN
from fairlane.scheduler.queue.types import whole_us


class ClassReport(msgspec.Struct, frozen=True, array_like=True):
    """The `Sum` of one service class. Deadlines are told for guaranteed work alone: best effort breaks no promise."""

    rank: int
    best_effort: bool
    loads: int
    prefill_ms: float
    work_ms: float
    output_ms: float
    token_ms: float
    share: float
    dated: tuple[tuple[float, int, float], ...] = ()
    """(milliseconds from now, loads, their work)."""


class GatewayReport(msgspec.Struct, frozen=True, array_like=True):
    """One gateway's open requests, by service class, at the time of the report."""

    levels: tuple[ClassReport, ...]
    promised: Mapping[int, float]
    """Part of the workers' time that it guaranteed of late, by lane rank."""


def class_report(level: ServiceClass, found: Sum, now_ms: float) -> ClassReport:
    """The report of one service class."""
    dated = () if level.best_effort else found.dated.items()
    sums = found.loads, found.prefill_ms, found.work_ms, found.output_ms, found.token_ms, found.share
    dues = tuple((bucket * BUCKET_MS - now_ms, loads, work_ms) for bucket, (loads, work_ms) in dated)
    return ClassReport(level.rank, level.best_effort, *sums, dues)


def sums_of(reports: Iterable[tuple[GatewayReport, int]], now_ms: float) -> dict[ServiceClass, Sum]:
    """Open requests of other gateways, by service class; each report comes with its age in milliseconds."""
    sums: dict[ServiceClass, Sum] = {}
    for report, age_ms in reports:
        for one in report.levels:
            found = sums.setdefault(ServiceClass(one.rank, one.best_effort), Sum())
            found.merge(Sum(one.loads, one.prefill_ms, one.work_ms, one.output_ms, one.token_ms, one.share))
            for in_ms, loads, work_ms in one.dated:
                bucket = int((now_ms - age_ms + in_ms) // BUCKET_MS)
                before, before_ms = found.dated.get(bucket, (0, 0.0))
                found.dated[bucket] = before + loads, before_ms + work_ms
    return sums


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[GatewayReport] = msgspec.msgpack.Decoder(GatewayReport)


def encode_report(report: GatewayReport) -> bytes:
    """The wire form of a report."""
    return _encoder.encode(report)


def decode_reports(heard: Iterable[tuple[bytes, int]]) -> list[tuple[GatewayReport, int]]:
    """Reports with their ages in milliseconds; what another release encodes in another way is left out."""
    reports = []
    for said, age_ms in heard:
        with suppress(msgspec.DecodeError):
            reports.append((_decoder.decode(said), age_ms))
    return reports


RATE_MS = 2_000.0
"""Time constant of the rates of work."""


FORGOTTEN_PART = 1e-3
"""A smaller part of the workers' time is not worth a report."""


class Rate(FadingSum):
    """Part of the time that work of late takes, 1 at most: what came in vain says nothing about later. Times in
    milliseconds."""

    def __init__(self) -> None:
        super().__init__(RATE_MS, most=1.0)

    def add(self, work_ms: float, now_ms: float) -> None:
        super().add(work_ms / RATE_MS, now_ms)

    def add_late(self, work_ms: float, came_ms: float, now_ms: float) -> None:
        """Count work that came earlier and is known only now."""
        self.add(work_ms * math.exp((came_ms - now_ms) / RATE_MS), now_ms)

    def take_back(self, work_ms: float, came_ms: float, now_ms: float) -> None:
        """Uncount work that came earlier."""
        self.add_late(-work_ms, came_ms, now_ms)


MOST_IN_VAIN = 4.0
"""What a tenant's requests that were refused may claim for a lane, beside those that were let in, which it pays for."""
MOST_TENANTS = 10_000
"""With so many that were refused, all of them start anew."""
COUNTED_EVERY = 8
"""Output tokens of a choice from one look at what is left of it to the next; the first is always looked at."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request as admission sees it. Times are milliseconds from its arrival."""

    lane: LaneName
    tenant: str = ""
    prompt_tokens: int
    max_tokens: int
    """Output tokens per choice."""
    max_tokens_stated: bool = True
    """The caller named `max_tokens`; otherwise it is only what fits, and says nothing about the end."""
    choices: int = 1
    deadline_ms: float | None = None
    ttft_ms: float | None = None
    """Stated, hard deadline of the first token; lane targets do not belong here."""
    exact: bool = False
    """It is never computed again, so it begins only where the host could take it at its longest."""

    @property
    def kv_tokens(self) -> int:
        """KV tokens that a worker must be able to hold for it."""
        return self.prompt_tokens + (self.max_tokens if self.max_tokens_stated else 1)

    @property
    def states_deadline(self) -> bool:
        """The caller asked for a time that must be kept."""
        return self.deadline_ms is not None or self.ttft_ms is not None


@dataclass(slots=True)
class _Open:
    """A request that was admitted."""

    request: Request
    guaranteed: bool
    arrived_ms: float
    produced: int = 0
    """Output tokens per choice."""
    counted: int = 0
    """Of these, what its price and the lengths know of."""
    asked_ms: float = 0.0
    """Its work when it came, as the rates know it."""


class OpenRequests:
    """One gateway's open requests of one queue. Times are milliseconds of the gateway's own clock."""

    def __init__(self, lanes: Mapping[LaneName, Lane]) -> None:
        self.costs: RequestCosts | None = None
        """As workers last reported; None while none knows its costs."""
        self.ledger = DemandLedger()
        self._lanes = lanes
        self._waits = Waits()
        self._pace_ms = math.inf
        """The TPOT target of the first lane on these workers."""
        self._lengths = MeanLengths()
        self._open: dict[str, _Open] = {}
        self._priced_at: RequestCosts | None = None
        """The costs by which the open requests are priced."""
        self._asked: defaultdict[int, Rate] = defaultdict(Rate)
        self._promised: defaultdict[int, Rate] = defaultdict(Rate)
        """Work that came, and that was guaranteed; by lane rank."""
        self._asked_of_all: Mapping[LaneName, float] = {}
        """Work that came to all gateways, by lane, when they were last heard."""
        self._promised_elsewhere: Mapping[int, float] = {}
        """What other gateways guaranteed then, by lane rank."""
        self._refused_ms: defaultdict[LaneName, float] = defaultdict(float)
        """Work that was turned away and that others have not heard of."""
        self._in_vain: defaultdict[tuple[int, str], Rate] = defaultdict(Rate)
        self._let_in: defaultdict[tuple[int, str], Rate] = defaultdict(Rate)
        """Of what came, that which was refused, and the rest; by lane rank and tenant."""
        self._seen: Sequence[WorkerStatus] | None = None
        self._largest: tuple[Sequence[WorkerStatus], int | None] = (), None
        """Of which workers that was asked last, and what the answer was."""

    def largest(self, workers: Sequence[WorkerStatus]) -> int | None:
        """KV tokens of the largest worker that takes jobs; None where none does. Cheap as `look` is."""
        if workers is not self._largest[0]:
            pools = (worker.kv_tokens for worker in workers if not worker.draining)
            self._largest = workers, max(pools, default=None)
        return self._largest[1]

    def look(self, workers: Sequence[WorkerStatus], now_ms: float) -> None:
        """Take in what workers last reported. Cheap where `workers` is what it was the last time."""
        if workers is self._seen:
            return
        self._seen = workers
        self.costs = request_costs(workers)
        single_ms = slowest_ms(workers)
        self._pace_ms = next((lane.tpot_on(single_ms) for lane in self._lanes.values() if lane.rank == 0), math.inf)
        if self.costs is None:
            return
        is_first = self._priced_at is None
        if self._priced_at is None or self.costs.differs(self._priced_at):
            self._priced_at = self.costs
            for job_id, found in self._open.items():
                self._price(job_id, found, now_ms, self.costs)
                if is_first:
                    self._count_asked(found, self._asked_ms(found.request), now_ms)

    def has_news(self, now_ms: float) -> bool:
        """Other gateways have something to hear: requests are open, or were guaranteed or refused of late."""
        promised = any(rate.at(now_ms) > FORGOTTEN_PART for rate in self._promised.values())
        return promised or bool(self._open or self._refused_ms)

    def report(self, now_ms: float) -> GatewayReport:
        """This gateway's report to the others."""
        levels = tuple(class_report(level, found, now_ms) for level, found in self.ledger.levels() if found.loads)
        promised = {rank: rate.at(now_ms) for rank, rate in self._promised.items()}
        return GatewayReport(levels, promised)

    def refused_us(self) -> dict[LaneName, int]:
        """Refused work by lane since the last call, in microseconds of all workers."""
        refused, self._refused_ms = self._refused_ms, defaultdict(float)
        return {lane: whole_us(work_ms) for lane, work_ms in refused.items()}

    def hear(
        self, reports: Sequence[tuple[GatewayReport, int]], asked: Mapping[LaneName, float], now_ms: float
    ) -> None:
        """What all other gateways said last, each so many milliseconds ago, instead of what they said before; and the
        part of the time that came to each lane, over all gateways."""
        self.ledger.others = sums_of(reports, now_ms)
        self._asked_of_all = asked
        self._promised_elsewhere = sum([Counter(report.promised) for report, _ in reports], Counter())

    def turned_away(self, request: Request, now_ms: float) -> None:
        """It was refused and might have been in time: lower lanes leave it room, but little for what costs nothing."""
        rank = self._lanes[request.lane].rank
        if len(self._in_vain) >= MOST_TENANTS:
            self._in_vain.clear()
        if len(self._let_in) >= MOST_TENANTS:
            self._let_in.clear()
        in_vain = self._in_vain[rank, request.tenant]
        room = MOST_IN_VAIN * self._let_in[rank, request.tenant].at(now_ms) - in_vain.at(now_ms)
        work_ms = min(self._asked_ms(request), max(0.0, room) * RATE_MS)
        self._refused_ms[request.lane] += work_ms
        for rate in (in_vain, self._asked[rank]):
            rate.add(work_ms, now_ms)

    def enter(
        self, job_id: str, request: Request, *, guaranteed: bool, now_ms: float, load: LaneLoad | None = None
    ) -> None:
        """Add an admitted request, or replace the one of this id. `load`: its demand, where it was just computed."""
        self.withdraw(job_id, now_ms)
        found = self._open[job_id] = _Open(request, guaranteed, now_ms)
        if self.costs is not None:
            load = load or self._load(found, self.costs)
            self.ledger.put(job_id, load, now_ms)
            self._count_asked(found, load.work_ms / self.costs.workers, now_ms)

    def withdraw(self, job_id: str, now_ms: float) -> None:
        """Remove a request that was not queued after all, as if it had never come."""
        found = self._open.get(job_id)
        if found is not None:
            for rate in self._rates(found):
                rate.take_back(found.asked_ms, found.arrived_ms, now_ms)
            self.leave(job_id, finished=False)

    def demote(self, job_id: str, now_ms: float) -> None:
        """What was let in as guaranteed is best effort after all: other gateways had promised the time."""
        found = self._open.get(job_id)
        if found is None or not found.guaranteed:
            return
        self._promised[self._lanes[found.request.lane].rank].take_back(found.asked_ms, found.arrived_ms, now_ms)
        found.guaranteed = False
        if self.costs is not None:
            self._price(job_id, found, now_ms, self.costs)

    def produced(self, job_id: str, tokens: int, now_ms: float, *, are_last: bool = False) -> None:
        """Each of its choices has so many tokens now. `are_last`: it is about to leave, so its price may stay."""
        found = self._open.get(job_id)
        if found is None or tokens <= found.produced:
            return
        if not found.produced:
            self._waits.begun(job_id, now_ms)
        found.produced = tokens
        if found.counted and tokens < found.counted + COUNTED_EVERY:
            return
        self._count_output(found)
        if self.costs is not None and not are_last:
            self._price(job_id, found, now_ms, self.costs)

    def leave(self, job_id: str, *, finished: bool) -> None:
        """It is over; `finished` by itself, so that its length says something of others'."""
        found = self._open.pop(job_id, None)
        if found is None:
            return
        request = found.request
        self._count_output(found)
        self.ledger.remove(job_id)
        self._waits.left(job_id)
        if finished:
            self._lengths.ended(request.lane, request.tenant, request.choices)

    def placed(self, job_id: str, place: int, now_ms: float) -> None:
        """It waits as the `place`-th of its tenant's in its lane, by the queue's word."""
        found = self._open.get(job_id)
        if found is not None and not found.produced and place:
            self._waits.seen(job_id, self._lanes[found.request.lane].rank, found.request.tenant, place, now_ms)

    def still_waits_ms(self, lane: LaneName, tenant: str, place: int) -> float | None:
        """How long the `place`-th of a tenant's waits from now, by how fast places move; None where none has yet."""
        return self._waits.eta_ms(self._lanes[lane].rank, tenant, place)

    def lanes_above(self, lane: LaneName, now_ms: float) -> float:
        """Part of the workers' time that the lanes above have asked for of late, but for what is the lane's own."""
        return min(self._asked_above(lane, now_ms), self._most_above(lane))

    def leaves_time(self, lane: LaneName, now_ms: float) -> bool:
        """The lanes above ask for less than what they may have: a promise rests on no share floor alone."""
        return not self._lanes[lane].rank or self._asked_above(lane, now_ms) < self._most_above(lane)

    def _most_above(self, lane: LaneName) -> float:
        return min(MOST_TAKEN, 1.0 - self._lanes[lane].share_floor)

    def _asked_above(self, lane: LaneName, now_ms: float) -> float:
        rank = self._lanes[lane].rank
        above = [(other.rank, name) for name, other in self._lanes.items() if other.rank < rank]
        return sum(max(self._asked[other].at(now_ms), self._asked_of_all.get(name, 0.0)) for other, name in above)

    def taken(self, rank: int, now_ms: float) -> float:
        """What the lanes above that of a rank ask for."""
        lane = next((name for name, lane in self._lanes.items() if lane.rank == rank), None)
        return 0.0 if lane is None else self.lanes_above(lane, now_ms)

    def promised(self, lane: LaneName, now_ms: float) -> float:
        """Part of the workers' time that what goes before this lane's best effort was promised of late, or asks for."""
        rank = self._lanes[lane].rank
        promised = sum(rate.at(now_ms) for other, rate in self._promised.items() if other <= rank)
        promised += sum(rate for other, rate in self._promised_elsewhere.items() if other <= rank)
        return max(self.lanes_above(lane, now_ms), min(promised, MOST_TAKEN))

    def fleet(self, costs: RequestCosts) -> FleetCapacity:
        return FleetCapacity(costs.workers, costs.base_ms, self._pace_ms)

    def load(self, request: Request, costs: RequestCosts, now_ms: float, *, guaranteed: bool) -> LaneLoad:
        """The demand of a request that comes now."""
        return self._load(_Open(request, guaranteed, now_ms), costs)

    def output_tokens(self, request: Request, produced: int = 0) -> int:
        """Tokens that each choice is expected to have yet to come: at least one, at most what it may."""
        left = max(1, request.max_tokens - produced)
        mean = self._lengths.mean(request.lane, request.tenant)
        if mean is None:
            return left if request.max_tokens_stated else 1
        return max(1, min(left, round(max(mean - produced, mean / 2.0))))

    def _count_output(self, found: _Open) -> None:
        request, gained = found.request, found.produced - found.counted
        if gained:
            self._lengths.produced(request.lane, request.tenant, request.choices * gained)
            found.counted = found.produced

    def _asked_ms(self, request: Request) -> float:
        """Its work, spread over all workers."""
        if self.costs is None:
            return 0.0
        return self.load(request, self.costs, 0.0, guaranteed=True).work_ms / self.costs.workers

    def _count_asked(self, found: _Open, asked_ms: float, now_ms: float) -> None:
        """It came when it came, also where prices are known only now."""
        found.asked_ms = asked_ms
        for rate in self._rates(found):
            rate.add_late(found.asked_ms, found.arrived_ms, now_ms)

    def _rates(self, found: _Open) -> list[Rate]:
        """The rates that an admitted request counts in."""
        rank = self._lanes[found.request.lane].rank
        rates = [self._asked[rank], self._let_in[rank, found.request.tenant]]
        return [*rates, self._promised[rank]] if found.guaranteed else rates

    def _price(self, job_id: str, found: _Open, now_ms: float, costs: RequestCosts) -> None:
        self.ledger.put(job_id, self._load(found, costs), now_ms)

    def _load(self, found: _Open, costs: RequestCosts) -> LaneLoad:
        request, produced = found.request, found.produced
        left = self.output_tokens(request, produced)
        kv_tokens = request.prompt_tokens + (produced + left) / 2.0
        token_ms = request.choices * costs.output_ms(kv_tokens)
        rank = self._lanes[request.lane].rank
        pace_ms = _pace_ms(found, costs, kv_tokens)
        return LaneLoad(
            level=ServiceClass(rank, not found.guaranteed),
            prefill_ms=0.0 if produced else costs.prefill_ms(request.prompt_tokens),
            decode_ms=left * token_ms,
            output_ms=(produced + left) * token_ms,
            token_ms=token_ms,
            share=request.choices * _share(request, produced + left, costs),
            pace_ms=pace_ms,
            due_ms=_due_ms(found, pace_ms, left),
        )


def _share(request: Request, output_tokens: int, costs: RequestCosts) -> float:
    """Part of a worker that a choice takes up with so much output."""
    share = costs.share(request.prompt_tokens + output_tokens)
    return max(share, costs.exact_share(request.prompt_tokens + request.max_tokens)) if request.exact else share


def _pace_ms(found: _Open, costs: RequestCosts, kv_tokens: float) -> float:
    """What its token is reckoned to take: what is guaranteed has the pace of a full worker, best effort is as usual."""
    if not found.guaranteed:
        return costs.recent_step_ms
    return MARGIN * max(costs.recent_step_ms, costs.full_step_ms(kv_tokens))


def _due_ms(found: _Open, pace_ms: float, left: int) -> float:
    """When the next token is due. What is guaranteed may become as long as it may; best effort, once it has begun, is
    waited for by nothing."""
    request = found.request
    if found.guaranteed:
        left = request.max_tokens - found.produced
    elif found.produced:
        return math.inf
    ttft_ms = None if request.ttft_ms is None or found.produced else request.ttft_ms - pace_ms
    return found.arrived_ms + next_due_ms(ttft_ms, request.deadline_ms, left, pace_ms)
