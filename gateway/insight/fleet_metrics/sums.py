"""Sums over a span of time, which can be merged across gateways and time spans. Pure.

Durations are counted in four fixed buckets for each doubling of a millisecond, so the error of a percentile is at most
10%. Levels (queued, running) are summed over samples of the whole fleet, which every gateway takes."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

Buckets = dict[int, int]
Key = TypeVar("Key", int, str)

PER_DOUBLING = 4
# Contains everything longer than about a day and a half.
LAST_BUCKET = 108
# Tenants that are named, by most tokens and requests; the others are summed up under OTHERS.
MOST_TENANTS = 16
OTHERS = ""
_MAXIMA = frozenset({"oldest_wait_ms"})


class LaneSums(msgspec.Struct, array_like=True):
    """One lane."""

    requests: int = 0
    # Requests that a limit, a deadline or the system's load refused or ended.
    refused: int = 0
    # Requests that were completed or should have been: the denominator of goodput.
    judged: int = 0
    met: int = 0
    ttft: Buckets = {}
    tpot: Buckets = {}
    queue_wait: Buckets = {}
    # Summed over all samples, as are the next three.
    queued: float = 0.0
    running: float = 0.0
    preempted: float = 0.0
    tokens_per_s: float = 0.0
    oldest_wait_ms: float = 0.0


class TenantSums(msgspec.Struct, array_like=True):
    """One tenant. `running_s` and `queued_s` are request-seconds: divided by the span they are means."""

    requests: int = 0
    refused: int = 0
    output_tokens: int = 0
    running_s: float = 0.0
    queued_s: float = 0.0
    # Judged requests that missed their lane's targets, by lane.
    late: dict[str, int] = {}


class Sums(msgspec.Struct, array_like=True):
    """The sums of a span of time."""

    samples: int = 0
    lanes: dict[str, LaneSums] = {}
    refusals: dict[str, int] = {}
    tenants: dict[str, TenantSums] = {}
    kv_used: float = 0.0

    def lane(self, name: str) -> LaneSums:
        if name not in self.lanes:
            self.lanes[name] = LaneSums()
        return self.lanes[name]

    def tenant(self, name: str) -> TenantSums:
        if name not in self.tenants:
            self.tenants[name] = TenantSums()
        return self.tenants[name]

    def add(self, other: "Sums") -> None:
        self.samples += other.samples
        self.kv_used += other.kv_used
        _add_counts(self.refusals, other.refusals)
        for name, lane in other.lanes.items():
            _add_fields(self.lane(name), lane)
        for name, tenant in other.tenants.items():
            _add_fields(self.tenant(name), tenant)


def merged(parts: Iterable[Sums]) -> Sums:
    """Return the sum of all parts, with the busiest tenants by name."""
    whole = Sums()
    for part in parts:
        whole.add(part)
    whole.tenants = bounded(whole.tenants)
    return whole


def bounded(tenants: Mapping[str, TenantSums]) -> dict[str, TenantSums]:
    """Keep the busiest tenants by name and sum up the others."""
    if len(tenants) <= MOST_TENANTS:
        return dict(tenants)
    busy = {
        name: tenant.output_tokens + tenant.requests + tenant.running_s + tenant.queued_s
        for name, tenant in tenants.items()
    }
    named = sorted(busy.keys() - {OTHERS}, key=lambda name: (-busy[name], name))
    kept = {name: tenants[name] for name in named[:MOST_TENANTS]}
    others = TenantSums()
    _add_fields(others, tenants.get(OTHERS, TenantSums()))
    for name in named[MOST_TENANTS:]:
        _add_fields(others, tenants[name])
    return {**kept, OTHERS: others}


def upper_ms(number: int) -> float:
    """Return the longest duration of a bucket."""
    return float(2.0 ** (number / PER_DOUBLING))


# Of all buckets but the last.
_UPPER_MS = [upper_ms(number) for number in range(LAST_BUCKET)]


def observe(buckets: Buckets, ms: float) -> None:
    """Count a duration."""
    number = bisect_left(_UPPER_MS, ms)
    buckets[number] = buckets[number] + 1 if number in buckets else 1


def percentiles_ms(buckets: Buckets, shares: Sequence[float]) -> list[float]:
    """Return the percentile of each share, in ascending order. `buckets` must not be empty."""
    found, total, seen = list[float](), sum(buckets.values()), 0.0
    for number, count in sorted(buckets.items()):
        seen += count
        while len(found) < len(shares) and seen >= shares[len(found)] * total:
            within = 1.0 - (seen - shares[len(found)] * total) / count
            found.append(float(upper_ms(number - 1) * 2.0 ** (within / PER_DOUBLING)))
    return found


def _add_counts(into: dict[Key, int], counts: Mapping[Key, int]) -> None:
    for key, count in counts.items():
        into[key] = into.get(key, 0) + count


def _add_fields(into: LaneSums | TenantSums, other: LaneSums | TenantSums) -> None:
    for name in into.__struct_fields__:
        known, value = getattr(into, name), getattr(other, name)
        if isinstance(known, dict):
            _add_counts(known, value)
        else:
            setattr(into, name, max(known, value) if name in _MAXIMA else known + value)
