"""Results of a simulation: latencies, attainment, goodput and throughput; by lane, tier and tenant.

A request attains its targets if it finished, its first token was in time, and its last was inside the envelope that
follows from the targets (Niyama, FairBatching). All offered requests count, so a rejection counts as a miss."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlane.scheduler.planner.ordering import DECODE_WEIGHT, PREFILL_WEIGHT
from fairlane.scheduler.planner.steps import Row
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.simulation.cruise import Coasted
from fairlane.scheduler.simulation.simulate import SimulatedStep
from fairlane.scheduler.simulation.workload import Arrival, Record


@dataclass(slots=True)
class _Metered:
    arrival: Arrival
    # Leading tokens whose KV has been computed at least once.
    reached: int = 0
    worker: int | None = None


@dataclass
class ServiceMeter:
    """Measures tenants' service as an observer of a simulation: 1 for a prompt token computed for the first time, 2 for
    an output token (VTC, OSDI 2024).

    `bucket_ms` is the resolution of `curve`; `every_ms` is the interval of measuring gaps, whose cost grows with the
    square of the number of tenants. `on_end` is called for each admitted request that has ended."""

    bucket_ms: float = 10_000.0
    every_ms: float = 0.0
    on_end: Callable[[], object] = lambda: None
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    run_ms: float = 0.0
    copy_ms: float = 0.0
    service: dict[str, float] = field(default_factory=dict)
    # By tenant, the service in each bucket of time, up to its last service.
    curve: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._asked: dict[str, _Metered] = {}
        self._arriving: list[tuple[float, Arrival]] = []
        self._rows: dict[int, set[str]] = {}
        self._gaps: defaultdict[LaneName, _Gaps] = defaultdict(_Gaps)
        self._looked_ms = 0.0

    @property
    def max_gap(self) -> float:
        return max((gaps.most for gaps in self._gaps.values()), default=0.0)

    @property
    def tax(self) -> float:
        """Preemption's share of the workers' time, 0 to 1: all copies, in which no row runs, and the rows' time by
        their fraction of recomputed tokens."""
        recomputing_ms = self.run_ms * self.recomputed_tokens / self.computed_tokens if self.computed_tokens else 0.0
        all_ms = self.run_ms + self.copy_ms
        return (recomputing_ms + self.copy_ms) / all_ms if all_ms else 0.0

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        self._asked[arrival.job_id] = _Metered(arrival)
        self._arriving.append((now_ms, arrival))

    def stepped(self, step: SimulatedStep) -> None:
        self.run_ms += step.run_ms
        self.copy_ms += step.copy_ms
        self._join(step.started_ms)
        self._turn(step)
        self._join(step.ended_ms)
        bucket = int(step.ended_ms / self.bucket_ms)
        for row in step.plan.rows:
            asked = self._asked[row.seq.job_id]
            service = self._compute(asked, row)
            if service:
                self._serve(asked.arrival, service, bucket)
        for produced in step.outcome.produced:
            self._serve(self._asked[produced.seq.job_id].arrival, DECODE_WEIGHT, bucket)
        self._look(step.ended_ms)

    def coasted(self, step: Coasted) -> None:
        self.run_ms += step.run_ms
        self._join(step.ended_ms)
        self.computed_tokens += step.rows
        bucket = int(step.ended_ms / self.bucket_ms)
        for arrival, rows in step.shares:
            self._serve(arrival, DECODE_WEIGHT * rows, bucket)
        self._look(step.ended_ms)

    def landed(self, gained: Mapping[str, int]) -> None:
        for job_id, tokens in gained.items():
            self._asked[job_id].reached += tokens

    def ended(self, record: Record) -> None:
        self._join(math.inf)
        asked = self._asked.pop(record.arrival.job_id)
        if asked.worker is None:
            self._gaps[record.arrival.lane].stop_waiting(record.arrival.tenant)
        self.on_end()

    def _look(self, now_ms: float) -> None:
        if now_ms >= self._looked_ms + self.every_ms:
            self._looked_ms = now_ms
            for gaps in self._gaps.values():
                gaps.look()

    def _join(self, until_ms: float) -> None:
        """Count arrivals up to a time as waiting. A step is reported at its end, but its rows stop waiting at its
        start: later arrivals did not wait with them."""
        while self._arriving and self._arriving[0][0] <= until_ms:
            arrival = self._arriving.pop(0)[1]
            self._gaps[arrival.lane].wait(arrival.tenant)

    def _turn(self, step: SimulatedStep) -> None:
        running = {row.seq.job_id for row in step.plan.rows}
        for job_id in self._rows.get(step.worker, set()) - running:
            asked = self._asked.get(job_id)
            if asked is not None:
                asked.worker = None
                self._gaps[asked.arrival.lane].wait(asked.arrival.tenant)
        for asked in map(self._asked.__getitem__, running):
            if asked.worker is None:
                asked.worker = step.worker
                self._gaps[asked.arrival.lane].stop_waiting(asked.arrival.tenant)
        self._rows[step.worker] = running

    def _compute(self, asked: _Metered, row: Row) -> float:
        end, prompt = row.context_length, asked.arrival.prompt_tokens
        start = min(end, max(asked.reached, row.first_position))
        self.computed_tokens += len(row.token_ids)
        self.recomputed_tokens += start - row.first_position
        asked.reached = max(asked.reached, end)
        return PREFILL_WEIGHT * (min(end, prompt) - min(start, prompt))

    def _serve(self, arrival: Arrival, service: float, bucket: int) -> None:
        tenant = arrival.tenant
        self.service[tenant] = self.service.get(tenant, 0.0) + service
        curve = self.curve.setdefault(tenant, [])
        if bucket >= len(curve):
            curve.extend([0.0] * (bucket + 1 - len(curve)))
        curve[bucket] += service
        self._gaps[arrival.lane].serve(tenant, service / arrival.weight)


class _Gaps:
    """|W_f - W_g| of every two tenants since both have had work waiting (VTC's jointly backlogged intervals)."""

    def __init__(self) -> None:
        self.most = 0.0
        self._service: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        # By backlogged tenant, the difference to each tenant that was backlogged before it, when it joined.
        self._apart: dict[str, dict[str, float]] = {}

    def wait(self, tenant: str) -> None:
        if tenant not in self._waiting:
            own = self._service.setdefault(tenant, 0.0)
            self._apart[tenant] = {other: own - self._service[other] for other in self._waiting}
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1

    def stop_waiting(self, tenant: str) -> None:
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant], self._apart[tenant]
            for earlier in self._apart.values():
                earlier.pop(tenant, None)

    def serve(self, tenant: str, service: float) -> None:
        self._service[tenant] = self._service.get(tenant, 0.0) + service

    def look(self) -> None:
        for tenant, others in self._apart.items():
            own = self._service[tenant]
            for other, apart in others.items():
                self.most = max(self.most, abs(own - self._service[other] - apart))


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of values; percentiles by nearest rank."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    p999: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Totals of a group of requests. Shares are 0 to 1; times are milliseconds, of the requests that have one."""

    requests: int
    outcomes: dict[str, int]
    attained: float
    # The same by the usual, stricter definition: mean time between tokens within its target.
    attained_mean_tpot: float
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    # Share of the output tokens after their due time in the envelope.
    late_tokens: float
    # Among requests that got a token.
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    attained_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Results of a whole run. Rates are per second of `duration_s`."""

    duration_s: float
    goodput_requests_per_s: float
    goodput_tokens_per_s: float
    output_tokens_per_s: float
    tokens_per_s: float
    total: Group
    lanes: dict[str, Group]
    tiers: dict[str, Group]
    tenants: dict[str, Group]
    # None or empty without a ServiceMeter; so are the next four.
    preemption_tax: float | None = None
    max_service_gap: float | None = None
    service: dict[str, float] = field(default_factory=dict)
    service_curve: dict[str, list[float]] = field(default_factory=dict)
    curve_bucket_s: float | None = None


def summarize(records: Iterable[Record], meter: ServiceMeter | None = None) -> Summary:
    """Return the results of a run that `meter` observed."""
    records = list(records)
    total, ends = _group(records), [record.end_ms for record in records if record.end_ms is not None]
    duration_s = (max(ends) - min(record.arrival.at_ms for record in records)) / 1e3 if ends else 0.0
    per_s = 1.0 / duration_s if duration_s else 0.0
    return Summary(
        duration_s=duration_s,
        goodput_requests_per_s=sum(map(attained, records)) * per_s,
        goodput_tokens_per_s=total.attained_tokens * per_s,
        output_tokens_per_s=total.output_tokens * per_s,
        tokens_per_s=(total.prompt_tokens + total.output_tokens) * per_s,
        total=total,
        lanes=_groups(records, lambda record: record.arrival.lane.value),
        tiers=_groups(records, lambda record: record.arrival.tier),
        tenants=_groups(records, lambda record: record.arrival.tenant),
        preemption_tax=meter.tax if meter else None,
        max_service_gap=meter.max_gap if meter else None,
        service=dict(sorted(meter.service.items())) if meter else {},
        service_curve=dict(sorted(meter.curve.items())) if meter else {},
        curve_bucket_s=meter.bucket_ms / 1e3 if meter else None,
    )


def attained(record: Record) -> bool:
    """Return whether the request attained its targets by the envelope."""
    if not first_in_time(record) or record.first_ms is None or record.end_ms is None:
        return False
    arrival = record.arrival
    first_due_ms = max(arrival.at_ms + arrival.ttft_ms, record.first_ms)
    return record.end_ms <= first_due_ms + (record.tokens - 1) * arrival.tpot_ms


def attained_mean_tpot(record: Record) -> bool:
    """Return whether the first token was in time and the mean time between tokens within its target."""
    return first_in_time(record) and pace_kept(record)


def spread(values: Iterable[float]) -> Spread | None:
    """Return the distribution of the values, or None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=_percentile(ordered, 0.5),
        p95=_percentile(ordered, 0.95),
        p99=_percentile(ordered, 0.99),
        p999=_percentile(ordered, 0.999),
        most=ordered[-1],
    )


def _percentile(ordered: Sequence[float], part: float) -> float:
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def first_in_time(record: Record) -> bool:
    """Return whether it finished with its first token in time."""
    ttft_ms = record.ttft_ms
    return record.outcome is Outcome.FINISHED and ttft_ms is not None and ttft_ms <= record.arrival.ttft_ms


def pace_kept(record: Record) -> bool:
    """Return whether it finished with its mean time between tokens within its target."""
    tpot_ms = record.tpot_ms
    return record.outcome is Outcome.FINISHED and (tpot_ms is None or tpot_ms <= record.arrival.tpot_ms)


def _groups(records: Sequence[Record], name: Callable[[Record], str]) -> dict[str, Group]:
    grouped: dict[str, list[Record]] = {}
    for record in records:
        grouped.setdefault(name(record), []).append(record)
    return {key: _group(members) for key, members in sorted(grouped.items())}


def _group(records: Sequence[Record]) -> Group:
    outcomes = [record.outcome.value for record in records if record.outcome is not None]
    output_tokens = sum(record.tokens for record in records)
    return Group(
        requests=len(records),
        outcomes={outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
        attained=_share(sum(map(attained, records)), len(records)),
        attained_mean_tpot=_share(sum(map(attained_mean_tpot, records)), len(records)),
        ttft_ms=spread(record.ttft_ms for record in records if record.ttft_ms is not None),
        tpot_ms=spread(record.tpot_ms for record in records if record.tpot_ms is not None),
        late_tokens=_share(sum(record.late_tokens for record in records), output_tokens),
        prompt_tokens=sum(record.arrival.prompt_tokens for record in records if record.tokens),
        cached_tokens=sum(record.cached for record in records if record.tokens),
        output_tokens=output_tokens,
        attained_tokens=sum(record.tokens for record in records if attained(record)),
        preemptions=sum(record.preemptions for record in records),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
