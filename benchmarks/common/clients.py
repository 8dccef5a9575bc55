"""Tenants with Poisson arrivals, without a trace."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import count

from fairlane.scheduler.simulation.synthetic_tenants import Tier, arrival_of, lane_tiers, max_tokens_over
from fairlane.scheduler.simulation.trace import TraceRow
from fairlane.scheduler.simulation.workload import Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A tenant with Poisson arrivals, and lengths uniformly distributed between two inclusive bounds."""

    tenant: str
    rate_per_s: float
    prompt: tuple[int, int] = (256, 256)
    output: tuple[int, int] = (256, 256)
    tier: Tier = lane_tiers(0.0)[1]
    weight: float = 1.0
    from_ms: float = 0.0
    until_ms: float = math.inf

    def __post_init__(self) -> None:
        if not 0.0 < self.rate_per_s < math.inf:
            raise ValueError(f"client {self.tenant}: rate_per_s must be above 0 and finite, not {self.rate_per_s}")
        for name, (least, most) in (("prompt", self.prompt), ("output", self.output)):
            if not 1 <= least <= most:
                raise ValueError(f"client {self.tenant}: {name} must be two lengths in order, not {least} and {most}")

    def arrivals(self, seed: int, duration_ms: float) -> Iterator[Arrival]:
        """Yield its requests. Its random numbers are independent of other clients."""
        draws = random.Random(f"{seed}/{self.tenant}")
        at_ms = self.from_ms
        for number in count(1):
            at_ms += draws.expovariate(self.rate_per_s) * 1e3
            if at_ms >= min(self.until_ms, duration_ms):
                return
            row = TraceRow(number, at_ms, draws.randint(*self.prompt), draws.randint(*self.output))
            job_id = f"{self.tenant}/{number}"
            yield arrival_of(row, self.tier, job_id, self.tenant, max_tokens_over(row), self.weight)


def flood(clients: Sequence[Client], duration_s: float, seed: int = 0) -> Iterator[Arrival]:
    """Yield these clients' requests of the first `duration_s` seconds, in order of arrival."""
    streams = (client.arrivals(seed, duration_s * 1e3) for client in clients)
    return merge(*streams, key=lambda arrival: arrival.at_ms)
