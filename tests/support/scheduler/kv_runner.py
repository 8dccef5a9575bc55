"""A runner without a model: it moves (token, position) pairs through blocks and host slots as a real KV cache would,
and draws the next token from everything it can see there, so that any mistake in a table or a copy changes the text.
"""

import hashlib
from collections.abc import Mapping, Sequence, Set

from fairlane.scheduler.planner.steps import Row, SeqId, StepPlan, StepResult
from fairlane.scheduler.protocol.messages import Job

VOCABULARY = 50

Cell = tuple[int, int] | None
"""Token and position."""


def next_token(seen: Sequence[int], choice: int) -> int:
    """The only right continuation of these tokens."""
    digest = hashlib.blake2b(repr((list(seen), choice)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCABULARY


def expected_output(job: Job, choice: int) -> list[int]:
    """What a choice must produce whatever happens to it on the way."""
    output: list[int] = []
    while len(output) < job.max_tokens:
        output.append(next_token((*job.prompt, *output), choice))
        if output[-1] in job.sampling.stop_token_ids and len(output) >= job.sampling.min_tokens:
            break
    return output


class KvRunner:
    """Runs plans over simulated memory and checks that each is one that a real runner could run."""

    def __init__(
        self, *, blocks: int, block_size: int, host_slots: int, max_sequences: int, max_step_tokens: int
    ) -> None:
        self._block_size = block_size
        self._device: list[list[Cell]] = [[None] * block_size for _ in range(blocks)]
        self._host: list[list[Cell]] = [[None] * block_size for _ in range(host_slots)]
        self._max_sequences = max_sequences
        self._max_step_tokens = max_step_tokens

    def run(
        self, plan: StepPlan, failing: Mapping[SeqId, str] | None = None, late: Set[SeqId] = frozenset()
    ) -> StepResult:
        self._check_budget(plan)
        for source, target in plan.swap_out:
            self._host[target] = list(self._device[source])
        for source, target in plan.swap_in:
            self._device[target] = list(self._host[source])
        for row in plan.rows:
            if row.seq not in late:
                self._write(row)
        failed = {row.seq: failing[row.seq] for row in plan.rows if failing and row.seq in failing}
        gone = failed.keys() | late
        tokens = {row.seq: self._sample(row) for row in plan.rows if row.samples and row.seq not in gone}
        return StepResult(number=plan.number, tokens=tokens, failed=failed, pending=late)

    def _check_budget(self, plan: StepPlan) -> None:
        assert len(plan.rows) <= self._max_sequences
        assert sum(len(row.token_ids) for row in plan.rows) <= self._max_step_tokens
        assert len({row.seq for row in plan.rows}) == len(plan.rows)
        for copies in (plan.swap_out, plan.swap_in):
            assert len({copy.target for copy in copies}) == len(copies)
        written = [block for row in plan.rows for block in self._blocks_written(row)]
        assert len(set(written)) == len(written), "two sequences write one block"
        for row in plan.rows:
            assert row.token_ids
            assert len(row.block_table) == -(-row.context_length // self._block_size)

    def _blocks_written(self, row: Row) -> tuple[int, ...]:
        return row.block_table[row.first_position // self._block_size :]

    def _write(self, row: Row) -> None:
        for position, token in enumerate(row.token_ids, row.first_position):
            block = row.block_table[position // self._block_size]
            self._device[block][position % self._block_size] = (token, position)

    def _sample(self, row: Row) -> int:
        seen = []
        for position in range(row.context_length):
            cell = self._device[row.block_table[position // self._block_size]][position % self._block_size]
            assert cell is not None, f"{row.seq} reads unwritten KV at {position}"
            assert cell[1] == position, f"{row.seq} finds position {cell[1]} at {position}"
            seen.append(cell[0])
        return next_token(seen, row.seq.choice)
