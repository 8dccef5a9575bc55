"""Line 4: the highest load at which each of three tiers misses at most 1 % of its promises.

Ten minutes of the Azure code and conversation traces, compressed in time to the load wanted; every request belongs to
one of Niyama's tiers at random: first token in 6 s and 50 ms per token on the latency lane; last token in 600 s or
1,800 s on the throughput lane. Each policy's load is found by bisection on two seeds, and then, seed by seed, by the
crossing of 1 % among loads around it. The compressed minutes are shorter than the batch tiers' deadlines, so it is
the interactive tier that sets the capacity, amid the work of the others. The bound is the best, seed by seed, of the
clairvoyant policy and all the others. Eight tenants ask, the first of them for a third of everything: what being fair
to the others costs shows a row of ours with all requests of one tenant.
"""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import NamedTuple

from benchmarks.common.intervals import highest, interval
from benchmarks.common.line import Effort, Line, Table, at_least, unmeasured
from benchmarks.scheduling.lines.world import OURS, World
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.results import attained
from fairlane.scheduler.simulation.synthetic_tenants import SyntheticTenants, Tier
from fairlane.scheduler.simulation.trace import TraceRow, load_trace, scale_load
from fairlane.scheduler.simulation.workload import Arrival, Record

TRACES = ("code", "conversation")
UNFAIR = f"{OURS}, one tenant"
PEERS = ("fcfs-sarathi", "edf", "niyama", "clairvoyant")
TIERS = (
    Tier(name="interactive", lane=LaneName.LATENCY, share=1.0, ttft_ms=6_000.0, tpot_ms=50.0),
    Tier(name="ten minutes", lane=LaneName.THROUGHPUT, share=1.0, ttft_ms=600_000.0, tpot_ms=400.0),
    Tier(name="half an hour", lane=LaneName.THROUGHPUT, share=1.0, ttft_ms=1_800_000.0, tpot_ms=400.0),
)
LAST_TOKEN_MS = {"ten minutes": 600_000.0, "half an hour": 1_800_000.0}
"""Tiers whose promise is the last token; their targets above only order work."""
MISSES = 0.01
AROUND = (0.85, 0.93, 1.0, 1.07, 1.15)
"""Loads, as parts of the one found, among which each seed crosses 1 %."""
BOUND = "the bound"
TARGETS = (("fcfs-sarathi", 2.5), ("niyama", 1.25), (BOUND, 0.9))
WORLD = World()


class Case(NamedTuple):
    """One run of one policy."""

    policy: str
    trace: str
    load: float
    """How much faster than recorded."""
    seed: int


@cache
def recorded(trace: str) -> Sequence[TraceRow]:
    """The requests of a trace as they were recorded."""
    text = (files("benchmarks.scheduling") / "traces" / f"azure-2023-{trace}.csv").read_text()
    return load_trace(text.splitlines()).demand()


def asked(case: Case) -> list[Arrival]:
    """The trace at this load, with tiers dealt out."""
    overlay = SyntheticTenants(tenants=1 if case.policy == UNFAIR else 8, tiers=TIERS, seed=case.seed)
    return list(overlay.arrivals(scale_load(recorded(case.trace), case.load)))


def kept(record: Record) -> bool:
    """The tier's promise was kept."""
    limit_ms = LAST_TOKEN_MS.get(record.arrival.tier)
    if limit_ms is None:
        return attained(record)
    return record.end_ms is not None and record.tokens > 0 and record.end_ms - record.arrival.at_ms <= limit_ms


def misses(case: Case) -> float:
    """The largest share of misses of any tier."""
    policy = OURS if case.policy == UNFAIR else case.policy
    run = WORLD.simulation(policy, asked(case)).run()
    tiers: dict[str, list[bool]] = {}
    for record in run.values():
        tiers.setdefault(record.arrival.tier, []).append(kept(record))
    return max(1.0 - fmean(promises) for promises in tiers.values())


def search(case: Case) -> float:
    """The highest load at which the case's seed and the next miss 1 % at most, on average; `case.load` is a guess."""

    def holds(load: float) -> bool:
        return fmean(misses(case._replace(load=load, seed=seed)) for seed in (case.seed, case.seed + 1)) <= MISSES

    return highest(holds, case.load / 1.5, case.load * 1.5)


def crossing(points: Sequence[tuple[float, float]]) -> float:
    """The load, between those measured, at which misses pass 1 % first; the last load if they never do."""
    below = (points[0][0], 0.0)
    for load, missed in points:
        if missed > MISSES:
            if load <= below[0]:
                return load
            return below[0] + (load - below[0]) * (MISSES - below[1]) / (missed - below[1])
        below = (load, missed)
    return points[-1][0]


def capacities(effort: Effort, policy: str, trace: str, load: float) -> list[float]:
    """By seed, the capacity near this load."""
    loads = [part * load for part in AROUND]
    cases = [Case(policy, trace, each, seed) for seed in effort.seeds for each in loads]
    missed = effort.each(f"capacity, {trace}, {policy}", misses, cases)
    size = len(loads)
    return [crossing(list(zip(loads, missed[i : i + size], strict=True))) for i in range(0, len(missed), size)]


def measure(effort: Effort) -> list[Line]:
    """The line."""
    names = [(f"capacity over {peer}'s, {trace}", peer, target) for trace in TRACES for peer, target in TARGETS]
    if effort.quick:
        return [unmeasured(4, name, target, "not in a quick run") for name, _, target in names]
    policies = (OURS, UNFAIR, *PEERS)
    guesses = [Case(policy, trace, 2.0, 0) for trace in TRACES for policy in policies]
    loads = effort.each("capacity, search", search, guesses)
    found = {
        (case.policy, case.trace): capacities(effort, case.policy, case.trace, load)
        for case, load in zip(guesses, loads, strict=True)
    }
    for trace in TRACES:
        rivals = zip(*(found[peer, trace] for peer in PEERS), strict=True)
        found[BOUND, trace] = [max(each) for each in rivals]
    effort.show(_table(found))
    lines = []
    for trace in TRACES:
        ours = found[OURS, trace]
        for peer, target in TARGETS:
            ratio = interval([a / b for a, b in zip(ours, found[peer, trace], strict=True)])
            how = f"{ratio}, {len(ours)} seeds; ours {fmean(ours):.2f}x the recorded load"
            lines.append(at_least(4, f"capacity over {peer}'s, {trace}", round(ratio.mean, 3), target, how))
    return lines


def _table(found: dict[tuple[str, str], list[float]]) -> Table:
    rows = []
    for policy in (OURS, UNFAIR, *PEERS, BOUND):
        cells = [policy]
        for trace in TRACES:
            own, ours = found[policy, trace], found[OURS, trace]
            cells += [str(interval(own)), str(interval([a / b for a, b in zip(ours, own, strict=True)]))]
        rows.append(cells)
    columns = ["", *(title for trace in TRACES for title in (f"{trace}, x recorded", "ours over it"))]
    return Table("Load at which the worst tier misses 1 %", columns, rows)
