"""Lines 1 and 2: how far tenants drift apart while both have work waiting, and how soon a newcomer is served.

The worlds are VTC's: two clients in overload with equal lengths; the same with pools of other sizes; and a flood of
long outputs that a client with short ones joins. The gap is the greatest difference in weighted service since both
have had requests waiting. As in VTC's runs a request states the length of its output as `max_tokens`, which is all
that a policy without an oracle sees of it; one row of ours has it stated to a power of two only.
Source: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024).
"""

from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

from benchmarks.common.clients import Client, flood
from benchmarks.common.intervals import interval
from benchmarks.common.line import Effort, Line, Table, at_least, at_most
from benchmarks.scheduling.lines.world import A10G, OURS, THETA, World
from fairlane.scheduler.simulation.results import ServiceMeter, spread
from fairlane.scheduler.simulation.simulate import SimulatedStep
from fairlane.scheduler.simulation.workload import Arrival, Record

PEERS = ("vtc", "vtc-oracle", "fcfs-vllm", "fcfs-sarathi", "bands")
POOLS = (5_000, 10_000, 20_000, 40_000, 80_000)
POOL = 10_000
EQUAL = (Client(tenant="small", rate_per_s=1.5), Client(tenant="large", rate_per_s=3.0))
HARDER = (Client(tenant="small", rate_per_s=3.0), Client(tenant="large", rate_per_s=6.0))
"""So that the largest pool is in overload, too."""
MIXED = (
    Client(tenant="long", rate_per_s=1.0, prompt=(64, 512), output=(1500, 2500)),
    Client(tenant="short", rate_per_s=4.0, prompt=(64, 512), output=(32, 384), from_ms=60_000.0),
)
NEWCOMER = (
    Client(tenant="holder", rate_per_s=1.0, prompt=(256, 256), output=(1500, 2500)),
    Client(tenant="newcomer", rate_per_s=0.05, prompt=(256, 256), output=(16, 32), from_ms=60_000.0),
)
WORST_STEPS = 2


class Case(NamedTuple):
    """One run of one policy."""

    policy: str
    clients: tuple[Client, ...]
    pool: int
    seed: int
    duration_s: float
    window: float = THETA
    exact: bool = True
    """`max_tokens` is the length of the output, not the power of two above."""

    def arrivals(self) -> list[Arrival]:
        """What its clients ask for."""
        asked = flood(self.clients, self.duration_s, self.seed)
        return [replace(one, max_tokens=one.output_tokens) for one in asked] if self.exact else list(asked)


class Share(NamedTuple):
    """What came out of it."""

    gap: float
    tokens_per_s: float
    """Prompts and outputs, each token once."""
    tax: float


def share(case: Case) -> Share:
    """Play a case and measure it."""
    arrivals = case.arrivals()
    meter = ServiceMeter()
    world = World(hardware=A10G, kv_tokens=case.pool, max_step_tokens=1024)
    world.simulation(case.policy, arrivals, observers=[meter], until_ms=case.duration_s * 1e3, window=case.window).run()
    fresh = meter.computed_tokens - meter.recomputed_tokens
    return Share(meter.max_gap, fresh / case.duration_s, meter.tax)


@dataclass
class Newcomers:
    """Counts the steps that end between an idle tenant's request and its first token. What it asks for while another
    request of its own is here is no newcomer's, and not counted."""

    steps: list[int] = field(default_factory=list)
    _since: dict[str, int] = field(default_factory=dict)
    _here: set[str] = field(default_factory=set)

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        """A request came, and was let in."""
        if arrival.tenant == "newcomer":
            if not self._here:
                self._since[arrival.job_id] = 0
            self._here.add(arrival.job_id)

    def stepped(self, step: SimulatedStep) -> None:
        """A worker ran a step."""
        for job_id in self._since:
            self._since[job_id] += 1
        for produced in step.outcome.produced:
            if produced.seq.job_id in self._since:
                self.steps.append(self._since.pop(produced.seq.job_id))

    def ended(self, record: Record) -> None:
        """A request that was let in is over."""
        self._here.discard(record.arrival.job_id)


def newcomer_steps(case: Case) -> list[int]:
    """Steps that each newcomer waited, its own first included, and the one in whose midst it came."""
    arrivals = case.arrivals()
    newcomers = Newcomers()
    world = World(hardware=A10G, kv_tokens=case.pool, max_step_tokens=1024)
    world.simulation(case.policy, arrivals, observers=[newcomers], until_ms=case.duration_s * 1e3).run()
    return newcomers.steps


def measure(effort: Effort) -> list[Line]:
    """Both lines."""
    return [*_equal(effort), *_pools(effort), *_mixed(effort), *_newcomer(effort)]


def _shares(
    effort: Effort, what: str, policy: str, clients: tuple[Client, ...], pool: int, *, exact: bool = True
) -> list[Share]:
    duration_s = 120.0 if effort.quick else 600.0
    cases = [Case(policy, clients, pool, seed, duration_s, exact=exact) for seed in effort.seeds]
    return effort.each(f"{what}, {policy}", share, cases)


def _equal(effort: Effort) -> list[Line]:
    peers = ("vtc",) if effort.quick else PEERS
    found = {name: _shares(effort, "two clients", name, EQUAL, POOL) for name in (OURS, *peers)}
    blurred = {f"{OURS}, lengths to a power of two": _shares(effort, "two clients", OURS, EQUAL, POOL, exact=False)}
    effort.show(_table("Two clients in overload, 256/256, pool 10,000", found | blurred))
    gap = interval([one.gap for one in found[OURS]])
    kept = interval([a.tokens_per_s / b.tokens_per_s for a, b in zip(found[OURS], found["vtc"], strict=True)])
    how = f"{len(effort.seeds)} seeds, A10G, window {THETA:g}; "
    return [
        at_most(1, "max accumulated gap, two clients", round(gap.mean, 1), 1000.0, f"{how}{gap}"),
        at_least(1, "throughput over VTC's", round(kept.mean, 4), 0.995, f"{how}{kept}"),
    ]


def _pools(effort: Effort) -> list[Line]:
    pools = (5_000, 20_000) if effort.quick else POOLS
    found = {f"{pool:,}": _shares(effort, "pools", OURS, HARDER, pool) for pool in pools}
    if not effort.quick:
        found |= {f"{pool:,}, vtc": _shares(effort, "pools", "vtc", HARDER, pool) for pool in (pools[0], pools[-1])}
    effort.show(_table("Pools of other sizes, twice as many requests", found))
    means = [fmean(one.gap for one in found[f"{pool:,}"]) for pool in pools]
    how = f"largest mean gap over smallest, pools of {min(pools):,} to {max(pools):,}; window {THETA:g}"
    return [at_most(1, "gap over pool sizes, largest over smallest", round(max(means) / min(means), 3), 1.25, how)]


def _mixed(effort: Effort) -> list[Line]:
    peers = ("vtc",) if effort.quick else ("vtc", "vtc-oracle", "fcfs-sarathi")
    found = {name: _shares(effort, "unequal lengths", name, MIXED, POOL) for name in (OURS, *peers)}
    effort.show(_table("A flood of 1,500 to 2,500 output tokens, joined by 32 to 384", found))
    ours, vtc = (fmean(one.gap for one in found[name]) for name in (OURS, "vtc"))
    how = f"mean gap {ours:.0f} over VTC's {vtc:.0f}, {len(effort.seeds)} seeds; window {THETA:g}; stretch 0.25"
    return [at_most(1, "gap over VTC's, unequal lengths", round(ours / vtc, 3), 0.4, how)]


def _newcomer(effort: Effort) -> list[Line]:
    duration_s = 300.0 if effort.quick else 900.0
    peers = () if effort.quick else ("vtc", "fcfs-sarathi", "bands")
    rows = []
    for name in (OURS, *peers):
        cases = [Case(name, NEWCOMER, POOL, seed, duration_s) for seed in effort.seeds]
        waited = spread(steps for one in effort.each("newcomer", newcomer_steps, cases) for steps in one)
        if waited is not None:
            rows.append((name, waited))
    columns = ("policy", "newcomers", "mean", "P50", "P99", "worst")
    cells = [(n, f"{w.count}", f"{w.mean:.1f}", f"{w.p50:g}", f"{w.p99:g}", f"{w.most:g}") for n, w in rows]
    effort.show(Table("Steps to a newcomer's first token, all KV held by long outputs", columns, cells))
    ours = rows[0][1]
    how = f"{ours.count} requests of an idle tenant in the same lane; the step with the swap counts as one"
    return [at_most(2, "steps to a newcomer's first token, P99", ours.p99, float(WORST_STEPS), how)]


def _table(title: str, found: dict[str, list[Share]]) -> Table:
    rows = [
        (
            name,
            str(interval([one.gap for one in shares])),
            str(interval([one.tokens_per_s for one in shares])),
            f"{100 * fmean(one.tax for one in shares):.2f} %",
        )
        for name, shares in found.items()
    ]
    return Table(title, ("", "max gap", "tokens/s", "preemption tax"), rows)
