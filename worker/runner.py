"""Run a step plan: the one place where lists become tensors and tensors become lists again."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from scheduler.messages import Lease, TokenLogprob
from scheduler.steps import Row, SeqId, StepPlan, StepResult
from worker.attention import BACKENDS
from worker.kv_cache import KVCache
from worker.model import Model, Packed
from worker.sampling import Draw, TokenHistory, draw_tokens
from worker.transfer import transfer_for
from worker.upload import upload

UNKNOWN_ID = "the prompt holds a token that the model does not know"
UNCOMPUTABLE = "the model could not compute this request"


_log = logging.getLogger(__name__)


class RunnerError(Exception):
    """A plan that contradicts what the runner has been told; a fault of ours, never of a request."""


def pack(rows: Sequence[Row], cache: KVCache, backend: str) -> Packed:
    """Lay the rows out one after another. They must be in the order that `AttentionBackend.prepare` wants."""
    token_ids = [token for row in rows for token in row.token_ids]
    positions = [position for row in rows for position in range(row.first_position, row.context_length)]
    ends: list[int] = []
    end = 0
    for row in rows:
        end += len(row.token_ids)
        if row.samples:
            ends.append(end - 1)
    return Packed(
        token_ids=upload(torch.tensor(token_ids, dtype=torch.int64), cache.device),
        positions=upload(torch.tensor(positions, dtype=torch.int64), cache.device),
        logit_rows=upload(torch.tensor(ends, dtype=torch.int64), cache.device),
        metadata=BACKENDS[backend].prepare(rows, cache),
    )


class Runner:
    """Executes plans on one model and one cache, and keeps what sampling needs to know of each flight."""

    def __init__(self, model: Model, cache: KVCache) -> None:
        self._model = model
        self._cache = cache
        self._transfer = transfer_for(cache)
        self._leases: dict[str, Lease] = {}
        self._histories: dict[SeqId, TokenHistory] = {}

    @property
    def cache(self) -> KVCache:
        """The cache that plans refer to."""
        return self._cache

    def register(self, lease: Lease) -> None:
        """Remember how this flight samples, and what it has generated so far, wherever that was."""
        job = lease.job
        self._leases[job.flight_id] = lease
        for choice in range(job.n):
            generated = lease.generated[choice] if choice < len(lease.generated) else ()
            self._histories[SeqId(job.flight_id, choice)] = TokenHistory(job.prompt, generated)

    def forget(self, flight_id: str) -> None:
        """Drop what `register` remembered; nothing happens for an unknown flight."""
        lease = self._leases.pop(flight_id, None)
        for choice in range(lease.job.n if lease else 0):
            del self._histories[SeqId(flight_id, choice)]

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Swap out, swap in, compute, sample. A row that cannot be computed fails alone."""
        began = time.perf_counter()
        self._transfer.start(plan.swap_out, plan.swap_in)
        rows = sorted(plan.rows, key=_packing_order)
        found = self._compute([row for row in rows if self._knows(row)])
        failed = {row.seq: UNKNOWN_ID for row in rows if not self._knows(row)}
        copy_ms = self._transfer.finish_ms()
        return StepResult(
            number=plan.number,
            tokens=found.tokens,
            failed=failed | found.failed,
            logprobs=found.logprobs,
            run_ms=max(0.0, (time.perf_counter() - began) * 1e3 - copy_ms),
            copy_ms=copy_ms,
        )

    def _knows(self, row: Row) -> bool:
        return min(row.token_ids) >= 0 and max(row.token_ids) < self._model.vocab_size

    def _compute(self, rows: Sequence[Row]) -> "_Found":
        """All rows at once; where that fails, each alone, so that only those at fault fail.

        Computing a row again is safe: it writes the same keys to the same slots.
        """
        if not rows:
            return _Found()
        try:
            return self._compute_together(rows)
        except (RuntimeError, IndexError) as error:  # what torch raises, out of memory among them
            _log.warning("a step of %d rows failed: %s", len(rows), type(error).__name__)
            if len(rows) == 1:
                return _Found(failed={rows[0].seq: UNCOMPUTABLE})
        found = _Found()
        for row in rows:
            found.add(self._compute([row]))
        return found

    def _compute_together(self, rows: Sequence[Row]) -> "_Found":
        self._cache.clear_entered(rows)
        logits = self._model.forward(pack(rows, self._cache, self._model.backend), self._cache)
        sampling = [row for row in rows if row.samples]
        drawn = draw_tokens(logits, [self._draw(row) for row in sampling])
        for place, token in drawn.tokens.items():
            self._histories[sampling[place].seq].append(token)
        return _Found(
            tokens={sampling[place].seq: token for place, token in drawn.tokens.items()},
            failed={sampling[place].seq: reason for place, reason in drawn.failed.items()},
            logprobs={sampling[place].seq: logprob for place, logprob in drawn.logprobs.items()},
        )

    def _draw(self, row: Row) -> Draw:
        history = self._histories.get(row.seq)
        if history is None or history.length != row.output_index:
            raise RunnerError(f"{row} does not continue what was registered")
        return Draw(self._leases[row.seq.flight_id].job.sampling, row.seq.choice, row.output_index, history)


@dataclass(slots=True)
class _Found:
    """A step's results by sequence."""

    tokens: dict[SeqId, int] = field(default_factory=dict)
    failed: dict[SeqId, str] = field(default_factory=dict)
    logprobs: dict[SeqId, TokenLogprob] = field(default_factory=dict)

    def add(self, other: "_Found") -> None:
        self.tokens |= other.tokens
        self.failed |= other.failed
        self.logprobs |= other.logprobs


def _packing_order(row: Row) -> tuple[bool, int]:
    """Single-token rows first, in growing number of blocks."""
    single = len(row.token_ids) == 1
    return (not single, len(row.block_table) if single else 0)
