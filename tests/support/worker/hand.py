"""Plans made by hand: drives a runner without a planner, so that a test can say exactly what each step does."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fairlane.scheduler.planner.steps import Copy, Row, SeqId, StepPlan, StepResult
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Job, Lease, Sampling
from fairlane.worker.engine.runner import Runner
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.model.interface import Model

GREEDY = Sampling(temperature=0.0)


def lease(
    job_id: str, prompt: Sequence[int], *, sampling: Sampling = GREEDY, n: int = 1, max_tokens: int = 64,
    generated: tuple[tuple[int, ...], ...] = (), lane: LaneName = LaneName.LATENCY,
) -> Lease:  # fmt: skip
    job = Job(
        job_id=job_id,
        gateway_id="gateway",
        tenant="tenant",
        lane=lane,
        prompt=tuple(prompt),
        n=n,
        max_tokens=max_tokens,
        granted_until=max_tokens,
        sampling=sampling,
        ttft_ms=1_000.0,
        tpot_ms=100.0,
    )
    return Lease(job=job, epoch=1, arrived_ms_ago=0.0, generated=generated)


@dataclass
class Line:
    """One sequence: its tokens, how many of them are in the cache, and its blocks."""

    seq: SeqId
    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    table: list[int] = field(default_factory=list)

    @property
    def generated(self) -> list[int]:
        return self.tokens[len(self.prompt) :]


class Hand:
    """A runner on a small cache, and sequences whose rows it plans on demand."""

    def __init__(self, model: Model, *, blocks: int = 64, host_slots: int = 16, block_size: int = 4) -> None:
        self.cache = KVCache(model.shape, blocks=blocks, host_slots=host_slots, block_size=block_size)
        self.runner = Runner(model, self.cache)
        self.free = list(range(blocks))
        self._steps = 0

    def start(self, lease: Lease, choice: int = 0) -> Line:
        if choice == 0:
            self.runner.register(lease)
        generated = lease.generated[choice] if lease.generated else ()
        return Line(SeqId(lease.job.job_id, choice), lease.job.prompt, [*lease.job.prompt, *generated])

    def row(self, line: Line, count: int | None = None) -> Row:
        """The next `count` tokens of the line, or all that are not computed yet."""
        end = len(line.tokens) if count is None else min(len(line.tokens), line.computed + count)
        while len(line.table) * self.cache.block_size < end:
            line.table.append(self.free.pop())
        return Row(
            seq=line.seq,
            token_ids=tuple(line.tokens[line.computed : end]),
            first_position=line.computed,
            block_table=tuple(line.table[: -(-end // self.cache.block_size)]),
            samples=end == len(line.tokens),
            output_index=len(line.generated),
        )

    def step(
        self, lines: Iterable[Line], *, count: int | None = None,
        swap_out: Sequence[Copy] = (), swap_in: Sequence[Copy] = (),
    ) -> StepResult:  # fmt: skip
        """Run one step of these lines and take up what came out."""
        by_seq = {line.seq: line for line in lines}
        rows = tuple(self.row(line, count) for line in by_seq.values())
        self._steps += 1
        result = self.runner.run(StepPlan(self._steps, rows, tuple(swap_out), tuple(swap_in)))
        for row in rows:
            by_seq[row.seq].computed = row.context_length
        for seq, token in result.tokens.items():
            by_seq[seq].tokens.append(token)
        return result

    def generate(self, lines: Sequence[Line], tokens: int, *, count: int | None = None) -> list[list[int]]:
        """Step until each line has generated `tokens`."""
        while unfinished := [line for line in lines if len(line.generated) < tokens]:
            self.step(unfinished, count=count)
        return [line.generated for line in lines]

    def park(self, line: Line, slots: Sequence[int]) -> tuple[Copy, ...]:
        """The copies that take a line's blocks to these host slots; the device blocks are free."""
        copies = tuple(Copy(block, slot) for block, slot in zip(line.table, slots, strict=False))
        self.free += line.table
        line.table = []
        return copies

    def fetch(self, line: Line, slots: Sequence[int]) -> tuple[Copy, ...]:
        """The copies that bring a line back from these host slots, into whichever blocks are free."""
        line.table = [self.free.pop(0) for _ in slots]
        return tuple(Copy(slot, block) for slot, block in zip(slots, line.table, strict=True))
