"""Measurements of requests in seconds, and their statistics in milliseconds.

TTFT counts from the sending of a request; TPOT is the mean time of a token after the first. Goodput is the fraction
of all sent requests that succeeded within their lane's targets."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec

from fairlane.scheduler.protocol.lanes import DEFAULT_LANES

PARTS = (50, 90, 95, 99)
OK = "ok"
# Buckets per factor e, so that each is one percent wide.
_PER_FACTOR = 100
_LEAST_S = 1e-6


class LaneTarget(msgspec.Struct, frozen=True):
    """The latency targets of a lane, in milliseconds."""

    ttft_ms: float
    tpot_ms: float


DEFAULT_TARGETS = {name.value: LaneTarget(lane.ttft_ms, lane.tpot_ms) for name, lane in DEFAULT_LANES.items()}


class Gaps:
    """A histogram of times between tokens with buckets of one percent, of constant size for any number of tokens."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, gap_s: float) -> None:
        self._counts[math.floor(math.log(gap_s if gap_s > _LEAST_S else _LEAST_S) * _PER_FACTOR)] += 1

    @property
    def count(self) -> int:
        return self._counts.total()

    def __add__(self, other: "Gaps") -> "Gaps":
        both = Gaps()
        both._counts = self._counts + other._counts
        return both

    def spread(self) -> "BenchSpread | None":
        if not self._counts:
            return None
        buckets = sorted(self._counts)
        upto = list(accumulate(self._counts[bucket] for bucket in buckets))
        mean = sum(_gap_ms(bucket) * count for bucket, count in self._counts.items()) / upto[-1]
        places = (bisect_left(upto, math.ceil(upto[-1] * part / 100)) for part in PARTS)
        return BenchSpread(mean, *(_gap_ms(buckets[place]) for place in places))


def _gap_ms(bucket: int) -> float:
    return math.exp((bucket + 0.5) / _PER_FACTOR) * 1e3


class Measured(msgspec.Struct, kw_only=True):
    """The measurements of one request. Times are seconds since it was sent."""

    number: int
    lane: str
    tenant: str
    # When it was sent, since the start of the run.
    at_s: float
    # How much later than scheduled it was sent.
    lag_s: float = 0.0
    code: str | None = None
    retry_ms: int = 0
    first_s: float | None = None
    last_s: float | None = None
    end_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def ttft_ms(self) -> float | None:
        return None if self.first_s is None else self.first_s * 1e3

    @property
    def tpot_ms(self) -> float | None:
        if self.first_s is None or self.last_s is None or self.output_tokens < 2:
            return None
        return (self.last_s - self.first_s) * 1e3 / (self.output_tokens - 1)

    def kept(self, target: LaneTarget) -> bool:
        ttft, tpot = self.ttft_ms, self.tpot_ms
        if self.code is not None or ttft is None:
            return False
        return ttft <= target.ttft_ms and (tpot is None or tpot <= target.tpot_ms)


class BenchSpread(msgspec.Struct, frozen=True):
    """Mean and percentiles in milliseconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class BenchGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a group of requests. Rates are per second of the run."""

    requests: int
    ended: int
    errors: dict[str, int]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    ttft_ms: BenchSpread | None
    tpot_ms: BenchSpread | None
    itl_ms: BenchSpread | None
    e2e_ms: BenchSpread | None
    goodput: float
    goodput_per_s: float


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run, as `--json` writes them."""

    # Parameters of the run, without keys.
    setup: dict[str, object]
    started_at: float
    duration_s: float
    interrupted: bool
    # How late requests were sent; a large lag is the load generator's limit, not the gateway's.
    lag_p99_ms: float
    # Requests dropped because too many were running at their time.
    unsent: int
    total: BenchGroup
    lanes: dict[str, BenchGroup]
    tenants: dict[str, BenchGroup]
    targets: dict[str, LaneTarget]
    requests: list[Measured] = []


def spread(values: Iterable[float | None]) -> BenchSpread | None:
    """Return the statistics of the values that are not None; None if there are none."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    return BenchSpread(sum(ordered) / len(ordered), *(percentile(ordered, part) for part in PARTS))


def percentile(ordered: Sequence[float], part: int) -> float:
    """Return the nearest-rank percentile of ordered values."""
    return ordered[max(0, math.ceil(len(ordered) * part / 100) - 1)]


def group(
    requests: Sequence[Measured], gaps: Gaps | None, duration_s: float, targets: Mapping[str, LaneTarget]
) -> BenchGroup:
    """Compute the statistics of a group of requests."""
    ended = [each for each in requests if each.code is None]
    kept = sum(each.kept(targets[each.lane]) for each in requests)
    output_tokens = sum(each.output_tokens for each in requests)
    seconds = max(duration_s, 1e-9)
    return BenchGroup(
        requests=len(requests),
        ended=len(ended),
        errors=dict(Counter(each.code for each in requests if each.code is not None).most_common()),
        prompt_tokens=sum(each.prompt_tokens for each in requests),
        cached_tokens=sum(each.cached_tokens for each in requests),
        output_tokens=output_tokens,
        requests_per_s=len(ended) / seconds,
        output_tokens_per_s=output_tokens / seconds,
        ttft_ms=spread(each.ttft_ms for each in ended),
        tpot_ms=spread(each.tpot_ms for each in ended),
        itl_ms=None if gaps is None else gaps.spread(),
        e2e_ms=spread(each.end_s * 1e3 for each in ended),
        goodput=kept / len(requests) if requests else 0.0,
        goodput_per_s=kept / seconds,
    )
