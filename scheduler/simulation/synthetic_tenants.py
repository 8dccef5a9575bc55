"""Properties that a trace lacks, generated from a seed: each request's tenant, targets and stated limit.

Exactly two numbers are drawn for each request, regardless of the settings: a different load, different tiers or a
different number of tenants change nothing else about a request (common random numbers). Values in the trace take
precedence."""

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

from fairlane.scheduler.planner.steps import require
from fairlane.scheduler.protocol.lanes import LATENCY, THROUGHPUT, LaneName
from fairlane.scheduler.simulation.trace import TraceRow
from fairlane.scheduler.simulation.workload import FIRST_BLOCK, Arrival

MIN_MAX_TOKENS = 16
LAST_TOKEN = 2**31 - 1
MAX_TENANTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A class of requests with common targets. Times are milliseconds."""

    name: str
    lane: LaneName
    # Fraction of the requests, relative to the other tiers' shares.
    share: float
    ttft_ms: float
    tpot_ms: float
    # Stated and hard: from arrival to the last token.
    deadline_ms: float | None = None
    hard_ttft_ms: float | None = None

    def __post_init__(self) -> None:
        if not (self.share >= 0.0 and math.isfinite(self.share)):
            raise ValueError(f"tier {self.name}: share must be a number of at least 0, not {self.share}")
        for name in ("ttft_ms", "tpot_ms", "deadline_ms", "hard_ttft_ms"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise ValueError(f"tier {self.name}: {name} must be above 0 and finite, not {value}")


def lane_tiers(
    latency_share: float, hard_ttft_ms: float | None = None, *, single_stream_ms: float = 0.0
) -> tuple[Tier, ...]:
    """Return one tier for each lane, with the lane's own targets.

    `latency_share` (0 to 1) is the lane mix. `hard_ttft_ms` is a stated limit of the latency lane's first tokens."""
    require("latency_share", latency_share, 0, 1)
    shares = ((LATENCY, latency_share), (THROUGHPUT, 1.0 - latency_share))
    return tuple(
        Tier(
            name=lane.name.value,
            lane=lane.name,
            share=share,
            ttft_ms=lane.ttft_ms,
            tpot_ms=lane.tpot_on(single_stream_ms),
            hard_ttft_ms=hard_ttft_ms if lane is LATENCY else None,
        )
        for lane, share in shares
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticTenants:
    """The assignment of tenants and tiers. Tenant k of `tenants` has a share proportional to 1 / k ** `zipf`."""

    tenants: int = 8
    zipf: float = 1.0
    tiers: tuple[Tier, ...] = lane_tiers(0.3)
    seed: int = 0
    kv_tokens: int | None = None
    # Weights of tenants named in a trace; default 1.0.
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require("tenants", self.tenants, 1, MAX_TENANTS)
        require("zipf", self.zipf, 0, 10)
        if not sum(tier.share for tier in self.tiers) > 0.0:
            raise ValueError("tiers must have shares that add up to more than 0")

    def arrivals(self, rows: Iterable[TraceRow]) -> Iterator[Arrival]:
        draws = random.Random(self.seed)
        tenants = range(1, self.tenants + 1)
        tenant_shares = list(accumulate(number**-self.zipf for number in tenants))
        tier_shares = list(accumulate(tier.share for tier in self.tiers))
        blocks: dict[int, int] = {}
        owners: dict[int, int] = {}
        for number, row in enumerate(rows):
            (tenant,) = draws.choices(tenants, cum_weights=tenant_shares)
            (tier,) = draws.choices(self.tiers, cum_weights=tier_shares)
            if row.lane is not None:
                tier = next((one for one in self.tiers if one.lane is row.lane), tier)
            if len(row.hash_ids) > 1:
                tenant = owners.setdefault(row.hash_ids[1], tenant)
            name = row.tenant or f"tenant-{tenant}"
            weight = self.weights.get(name, 1.0)
            arrival = arrival_of(row, tier, f"r{number}", name, max_tokens_over(row, self.kv_tokens), weight)
            if row.hash_ids:
                named = tuple([blocks.setdefault(one, len(blocks) + FIRST_BLOCK) for one in row.hash_ids])
                own = LAST_TOKEN - number
                arrival = replace(arrival, blocks=named, block_tokens=row.block_tokens, own_token=own)
            yield arrival


def max_tokens_over(row: TraceRow, kv_tokens: int | None = None) -> int:
    """Return the stated maximum, or the next power of two above the output, limited by the pool."""
    stated = max(MIN_MAX_TOKENS, 1 << row.output_tokens.bit_length())
    if row.max_tokens is not None:
        stated = max(row.output_tokens, row.max_tokens)
    return stated if kv_tokens is None else max(row.output_tokens, min(stated, kv_tokens - row.prompt_tokens))


def arrival_of(row: TraceRow, tier: Tier, job_id: str, tenant: str, max_tokens: int, weight: float = 1.0) -> Arrival:
    """Return the request of a row, for a tenant in a tier. Limits stated in the row replace the tier's."""
    stated = [ms for ms in (row.ttft_ms, row.deadline_ms) if ms is not None]
    return Arrival(
        at_ms=row.at_ms,
        job_id=job_id,
        tenant=tenant,
        lane=tier.lane,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        max_tokens=max_tokens,
        ttft_ms=min(stated, default=tier.ttft_ms),
        tpot_ms=tier.tpot_ms,
        weight=weight,
        deadline_ms=row.deadline_ms if stated else tier.deadline_ms,
        hard_ttft_ms=row.ttft_ms if stated else tier.hard_ttft_ms,
        tier=tier.name,
        choices=row.choices,
    )
