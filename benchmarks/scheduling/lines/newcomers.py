"""Line 12: how soon a tenant of which nothing is there gets its first token, whatever is short.

A crowd of 1 to 64 tenants asks for several times what there is, through the queue, and holds all slots, all blocks, all
tokens of each step, or all of them by several choices a prompt; in the newcomer's lane or in the one below. Newcomers
come one at a time, each of another tenant. Every step is bounded (scheduler/planner/step_budget.py): the one that a
newcomer finds running, and the one of its own first token, so that its own prefill, two such steps and one swap are
the most.

A newcomer to the lower lane under a flood of the first has its lane's share floor: of the tokens that are served, that
share, and of rows and blocks: a worker asks for it and begins it whoever holds them, and its prompt has that share of
what is prefilled. These newcomers come far enough apart for each to find the floor free.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.common.line import Effort, Line, Table, at_least, at_most
from benchmarks.scheduling.lines.world import BLOCK_SIZE, GPU
from fairlane.scheduler.planner.costs import CostModel, Measurement
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.step_budget import HOLD, MIN_HOLD, MIN_PREFILL_DIVISOR, MIN_PREFILL_TOKENS, PROMPT_PART
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LATENCY, THROUGHPUT, Lane, LaneName
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.results import Spread, spread
from fairlane.scheduler.simulation.simulate import SimulatedStep, Simulation
from fairlane.scheduler.simulation.workload import Arrival, Hardware, Record

HARDWARE = GPU
SLOTS, STEP_TOKENS, HOST_TOKENS = 64, 8192, 400_000
PROMPT, OUTPUT = 256, 4
"""Of a newcomer."""
FIRST_MS, EVERY_MS, FLOOR_EVERY_MS = 5_000.0, 400.0, 2_500.0
"""When the first newcomer comes to one worker, and how long after it the next; the last, of a lane that has its share
floor alone."""
AT_LEAST = 2_000
NEWCOMER = "newcomer-"
"""How the jobs of newcomers begin."""
PAIRS = (
    (LaneName.LATENCY, LaneName.LATENCY),
    (LaneName.THROUGHPUT, LaneName.THROUGHPUT),
    (LaneName.THROUGHPUT, LaneName.LATENCY),
)
"""Lanes of the crowd and of the newcomers."""


class Crowd(NamedTuple):
    """What its requests are like, and the KV of a worker."""

    prompt: tuple[int, int]
    output: tuple[int, int]
    rate_per_s: float
    """Of all its tenants together, for each worker."""
    kv_tokens: int
    choices: int = 1


CROWDS = {
    "slots": Crowd((16, 64), (400, 1_200), 12.0, 400_000),
    "slots, four choices": Crowd((16, 64), (400, 1_200), 3.0, 400_000, choices=4),
    "blocks": Crowd((256, 1_024), (200, 800), 12.0, 16_000),
    "tokens and time": Crowd((4_000, 16_000), (4, 16), 8.0, 400_000),
}


class Case(NamedTuple):
    """One run."""

    short: str
    tenants: int
    workers: int
    crowd: LaneName
    lane: LaneName
    """Of the newcomers."""
    seed: int
    duration_s: float
    every_ms: float = EVERY_MS
    """Between newcomers."""

    def arrivals(self) -> list[Arrival]:
        """The crowd's requests and the newcomers."""
        return sorted([*self._crowd(), *self._newcomers()], key=lambda one: one.at_ms)

    def _crowd(self) -> Iterator[Arrival]:
        crowd, draws, at_ms, number = CROWDS[self.short], random.Random(self.seed), 0.0, 0
        while at_ms < self.duration_s * 1e3:
            tenant = f"crowd-{draws.randrange(self.tenants)}"
            prompt, output = draws.randint(*crowd.prompt), draws.randint(*crowd.output)
            yield ask(at_ms, f"c{number}", tenant, self.crowd, prompt, output, crowd.choices)
            # as many at once as fill the workers, then as they end
            burst = number < 2 * SLOTS * self.workers // crowd.choices
            at_ms += 1.0 if burst else draws.expovariate(crowd.rate_per_s * self.workers / 1e3)
            number += 1

    def _newcomers(self) -> Iterator[Arrival]:
        at_ms, number, draws = FIRST_MS, 0, random.Random(self.seed + 1)
        while at_ms < self.duration_s * 1e3 - 1_000.0:
            yield ask(at_ms, f"{NEWCOMER}{number}", f"newcomer-{number}", self.lane, PROMPT, OUTPUT, 1)
            at_ms += self.every_ms * draws.uniform(0.75, 1.25)
            number += 1


def ask(at_ms: float, job_id: str, tenant: str, name: LaneName, prompt: int, output: int, n: int) -> Arrival:
    """A request with its lane's targets."""
    lane = DEFAULT_LANES[name]
    return Arrival(
        at_ms=at_ms,
        job_id=job_id,
        tenant=tenant,
        lane=name,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output,
        choices=n,
        ttft_ms=lane.ttft_ms,
        tpot_ms=lane.tpot_on(HARDWARE.single_stream_ms),
    )


class Seen(NamedTuple):
    """Of one run, in milliseconds."""

    waits_ms: list[float]
    """From a newcomer's arrival to its first token; of one without any, to the end of the run."""
    longest_ms: float
    """Of the steps."""
    tokens_per_s: float
    """Served by all workers."""


@dataclass
class Watch:
    """Newcomers' first tokens, and all steps."""

    waiting: dict[str, float] = field(default_factory=dict)
    waits_ms: list[float] = field(default_factory=list)
    longest_ms: float = 0.0
    tokens: int = 0

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        """A request came, and was let in."""
        if arrival.job_id.startswith(NEWCOMER):
            self.waiting[arrival.job_id] = arrival.at_ms

    def stepped(self, step: SimulatedStep) -> None:
        """A worker ran a step."""
        self.longest_ms = max(self.longest_ms, step.run_ms + step.copy_ms if step.ended_ms > FIRST_MS else 0.0)
        self.tokens += sum([len(row.token_ids) for row in step.plan.rows])
        for one in step.outcome.produced:
            since_ms = self.waiting.pop(one.seq.job_id, None)
            if since_ms is not None:
                self.waits_ms.append(step.ended_ms - since_ms)

    def ended(self, record: Record) -> None:
        """A request that was let in is over."""


def planner(kv_tokens: int) -> Planner:
    """A worker that has measured its costs at start, as real ones do."""
    costs = CostModel()
    shapes = [StepFeatures(*one) for one in ((1, 0, 100, 0), (8, 0, 800, 0), (1, 16, 0, 256), (1, 64, 0, 4_096))]
    costs.start_from([Measurement(one, HARDWARE.step_ms(one), 8, HARDWARE.copy_ms(8)) for one in shapes])
    return Planner(
        lanes=DEFAULT_LANES,
        block_size=BLOCK_SIZE,
        blocks=kv_tokens // BLOCK_SIZE,
        host_slots=HOST_TOKENS // BLOCK_SIZE,
        max_sequences=SLOTS,
        max_step_tokens=STEP_TOKENS,
        costs=costs,
    )


def play(case: Case) -> Seen:
    """Play a case, and watch its newcomers."""
    return play_with(case, case.arrivals())


def play_with(case: Case, arrivals: Sequence[Arrival]) -> Seen:
    """The same with other arrivals than its own."""
    watch, until_ms = Watch(), case.duration_s * 1e3
    planners = [planner(CROWDS[case.short].kv_tokens) for _ in range(case.workers)]
    queue = LaneQueue(DEFAULT_LANES)
    Simulation(arrivals, planners, HARDWARE, queue=queue, observers=[watch], until_ms=until_ms).run()
    waits_ms = watch.waits_ms + [until_ms - since_ms for since_ms in watch.waiting.values()]
    return Seen(waits_ms, watch.longest_ms, watch.tokens / case.duration_s)


def step_bound_ms(hardware: Hardware, lane: Lane = LATENCY) -> float:
    """The longest step that a budget allows: prompts of the first lane, or those of lower ones beside their decodes."""
    pace_ms = lane.tpot_on(hardware.single_stream_ms)
    decodes_ms = hardware.step_ms(StepFeatures(SLOTS, 0, SLOTS * 1_200, 0))
    return max(PROMPT_PART * lane.ttft_ms, HOLD * pace_ms, decodes_ms + MIN_HOLD * pace_ms)


def bound_ms(case: Case) -> float:
    """Own prefill, two bounded steps and one swap of what its prompt needs."""
    own_ms = HARDWARE.step_ms(StepFeatures(1, PROMPT, 0, PROMPT * PROMPT))
    return own_ms + 2.0 * (step_bound_ms(HARDWARE) + HARDWARE.overhead_ms) + HARDWARE.copy_ms(2 * PROMPT // BLOCK_SIZE)


def floor_bound_ms() -> float:
    """Until the prompt has come through at the lane's share of what a step may prefill for the first lane, the least of
    that and so the slowest; two bounded steps; and one swap of what the lane above gives back. The floor's rows and
    blocks are there, whoever holds the rest."""
    least = max(MIN_PREFILL_TOKENS, STEP_TOKENS // MIN_PREFILL_DIVISOR)
    slowest_ms = HARDWARE.step_ms(StepFeatures(SLOTS, least, SLOTS * 1_200, least * 16_000)) + HARDWARE.overhead_ms
    prefilled_ms = PROMPT / int(THROUGHPUT.share_floor * least) * slowest_ms
    swap_ms = HARDWARE.copy_ms(2 * PROMPT // BLOCK_SIZE)
    return prefilled_ms + 2.0 * (step_bound_ms(HARDWARE) + HARDWARE.overhead_ms) + swap_ms


def measure(effort: Effort) -> list[Line]:
    """The line."""
    duration_s = 20.0 if effort.quick else 45.0
    tenants, workers = ((1, 64), (1,)) if effort.quick else ((1, 8, 64), (1, 4))
    seeds = effort.seeds[:1]
    cases = [
        Case(short, many, count, crowd, lane, seed, duration_s)
        for short in CROWDS
        for many in tenants
        for count in workers
        for crowd, lane in PAIRS
        for seed in seeds
    ]
    found = list(zip(cases, effort.each("newcomers", play, cases), strict=True))
    effort.show(table("First tokens of newcomers", found))
    lines = [over_bound("newcomer's first token over its bound, P99", found)]
    if not effort.quick:
        lines.append(at_least(12, "newcomers", sum(len(seen.waits_ms) for _, seen in found), AT_LEAST, lines[0].how))
    return [*lines, _floor(effort, duration_s)]


def over_bound(what: str, found: Sequence[tuple[Case, Seen]]) -> Line:
    """What newcomers waited beside the bound."""
    over = _spread(wait_ms / bound_ms(case) for case, seen in found for wait_ms in seen.waits_ms)
    how = (
        f"{over.count} newcomers in {len(found)} runs; bound {bound_ms(found[0][0]):.0f} ms; the worst {over.most:.3f}"
    )
    return at_most(12, what, round(over.p99, 3), 1.0, how)


def _floor(effort: Effort, duration_s: float) -> Line:
    """Newcomers to the lower lane under a flood of the first."""
    cases = [
        Case(short, many, 1, LaneName.LATENCY, LaneName.THROUGHPUT, seed, 4.0 * duration_s, FLOOR_EVERY_MS)
        for short in CROWDS
        for many in (1, 8, 64)
        for seed in effort.seeds[: 1 if effort.quick else 2]
    ]
    found = list(zip(cases, effort.each("newcomers, share floor", play, cases), strict=True))
    rows = [(short, *_floor_figures([one for one in found if one[0].short == short])) for short in CROWDS]
    columns = ("short of", "newcomers", "P50, ms", "P99", "worst", "bound", "worst over its bound")
    effort.show(Table("First tokens of newcomers to the lower lane under a flood of the first", columns, rows))
    over = [wait_ms / floor_bound_ms() for _, seen in found for wait_ms in seen.waits_ms]
    p99 = _spread(over).p99
    how = f"{len(over)} newcomers in {len(cases)} runs; the worst {max(over):.3f}"
    return at_most(12, "under a flood of the first lane, over the share floor's bound, P99", round(p99, 3), 1.0, how)


def _floor_figures(found: list[tuple[Case, Seen]]) -> tuple[str, ...]:
    waits_ms = _spread(wait_ms for _, seen in found for wait_ms in seen.waits_ms)
    figures = (waits_ms.count, waits_ms.p50, waits_ms.p99, waits_ms.most, floor_bound_ms())
    return (*(f"{each:,.0f}" for each in figures), f"{waits_ms.most / floor_bound_ms():.2f}")


def table(title: str, found: Sequence[tuple[Case, Seen]]) -> Table:
    """What newcomers waited, by what is short and by lanes."""
    rows = []
    for short in CROWDS:
        for crowd, lane in PAIRS:
            runs = [seen for case, seen in found if (case.short, case.crowd, case.lane) == (short, crowd, lane)]
            waits_ms = spread(wait_ms for seen in runs for wait_ms in seen.waits_ms)
            longest_ms = max(seen.longest_ms for seen in runs)
            if waits_ms:
                figures = (waits_ms.p50, waits_ms.p99, waits_ms.most, longest_ms)
                rows.append((short, crowd, lane, f"{waits_ms.count:,}", *(f"{ms:,.0f}" for ms in figures)))
    columns = ("short of", "crowd's lane", "newcomer's", "newcomers", "P50, ms", "P99", "worst", "longest step")
    return Table(title, columns, rows)


def _spread(values: Iterable[float]) -> Spread:
    found = spread(values)
    if found is None:
        raise ValueError("no newcomer came")
    return found
