"""Lanes: the two classes of work, their latency targets and limits."""

from dataclasses import dataclass
from enum import StrEnum

# An automatic TPOT target is this multiple of a single stream's time per token: leaves room for batching, and is still
# faster than reading speed.
AUTO_STREAMS = 3.0
MIN_MS = 1.0
# Fraction of the lane's maximum wait after which work is promoted one lane.
PROMOTION_AGE = 0.5


class LaneName(StrEnum):
    """The closed set of lanes, most urgent first."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Targets and limits of one lane. Targets order work and size steps; only `max_wait_ms` ever ends a request."""

    name: LaneName
    # 0 is the most urgent; a lower rank may preempt a higher one.
    rank: int
    ttft_ms: float
    # Upper bound if the target is automatic.
    tpot_ms: float
    # Maximum time in the queue before the request expires with 504.
    max_wait_ms: float
    # Minimum share of the tokens that this lane gets while it is backlogged, 0 to 1.
    share_floor: float
    max_queued: int
    # Prefill time by which a tenant may run ahead of the least served one, so that short bursts meet their deadlines.
    burst_ms: float = 0.0
    # The TPOT target is derived from the machine's speed.
    auto_tpot: bool = False

    def tpot_on(self, single_stream_ms: float) -> float:
        """Return the TPOT target on a machine with this single-stream time per token; 0.0 means not known."""
        if not (self.auto_tpot and single_stream_ms > 0.0):
            return self.tpot_ms
        return min(self.tpot_ms, max(MIN_MS, AUTO_STREAMS * single_stream_ms))

    @property
    def long_wait_ms(self) -> float:
        """Wait after which work is promoted to the lane above and is never relegated, so that nothing starves."""
        return PROMOTION_AGE * self.max_wait_ms

    def window(self, least: float, prefill_ms: float) -> float:
        """Return the eligibility window Θ in weighted tokens, `least` or more; `prefill_ms` is per prompt token, 0.0 if
        unknown."""
        return max(least, self.burst_ms / prefill_ms) if prefill_ms > 0.0 else least

    def __post_init__(self) -> None:
        for field, low, high in (
            ("ttft_ms", MIN_MS, 1e9),
            ("tpot_ms", MIN_MS, 1e9),
            ("max_wait_ms", MIN_MS, 1e9),
            ("burst_ms", 0.0, 1e9),
            ("share_floor", 0.0, 1.0),
            ("max_queued", 1, 10_000_000),
        ):
            value = getattr(self, field)
            if not low <= value <= high:
                raise ValueError(f"lane {self.name}: {field} must be between {low} and {high}, not {value}")


LATENCY = Lane(
    name=LaneName.LATENCY,
    rank=0,
    ttft_ms=1_000.0,
    tpot_ms=100.0,
    max_wait_ms=60_000.0,
    share_floor=0.0,
    max_queued=1_000,
    burst_ms=3_000.0,
    auto_tpot=True,
)
THROUGHPUT = Lane(
    name=LaneName.THROUGHPUT,
    rank=1,
    ttft_ms=600_000.0,
    tpot_ms=1_000.0,
    max_wait_ms=86_400_000.0,
    share_floor=0.05,
    max_queued=100_000,
)
DEFAULT_LANES: dict[LaneName, Lane] = {LaneName.LATENCY: LATENCY, LaneName.THROUGHPUT: THROUGHPUT}
