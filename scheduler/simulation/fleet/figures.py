"""Results of a fleet: load and waits of each store core, fairness, starvation and guarantees.

Rates are those of the settled part of a run: from a third of it, when the rows have filled, to the last arrival.
Fairness is that of its second half, since queues build up only after the rows have filled."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.simulation.fleet.fleet import LOOK_MS, Fleet
from fairlane.scheduler.simulation.fleet.store_cores import SECOND_MS, Call, StoreCore
from fairlane.scheduler.simulation.results import Summary, summarize
from fairlane.scheduler.simulation.workload import Record

# Part of a run before it is settled.
WARM_UP = 1.0 / 3.0
# Part of a run before tenants are compared.
BUILD_UP = 0.5
# A tenant whose jobs wait for this long without any service starves.
STARVED_MS = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreFigures:
    """One store core. Utilisations are 0 to 1."""

    utilisation: float
    busiest_second: float
    wait_p50_ms: float
    wait_p99_ms: float
    longest_call_ms: float
    calls: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """Service per weight of those tenants of one lane that had jobs waiting without a break.

    Only such tenants can be compared, as in VTC (Sheng et al., OSDI 2024): one whose queue was empty for a second got
    all that it asked for in that second, which may be many times its share."""

    tenants: int
    # Largest distance from the mean, as a fraction of it.
    deviation: float
    # The same between the tenants of each shard together.
    shard_deviation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSummary:
    """Results of one run."""

    requests: Summary
    # Ended per second.
    chats_per_s: float
    rows_used: float
    # Calls at the queue's shards, heartbeats left out.
    calls_per_chat: float
    # Tokens that a worker's step sends to one gateway in one frame.
    tokens_per_frame: float
    shards: Sequence[CoreFigures]
    budgets: Sequence[CoreFigures]
    fairness: Mapping[str, Fairness]
    starved_tenants: int
    guaranteed: int
    # Guarantees that were not kept although no worker died with the job.
    broken: int
    broken_by_death: int
    # Workers that died.
    deaths: int

    @property
    def busiest(self) -> CoreFigures:
        return max(self.shards, key=lambda core: core.utilisation)


@dataclass
class FleetMeter:
    """Measures a fleet as its observer. `on_end` is called for each admitted request that has ended."""

    on_end: Callable[[], object] = lambda: None
    looks_ms: list[float] = field(default_factory=list)
    _service: list[dict[tuple[LaneName, str], float]] = field(default_factory=list)
    # At each look, since when each tenant with waiting jobs has had some without a break.
    _backlogged_ms: list[dict[tuple[LaneName, str], int]] = field(default_factory=list)
    _rows: list[int] = field(default_factory=list)
    _ends_ms: list[float] = field(default_factory=list)
    # When each tenant with waiting jobs was last served, or began to wait.
    _hungry_ms: dict[tuple[LaneName, str], float] = field(default_factory=dict)
    _starved: set[tuple[LaneName, str]] = field(default_factory=set)
    _shard_of: dict[str, int] = field(default_factory=dict)

    def look(self, fleet: Fleet, now_ms: float) -> None:
        backlogged_ms: dict[tuple[LaneName, str], int] = {}
        for shard, queue in enumerate(fleet.queues):
            for lane, tenant, since_ms in queue.backlogged_ms():
                backlogged_ms[lane, tenant] = since_ms
                self._shard_of[tenant] = shard
        service = fleet.served()
        before = self._service[-1] if self._service else {}
        self._hungry_ms = {
            one: self._hungry_ms.get(one, now_ms) if service[one] == before.get(one, 0.0) else now_ms
            for one in backlogged_ms
        }
        self._starved |= {one for one, since_ms in self._hungry_ms.items() if now_ms - since_ms >= STARVED_MS}
        self.looks_ms.append(now_ms)
        self._service.append(service)
        self._backlogged_ms.append(backlogged_ms)
        self._rows.append(fleet.rows_used)

    def ended(self, record: Record) -> None:
        if record.outcome is Outcome.FINISHED and record.end_ms is not None:
            self._ends_ms.append(record.end_ms)
        self.on_end()

    def summarize(self, fleet: Fleet, guaranteed: Iterable[str] = ()) -> FleetSummary:
        last_ms = fleet.last_arrival_ms
        first_ms = WARM_UP * last_ms
        chats = sum(first_ms <= end_ms < last_ms for end_ms in self._ends_ms)
        looks = [place for place, at_ms in enumerate(self.looks_ms) if first_ms <= at_ms <= last_ms + LOOK_MS]
        rows = sum(self._rows[place] for place in looks) / max(1, len(looks))
        promised = set(guaranteed)
        broken = {job_id for job_id in promised if not _in_time(fleet.records[job_id])}
        calls = sum(core.calls[call] for core in fleet.cores for call in (Call.PUT, Call.TURN))
        return FleetSummary(
            requests=summarize(fleet.records.values()),
            chats_per_s=chats * 1e3 / max(1.0, last_ms - first_ms),
            rows_used=rows / (fleet.shape.workers * fleet.shape.kind.rows),
            calls_per_chat=calls / max(1, len(fleet.records)),
            tokens_per_frame=tokens_per_frame(rows / fleet.shape.workers, fleet.shape.gateways),
            shards=[_figures(core, first_ms, last_ms) for core in fleet.cores],
            budgets=[_figures(core, first_ms, last_ms) for core in fleet.budget_cores],
            fairness=self._fairness(fleet, [place for place in looks if self.looks_ms[place] >= BUILD_UP * last_ms]),
            starved_tenants=len({tenant for _, tenant in self._starved}),
            guaranteed=len(promised),
            broken=len(broken - fleet.interrupted.keys()),
            broken_by_death=len(broken & fleet.interrupted.keys()),
            deaths=fleet.deaths,
        )

    def _fairness(self, fleet: Fleet, looks: Sequence[int]) -> dict[str, Fairness]:
        if not looks:
            return {}
        first, last = looks[0], looks[-1]
        weights = {(one.arrival.lane, one.arrival.tenant): one.arrival.weight for one in fleet.records.values()}
        service: defaultdict[LaneName, dict[str, float]] = defaultdict(dict)
        for one, since_ms in self._backlogged_ms[last].items():
            if since_ms <= self.looks_ms[first]:
                lane, tenant = one
                gained = self._service[last].get(one, 0.0) - self._service[first].get(one, 0.0)
                service[lane][tenant] = gained / weights[one]
        return {lane.value: self._compare(found) for lane, found in sorted(service.items()) if len(found) > 1}

    def _compare(self, service: Mapping[str, float]) -> Fairness:
        by_shard: defaultdict[int, list[float]] = defaultdict(list)
        for tenant, gained in service.items():
            by_shard[self._shard_of[tenant]].append(gained)
        means = [sum(found) / len(found) for found in by_shard.values()]
        return Fairness(
            tenants=len(service), deviation=_deviation(list(service.values())), shard_deviation=_deviation(means)
        )


def tokens_per_frame(rows: float, gateways: int) -> float:
    """Return the mean tokens of a frame: a step's rows belong to random gateways, one frame to each that has any."""
    frames = gateways * (1.0 - (1.0 - 1.0 / gateways) ** rows)
    return rows / frames if frames else 0.0


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return max(abs(value / mean - 1.0) for value in values) if mean else 0.0


def _in_time(record: Record) -> bool:
    arrival, end_ms = record.arrival, record.end_ms
    if record.outcome is not Outcome.FINISHED or record.ttft_ms is None or end_ms is None:
        return False
    is_first = arrival.hard_ttft_ms is None or record.ttft_ms <= arrival.hard_ttft_ms
    return is_first and (arrival.deadline_ms is None or end_ms - arrival.at_ms <= arrival.deadline_ms)


def _figures(core: StoreCore, first_ms: float, last_ms: float) -> CoreFigures:
    seconds = range(int(first_ms / SECOND_MS), max(int(first_ms / SECOND_MS) + 1, int(last_ms / SECOND_MS)))
    busy = [core.busy_by_second[second] / SECOND_MS for second in seconds]
    return CoreFigures(
        utilisation=sum(busy) / len(busy),
        busiest_second=max(busy),
        wait_p50_ms=core.wait_ms(0.5),
        wait_p99_ms=core.wait_ms(0.99),
        longest_call_ms=core.longest_ms,
        calls={call.value: count for call, count in sorted(core.calls.items())},
    )
