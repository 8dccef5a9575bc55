"""Line 7: everything at once, and every policy: attainment, goodput, fairness and batch throughput of the same run.

32 tenants ask in proportion to 1, 1/2, 1/3 ...; half their requests are of the latency lane (first token in 2 s, 50 ms
per token), half of the throughput lane. One more tenant floods the throughput lane, and for a fifth of the time all
others ask four times as much. KV holds about 60 requests at their fullest.
"""

from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from benchmarks.common.clients import Client, flood
from benchmarks.common.intervals import Interval, interval
from benchmarks.common.line import Effort, Line, Table, at_least, at_most, unmeasured
from benchmarks.scheduling.lines.world import OURS, World
from benchmarks.scheduling.policies import POLICIES
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.results import ServiceMeter, attained
from fairlane.scheduler.simulation.synthetic_tenants import Tier
from fairlane.scheduler.simulation.workload import Arrival

ORACLES = ("vtc-oracle", "clairvoyant")
"""They know output lengths, and the second has KV without end: shown, not counted."""
TENANTS = 32
RATE_PER_S = 10.0
"""Of all well-behaved tenants together, outside the burst."""
ABUSER_PER_S = 10.0
DURATION_S = 120.0
BURST_S = (48.0, 72.0)
BURST = 4.0
LATENCY = Tier(name="latency", lane=LaneName.LATENCY, share=1.0, ttft_ms=2_000.0, tpot_ms=50.0)
BATCH = Tier(name="batch", lane=LaneName.THROUGHPUT, share=1.0, ttft_ms=600_000.0, tpot_ms=1_000.0)
PROMPT, OUTPUT = (64, 1536), (16, 384)
WORLD = World(kv_tokens=100_000, max_step_tokens=2048)
LEAST_BEST = 3


class Case(NamedTuple):
    """One run of one policy."""

    policy: str
    seed: int

    def arrivals(self) -> list[Arrival]:
        """What everyone asks for."""
        whole = sum(1.0 / rank for rank in range(1, TENANTS + 1))
        clients = [_client("abuser", ABUSER_PER_S, BATCH)]
        for rank in range(1, TENANTS + 1):
            rate = 0.5 * RATE_PER_S / rank / whole
            for tier in (LATENCY, BATCH):
                clients.append(_client(f"t{rank}", rate, tier))
                clients.append(_client(f"t{rank}", (BURST - 1.0) * rate, tier, *BURST_S))
        asked = flood(clients, DURATION_S, self.seed)
        return [replace(one, tenant=one.tenant.partition(" ")[0]) for one in asked]


class Scores(NamedTuple):
    """What a run is judged by."""

    attainment: float
    """Part of the latency lane's requests that kept their promise."""
    goodput: float
    """Output tokens per second of requests that kept their promise, while requests arrive."""
    gap: float
    """Most that one tenant got beyond another while both had work waiting in a lane."""
    batch: float
    """Prompt and output tokens per second of the throughput lane, while requests arrive."""


TITLES = ("attainment", "goodput, tokens/s", "max gap", "batch, tokens/s")
SIGNS = (1.0, 1.0, -1.0, 1.0)
"""Of each score: -1 where less is better."""


def scores(case: Case) -> Scores:
    """Play a case and judge it."""
    meter = ServiceMeter(every_ms=250.0)
    until_ms = DURATION_S * 1e3
    run = WORLD.simulation(case.policy, case.arrivals(), observers=[meter], until_ms=until_ms).run()
    latency = [record for record in run.values() if record.arrival.lane is LaneName.LATENCY]
    batch = [one for one in run.values() if one.arrival.lane is LaneName.THROUGHPUT and one.tokens]
    due = [one for one in latency if one.arrival.at_ms <= until_ms - one.arrival.ttft_ms - 20_000.0]
    return Scores(
        attainment=fmean(map(attained, due)),
        goodput=sum(record.tokens for record in run.values() if attained(record)) / DURATION_S,
        gap=meter.max_gap,
        batch=sum(one.arrival.prompt_tokens + one.tokens for one in batch) / DURATION_S,
    )


def measure(effort: Effort) -> list[Line]:
    """The line."""
    names = ("axes on which a policy beats ours", "axes on which ours is strictly best")
    if effort.quick:
        return [
            unmeasured(7, name, target, "not in a quick run") for name, target in zip(names, (0.0, 3.0), strict=True)
        ]
    found = {
        policy: effort.each(f"everything at once, {policy}", scores, [Case(policy, seed) for seed in effort.seeds])
        for policy in (OURS, *POLICIES)
    }
    effort.show(_table(found))
    beaten, best = beaten_on(found), best_on(found)
    how = f"{len(effort.seeds)} seeds, paired 95 % intervals; "
    return [
        at_most(7, names[0], len(beaten), 0.0, how + (", ".join(beaten) or "none")),
        at_least(7, names[1], len(best), LEAST_BEST, how + (", ".join(best) or "none")),
    ]


def beaten_on(found: dict[str, list[Scores]]) -> list[str]:
    """Axes on which some policy is surely better than ours, and which."""
    won = []
    for axis, title in enumerate(TITLES):
        better = [policy for policy in _counted(found) if _lead(found, policy, axis).high < 0.0]
        if better:
            won.append(f"{title} ({', '.join(better)})")
    return won


def best_on(found: dict[str, list[Scores]]) -> list[str]:
    """Axes on which ours is surely better than every other."""
    counted = _counted(found)
    return [
        title for axis, title in enumerate(TITLES) if all(_lead(found, policy, axis).low > 0.0 for policy in counted)
    ]


def _lead(found: dict[str, list[Scores]], policy: str, axis: int) -> Interval:
    """How much better ours is than this policy."""
    return interval([SIGNS[axis] * (a[axis] - b[axis]) for a, b in zip(found[OURS], found[policy], strict=True)])


def _client(tenant: str, rate_per_s: float, tier: Tier, from_s: float = 0.0, until_s: float = DURATION_S) -> Client:
    """A stream of its own for each tenant, tier and phase: the tenant is the name's first word."""
    return Client(
        tenant=f"{tenant} {tier.name} {from_s:g}",
        rate_per_s=rate_per_s,
        prompt=PROMPT,
        output=OUTPUT,
        tier=tier,
        from_ms=from_s * 1e3,
        until_ms=until_s * 1e3,
    )


def _table(found: dict[str, list[Scores]]) -> Table:
    rows = [
        [
            f"{policy} (oracle)" if policy in ORACLES else policy,
            *(str(interval([run[axis] for run in runs])) for axis in range(len(TITLES))),
        ]
        for policy, runs in found.items()
    ]
    return Table("32 tenants, an abuser and a burst", ["", *TITLES], rows)


def _counted(found: dict[str, list[Scores]]) -> list[str]:
    return [policy for policy in found if policy != OURS and policy not in ORACLES]
