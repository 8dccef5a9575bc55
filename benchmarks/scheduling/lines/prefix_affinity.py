"""Line 13: prompt tokens found cached by conversations before several workers, each with a prefix cache of its own.

Four tenants, each with a system prompt; a conversation begins with up to six pages behind it, and each turn brings one
or two more. A turn does not wait for the answer to the one before, as traces do not. Whoever asks first gets a job; or
its home does; or, for comparison, each conversation has one worker that is always asked first, however loaded it is.
"""

import random
import zlib
from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

from benchmarks.common.line import Effort, Line, Table, at_least, at_most
from benchmarks.scheduling.lines.world import BLOCK_SIZE, GPU, GPU_KV_TOKENS
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LATENCY, LaneName
from fairlane.scheduler.protocol.messages import Job
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.queue.types import Put
from fairlane.scheduler.simulation.results import spread
from fairlane.scheduler.simulation.simulate import Simulation
from fairlane.scheduler.simulation.trace import HASHED_TOKENS
from fairlane.scheduler.simulation.workload import FIRST_BLOCK, Arrival

RATE_PER_S = 3.15
"""Conversations that begin, for each worker: about what it can serve where whoever asks first gets the job."""
LOADS = (0.3, 0.7, 0.95)
TENANTS, SLOTS, STEP_TOKENS, PREFIX_SHARE = 4, 64, 8192, 0.25
MOST_PAGES, TURNS, THINK_S = 6, 4.0, 2.0
FIRST, HOME, PINNED = "whoever asks first", "its home first", "one worker for each conversation"
DURATION_S, QUICK_DURATION_S = 20.0, 4.0


class Case(NamedTuple):
    """One run."""

    rule: str
    workers: int
    load: float
    seed: int
    duration_s: float

    def arrivals(self) -> list[Arrival]:
        """All turns of all conversations that begin in the time."""
        return sorted(self._turns(), key=lambda one: one.at_ms)

    def _turns(self) -> Iterator[Arrival]:
        draws, begins_s, number = random.Random(self.seed), 0.0, 0
        page = FIRST_BLOCK + TENANTS
        while (begins_s := begins_s + draws.expovariate(RATE_PER_S * self.load * self.workers)) < self.duration_s:
            number, tenant, at_s = number + 1, draws.randrange(TENANTS), begins_s
            pages, new = [FIRST_BLOCK + tenant], 1 + draws.randint(0, MOST_PAGES)
            for turn in range(1 + int(draws.expovariate(1 / TURNS))):
                pages += range(page, page + new)
                page += new + 1
                yield _ask(at_s * 1e3, f"c{number}-{turn}", tenant, tuple(pages), page - 1, draws)
                at_s, new = at_s + 1.0 + draws.expovariate(1 / THINK_S), draws.randint(1, 2)


class Found(NamedTuple):
    """What came out of it."""

    cached: float
    """Part of all prompt tokens."""
    mean_ms: float
    p99_ms: float
    """Of the times to the first token."""


class PinnedQueue(LaneQueue):
    """Names the same worker for all turns of a conversation, whoever else may have time."""

    workers = 1

    def put(
        self,
        now_ms: int,
        job: Job,
        *,
        tenant_limit: int | None = None,
        waited_ms: int = 0,
        prefixes: bytes = b"",
        generated: int = 0,
    ) -> Put:
        """As `LaneQueue`, with the worker that the conversation's number says."""
        put = super().put(now_ms, job)
        conversation, _, _ = job.job_id.partition("-")
        return put._replace(preferred=str(zlib.crc32(conversation.encode()) % self.workers))


def play(case: Case) -> Found:
    """Run it."""
    queue = LaneQueue(DEFAULT_LANES)
    if case.rule == PINNED:
        queue = PinnedQueue(DEFAULT_LANES)
        queue.workers = case.workers
    records = Simulation(
        case.arrivals(),
        [_worker() for _ in range(case.workers)],
        GPU,
        queue=queue,
        has_affinity=case.rule == HOME,
        seed=case.seed,
    ).run()
    begun = [record for record in records.values() if record.ttft_ms is not None]
    ttft = spread([record.ttft_ms for record in begun if record.ttft_ms is not None])
    if ttft is None:
        raise ValueError("no conversation has begun")
    cached = sum(record.cached for record in begun) / sum(record.arrival.prompt_tokens for record in begun)
    return Found(cached, ttft.mean, ttft.p99)


def measure(effort: Effort) -> list[Line]:
    """The lines."""
    duration_s, loads = (QUICK_DURATION_S, LOADS[1:2]) if effort.quick else (DURATION_S, LOADS)
    worlds = [(workers, load) for workers in (2, 4) for load in loads]
    runs = [(rule, *world) for world in worlds for rule in (FIRST, HOME, PINNED)]
    cases = [Case(*run, seed, duration_s) for run in runs for seed in effort.seeds]
    played = effort.each("conversations", play, cases)
    found: dict[tuple[str, int, float], Found] = {}
    for place, run in enumerate(runs):
        several = played[place * len(effort.seeds) : (place + 1) * len(effort.seeds)]
        found[run] = Found(*(fmean(values) for values in zip(*several, strict=True)))
    rows = [
        (f"{workers}", f"{load}", rule, f"{one.cached:.1%}", f"{one.mean_ms:.0f}", f"{one.p99_ms:.0f}")
        for (rule, workers, load), one in found.items()
    ]
    columns = ("workers", "load", "who gets a job", "cached", "TTFT, ms", "P99")
    effort.show(Table("Prompt tokens found cached, and times to the first token", columns, rows))
    hits = min(found[HOME, *world].cached / found[PINNED, *world].cached for world in worlds)
    times = max(found[HOME, *world].mean_ms / found[FIRST, *world].mean_ms for world in worlds)
    how = f"the worst of {len(worlds)} worlds, means of {len(effort.seeds)} seeds"
    return [
        at_least(13, "cached tokens over those with one worker for each conversation", round(hits, 3), 0.9, how),
        at_most(13, "mean TTFT over that where whoever asks first gets the job", round(times, 3), 1.0, how),
    ]


def _ask(at_ms: float, job_id: str, tenant: int, pages: tuple[int, ...], own: int, draws: random.Random) -> Arrival:
    output = draws.randint(60, 300)
    return Arrival(
        at_ms=at_ms,
        job_id=job_id,
        tenant=f"t{tenant}",
        lane=LaneName.LATENCY,
        prompt_tokens=len(pages) * HASHED_TOKENS + draws.randint(1, 200),
        output_tokens=output,
        max_tokens=512,
        ttft_ms=LATENCY.ttft_ms,
        tpot_ms=LATENCY.tpot_on(GPU.single_stream_ms),
        blocks=pages,
        own_token=own,
    )


def _worker() -> Planner:
    blocks = GPU_KV_TOKENS // BLOCK_SIZE
    return Planner(
        lanes=DEFAULT_LANES,
        block_size=BLOCK_SIZE,
        blocks=blocks,
        host_slots=blocks,
        max_sequences=SLOTS,
        max_step_tokens=STEP_TOKENS,
        costs=CostModel(),
        prefix_share=PREFIX_SHARE,
    )
