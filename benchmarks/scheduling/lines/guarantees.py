"""Line 11: does every guarantee hold, whichever door gave it? And do several doors give as many as one would?

Each world has dated and undated requests of the same tenants, some of whom ask for more than their share, with both
kinds of deadlines in both lanes; and doors whose views of workers, queue and each other are as old as a gateway's. The
one door that they are compared with sees everything at once. The first seconds are light, so that costs are known. Runs
in which a worker dies are counted apart: what it held is late for that.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.common.clients import Client, flood
from benchmarks.common.line import Effort, Line, Table, at_least, at_most
from benchmarks.common.mortal_simulation import Death, MortalSimulation
from benchmarks.common.simulated_gateways import SimulatedGateways
from benchmarks.scheduling.lines.overload import in_time
from benchmarks.scheduling.lines.world import BLOCK_SIZE, OURS, World
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.synthetic_tenants import Tier
from fairlane.scheduler.simulation.workload import Arrival

HEARTBEAT_MS = 1_000.0
RATE_PER_S = 20.0
"""What a worker can about serve."""
TENANTS = 4
DOORS, WORKERS, LOADS = (1, 2, 4, 8), (1, 4, 16), (0.5, 1.0, 2.0, 4.0)
DURATION_S = {1: 20.0, 4: 10.0, 16: 5.0}
"""For so many workers: each run has hundreds or thousands of requests."""
LIGHT_S, LIGHT = 6.0, 0.25
"""How long nothing is dated at the beginning, and the load meanwhile."""
DIES_AT, LAPSES_AFTER_MS = 0.4, 6_000.0
"""When a worker dies, as a part of the run, and until its lease has lapsed."""
WORLD = World(kv_tokens=100_000, max_step_tokens=2048)


class Given(NamedTuple):
    """What was promised in one run."""

    guaranteed: int
    broken: int
    """Of these, not kept."""


class Case(NamedTuple):
    """One run."""

    workers: int
    doors: int
    """0: one that sees everything at once."""
    load: float
    seed: int
    duration_s: float
    ends: bool
    """Deadlines are of the last token, not of the first."""
    dies: bool = False
    """A worker does, amid the run."""

    def arrivals(self) -> list[Arrival]:
        """What is asked for; the first tenant dates half of it, and asks for three times as much as each other."""
        early = self._asked(LIGHT, LIGHT_S, (False,))
        late = self._asked(self.load, self.duration_s, (True, False))
        asked = early + [replace(one, at_ms=one.at_ms + 1e3 * LIGHT_S) for one in late]
        return [replace(one, job_id=f"{number}/{one.job_id}") for number, one in enumerate(asked)]

    def deaths(self) -> list[Death]:
        """The first worker's, if any."""
        at_ms = 1e3 * (LIGHT_S + DIES_AT * self.duration_s)
        return [Death(at_ms=at_ms, worker=0, lapses_ms=at_ms + LAPSES_AFTER_MS)] if self.dies else []

    def _asked(self, load: float, duration_s: float, kinds: Sequence[bool]) -> list[Arrival]:
        rate_per_s = RATE_PER_S * load * self.workers / (3 + TENANTS - 1) / len(kinds)
        clients = [
            Client(
                tenant=f"tenant-{number}",
                rate_per_s=rate_per_s * (3.0 if number == 0 else 1.0),
                prompt=(100, 2000),
                output=(20, 400),
                tier=_tier(LaneName.THROUGHPUT if number % 2 else LaneName.LATENCY, dated=dated, ends=self.ends),
            )
            for number in range(TENANTS)
            for dated in kinds
        ]
        return list(flood(clients, duration_s, self.seed))


def play(
    arrivals: Sequence[Arrival],
    *,
    workers: int = 1,
    doors: int = 1,
    heartbeat_ms: float = HEARTBEAT_MS,
    deaths: Sequence[Death] = (),
    seed: int = 0,
    world: World = WORLD,
) -> Given:
    """Play these requests to their ends."""
    policies = [world.policy(OURS, arrivals) for _ in range(workers)]
    planners = [policy for policy in policies if isinstance(policy, Planner)]
    queue = LaneQueue(DEFAULT_LANES)
    keeper = SimulatedGateways(
        planners,
        kv_tokens=world.kv_tokens,
        block_size=BLOCK_SIZE,
        max_sequences=world.max_sequences,
        queue=queue,
        gateways=doors,
        heartbeat_ms=heartbeat_ms,
        deaths=deaths,
        seed=seed,
    )
    simulation = MortalSimulation(
        arrivals,
        policies,
        world.hardware,
        queue=queue,
        admission=keeper.decide,
        deaths=deaths,
        observers=[keeper],
        seed=seed,
    )
    records = simulation.run()
    promised = [records[job_id] for job_id in keeper.guaranteed]
    return Given(len(promised), sum(not in_time(record) for record in promised))


def play_case(case: Case) -> Given:
    """Play a case."""
    heartbeat_ms = HEARTBEAT_MS if case.doors else 0.0
    return play(
        case.arrivals(),
        workers=case.workers,
        doors=max(1, case.doors),
        heartbeat_ms=heartbeat_ms,
        deaths=case.deaths(),
        seed=case.seed,
    )


def measure(effort: Effort) -> list[Line]:
    """The line."""
    found = {(workers, doors): _runs(effort, workers, doors) for workers in _workers(effort) for doors in (0, *DOORS)}
    effort.show(_table("Guarantees", found))
    mortal = {(workers, doors): _runs(effort, workers, doors, dies=True) for workers, doors in found if workers > 1}
    effort.show(_table("Guarantees where a worker dies", mortal))
    runs = [run for (_, doors), runs in found.items() if doors for run in runs]
    guaranteed, broken = sum(run.guaranteed for run in runs), sum(run.broken for run in runs)
    parts = [
        sum(run.guaranteed for run in runs) / max(1, sum(run.guaranteed for run in found[workers, 0]))
        for (workers, _), runs in found.items()
    ]
    return [
        at_most(11, "guarantees broken", float(broken), 0.0, f"of {guaranteed:,}, {len(runs)} runs"),
        at_least(11, "least given, of one door's that sees all", round(min(parts), 3), 0.8, f"doors {DOORS}"),
    ]


def _workers(effort: Effort) -> Sequence[int]:
    return WORKERS[:1] if effort.quick else WORKERS


def _runs(effort: Effort, workers: int, doors: int, *, dies: bool = False) -> list[Given]:
    duration_s = DURATION_S[workers] / (2.0 if effort.quick else 1.0)
    cases = [
        Case(workers, doors, load, seed, duration_s, ends, dies)
        for load in LOADS
        for seed in effort.seeds[: 1 if dies else None]
        for ends in (False, True)
    ]
    return effort.each(f"guarantees, {workers} workers, {doors} doors", play_case, cases)


def _table(title: str, found: dict[tuple[int, int], list[Given]]) -> Table:
    rows = [
        (
            f"{workers}",
            f"{doors or 'one that sees all'}",
            f"{sum(run.guaranteed for run in runs):,}",
            f"{sum(run.broken for run in runs)}",
        )
        for (workers, doors), runs in found.items()
    ]
    return Table(title, ("workers", "doors", "guaranteed", "broken"), rows)


def _tier(lane: LaneName, *, dated: bool, ends: bool) -> Tier:
    target = DEFAULT_LANES[lane]
    return Tier(
        name="dated" if dated else "undated",
        lane=lane,
        share=1.0,
        ttft_ms=target.ttft_ms,
        tpot_ms=target.tpot_ms,
        deadline_ms=30_000.0 if dated and ends else None,
        hard_ttft_ms=4_000.0 if dated and not ends else None,
    )
