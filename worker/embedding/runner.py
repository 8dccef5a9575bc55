"""The runner for embedders: computes all inputs of a job in the step that has its last tokens.

The planner may split a long prompt over several steps; the earlier parts only hold the job's place in the order."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import torch

from fairlane.scheduler.planner.steps import SeqId, StepPlan, StepResult
from fairlane.scheduler.protocol.messages import Job, Lease
from fairlane.worker.embedding.pooling import Mode, pool
from fairlane.worker.engine.engine import LookAhead, StepRunner

log = logging.getLogger(__name__)

UNCOMPUTABLE = "the model could not compute this input"
Tokens = tuple[int, ...]
# Placeholder for the token that the planner expects; it is never sent.
NO_TOKEN = 0


class EmbeddingRunner(StepRunner):
    """Runs a transformers model that returns a state for each token."""

    def __init__(self, model: torch.nn.Module, mode: Mode, *, vocab_size: int, max_batch_tokens: int) -> None:
        """`max_batch_tokens` bounds one forward pass, including padding; a single input may exceed it."""
        self._model = model
        self._mode = mode
        self._vocab_size = vocab_size
        self._max_batch_tokens = max_batch_tokens
        self._device = next(model.parameters()).device
        self._inputs: dict[str, list[Tokens]] = {}

    def register(self, lease: Lease) -> None:
        self._inputs[lease.job.job_id] = _parts(lease.job)

    def forget(self, job_id: str) -> None:
        self._inputs.pop(job_id, None)

    def run(self, plan: StepPlan, on_forward: Callable[[], None], look_ahead: LookAhead) -> StepResult:
        began_s = time.perf_counter()
        on_forward()
        whole = [row.seq for row in plan.rows if row.samples]
        embeddings, failed = dict[SeqId, bytes](), dict[SeqId, str]()
        vectors = self._vectors_of([part for seq in whole for part in self._inputs[seq.job_id]])
        for seq in whole:
            parts = [next(vectors) for _ in self._inputs[seq.job_id]]
            if all(vector is not None for vector in parts):
                embeddings[seq] = b"".join(filter(None, parts))
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

    def _vectors_of(self, inputs: Sequence[Tokens]) -> Iterator[bytes | None]:
        found: list[bytes | None] = [None] * len(inputs)
        known = [place for place, tokens in enumerate(inputs) if max(tokens) < self._vocab_size]
        for batch in self._batches(known, inputs):
            vectors = self._vectors([inputs[place] for place in batch])
            for place, vector in zip(batch, vectors, strict=True):
                if torch.isfinite(vector).all():
                    found[place] = vector.numpy().astype("<f4").tobytes()
        return iter(found)

    def _batches(self, places: Sequence[int], inputs: Sequence[Tokens]) -> Iterator[list[int]]:
        batch: list[int] = []
        for place in sorted(places, key=lambda place: len(inputs[place])):
            if batch and (len(batch) + 1) * len(inputs[place]) > self._max_batch_tokens:
                yield batch
                batch = []
            batch.append(place)
        if batch:
            yield batch

    @torch.inference_mode()
    def _vectors(self, inputs: Sequence[Tokens]) -> torch.Tensor:
        longest = max(map(len, inputs))
        ids = torch.zeros((len(inputs), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(inputs):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        ids, mask = ids.to(self._device), mask.to(self._device)
        states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        return pool(states, mask, self._mode).cpu()


def _parts(job: Job) -> list[Tokens]:
    ends = [*accumulate(job.inputs or (len(job.prompt),))]
    return [job.prompt[start:end] for start, end in zip([0, *ends], ends, strict=False)]
