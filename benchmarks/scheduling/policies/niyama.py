"""Deadlines and prompt lengths in one key, chunks sized by slack: Niyama / QoServe (2503.22562; sarathi-serve,
branch `niyama_asplos2026`, `deadline_scheduler.py`).

All decodes run. Token k of a request is due at max(first token, its deadline) + k · TPOT, and the tightest of these
slacks sizes the step: the largest total of 128, 256, 512 ... 2,048, 2,552 tokens whose predicted time times 1.2 is
within it, at most 512 while KV is short. Prompts fill it in order of deadline + alpha · tokens left, 8 ms a token,
and may be left for others at any chunk. Eager relegation: one that has not begun and that the measured prefill rate
would finish too late goes behind all others, once. A stated end makes a deadline of the first token by the time that
the expected output takes.

Deviations: "KV is short" is 8 % of the pool, as their 32,000 tokens are of theirs. Expected outputs are the mean of
those finished, `max_tokens` until there is one, or the oracle's where Setup has it. They assert that blocks suffice:
here a prompt begins only if all its blocks are free, with 1 % to spare, and a decode that finds none takes those of
the last in the same order, which is recomputed.
"""

import math
from dataclasses import dataclass

from benchmarks.scheduling.policies.base import Engine
from benchmarks.scheduling.policies.setup import Queue, Request, Setup, first_due_ms
from fairlane.scheduler.planner.sequence import State
from fairlane.scheduler.planner.steps import StepFeatures, StepResult, require

STEP_TOKENS: tuple[int, ...] = (128, *range(256, 2049, 256), 2552)
SHORT_OF_KV = 0.08
STEP_TOKENS_SHORT_OF_KV = 512
WATERMARK = 0.01
RATE_KEPT = 0.995


@dataclass(slots=True, eq=False)
class Tiered(Request):
    """A request with the deadline that Niyama gives it."""

    relegated: bool = False
    base_ms: float = 0.0
    """What the due times of its later tokens count from."""


class Niyama(Engine[Tiered]):
    """Hybrid of earliest deadline and shortest prompt, dynamic chunks, eager relegation."""

    def __init__(self, setup: Setup, *, alpha_ms: float = 8.0, safety: float = 1.2) -> None:
        require("alpha_ms", alpha_ms, 0.0, 1e6)
        require("safety", safety, 1.0, 100.0)
        super().__init__(setup, Tiered)
        self._alpha_ms = alpha_ms
        self._safety = safety
        self._fresh: Queue[Tiered] = Queue()
        self._begun: Queue[Tiered] = Queue()
        """Prompts computed in part."""
        probe = StepFeatures(1, STEP_TOKENS_SHORT_OF_KV, 0, STEP_TOKENS_SHORT_OF_KV**2)
        self._rate = STEP_TOKENS_SHORT_OF_KV / max(1e-9, setup.hardware.step_ms(probe))
        """Prompt tokens per millisecond, as lately seen."""
        self._prompt_tokens_run = 0
        self._planned_ms = 0.0
        self._finished = 0
        self._finished_tokens = 0

    def _enqueue(self, request: Tiered, now_ms: float) -> None:
        if request.first_token_ms is None:
            request.first_due_ms = first_due_ms(request.job, request.arrived_ms, self._expected_output(request))
        self._fresh.push(request, self._key(request))

    def _expected_output(self, request: Tiered) -> int:
        if self._setup.output_tokens is not None:
            return self._setup.output_tokens(request.id.job_id)
        if self._finished:
            return min(request.job.max_tokens, self._finished_tokens // self._finished)
        return request.job.max_tokens

    def _key(self, request: Tiered) -> float:
        key = request.first_due_ms + self._alpha_ms * request.pending
        return key + 1e15 if request.relegated else key

    def _schedule(self, now_ms: float) -> None:
        self._planned_ms = now_ms
        slack_ms = self._run_decodes(now_ms)
        decodes = len(self._rows)
        if self._fresh or self._begun:
            self._tokens_left = max(0, self._step_tokens(slack_ms) - decodes)
            self._fill(now_ms)
        self._prompt_tokens_run = sum(len(row.token_ids) for row in self._rows[decodes:])

    def _run_decodes(self, now_ms: float) -> float:
        """Run what decodes; the least slack of their next tokens."""
        decodes = [request for request in self._running if request.state is State.DECODE]
        if self._lacks_blocks(decodes):
            decodes.sort(key=lambda one: (self._key(one), one.number))
            while self._lacks_blocks(decodes):
                victim = decodes.pop()
                self._running.remove(victim)
                self._drop(victim, now_ms)
                self._enqueue(victim, now_ms)
        due_ms = math.inf
        for request in decodes:
            self._run(request, 1)
            due_ms = min(due_ms, request.base_ms + len(request.output) * request.job.tpot_ms)
        return due_ms - now_ms

    def _step_tokens(self, slack_ms: float) -> int:
        """The largest step whose predicted time is within the slack."""
        most = self._setup.max_step_tokens
        if self._pool.free_blocks < SHORT_OF_KV * self._setup.blocks:
            most = min(most, STEP_TOKENS_SHORT_OF_KV)
        first = min(self._queues(), key=lambda queue: queue.key).head.num_computed
        decodes, best = len(self._rows), STEP_TOKENS[0]
        for tokens in STEP_TOKENS[1:]:
            prompt = max(0, tokens - decodes)
            step = StepFeatures(decodes + 1, prompt, self._context, prompt * (first + prompt))
            if tokens > most or self._safety * self._setup.hardware.step_ms(step) > slack_ms:
                break
            best = tokens
        return min(best, self._setup.max_step_tokens)

    def _queues(self) -> list[Queue[Tiered]]:
        return [queue for queue in (self._begun, self._fresh) if queue]

    def _fill(self, now_ms: float) -> None:
        """Give what is left of the step to prompts, the best key first."""
        blocked = False
        while self._tokens_left > 0:
            queues = [self._begun] if blocked else self._queues()
            queue = min(filter(None, queues), key=lambda one: one.key, default=None)
            if queue is None:
                break
            if queue is self._fresh:
                if self._relegate(now_ms):
                    continue
                if not self._can_begin(queue.head):
                    blocked = True
                    continue
                self._begin(queue.head)
            request = queue.pop()
            count = min(request.pending, self._tokens_left)
            if count < request.pending:  # which spends the step; its key as it will be then
                self._begun.push(request, self._key(request) - self._alpha_ms * count)
            self._put(request, count)

    def _relegate(self, now_ms: float) -> bool:
        """Put the first fresh prompt behind all others if it comes too late and never was put there."""
        request = self._fresh.head
        finish_ms = now_ms + request.pending / self._rate
        if request.relegated or request.first_token_ms is not None or finish_ms <= request.first_due_ms:
            return False
        self._fresh.pop()
        request.relegated = True
        self._fresh.push(request, self._key(request))
        return True

    def _can_begin(self, request: Tiered) -> bool:
        if len(self._running) >= self._setup.max_sequences:
            return False
        reserve = int(WATERMARK * self._setup.blocks) if self._running else 0
        return self._pool.can_allocate(self._blocks(request.length) + reserve)

    def _begin(self, request: Tiered) -> None:
        self._grow(request, request.length)
        request.move(State.PREFILL)
        self._running.append(request)

    def _served(self, result: StepResult, now_ms: float) -> None:
        if self._prompt_tokens_run and now_ms > self._planned_ms:
            seen = self._prompt_tokens_run / (now_ms - self._planned_ms)
            self._rate = RATE_KEPT * self._rate + (1.0 - RATE_KEPT) * seen
        for row, request in zip(self._rows, self._picked, strict=True):
            if row.samples and row.output_index == 0:
                request.base_ms = max(request.first_due_ms, now_ms)

    def _finish(self, finished: list[Tiered], now_ms: float) -> None:
        self._finished += len(finished)
        self._finished_tokens += sum(len(request.output) for request in finished)
        super()._finish(finished, now_ms)
