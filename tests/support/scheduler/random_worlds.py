"""Random small workers, and random requests for them: made of one number each."""

from dataclasses import replace
from random import Random

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.queue.types import JobState
from fairlane.scheduler.simulation.workload import Arrival
from tests.support.scheduler.fleet import HARDWARE, asks

CONTEXT = 96
"""Tokens of the longest request."""
REQUESTS, WIDE = 36, 12
"""Of a world, and how many of them at most only its first worker can run: fewer than a take looks at, of any tenant."""


class Watched(Planner):
    """Asked whether it has work it has just taken what it could: none that it could run waits then beside none."""

    slots: int
    pool_tokens: int
    all_free: tuple[int, int]
    queue: LaneQueue
    arrivals: list[Arrival]

    @property
    def has_work(self) -> bool:
        busy = super().has_work
        assert busy or not [one.job_id for one in self.arrivals if self.could_run(one) and self.waits(one)]
        return busy

    def could_run(self, one: Arrival) -> bool:
        return one.choices <= self.slots and one.prompt_tokens + one.max_tokens <= self.pool_tokens

    def waits(self, one: Arrival) -> bool:
        record = self.queue.record(one.job_id)
        return record is not None and record.state is JobState.QUEUED


def worker(rng: Random, slots: int, pool_tokens: int, block_size: int) -> Watched:
    blocks, costs = pool_tokens // block_size, CostModel()
    costs.know(HARDWARE.step, HARDWARE.copy, HARDWARE.single_stream_ms)
    planner = Watched(
        lanes=DEFAULT_LANES,
        block_size=block_size,
        blocks=blocks,
        host_slots=rng.choice([0, blocks // 2, 4 * blocks]),
        max_sequences=slots,
        max_step_tokens=rng.choice([16, 64, 512]),
        costs=costs,
        prefix_share=rng.choice([None, 0.0, 0.3]),
        window=rng.choice([64.0, 800.0]),
        copies_ahead=rng.choice([0, 4]),
    )
    planner.slots, planner.pool_tokens = slots, pool_tokens
    planner.all_free = planner.blocks_free, planner.host_slots_free
    return planner


def requests(rng: Random, widest: int, every_ms: float) -> list[Arrival]:
    """Alone and in bursts, some of them dated."""
    tenants, dated, at_ms, made = rng.choice([1, 3, 8]), rng.choice([0.0, 0.3, 0.8]), 0.0, list[Arrival]()
    for number in range(REQUESTS):
        at_ms += rng.expovariate(1.0 / every_ms) if rng.random() < 0.8 else 0.0
        lane, is_wide = rng.choice(list(LaneName)), number % (REQUESTS // WIDE) == 0
        prompt = rng.choice([1, rng.randint(1, CONTEXT // 4), CONTEXT - 1 if is_wide else CONTEXT // 3])
        most = rng.randint(1, (CONTEXT if is_wide else CONTEXT // 2) - prompt)
        deadline_ms = rng.choice([500.0, 2_000.0, 8_000.0, 30_000.0]) if rng.random() < dated else None
        asked = asks(
            at_ms, f"f{number}", f"t{rng.randrange(tenants)}", lane, prompt, rng.randint(1, most), max_tokens=most
        )
        choices = rng.choice([1, 2, widest]) if is_wide else rng.choice([1, 1, 1, 2])
        end_ms, own = deadline_ms and rng.choice([None, 2.0 * deadline_ms]), rng.choice([0, number])
        stated = replace(asked, choices=choices, hard_ttft_ms=deadline_ms, deadline_ms=end_ms, own_token=2 + own)
        made.append(replace(stated, weight=rng.choice([0.5, 1.0, 1.0, 4.0])))
    return made
