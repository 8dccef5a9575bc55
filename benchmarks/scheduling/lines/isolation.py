"""Line 3: a latency lane at 30 % load beside an endless flood of throughput work.

The load is of what first come, first served with chunked prefill can do of the same requests. The envelope's TPOT is
twice a step at batch 1. What the flood could have is its throughput alone under the same cap on step times, which one
latency request that decodes all the time sets, less the part of the time that the latency lane alone needs: the part
of its rows, since a step's fixed cost is paid once for both (with it next to nothing would be left, and little proved).
"""

from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from benchmarks.common.clients import Client, flood
from benchmarks.common.intervals import interval
from benchmarks.common.line import Effort, Line, Table, at_least, at_most
from benchmarks.scheduling.lines.world import GPU, OURS, World
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.results import ServiceMeter, spread
from fairlane.scheduler.simulation.simulate import SimulatedStep
from fairlane.scheduler.simulation.synthetic_tenants import Tier
from fairlane.scheduler.simulation.workload import Arrival, Record

PEERS = ("fcfs-sarathi", "priority-vllm", "priority-sglang", "hygen", "niyama")
WORLD = World(kv_tokens=100_000, max_step_tokens=2048)
STEP_MS = GPU.step_ms(StepFeatures(1, 0, 1024, 0))
PERSON = Tier(name="person", lane=LaneName.LATENCY, share=1.0, ttft_ms=1_000.0, tpot_ms=2.0 * STEP_MS)
CROWD = Tier(name="crowd", lane=LaneName.THROUGHPUT, share=1.0, ttft_ms=600_000.0, tpot_ms=1_000.0)
PERSON_LENGTHS, CROWD_LENGTHS = ((64, 1024), (16, 256)), ((64, 1024), (128, 512))
CROWD_RATE_PER_S = 40.0
"""Several times what can be served."""
LOAD = 0.3


class Case(NamedTuple):
    """One run of one policy."""

    policy: str
    person_per_s: float
    """0: none."""
    crowd: bool
    paced: bool
    """One latency request decodes all the time."""
    seed: int
    duration_s: float

    def arrivals(self) -> list[Arrival]:
        """Who asks for what."""
        clients = []
        if self.person_per_s:
            prompt, output = PERSON_LENGTHS
            clients.append(
                Client(tenant="person", rate_per_s=self.person_per_s, prompt=prompt, output=output, tier=PERSON)
            )
        if self.crowd:
            prompt, output = CROWD_LENGTHS
            clients.append(
                Client(tenant="crowd", rate_per_s=CROWD_RATE_PER_S, prompt=prompt, output=output, tier=CROWD)
            )
        paced = [_pacer(self.duration_s)] if self.paced else []
        return paced + list(flood(clients, self.duration_s, self.seed))


class Isolated(NamedTuple):
    """What came out of it: of the person's requests, and of the crowd's."""

    ttfts_ms: list[float]
    late_tokens: int
    tokens: int
    tpots_ms: list[float]
    busy: float
    """Part of the time that went into rows, the fixed cost of steps not counted."""
    crowd_tokens_per_s: float
    """Prompts and outputs, each token once."""
    longest_step_ms: float


@dataclass
class Steps:
    """Watches for the longest step, and counts."""

    longest_ms: float = 0.0
    count: int = 0

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        """A request came, and was let in."""

    def stepped(self, step: SimulatedStep) -> None:
        """A worker ran a step."""
        self.longest_ms = max(self.longest_ms, step.ended_ms - step.started_ms)
        self.count += 1

    def ended(self, record: Record) -> None:
        """A request that was let in is over."""


def isolated(case: Case) -> Isolated:
    """Play a case and measure it."""
    meter, steps = ServiceMeter(every_ms=1e12), Steps()
    until_ms = case.duration_s * 1e3
    run = WORLD.simulation(case.policy, case.arrivals(), observers=[meter, steps], until_ms=until_ms).run()
    people = [record for record in run.values() if record.arrival.tenant == "person"]
    served = [record for record in people if record.first_ms is not None]
    crowd = [record for record in run.values() if record.arrival.tenant == "crowd" and record.tokens]
    return Isolated(
        ttfts_ms=[record.first_ms - record.arrival.at_ms for record in served if record.first_ms is not None],
        late_tokens=sum(record.late_tokens for record in served),
        tokens=sum(record.tokens for record in served),
        tpots_ms=[record.tpot_ms for record in people if record.tpot_ms is not None],
        busy=(meter.run_ms - steps.count * GPU.step[0]) / until_ms,
        crowd_tokens_per_s=sum(one.arrival.prompt_tokens + one.tokens for one in crowd) / case.duration_s,
        longest_step_ms=steps.longest_ms,
    )


def rate_per_s(duration_s: float = 60.0) -> float:
    """The person's rate: its part of what chunked prefill in order of arrival gets done of such requests."""
    case = Case("fcfs-sarathi", CROWD_RATE_PER_S, False, False, 0, duration_s)
    run = WORLD.simulation(case.policy, case.arrivals(), until_ms=duration_s * 1e3).run()
    return LOAD * sum(record.end_ms is not None for record in run.values()) / duration_s


def measure(effort: Effort) -> list[Line]:
    """The line."""
    duration_s = 60.0 if effort.quick else 180.0
    rate = rate_per_s()

    def play(policy: str, person: float, crowd: bool, paced: bool = False) -> list[Isolated]:
        cases = [Case(policy, person, crowd, paced, seed, duration_s) for seed in effort.seeds]
        return effort.each(f"isolation, {policy}", isolated, cases)

    found = {name: play(name, rate, True) for name in (OURS, *(() if effort.quick else PEERS))}
    alone, capped = play(OURS, rate, False), play(OURS, 0.0, True, True)
    left = [cap.crowd_tokens_per_s * (1.0 - one.busy) for cap, one in zip(capped, alone, strict=True)]
    effort.show(_table(f"Latency lane at {rate:.2f} requests/s beside a flood", alone, found, left))
    return _lines(alone, found[OURS], left, f"{len(effort.seeds)} seeds of {duration_s:g} s, {rate:.2f} requests/s")


def _lines(alone: list[Isolated], ours: list[Isolated], left: list[float], how: str) -> list[Line]:
    solo_ms, ttft_ms = _p99(alone), _p99(ours)
    step_ms = max(one.longest_step_ms for one in alone)
    inside = 1.0 - sum(one.late_tokens for one in ours) / sum(one.tokens for one in ours)
    kept = interval([one.crowd_tokens_per_s / most for one, most in zip(ours, left, strict=True)])
    tpot_ms = spread(value for one in ours for value in one.tpots_ms)
    raw = f"raw TPOT P99 {tpot_ms.p99:.1f} ms" if tpot_ms else ""
    limit_ms = 1.1 * solo_ms + step_ms
    return [
        at_most(3, "P99 TTFT under flood, ms", round(ttft_ms, 1), round(limit_ms, 1), f"alone {solo_ms:.1f} ms; {how}"),
        at_least(3, "tokens inside their envelope", round(inside, 5), 0.999, f"TPOT {PERSON.tpot_ms:.1f} ms; {raw}"),
        at_least(3, "flood's throughput of what is left", round(kept.mean, 4), 0.95, f"{kept}; {how}"),
    ]


def _table(title: str, alone: list[Isolated], found: dict[str, list[Isolated]], left: list[float]) -> Table:
    rows = []
    for name, runs in {"latency lane alone": alone, **found}.items():
        tokens = sum(one.tokens for one in runs)
        tpot_ms = spread(value for one in runs for value in one.tpots_ms)
        rows.append(
            (
                name,
                f"{_p99(runs):,.0f}",
                f"{100 - 100 * sum(one.late_tokens for one in runs) / max(1, tokens):.3f} %",
                f"{tpot_ms.p99:.1f}" if tpot_ms else "-",
                f"{100 * fmean(one.crowd_tokens_per_s / most for one, most in zip(runs, left, strict=True)):.1f} %",
            )
        )
    columns = ("", "P99 TTFT, ms", "tokens inside", "P99 TPOT, ms", "flood, of what is left")
    return Table(title, columns, rows)


def _p99(runs: list[Isolated]) -> float:
    found = spread(value for one in runs for value in one.ttfts_ms)
    return found.p99 if found else float("inf")


def _pacer(duration_s: float) -> Arrival:
    """Decodes for as long as the run lasts."""
    tokens = 1 + int(duration_s * 1e3 / GPU.step[0])
    return Arrival(
        at_ms=0.0,
        job_id="pacer",
        tenant="pacer",
        lane=LaneName.LATENCY,
        prompt_tokens=1,
        output_tokens=tokens,
        max_tokens=tokens,
        ttft_ms=PERSON.ttft_ms,
        tpot_ms=PERSON.tpot_ms,
    )
