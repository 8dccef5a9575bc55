"""Sums of what a stretch of time held, made to be added up over gateways and over time. Pure.

A duration is counted in a bucket of a fixed series, four to each doubling of a millisecond: sums of any two gateways
add up, and a percentile is at most a tenth off. Figures that are levels (queued, running) are summed over the samples
that were taken, so that their mean over gateways and time is right: each gateway sees the whole fleet.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

Buckets = dict[int, int]
"""How many durations fell into each bucket, by its number."""

PER_DOUBLING = 4
LAST_BUCKET = 108
"""Holds all that is longer than about a day and a half."""
MOST_TENANTS = 16
"""Tenants that the sums name, those with most tokens and requests; the others are added up."""
OTHERS = ""
"""Stands for those: no tenant has this id."""


class LaneSums(msgspec.Struct, array_like=True):
    """One lane."""

    requests: int = 0
    """That ended, refused ones too."""
    refused: int = 0
    """That a limit, a deadline or the system's load refused or ended."""
    judged: int = 0
    """That were answered, or should have been: goodput is what part of them met the lane's targets."""
    met: int = 0
    ttft: Buckets = {}
    tpot: Buckets = {}
    queue_wait: Buckets = {}
    queued: float = 0.0
    """Over all samples, as the next three."""
    running: float = 0.0
    preempted: float = 0.0
    tokens_per_s: float = 0.0
    oldest_wait_ms: float = 0.0
    """The longest of all samples."""


class TenantSums(msgspec.Struct, array_like=True):
    """One tenant. What runs and waits is in seconds of requests: a mean once it is divided by the time."""

    requests: int = 0
    refused: int = 0
    output_tokens: int = 0
    running_s: float = 0.0
    queued_s: float = 0.0


class Sums(msgspec.Struct, array_like=True):
    """A stretch of time."""

    samples: int = 0
    lanes: dict[str, LaneSums] = {}
    refusals: dict[str, int] = {}
    """Requests that were refused, by code."""
    tenants: dict[str, TenantSums] = {}
    kv_used: float = 0.0
    """Share of the KV blocks that is in use, over all samples."""

    def lane(self, name: str) -> LaneSums:
        """One lane's, to be counted into."""
        found = self.lanes.get(name)
        if found is None:
            found = self.lanes[name] = LaneSums()
        return found

    def tenant(self, name: str) -> TenantSums:
        """One tenant's, to be counted into."""
        found = self.tenants.get(name)
        if found is None:
            found = self.tenants[name] = TenantSums()
        return found

    def add(self, other: "Sums") -> None:
        """Count all of another stretch in."""
        self.samples += other.samples
        self.kv_used += other.kv_used
        add_counts(self.refusals, other.refusals)
        for name, lane in other.lanes.items():
            _add_lane(self.lane(name), lane)
        for name, tenant in other.tenants.items():
            _add_tenant(self.tenant(name), tenant)


def merged(parts: Iterable[Sums]) -> Sums:
    """The sums of all parts, with the busiest tenants by name."""
    whole = Sums()
    for part in parts:
        whole.add(part)
    whole.tenants = bounded(whole.tenants)
    return whole


def bounded(tenants: Mapping[str, TenantSums], most: int = MOST_TENANTS) -> dict[str, TenantSums]:
    """The busiest by name and the others together: nothing is lost of the sums."""
    if len(tenants) <= most:
        return dict(tenants)
    named = sorted((name for name in tenants if name != OTHERS), key=lambda name: _busy(name, tenants[name]))
    kept = {name: tenants[name] for name in named[:most]}
    others = TenantSums()
    for name in (*named[most:], *((OTHERS,) if OTHERS in tenants else ())):
        _add_tenant(others, tenants[name])
    return {**kept, OTHERS: others}


def bucket(ms: float) -> int:
    """Number of the bucket that a duration belongs to: its upper bound is `upper_ms` of it."""
    return 0 if ms <= 1.0 else min(LAST_BUCKET, math.ceil(PER_DOUBLING * math.log2(ms)))


def upper_ms(number: int) -> float:
    """The longest duration of a bucket."""
    return float(2.0 ** (number / PER_DOUBLING))


def observe(buckets: Buckets, ms: float) -> None:
    """Count a duration."""
    number = bucket(ms)
    buckets[number] = buckets.get(number, 0) + 1


def percentiles_ms(buckets: Buckets, shares: Sequence[float]) -> list[float]:
    """For each share, in ascending order, the duration that this part of all does not exceed. There is one at least."""
    found, total, seen = list[float](), sum(buckets.values()), 0.0
    for number, count in sorted(buckets.items()):
        seen += count
        while len(found) < len(shares) and seen >= shares[len(found)] * total:
            within = 1.0 - (seen - shares[len(found)] * total) / count
            found.append(float(upper_ms(number - 1) * 2.0 ** (within / PER_DOUBLING)))
    return found


def add_counts(into: dict[str, int] | Buckets, counts: Mapping[str, int] | Mapping[int, int]) -> None:
    """Add counts to those of the same name."""
    known: dict[object, int] = into  # type: ignore[assignment]  # of either kind of name
    for name, count in counts.items():
        known[name] = known.get(name, 0) + count


def _add_lane(into: LaneSums, lane: LaneSums) -> None:
    into.requests += lane.requests
    into.refused += lane.refused
    into.judged += lane.judged
    into.met += lane.met
    add_counts(into.ttft, lane.ttft)
    add_counts(into.tpot, lane.tpot)
    add_counts(into.queue_wait, lane.queue_wait)
    into.queued += lane.queued
    into.running += lane.running
    into.preempted += lane.preempted
    into.tokens_per_s += lane.tokens_per_s
    into.oldest_wait_ms = max(into.oldest_wait_ms, lane.oldest_wait_ms)


def _add_tenant(into: TenantSums, tenant: TenantSums) -> None:
    into.requests += tenant.requests
    into.refused += tenant.refused
    into.output_tokens += tenant.output_tokens
    into.running_s += tenant.running_s
    into.queued_s += tenant.queued_s


def _busy(name: str, tenant: TenantSums) -> tuple[float, str]:
    """Sorts the busiest first, and by name where they are alike."""
    return -(tenant.output_tokens + tenant.requests + tenant.running_s + tenant.queued_s), name
