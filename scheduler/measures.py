"""What a simulation showed, as one value: latencies, promises kept, goodput and throughput; by lane, tier and tenant.

A promise is kept (`attained`) by a request that finished, its first token in time and its last inside the envelope
that follows from the targets (Niyama, FairBatching). All that were offered count, so a refusal is a miss.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from scheduler.outcomes import Outcome
from scheduler.service import ServiceMeter
from scheduler.workload import Record


@dataclass(frozen=True, slots=True)
class Spread:
    """How figures are distributed; percentiles by nearest rank."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    p999: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some requests together. Shares are 0 to 1; times are milliseconds, of the requests that have one."""

    requests: int
    """Offered: let in or not."""
    outcomes: dict[str, int]
    """How many ended how; what was not over is in none."""
    attained: float
    """Share that kept its promise."""
    attained_mean_tpot: float
    """The same by the stricter, usual reading: mean time between tokens, from the first on, within its target."""
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    late_tokens: float
    """Share of the output tokens that came after their due time in the envelope."""
    prompt_tokens: int
    """Of requests that got a token."""
    cached_tokens: int
    """Of these, what the prefix cache had."""
    output_tokens: int
    attained_tokens: int
    """Output tokens of requests that kept their promise."""
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A whole run. Rates are per second of `duration_s`."""

    duration_s: float
    """From the first arrival to the last end."""
    goodput_requests_per_s: float
    goodput_tokens_per_s: float
    """Output tokens of requests that kept their promise."""
    output_tokens_per_s: float
    tokens_per_s: float
    """Prompts' too, each once."""
    total: Group
    lanes: dict[str, Group]
    tiers: dict[str, Group]
    tenants: dict[str, Group]
    preemption_tax: float | None = None
    """As ServiceMeter defines it, and so the next three; None without one."""
    max_service_gap: float | None = None
    service: dict[str, float] = field(default_factory=dict)
    service_curve: dict[str, list[float]] = field(default_factory=dict)
    curve_bucket_s: float | None = None


def summarize(records: Iterable[Record], meter: ServiceMeter | None = None) -> Summary:
    """The figures of a run that was `meter`'s to observe."""
    records = list(records)
    total, duration_s = _group(records), _duration_s(records)
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
    """The request kept its promise."""
    if not _first_in_time(record) or record.first_ms is None or record.end_ms is None:
        return False
    arrival = record.arrival
    first_due_ms = max(arrival.at_ms + arrival.ttft_ms, record.first_ms)
    return record.end_ms <= first_due_ms + (record.tokens - 1) * arrival.tpot_ms


def attained_mean_tpot(record: Record) -> bool:
    """It did, and its mean time between tokens was within the target too."""
    return _first_in_time(record) and (record.tpot_ms is None or record.tpot_ms <= record.arrival.tpot_ms)


def spread(values: Iterable[float]) -> Spread | None:
    """The distribution of some figures; None where there are none."""
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


def _first_in_time(record: Record) -> bool:
    """Finished, with its first token in time."""
    ttft_ms = record.ttft_ms
    return record.outcome is Outcome.FINISHED and ttft_ms is not None and ttft_ms <= record.arrival.ttft_ms


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


def _duration_s(records: Sequence[Record]) -> float:
    ends = [record.end_ms for record in records if record.end_ms is not None]
    return (max(ends) - min(record.arrival.at_ms for record in records)) / 1e3 if ends else 0.0
