"""Computes the steps of an embedder: the vector of each input whose last part is planned.

The planner cuts long inputs into parts of a step, as it does prompts. A vector needs all of its tokens at once, so the
whole input is computed with its last part; the parts before it only hold the input's place in the order of jobs.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from fairlane.scheduler.planner.steps import SeqId, StepPlan, StepResult
from fairlane.scheduler.protocol.messages import Job, Lease
from fairlane.worker.embedding.pooling import Mode, pool
from fairlane.worker.engine.engine import LookAhead

log = logging.getLogger(__name__)

UNCOMPUTABLE = "the model could not compute this input"
NO_TOKEN = 0
"""Stands where the planner waits for a token: none is published."""


class EmbeddingRunner:
    """A `StepRunner` over a model of transformers' that gives a state for each token."""

    def __init__(self, model: torch.nn.Module, mode: Mode, *, vocab_size: int, max_batch_tokens: int) -> None:
        """`max_batch_tokens`: of one forward pass, padding counted; one input may have more."""
        self._model = model
        self._mode = mode
        self._vocab_size = vocab_size
        self._max_batch_tokens = max_batch_tokens
        self._device = next(model.parameters()).device
        self._inputs: dict[str, tuple[int, ...]] = {}

    def prepare(self, _: Job) -> Future[Any] | None:
        return None

    def register(self, lease: Lease) -> None:
        self._inputs[lease.job.job_id] = lease.job.prompt

    def forget(self, job_id: str) -> None:
        self._inputs.pop(job_id, None)

    def wake(self) -> None:
        """No step waits for anything."""

    def run(self, plan: StepPlan, on_forward: Callable[[], None], look_ahead: LookAhead) -> StepResult:
        began_s = time.perf_counter()
        on_forward()
        whole = [row.seq for row in plan.rows if row.samples]
        known = [seq for seq in whole if max(self._inputs[seq.job_id]) < self._vocab_size]
        embeddings: dict[SeqId, bytes] = {}
        failed = {seq: UNCOMPUTABLE for seq in whole if seq not in known}
        for batch in self._batches(known):
            vectors = self._vectors([self._inputs[seq.job_id] for seq in batch])
            for seq, vector in zip(batch, vectors, strict=True):
                if torch.isfinite(vector).all():
                    embeddings[seq] = vector.numpy().astype("<f4").tobytes()
                else:
                    failed[seq] = UNCOMPUTABLE
        return StepResult(
            plan.number,
            tokens=dict.fromkeys(embeddings, NO_TOKEN),
            failed=failed,
            embeddings=embeddings,
            is_typical=len(whole) == len(plan.rows),
            run_ms=(time.perf_counter() - began_s) * 1e3,
        )

    def _batches(self, seqs: Sequence[SeqId]) -> Iterator[list[SeqId]]:
        """Inputs of like lengths together, so that little is padding."""
        batch: list[SeqId] = []
        for seq in sorted(seqs, key=lambda seq: len(self._inputs[seq.job_id])):
            if batch and (len(batch) + 1) * len(self._inputs[seq.job_id]) > self._max_batch_tokens:
                yield batch
                batch = []
            batch.append(seq)
        if batch:
            yield batch

    @torch.inference_mode()
    def _vectors(self, inputs: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """[inputs, width], on the host."""
        longest = max(map(len, inputs))
        ids = torch.zeros((len(inputs), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(inputs):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        ids, mask = ids.to(self._device), mask.to(self._device)
        states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        return pool(states, mask, self._mode).cpu()
