"""Line 5: what is left of goodput at 4 and 10 times the load that a worker can serve, and what its door promises.

Half the requests state that their first token must come within 6 s, half that all must be there within 60 s. Ours
stands behind the product's admission test; the policies to compare with have none. Goodput is output tokens of
requests that kept their promise, over the time in which requests arrive. What more load takes away is measured against
the best goodput at no more load: beyond what can be served it grows with the choice of requests that the door has. A
guarantee is of the deadlines that were stated, not of a tier's targets.
"""

from statistics import fmean
from typing import NamedTuple

from benchmarks.common.clients import Client, flood
from benchmarks.common.intervals import interval
from benchmarks.common.line import Effort, Line, Table, at_least, at_most
from benchmarks.scheduling.lines.world import BLOCK_SIZE, OURS, World
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.simulation.results import attained
from fairlane.scheduler.simulation.simulated_admission import SimulatedAdmission
from fairlane.scheduler.simulation.synthetic_tenants import Tier
from fairlane.scheduler.simulation.workload import Arrival, Record

PEERS = ("fcfs-sarathi", "edf", "niyama", "clairvoyant")
MAX_TTFT_MS = 6_000.0
PERSON = Tier(
    name="person", lane=LaneName.LATENCY, share=1.0, ttft_ms=MAX_TTFT_MS, tpot_ms=50.0, hard_ttft_ms=MAX_TTFT_MS
)
BATCH = Tier(name="batch", lane=LaneName.THROUGHPUT, share=1.0, ttft_ms=20_000.0, tpot_ms=100.0, deadline_ms=60_000.0)
RATE_PER_S = 10.0
"""Of each tier, at load 1: about what the worker can serve."""
LOADS = (0.5, 0.8, 1.0, 1.2, 1.5, 4.0, 10.0)
QUIET = 0.5
BURST = (0.5, 4.0, 0.5)
"""Loads of the three parts of a burst."""
WORLD = World(kv_tokens=100_000, max_step_tokens=2048)


class Case(NamedTuple):
    """One run of one policy: loads, one after another, for `part_s` each."""

    policy: str
    loads: tuple[float, ...]
    seed: int
    part_s: float

    @property
    def duration_s(self) -> float:
        """For how long requests arrive."""
        return self.part_s * len(self.loads)

    def arrivals(self) -> list[Arrival]:
        """What is asked for."""
        clients = [
            Client(
                tenant=f"{tier.name}-{number}",
                rate_per_s=RATE_PER_S * load,
                prompt=(100, 2000),
                output=(16, 400),
                tier=tier,
                from_ms=number * self.part_s * 1e3,
                until_ms=(number + 1) * self.part_s * 1e3,
            )
            for tier in (PERSON, BATCH)
            for number, load in enumerate(self.loads)
        ]
        return list(flood(clients, self.duration_s, self.seed))


class Kept(NamedTuple):
    """What came out of it."""

    goodput: float
    """Output tokens per second."""
    attained: float
    refused: float
    """Parts of all requests."""
    refused_tokens: int
    """Computed for requests that were refused."""
    expired_tokens: int
    """Computed for requests that were let in, and ended because their time was over."""
    computed_tokens: int
    """Prompt and output tokens of all requests."""
    guaranteed: int
    broken: int
    """How many guarantees were not kept."""
    last_miss_ms: float
    """Arrival of the last request that did not get what it asked for."""


def play(case: Case) -> Kept:
    """Play a case and measure it."""
    arrivals = case.arrivals()
    simulation = WORLD.simulation(case.policy, arrivals)
    [policy] = simulation.policies
    promised: set[str] = set()
    if isinstance(policy, Planner):
        keeper = SimulatedAdmission(
            [policy], kv_tokens=WORLD.kv_tokens, block_size=BLOCK_SIZE, max_sequences=WORLD.max_sequences
        )
        simulation.admission, simulation.observers, promised = keeper.decide, [keeper], keeper.guaranteed
    return kept(list(simulation.run().values()), promised, case.duration_s)


def kept(records: list[Record], promised: set[str], duration_s: float) -> Kept:
    """What these records amount to."""
    good = [record for record in records if attained(record) and in_time(record)]
    names = {record.arrival.job_id for record in good}
    missed = [record.arrival.at_ms for record in records if record.arrival.job_id not in names]
    return Kept(
        goodput=sum(record.tokens for record in good) / duration_s,
        attained=len(good) / len(records),
        refused=sum(record.outcome is Outcome.REJECTED for record in records) / len(records),
        refused_tokens=sum(record.computed for record in records if record.outcome is Outcome.REJECTED),
        expired_tokens=sum(record.computed for record in records if record.outcome is Outcome.EXPIRED),
        computed_tokens=sum(record.computed for record in records),
        guaranteed=len(promised),
        broken=len(promised - {record.arrival.job_id for record in records if in_time(record)}),
        last_miss_ms=max(missed, default=0.0),
    )


def in_time(record: Record) -> bool:
    """It finished by the deadlines that it stated, if any."""
    arrival = record.arrival
    if record.outcome is not Outcome.FINISHED or record.end_ms is None or record.ttft_ms is None:
        return False
    if arrival.deadline_ms is not None and record.end_ms - arrival.at_ms > arrival.deadline_ms:
        return False
    return arrival.hard_ttft_ms is None or record.ttft_ms <= arrival.hard_ttft_ms


def measure(effort: Effort) -> list[Line]:
    """The line."""
    part_s = 20.0 if effort.quick else 40.0
    found: dict[tuple[str, float], list[Kept]] = {}
    for policy in (OURS, *(() if effort.quick else PEERS)):
        for load in LOADS:
            cases = [Case(policy, (load,), seed, part_s) for seed in effort.seeds]
            found[policy, load] = effort.each(f"overload, {policy}", play, cases)
    effort.show(_table(found))
    burst = effort.each("burst", play, [Case(OURS, BURST, seed, part_s) for seed in effort.seeds])
    return [*_goodput(found), *_promises(found, burst, 2.0 * part_s * 1e3)]


def _goodput(found: dict[tuple[str, float], list[Kept]]) -> list[Line]:
    goodput = {load: fmean(run.goodput for run in found[OURS, load]) for load in LOADS}
    lines = []
    for load, target in ((4.0, 0.97), (10.0, 0.95)):
        best = max((other for other in LOADS if other <= load), key=goodput.__getitem__)
        pairs = zip(found[OURS, load], found[OURS, best], strict=True)
        part = interval([one.goodput / most.goodput for one, most in pairs])
        how = f"{part}, {len(found[OURS, load])} seeds; best up to there {goodput[best]:.0f} tokens/s at {best:g}x"
        lines.append(
            at_least(5, f"goodput at {load:g}x load over the best at no more", round(part.mean, 4), target, how)
        )
    return lines


def _promises(found: dict[tuple[str, float], list[Kept]], burst: list[Kept], burst_ends_ms: float) -> list[Line]:
    runs = [run for load in LOADS for run in found[OURS, load]] + burst
    guaranteed, broken = sum(run.guaranteed for run in runs), sum(run.broken for run in runs)
    refused_tokens = sum(run.refused_tokens for run in runs)
    expired_tokens = sum(run.expired_tokens for run in runs)
    computed_tokens = sum(run.computed_tokens for run in runs)
    quiet = interval([run.refused for run in found[OURS, QUIET]])
    recovery_ms = max(max(0.0, run.last_miss_ms - burst_ends_ms) for run in burst)
    broken_part = round(broken / max(1, guaranteed), 5)
    return [
        at_most(5, "tokens computed for requests refused", refused_tokens, 0.0, f"all {len(runs)} runs"),
        at_most(
            5,
            "tokens computed for requests that expired, of all",
            round(expired_tokens / computed_tokens, 5),
            0.01,
            f"{expired_tokens:,} of {computed_tokens:,}",
        ),
        at_most(5, "guaranteed requests that miss", broken_part, 0.001, f"{broken} of {guaranteed}"),
        at_most(5, "feasible requests refused", round(quiet.mean, 5), 0.02, f"{quiet}, at load {QUIET:g}"),
        at_most(
            5, "last miss after a burst, ms", round(recovery_ms), MAX_TTFT_MS, f"worst of {len(burst)}; loads {BURST}"
        ),
    ]


def _table(found: dict[tuple[str, float], list[Kept]]) -> Table:
    policies = dict.fromkeys(policy for policy, _ in found)
    rows = [
        [policy, *(str(interval([run.goodput for run in found[policy, load]])) for load in LOADS)]
        for policy in policies
    ]
    return Table("Goodput in tokens per second, by load", ["", *(f"{load:g}x" for load in LOADS)], rows)
