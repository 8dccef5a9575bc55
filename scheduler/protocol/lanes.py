"""Lanes: the two kinds of work, what each is promised, and the deadlines that follow for one request."""

from dataclasses import dataclass
from enum import StrEnum

AUTO_STREAMS = 3.0
"""An automatic TPOT target is this many times what a single stream's token takes on the machine: batches have room, and
nobody reads them as slow."""
LEAST_MS = 1.0
"""No target or limit is shorter."""
PROMOTION_AGE = 0.5
"""Part of its lane's longest wait after which work is promoted one lane."""


class LaneName(StrEnum):
    """The closed set of lanes, most urgent first."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What one lane is promised. Targets order work and size steps; only `max_wait_ms` ever ends a request."""

    name: LaneName
    rank: int
    """0 is the most urgent; a lower rank may preempt a higher one."""
    ttft_ms: float
    tpot_ms: float
    """Where the target is automatic: at most."""
    max_wait_ms: float
    """Longest time in the queue before the request expires with 504."""
    share_floor: float
    """Least share of the tokens that goes to this lane while it is backlogged, 0 to 1."""
    max_queued: int
    """Jobs that may wait in this lane per model before `put` refuses as overloaded."""
    burst_ms: float = 0.0
    """How far ahead of the least served a tenant may run, in time of a worker that computes prompts: where deadlines
    press, those of a short burst are met before it is evened out."""
    auto_tpot: bool = False
    """The TPOT target fits the machine."""

    def tpot_on(self, single_stream_ms: float) -> float:
        """Its TPOT target where a single stream's token takes so long; 0.0 while that is not known."""
        if not (self.auto_tpot and single_stream_ms > 0.0):
            return self.tpot_ms
        return min(self.tpot_ms, max(LEAST_MS, AUTO_STREAMS * single_stream_ms))

    @property
    def long_wait_ms(self) -> float:
        """Wait after which work counts for the lane above, and is never relegated: nothing starves."""
        return PROMOTION_AGE * self.max_wait_ms

    def window(self, least: float, prefill_ms: float) -> float:
        """Its eligibility window Θ in weighted tokens, `least` or more, where a prompt's token takes `prefill_ms`;
        0.0 while that is not known."""
        return max(least, self.burst_ms / prefill_ms) if prefill_ms > 0.0 else least

    def __post_init__(self) -> None:
        for field, low, high in (
            ("ttft_ms", LEAST_MS, 1e9),
            ("tpot_ms", LEAST_MS, 1e9),
            ("max_wait_ms", LEAST_MS, 1e9),
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
