"""Line 10: what must never happen, counted over random crowds: on tiny pools, in both lanes, with weights, deadlines,
noise, cancels before and during steps, and limits on waiting so short that some requests meet them.

The hypothesis machines in `tests/scheduler/` hunt for the same faults with few requests; here are many. Each crowd is
played again in a process with another hash seed. The bound on starvation is the lane's longest wait and two steps: by
then a request has had its first row, or has ended (with the step after the one in which its time was over). The bound
on progress is the longest request: in as many steps as it has tokens some request gains one or ends, since what was
computed of the leader is never thrown away.
"""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.common.line import Effort, Line, Table, at_most
from benchmarks.scheduling.lines.watch import LANES, Waits, Watched, Worker
from fairlane.scheduler.protocol.lanes import Lane
from fairlane.scheduler.simulation.simulate import Simulation
from fairlane.scheduler.simulation.workload import Arrival, Hardware

HARDWARE = Hardware(step=(10.0, 0.5, 0.1, 1e-3, 1e-5), copy=(0.1, 0.1), overhead_ms=0.5, noise=0.2)
REQUESTS, QUICK_REQUESTS = 400, 120


class Case(NamedTuple):
    """One crowd."""

    seed: int
    requests: int


class Faults(NamedTuple):
    """How often each happened in a crowd, and how near the bounds were."""

    digest: str
    """Of all plans and records."""
    integrity: int
    unended: int
    """Requests that have no end, or several."""
    over_budget: int
    """Steps."""
    starved: int
    stuck: int
    """Steps without progress beyond the bound."""
    longest_wait: float
    """In parts of the bound."""
    longest_standstill: int
    longest_pause_ms: float
    """Of a request that had begun, between two rows or before its end."""
    outcomes: dict[str, int]
    preemptions: int
    steps: int


def crowd(case: Case) -> tuple[Worker, list[Arrival]]:
    """A small worker and more requests than it can serve in time."""
    draws = random.Random(case.seed)
    block_size = draws.choice((1, 4, 16))
    longest = draws.choice((40, 150, 400))
    least = -(-2 * longest // block_size)
    worker = Worker(
        block_size=block_size,
        blocks=draws.choice((least, 2 * least, 4 * least)),
        host_slots=draws.choice((0, least, 4 * least)),
        max_sequences=draws.choice((2, 5, 16)),
        max_step_tokens=draws.choice((16, 64, 256)),
        window=draws.choice((64.0, 500.0, 4_096.0)),
    )
    tenants = {f"t{number}": draws.choice((0.5, 1.0, 4.0)) for number in range(draws.randint(1, 6))}
    gap_ms = 6.0 * longest / worker.max_sequences / draws.choice((0.5, 1.0, 2.0, 4.0))
    at_ms, arrivals = 0.0, []
    for number in range(case.requests):
        at_ms += draws.expovariate(1.0 / gap_ms)
        arrivals.append(_request(f"r{number}", at_ms, tenants, longest, draws))
    return worker, arrivals


def play(case: Case) -> Faults:
    """One crowd, and what went wrong."""
    worker, arrivals = crowd(case)
    watched, waits = Watched(worker.planner(), worker, random.Random(case.seed)), Waits()
    records = Simulation(arrivals, [watched], HARDWARE, observers=[waits], seed=case.seed).run()
    watched.audit()
    watched.digest.update(repr(list(records.values())).encode())
    waited = [waits.waited(record) for record in records.values() if record.outcome is not None]
    bound = max(arrival.prompt_tokens + arrival.max_tokens for arrival in arrivals)
    return Faults(
        digest=watched.digest.hexdigest(),
        integrity=watched.integrity,
        unended=sum(record.outcome is None or waits.ends[name] != 1 for name, record in records.items()),
        over_budget=watched.over_budget,
        starved=sum(part > 1.0 for part in waited),
        stuck=sum(steps > bound for steps in waits.standstills),
        longest_wait=max(waited),
        longest_standstill=max(waits.standstills),
        longest_pause_ms=waits.longest_pause_ms,
        outcomes=dict(Counter(record.outcome.value for record in records.values() if record.outcome is not None)),
        preemptions=sum(record.preemptions for record in records.values()),
        steps=watched.steps,
    )


def digest_elsewhere(case: Case) -> str:
    """The digest of a crowd that a process with another hash seed plays."""
    program = f"from benchmarks.scheduling.lines.safety import Case, play; print(play({case!r}).digest)"
    environ = {**os.environ, "PYTHONHASHSEED": str(case.seed + 1)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def measure(effort: Effort) -> list[Line]:
    """The line."""
    requests = QUICK_REQUESTS if effort.quick else REQUESTS
    cases = [Case(seed, requests) for seed in effort.seeds]
    found = effort.each("crowds", play, cases)
    again = effort.each("crowds again", digest_elsewhere, cases)
    effort.show(_table(cases, found))
    differing = sum(one.digest != other for one, other in zip(found, again, strict=True))
    how = f"{len(cases)} crowds of {requests} requests, {sum(one.steps for one in found):,} steps"
    wait, standstill = max(one.longest_wait for one in found), max(one.longest_standstill for one in found)

    def count(name: str, faults: Callable[[Faults], int], how: str = how) -> Line:
        return at_most(10, name, float(sum(map(faults, found))), 0.0, how)

    return [
        at_most(10, "runs that differ from their repetition", float(differing), 0.0, f"{how}; another hash seed"),
        count("requests without an end, or with several", lambda one: one.unended),
        count("leaks and double frees", lambda one: one.integrity),
        count("steps over their budget", lambda one: one.over_budget),
        count("steps without progress beyond the bound", lambda one: one.stuck, f"{how}; longest {standstill} steps"),
        count("requests starved beyond the bound", lambda one: one.starved, f"{how}; longest {wait:.3f} of the bound"),
    ]


def _table(cases: list[Case], found: list[Faults]) -> Table:
    columns = ("crowd", "worker", "ends", "preemptions", "steps", "longest wait, of its bound", "pause once begun, s")
    rows = [
        (
            str(case.seed),
            ", ".join(f"{name} {value:g}" for name, value in crowd(case)[0]._asdict().items()),
            ", ".join(f"{number} {outcome}" for outcome, number in sorted(one.outcomes.items())),
            f"{one.preemptions}",
            f"{one.steps:,}",
            f"{one.longest_wait:.3f}",
            f"{one.longest_pause_ms / 1e3:.1f}",
        )
        for case, one in zip(cases, found, strict=True)
    ]
    return Table("Random crowds", columns, rows)


def _request(name: str, at_ms: float, tenants: dict[str, float], longest: int, draws: random.Random) -> Arrival:
    lane: Lane = draws.choice(list(LANES.values()))
    tenant = draws.choice(list(tenants))
    output_tokens = draws.randint(1, longest)
    return Arrival(
        at_ms=at_ms,
        job_id=name,
        tenant=tenant,
        weight=tenants[tenant],
        lane=lane.name,
        prompt_tokens=draws.randint(1, longest),
        output_tokens=output_tokens,
        max_tokens=draws.randint(output_tokens, longest),
        ttft_ms=lane.ttft_ms,
        tpot_ms=lane.tpot_ms,
        deadline_ms=draws.choice((None, None, None, 8_000.0)),
        hard_ttft_ms=draws.choice((None, None, None, 2_000.0)),
    )
