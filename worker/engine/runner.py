"""The runner: executes a step plan, and is the only place that converts lists to tensors and back.

If the host is idle during a forward pass, it packs the next step's rows, before their tokens are known."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from itertools import chain, count

import torch
from llguidance import LLMatcher

from fairlane.scheduler.planner.steps import Row, SeqId, StepPlan, StepResult
from fairlane.scheduler.protocol.grammar_limits import BROKEN_GRAMMAR, MaskBudget
from fairlane.scheduler.protocol.messages import Job, Lease, PositionLogprobs, Sampling
from fairlane.worker.attention.backends import BACKENDS
from fairlane.worker.engine.engine import LookAhead, StepRunner
from fairlane.worker.engine.grammar import PATIENCE_S, Constraint, Grammars
from fairlane.worker.engine.prompt_logprobs import PromptScorer, Scored
from fairlane.worker.engine.sampling import TokenDraw, TokenHistory, draw_tokens, find_likeliest, is_plain
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.kv.transfer import transfer_for
from fairlane.worker.model.interface import Model
from fairlane.worker.model.packing import Packer, packing_order

UNKNOWN_ID = "the prompt holds a token that the model does not know"
UNCOMPUTABLE = "the model could not compute this request"

_log = logging.getLogger(__name__)


class RunnerError(Exception):
    """The plan contradicts the runner's state. This is a bug, and never a request's fault."""


def _nothing() -> None: ...


@dataclass(slots=True)
class _ChoiceState:
    number: int
    sampling: Sampling
    produced: int
    # None if it always takes the most likely token.
    history: TokenHistory | None
    constraint: Constraint | None
    # It takes the most likely token, unless its grammar rejects it.
    is_plain: bool
    max_tokens: int
    # Its mask is not filled yet, so it skips this step.
    is_late: bool = False
    # Its grammar checked only the most likely token, and allows it.
    is_unmasked: bool = False

    def draw(self) -> TokenDraw | None:
        if self.history is None or self.is_unmasked:
            return None
        mask = None if self.constraint is None else self.constraint.take()
        return TokenDraw(self.sampling, self.number, self.produced, self.history, mask)

    def refuses(self, token_id: int) -> bool:
        left = self.max_tokens - self.produced - 1
        return self.constraint is not None and self.constraint.refuses(token_id, left)

    def append(self, token_id: int, likeliest: int) -> None:
        self.produced += 1
        if self.history is not None:
            self.history.append(token_id)
        if self.constraint is not None:
            self.constraint.append(token_id, was_likeliest=token_id == likeliest)


class Runner(StepRunner):
    """Executes plans on one model and one cache, and keeps the sampling state of each job."""

    def __init__(
        self, model: Model, cache: KVCache, *, looks_ahead: bool | None = None, grammars: Grammars | None = None
    ) -> None:
        self._model = model
        self._grammars = grammars
        self.cache = cache
        self._transfer = transfer_for(cache)
        self._reads_beyond = BACKENDS[model.backend].reads_beyond
        self._packer = Packer(cache, model.backend)
        self._masks_late = model.device.type == "cpu"
        self._looks_ahead = model.device.type != "cpu" if looks_ahead is None else looks_ahead
        self._choices: dict[SeqId, _ChoiceState] = {}
        # Each job's grammar from `prepare` to `register`, held here since the cache may evict it meanwhile.
        self._compiled: dict[str, Future[LLMatcher]] = {}
        self._scorer = PromptScorer(self._all_logits, self._note_failure, model.vocab_size, cache.block_size)

    def prepare(self, job: Job) -> Future[LLMatcher] | None:
        if not job.grammar:
            return None
        if self._grammars is None:
            raise RunnerError("a job has a grammar, which this runner does not support")
        compiled = self._compiled[job.job_id] = self._grammars.compile(job.grammar, job.tenant, job.grammar_bytes)
        return compiled

    def register(self, lease: Lease) -> None:
        """Raises RunnerError unless the job's grammar is ready."""
        job, compiled = lease.job, self._compiled.pop(lease.job.job_id, None)
        if job.grammar and (compiled is None or not compiled.done()):
            raise RunnerError("a job is registered before its grammar is compiled")
        budget = MaskBudget() if job.grammar else None
        for choice in range(job.n):
            generated = lease.generated[choice] if choice < len(lease.generated) else ()
            plain = is_plain(job.sampling)
            history = None if plain and not job.grammar else TokenHistory(job.prompt, generated)
            constraint = None
            if compiled is not None:
                closing = self._grammars.closing() if job.close_json and self._grammars is not None else None
                constraint = Constraint(compiled.result().deep_copy(), generated, budget, closing)
            state = _ChoiceState(choice, job.sampling, len(generated), history, constraint, plain, job.max_tokens)
            self._choices[SeqId(job.job_id, choice)] = state
        self._scorer.register(lease)

    def forget(self, job_id: str) -> None:
        self._compiled.pop(job_id, None)
        self._scorer.forget(job_id)
        for choice in count():
            if self._choices.pop(SeqId(job_id, choice), None) is None:
                return

    def forget_tenant(self, tenant: str) -> None:
        if self._grammars is not None:
            self._grammars.forget_tenant(tenant)

    @torch.inference_mode()
    def run(
        self, plan: StepPlan, on_forward: Callable[[], None] = _nothing, look_ahead: LookAhead = tuple
    ) -> StepResult:
        began = time.perf_counter()
        self._transfer.start(plan.swap_out, plan.swap_in)
        rows = sorted(plan.rows, key=packing_order)
        unknown = self._unknown(rows)
        if unknown:
            rows = [row for row in rows if row.seq not in unknown]
        scored = Scored()
        if self._scorer:
            on_forward()
            on_forward, scored = _nothing, self._scorer.score(rows, UNCOMPUTABLE)
            rows = scored.rows
        found = self._compute(rows, on_forward, look_ahead)
        copy_ms = self._transfer.finish_ms()
        return StepResult(
            number=plan.number,
            tokens=found.tokens,
            failed=unknown | scored.failed | found.failed,
            logprobs=found.logprobs,
            prompt_logprobs=scored.logprobs,
            is_typical=not scored.logprobs,
            run_ms=max(0.0, (time.perf_counter() - began) * 1e3 - copy_ms),
            copy_ms=copy_ms,
            pending=found.late,
        )

    def _unknown(self, rows: Sequence[Row]) -> dict[SeqId, str]:
        size = self._model.vocab_size
        ids = [*chain.from_iterable([row.token_ids for row in rows])]
        if not ids or (min(ids) >= 0 and max(ids) < size):
            return {}
        return {row.seq: UNKNOWN_ID for row in rows if min(row.token_ids) < 0 or max(row.token_ids) >= size}

    def _compute(self, rows: Sequence[Row], on_forward: Callable[[], None], look_ahead: LookAhead) -> "_Found":
        """Compute all rows at once; if that fails, compute each row separately, so that only the faulty ones fail.

        Computing a row again is safe: it writes the same keys to the same slots."""
        if not rows:
            return _Found()
        try:
            return self._compute_together(rows, on_forward, look_ahead)
        except (RuntimeError, IndexError) as error:  # torch's errors, including out of memory
            self._note_failure(len(rows), error)
            if len(rows) == 1:
                return _Found(failed={rows[0].seq: UNCOMPUTABLE})
        found = _Found()
        for row in rows:
            found.add(self._compute([row], on_forward, look_ahead))
        return found

    def _note_failure(self, rows: int, error: Exception) -> None:
        _log.warning("a step of %d rows failed: %s", rows, type(error).__name__)
        if self.cache.device.type == "cuda":
            torch.cuda.synchronize(self.cache.device)  # raises if the GPU is lost, which no request caused

    def _all_logits(self, rows: Sequence[Row]) -> torch.Tensor:
        if self._reads_beyond:
            self.cache.clear_entered(rows)
        packed = self._packer.pack(rows)
        every = torch.arange(len(packed.token_ids), device=packed.token_ids.device)
        return self._model.forward(replace(packed, logit_rows=every), self.cache).logits

    def _compute_together(self, rows: Sequence[Row], on_forward: Callable[[], None], look_ahead: LookAhead) -> "_Found":
        if self._reads_beyond:
            self.cache.clear_entered(rows)
        packed = self._packer.pack(rows)
        sampling, choices = [row.seq for row in rows if row.samples], self._sampling(rows)
        self._begin_masks(choices)
        if self._looks_ahead:  # start the GPU first: a woken thread may hold the interpreter lock for milliseconds
            output = self._model.forward(packed, self.cache)
            self._packer.pack_ahead(look_ahead())
            on_forward()
        else:
            on_forward()
            output = self._model.forward(packed, self.cache)
        known = output.likeliest or find_likeliest(output.logits)
        likeliest = known.tokens.tolist()
        late = self._check_grammars(choices, likeliest)
        draws = [None if choice.is_late else choice.draw() for choice in choices]
        drawn = draw_tokens(output.logits, draws, known)
        broken = {place: BROKEN_GRAMMAR for place, choice in enumerate(choices) if _is_broken(choice)}
        failed = {**broken, **drawn.failed}
        tokens = {place: token for place, token in drawn.tokens.items() if not (place in failed or place in late)}
        if self._grammars is not None:
            for place in [place for place, token in tokens.items() if choices[place].refuses(token)]:
                late.add(place)  # the next step draws the token that closes its output
                del tokens[place]
        for place, token in tokens.items():
            choices[place].append(token, likeliest[place])
        self._begin_masks([choices[place] for place in tokens])  # for the next step, filled in the background
        return _Found(
            tokens={sampling[place]: token for place, token in tokens.items()},
            failed={sampling[place]: reason for place, reason in failed.items()},
            logprobs={sampling[place]: logprob for place, logprob in drawn.logprobs.items() if place in tokens},
            late={sampling[place] for place in late if place not in failed},
        )

    def _begin_masks(self, choices: Sequence[_ChoiceState]) -> None:
        """Start to fill missing masks. On a CPU, choices that probably need none wait for the most likely token."""
        if self._grammars is not None:
            asked = [one.constraint for one in choices if one.constraint is not None and not self._skips_mask(one)]
            self._grammars.begin(asked)

    def _skips_mask(self, choice: _ChoiceState) -> bool:
        constraint = choice.constraint
        return self._masks_late and choice.is_plain and constraint is not None and constraint.is_trusted

    def _check_grammars(self, choices: Sequence[_ChoiceState], likeliest: Sequence[int]) -> set[int]:
        """Check the most likely tokens of choices without a mask; return the indexes of choices whose masks are
        late."""
        if self._grammars is None:
            return set()
        refused, masked = [], []
        for place, (choice, token) in enumerate(zip(choices, likeliest, strict=True)):
            if choice.constraint is not None:
                choice.is_unmasked = not choice.constraint.is_filling and choice.constraint.allows(token)
                if not choice.is_unmasked:
                    refused.append(choice.constraint)
                    masked.append((place, choice))
        if not refused:
            return set()
        self._grammars.begin(refused)
        coming = {one.pending for one in refused if one.pending is not None}
        unfilled = wait(coming, PATIENCE_S).not_done
        for _, choice in masked:
            choice.is_late = choice.constraint is not None and choice.constraint.pending in unfilled
        return {place for place, choice in masked if choice.is_late}

    def _sampling(self, rows: Sequence[Row]) -> list[_ChoiceState]:
        found = []
        for row in rows:
            if row.samples:
                choice = self._choices.get(row.seq)
                if choice is None or choice.produced != row.output_index:
                    raise RunnerError(f"{row} does not continue what was registered")
                found.append(choice)
        return found


def _is_broken(choice: _ChoiceState) -> bool:
    return choice.constraint is not None and not choice.is_late and choice.constraint.is_broken


@dataclass(slots=True)
class _Found:
    tokens: dict[SeqId, int] = field(default_factory=dict)
    failed: dict[SeqId, str] = field(default_factory=dict)
    logprobs: dict[SeqId, PositionLogprobs] = field(default_factory=dict)
    late: set[SeqId] = field(default_factory=set)

    def add(self, other: "_Found") -> None:
        self.tokens |= other.tokens
        self.failed |= other.failed
        self.logprobs |= other.logprobs
        self.late |= other.late
