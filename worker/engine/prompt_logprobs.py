"""Log-probabilities of prompt tokens, for the jobs that ask for them.

The logits of a whole prompt would take gigabytes, and the forward pass of a step returns only those that sample. So a
row of such a job is divided: positions that precede a prompt token are computed first, in forward passes with a bounded
number of positions. The rest of the row, if any, stays in the step's own pass."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from fairlane.scheduler.planner.steps import Row, SeqId
from fairlane.scheduler.protocol.messages import Lease, PositionLogprobs, PromptLogprobs
from fairlane.worker.engine.sampling import rank_tokens
from fairlane.worker.model.packing import packing_order

# Maximum size of the logits of one forward pass, in single precision.
_LOGITS_BYTES = 32 * 2**20
# Minimum number of positions of a pass, however large the vocabulary.
_LEAST_POSITIONS = 16


@dataclass(slots=True)
class _Prompt:
    token_ids: tuple[int, ...]
    # Alternatives per position.
    most: int
    # Tokens with log-probabilities so far; the first token of a prompt needs none.
    known: int = 1


@dataclass(slots=True)
class Scored:
    """The rows that are left for the step's own pass, and what was found in the others."""

    rows: list[Row] = field(default_factory=list)
    logprobs: dict[str, PromptLogprobs] = field(default_factory=dict)
    failed: dict[SeqId, str] = field(default_factory=dict)


class PromptScorer:
    """Knows the prompts whose tokens lack log-probabilities.

    `forward` computes rows in packing order and returns the logits [positions, vocabulary] of all their positions.
    `on_failure` is called with the number of rows if that fails."""

    def __init__(
        self,
        forward: Callable[[Sequence[Row]], torch.Tensor],
        on_failure: Callable[[int, Exception], None],
        vocab_size: int,
        block_size: int,
    ) -> None:
        self._forward = forward
        self._on_failure = on_failure
        self._block_size = block_size
        self._most_positions = max(_LEAST_POSITIONS, _LOGITS_BYTES // (4 * vocab_size))
        self._prompts: dict[str, _Prompt] = {}

    def __bool__(self) -> bool:
        return bool(self._prompts)

    def register(self, lease: Lease) -> None:
        """Note a job. If its gateway has tokens of it, it has all log-probabilities of its prompt."""
        most, prompt = lease.job.sampling.prompt_logprobs, lease.job.prompt
        if most is not None and len(prompt) > 1 and not any(lease.generated):
            self._prompts[lease.job.job_id] = _Prompt(prompt, most)

    def forget(self, job_id: str) -> None:
        self._prompts.pop(job_id, None)

    def score(self, rows: Sequence[Row], uncomputable: str) -> Scored:
        """Compute the parts of the rows that precede prompt tokens. `uncomputable`: reason for rows that fail."""
        found, heads = Scored(), list[Row]()
        for row in rows:
            prompt = self._prompts.get(row.seq.job_id)
            count = 0 if prompt is None else min(len(row.token_ids), len(prompt.token_ids) - 1 - row.first_position)
            if count > 0:
                heads.append(self._part(row, 0, count))
            if count < len(row.token_ids):
                found.rows.append(self._part(row, count, len(row.token_ids)) if count > 0 else row)
        for rows_of_pass in self._passes(heads):
            self._compute([row for row in rows_of_pass if row.seq not in found.failed], found, uncomputable)
        found.rows = [row for row in found.rows if row.seq not in found.failed]
        self._prompts = {name: one for name, one in self._prompts.items() if one.known < len(one.token_ids)}
        return found

    def _part(self, row: Row, first: int, end: int) -> Row:
        position, is_last = row.first_position, end == len(row.token_ids)
        table = row.block_table if is_last else row.block_table[: -(-(position + end) // self._block_size)]
        return row._replace(
            token_ids=row.token_ids[first:end],
            first_position=position + first,
            block_table=table,
            samples=row.samples and is_last,
        )

    def _passes(self, heads: Sequence[Row]) -> Iterator[list[Row]]:
        together, room = list[Row](), self._most_positions
        for head in heads:
            first = 0
            while first < len(head.token_ids):
                end = min(len(head.token_ids), first + room)
                together.append(self._part(head, first, end))
                first, room = end, room - (end - first)
                if not room:
                    yield together
                    together, room = [], self._most_positions
        if together:
            yield together

    def _compute(self, rows: Sequence[Row], found: Scored, uncomputable: str) -> None:
        """Compute rows at once; if that fails, each alone, so that only the faulty ones fail."""
        if not rows:
            return
        try:
            rows = sorted(rows, key=packing_order)
            self._read(rows, self._forward(rows), found.logprobs)
        except (RuntimeError, IndexError) as error:  # torch's errors, including out of memory
            self._on_failure(len(rows), error)
            if len(rows) == 1:
                found.failed[rows[0].seq] = uncomputable
                return
            for row in rows:
                self._compute([row], found, uncomputable)

    def _read(self, rows: Sequence[Row], logits: torch.Tensor, found: dict[str, PromptLogprobs]) -> None:
        prompts = [self._prompts[row.seq.job_id] for row in rows]
        drawn: list[int] = []
        for row, prompt in zip(rows, prompts, strict=True):
            drawn += prompt.token_ids[row.first_position + 1 : row.context_length + 1]
        most = max(prompt.most for prompt in prompts)
        ranked = rank_tokens(logits.float(), drawn, [most] * len(drawn), with_ranks=True)
        first = 0
        for row, prompt in zip(rows, prompts, strict=True):
            own = ranked[first : first + len(row.token_ids)]
            first += len(own)
            self._add(row, prompt, own, found)

    def _add(self, row: Row, prompt: _Prompt, ranked: list[PositionLogprobs], found: dict[str, PromptLogprobs]) -> None:
        skipped = prompt.known - (row.first_position + 1)  # computed again after a preemption, or by another choice
        new = [PositionLogprobs(one.logprob, one.top[: prompt.most], one.rank) for one in ranked[skipped:]]
        if skipped < 0 or not new:
            return
        job_id = row.seq.job_id
        earlier = found.get(job_id, PromptLogprobs(job_id=job_id, first=prompt.known, logprobs=()))
        found[job_id] = PromptLogprobs(job_id=job_id, first=earlier.first, logprobs=(*earlier.logprobs, *new))
        prompt.known += len(new)
