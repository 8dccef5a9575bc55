"""Open requests of this gateway: admitted and not yet ended. Admission's view of committed work.

A gateway tracks its own requests token by token, and knows other gateways' requests only as reported sums. Deadlines
are reported relative to the report, since gateways share no clock."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

import msgspec

from fairlane.scheduler.admission.demand import (
    BUCKET_MS,
    DemandLedger,
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
from fairlane.scheduler.queue.promises import MARGIN, MAX_TAKEN
from fairlane.scheduler.queue.types import whole_us


class ClassReport(msgspec.Struct, frozen=True, array_like=True):
    """The open requests of one service class; deadlines of guaranteed work only, since best effort breaks no
    guarantee."""

    level: ServiceClass
    # Without deadlines.
    total: Sum
    # (milliseconds from now, loads, their work).
    dated: tuple[tuple[float, int, float], ...]


class GatewayReport(msgspec.Struct, frozen=True, array_like=True):
    """One gateway's open requests, by service class, at the time of the report."""

    levels: tuple[ClassReport, ...]
    promised: Mapping[int, float]


_decoder: msgspec.msgpack.Decoder[GatewayReport] = msgspec.msgpack.Decoder(GatewayReport)


RATE_MS = 2_000.0
FORGOTTEN_PART = 1e-3


class Rate(FadingSum):
    """Recent work as a fraction of the time, at most 1: rejected excess does not predict the future."""

    def __init__(self) -> None:
        super().__init__(RATE_MS, most=1.0)

    def add(self, work_ms: float, now_ms: float) -> None:
        super().add(work_ms / RATE_MS, now_ms)

    def add_late(self, work_ms: float, came_ms: float, now_ms: float) -> None:
        if came_ms < now_ms:
            work_ms *= math.exp((came_ms - now_ms) / RATE_MS)
        self.add(work_ms, now_ms)

    def take_back(self, work_ms: float, came_ms: float, now_ms: float) -> None:
        self.add_late(-work_ms, came_ms, now_ms)


# Limit on a tenant's refused work that counts for a lane, as a multiple of its admitted work, which it pays for.
MAX_REFUSED_RATIO = 4.0
# At this number of tenants with refused requests, the counts of all tenants are reset.
MAX_TENANTS = 10_000
# Output tokens per choice between two price updates; the first token always causes one.
COUNTED_EVERY = 8


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request as admission sees it. Times are milliseconds from its arrival."""

    lane: LaneName
    tenant: str = ""
    prompt_tokens: int
    # Output tokens per choice.
    max_tokens: int
    # Whether the caller set `max_tokens`. If not, it is the remaining space and does not estimate the length.
    max_tokens_stated: bool = True
    choices: int = 1
    deadline_ms: float | None = None
    ttft_ms: float | None = None
    # Never recomputed, so it starts only if the host pool could hold it at full length.
    exact: bool = False

    @property
    def kv_tokens(self) -> int:
        return self.prompt_tokens + (self.max_tokens if self.max_tokens_stated else 1)

    @property
    def states_deadline(self) -> bool:
        return self.deadline_ms is not None or self.ttft_ms is not None


class _Open(msgspec.Struct, gc=False):
    request: Request
    guaranteed: bool
    arrived_ms: float
    # Output tokens per choice.
    produced: int = 0
    # Output tokens that its price and the length statistics include.
    counted: int = 0
    asked_ms: float = 0.0


class OpenRequests:
    """One gateway's open requests of one queue. Times are milliseconds of the gateway's own clock."""

    def __init__(self, lanes: Mapping[LaneName, Lane]) -> None:
        self.costs: RequestCosts | None = None
        self.ledger = DemandLedger()
        self._lanes = lanes
        self._waits = Waits()
        self._lengths = MeanLengths()
        self._open: dict[str, _Open] = {}
        self._priced_at: RequestCosts | None = None
        # Work that arrived, and work that was guaranteed; by lane rank.
        self._asked: defaultdict[int, Rate] = defaultdict(Rate)
        self._promised: defaultdict[int, Rate] = defaultdict(Rate)
        # Work that arrived at all gateways, by lane, at the last exchange of reports.
        self._asked_of_all: Mapping[LaneName, float] = {}
        # Guarantees of the other gateways at that time, by lane rank.
        self._promised_elsewhere: Mapping[int, float] = {}
        self._refused_ms: defaultdict[LaneName, float] = defaultdict(float)
        self._refused: defaultdict[tuple[int, str], Rate] = defaultdict(Rate)
        self._admitted: defaultdict[tuple[int, str], Rate] = defaultdict(Rate)
        self._seen: Sequence[WorkerStatus] | None = None
        # The last argument and result of `largest`.
        self._largest: tuple[Sequence[WorkerStatus], int | None] = (), None

    def largest(self, workers: Sequence[WorkerStatus]) -> int | None:
        """Return the KV tokens of the largest worker that takes jobs, or None. As cheap as `look`."""
        if workers is not self._largest[0]:
            pools = (worker.kv_tokens for worker in workers if not worker.draining)
            self._largest = workers, max(pools, default=None)
        return self._largest[1]

    def look(self, workers: Sequence[WorkerStatus], now_ms: float) -> None:
        """Update costs from the workers' last reports. Cheap if `workers` is the same object as last time."""
        if workers is self._seen:
            return
        self._seen = workers
        first = next(lane for lane in self._lanes.values() if lane.rank == 0)
        self.costs = request_costs(workers, first.tpot_on(slowest_ms(workers)))
        if self.costs is None:
            return
        is_first = self._priced_at is None
        if self._priced_at is None or self.costs.differs(self._priced_at):
            self._priced_at = self.costs
            for job_id, found in self._open.items():
                self._price(job_id, found, now_ms, self.costs)
                if is_first:
                    self._count_asked(found, self._asked_ms(found.request), now_ms)

    def needs_report(self, now_ms: float) -> bool:
        promised = any(rate.at(now_ms) > FORGOTTEN_PART for rate in self._promised.values())
        return promised or bool(self._open or self._refused_ms)

    def report(self, now_ms: float) -> bytes:
        """Return the wire form of these open requests, for the other gateways."""
        levels = []
        for level, found in self.ledger.levels():
            dated = () if level.best_effort else found.dated.items()
            dues = tuple((bucket * BUCKET_MS - now_ms, loads, work_ms) for bucket, (loads, work_ms) in dated)
            if found.loads:
                levels.append(ClassReport(level, msgspec.structs.replace(found, dated={}), dues))
        promised = {rank: rate.at(now_ms) for rank, rate in self._promised.items()}
        return msgspec.msgpack.encode(GatewayReport(tuple(levels), promised))

    def refused_us(self) -> dict[LaneName, int]:
        refused, self._refused_ms = self._refused_ms, defaultdict(float)
        return {lane: whole_us(work_ms) for lane, work_ms in refused.items()}

    def receive_reports(
        self, reports: Iterable[tuple[bytes, int]], asked: Mapping[LaneName, float], now_ms: float
    ) -> None:
        """Replace the other gateways' last reports, each with its age in milliseconds; skip those that another release
        encodes differently. `asked` is the fraction of the time requested in each lane, over all gateways."""
        sums: dict[ServiceClass, Sum] = {}
        promised: defaultdict[int, float] = defaultdict(float)
        for blob, age_ms in reports:
            with suppress(msgspec.DecodeError):
                report = _decoder.decode(blob)
                for one in report.levels:
                    _add(sums.setdefault(one.level, Sum()), one, now_ms - age_ms)
                for rank, share in report.promised.items():
                    promised[rank] += share
        self.ledger.others, self._promised_elsewhere, self._asked_of_all = sums, promised, asked

    def refuse(self, request: Request, now_ms: float) -> None:
        """Count a refused request that might have been in time, so that lower lanes leave room for it. Refused requests
        cost a tenant nothing, so their weight is bounded."""
        rank = self._lanes[request.lane].rank
        if len(self._refused) >= MAX_TENANTS:
            self._refused.clear()
        if len(self._admitted) >= MAX_TENANTS:
            self._admitted.clear()
        refused = self._refused[rank, request.tenant]
        room = MAX_REFUSED_RATIO * self._admitted[rank, request.tenant].at(now_ms) - refused.at(now_ms)
        work_ms = min(self._asked_ms(request), max(0.0, room) * RATE_MS)
        self._refused_ms[request.lane] += work_ms
        for rate in (refused, self._asked[rank]):
            rate.add(work_ms, now_ms)

    def enter(
        self, job_id: str, request: Request, *, guaranteed: bool, now_ms: float, load: LaneLoad | None = None
    ) -> None:
        if job_id in self._open:
            self.withdraw(job_id, now_ms)
        found = self._open[job_id] = _Open(request, guaranteed, now_ms)
        if self.costs is not None:
            load = load or self._load(found, self.costs)
            self.ledger.put(job_id, load, now_ms)
            self._count_asked(found, load.work_ms / self.costs.workers, now_ms)

    def withdraw(self, job_id: str, now_ms: float) -> None:
        found = self._open.get(job_id)
        if found is not None:
            for rate in self._rates(found):
                rate.take_back(found.asked_ms, found.arrived_ms, now_ms)
            self.leave(job_id, finished=False)

    def demote(self, job_id: str, now_ms: float) -> None:
        found = self._open.get(job_id)
        if found is None or not found.guaranteed:
            return
        self._promised[self._lanes[found.request.lane].rank].take_back(found.asked_ms, found.arrived_ms, now_ms)
        found.guaranteed = False
        if self.costs is not None:
            self._price(job_id, found, now_ms, self.costs)

    def produced(self, job_id: str, tokens: int, now_ms: float, *, are_last: bool = False) -> None:
        """Record the output tokens of each choice. `are_last` skips the price update of a request that is about to
        leave."""
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
        """Remove a request. `finished`: it ended normally, so its length counts for the forecast."""
        found = self._open.pop(job_id, None)
        if found is None:
            return
        request = found.request
        self._count_output(found)
        self.ledger.remove(job_id)
        self._waits.left(job_id)
        if finished:
            self._lengths.add(request.lane, request.tenant, ends=request.choices)

    def placed(self, job_id: str, place: int, now_ms: float) -> None:
        found = self._open.get(job_id)
        if found is not None and not found.produced and place:
            self._waits.seen(job_id, self._lanes[found.request.lane].rank, found.request.tenant, place, now_ms)

    def still_waits_ms(self, lane: LaneName, tenant: str, place: int) -> float | None:
        return self._waits.eta_ms(self._lanes[lane].rank, tenant, place)

    def lanes_above(self, lane: LaneName, now_ms: float) -> float:
        return min(self._asked_above(lane, now_ms), self._most_above(lane))

    def leaves_time(self, lane: LaneName, now_ms: float) -> bool:
        """Return whether the lanes above request less than they may take: no guarantee may depend on a share floor
        alone."""
        return not self._lanes[lane].rank or self._asked_above(lane, now_ms) < self._most_above(lane)

    def _most_above(self, lane: LaneName) -> float:
        return min(MAX_TAKEN, 1.0 - self._lanes[lane].share_floor)

    def _asked_above(self, lane: LaneName, now_ms: float) -> float:
        rank = self._lanes[lane].rank
        above = 0.0
        for name, other in self._lanes.items():
            if other.rank < rank:
                above += max(self._asked[other.rank].at(now_ms), self._asked_of_all.get(name, 0.0))
        return above

    def taken(self, rank: int, now_ms: float) -> float:
        return sum(self.lanes_above(name, now_ms) for name, lane in self._lanes.items() if lane.rank == rank)

    def promised(self, lane: LaneName, now_ms: float) -> float:
        """Return the fraction of the workers' time that is guaranteed to, or requested by, work ahead of a lane's best
        effort."""
        rank = self._lanes[lane].rank
        promised = 0.0
        for other, rate in self._promised.items():
            if other <= rank:
                promised += rate.at(now_ms)
        for other, share in self._promised_elsewhere.items():
            if other <= rank:
                promised += share
        return max(self.lanes_above(lane, now_ms), min(promised, MAX_TAKEN))

    def load(self, request: Request, costs: RequestCosts, now_ms: float, *, guaranteed: bool) -> LaneLoad:
        return self._load(_Open(request, guaranteed, now_ms), costs)

    def output_tokens(self, request: Request, produced: int = 0) -> int:
        left = max(1, request.max_tokens - produced)
        mean = self._lengths.mean(request.lane, request.tenant)
        if mean is None:
            return left if request.max_tokens_stated else 1
        return max(1, min(left, round(max(mean - produced, mean / 2.0))))

    def _count_output(self, found: _Open) -> None:
        request, gained = found.request, found.produced - found.counted
        if gained:
            self._lengths.add(request.lane, request.tenant, tokens=request.choices * gained)
            found.counted = found.produced

    def _asked_ms(self, request: Request) -> float:
        if self.costs is None:
            return 0.0
        return self.load(request, self.costs, 0.0, guaranteed=True).work_ms / self.costs.workers

    def _count_asked(self, found: _Open, asked_ms: float, now_ms: float) -> None:
        found.asked_ms = asked_ms
        for rate in self._rates(found):
            rate.add_late(found.asked_ms, found.arrived_ms, now_ms)

    def _rates(self, found: _Open) -> list[Rate]:
        rank = self._lanes[found.request.lane].rank
        rates = [self._asked[rank], self._admitted[rank, found.request.tenant]]
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
            level=_service_class(rank, not found.guaranteed),
            prefill_ms=0.0 if produced else costs.prefill_ms(request.prompt_tokens),
            decode_ms=left * token_ms,
            output_ms=(produced + left) * token_ms,
            token_ms=token_ms,
            share=request.choices * _share(request, produced + left, costs),
            pace_ms=pace_ms,
            due_ms=_due_ms(found, pace_ms, left),
        )


def _add(found: Sum, reported: ClassReport, at_ms: float) -> None:
    found.merge(reported.total)
    for in_ms, loads, work_ms in reported.dated:
        bucket = int((at_ms + in_ms) // BUCKET_MS)
        before, before_ms = found.dated.get(bucket, (0, 0.0))
        found.dated[bucket] = before + loads, before_ms + work_ms


_service_class = lru_cache(ServiceClass)  # few distinct values, and one call per request


def _share(request: Request, output_tokens: int, costs: RequestCosts) -> float:
    share = costs.share(request.prompt_tokens + output_tokens)
    return max(share, costs.exact_share(request.prompt_tokens + request.max_tokens)) if request.exact else share


def _pace_ms(found: _Open, costs: RequestCosts, kv_tokens: float) -> float:
    if not found.guaranteed:
        return costs.recent_step_ms
    return MARGIN * max(costs.recent_step_ms, costs.full_step_ms(kv_tokens))


def _due_ms(found: _Open, pace_ms: float, left: int) -> float:
    """Return when the next token is due: a guaranteed request may use its full length; started best effort has none."""
    request = found.request
    if found.guaranteed:
        left = request.max_tokens - found.produced
    elif found.produced:
        return math.inf
    ttft_ms = None if request.ttft_ms is None or found.produced else request.ttft_ms - pace_ms
    return found.arrived_ms + next_due_ms(ttft_ms, request.deadline_ms, left, pace_ms)
