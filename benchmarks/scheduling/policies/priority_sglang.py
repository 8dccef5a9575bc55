"""Priority scheduling as in SGLang 0.5.23 (`managers/scheduler.py`, `schedule_policy.py`, `schedule_batch.py`).

A step is prefill or decode, never both: while a prefill batch can be formed it runs, at most one prompt in chunks.
Waiting requests come by (priority, arrival). One is admitted if its prompt and its longest output, up to 4,096
tokens, fit beside what running ones may still produce times `new_token_ratio`, an estimate that decays while all goes
well and is taken anew when it did not. While all request slots are taken, running requests whose priority is lower
by more than a threshold yield to a waiting one: all that is needed or none, the lowest and latest first, recomputed
later. A decode step that lacks blocks retracts those with the least output, then the longest prompt.

SGLang does not preempt for KV: the path that finds too few tokens sets a flag that the next pass resets (its issue
14872). `preempts_for_kv` gives it that too.

Deviations: no radix cache; priorities are -100 per lane rank, so that lanes differ by more than the threshold of 10;
a retracted request keeps its seniority; where SGLang aborts the last request that does not fit, the prompt in
progress yields.
"""

from benchmarks.scheduling.policies.base import Engine
from benchmarks.scheduling.policies.setup import Queue, Request, Setup
from fairlane.scheduler.planner.sequence import State
from fairlane.scheduler.planner.steps import require

PRIORITY_PER_RANK = 100
CHUNK_TOKENS = 8192
CLIP_NEW_TOKENS = 4096
RATIO_START = 0.7
RATIO_LEAST = 0.14 * RATIO_START
RATIO_DECAY = (RATIO_START - RATIO_LEAST) / 600
LOOK_AHEAD_STEPS = 20


class PrioritySglang(Engine[Request]):
    """SGLang's `--enable-priority-scheduling`."""

    def __init__(self, setup: Setup, *, threshold: int = 10, preempts_for_kv: bool = False) -> None:
        require("threshold", threshold, 0)
        super().__init__(setup, Request)
        self._threshold = threshold
        self._preempts_for_kv = preempts_for_kv
        self._waiting: Queue[Request] = Queue()
        self._chunked: Request | None = None
        """The one prompt that is computed in parts."""
        self._ratio = RATIO_START

    def _enqueue(self, request: Request, now_ms: float) -> None:
        self._waiting.push(request, self._rank(request))

    def _schedule(self, now_ms: float) -> None:
        if not self._running:
            self._ratio = RATIO_START
        self._tokens_left = min(CHUNK_TOKENS, self._tokens_left)
        if self._chunked is not None:
            self._prefill(self._chunked)
        if self._waiting and self._tokens_left > 0 and self._chunked is None:
            self._admit(now_ms)
        if not self._rows:
            self._decode(now_ms)

    def _prefill(self, request: Request) -> None:
        count = min(request.pending, self._tokens_left)
        whole = count == request.pending
        self._chunked = None if self._run(request, count) and whole else request

    def _admit(self, now_ms: float) -> None:
        free = self._pool.free_blocks * self._block_size - sum(map(self._reserved, self._running))
        while self._waiting and self._tokens_left > 0 and self._chunked is None:
            request = self._waiting.head
            needed = request.length + min(request.remaining, CLIP_NEW_TOKENS)
            full = len(self._running) >= self._setup.max_sequences
            if full or (needed > free and self._preempts_for_kv):
                freed = self._preempt_for(request, needed - free, now_ms)
                if not freed:
                    return
                free += freed
            if needed > free and self._running:
                return
            self._waiting.pop()
            request.move(State.PREFILL)
            self._running.append(request)
            self._prefill(request)
            free -= needed

    def _reserved(self, request: Request) -> float:
        """Tokens that a running request is expected to need still."""
        return min(request.remaining, CLIP_NEW_TOKENS) * self._ratio

    def _preempt_for(self, request: Request, short: float, now_ms: float) -> float:
        """Take running requests of lower priority, at least one; the tokens that frees, 0 where it is not enough."""
        limit = self._rank(request) + self._threshold / PRIORITY_PER_RANK
        below = [one for one in self._running if self._rank(one) > limit and one.state is State.DECODE]
        below.sort(key=lambda one: (self._rank(one), one.number), reverse=True)
        freed, victims = 0.0, []
        for one in below:
            if one in self._picked:
                continue
            victims.append(one)
            freed += len(one.table) * self._block_size + self._reserved(one)
            if freed >= short:
                break
        if freed < short:
            return 0.0
        for victim in victims:
            self._retract(victim, now_ms)
        return freed

    def _retract(self, victim: Request, now_ms: float) -> None:
        self._running.remove(victim)
        self._drop(victim, now_ms)
        self._enqueue(victim, now_ms)

    def _decode(self, now_ms: float) -> None:
        decodes = [request for request in self._running if request.state is State.DECODE]
        self._tokens_left = self._setup.max_step_tokens
        if self._lacks_blocks(decodes):
            self._shrink(decodes, now_ms)
        else:
            self._ratio = max(RATIO_LEAST, self._ratio - RATIO_DECAY)
        for request in decodes:
            self._run(request, 1)

    def _shrink(self, decodes: list[Request], now_ms: float) -> None:
        """Retract until the rest can go on, and estimate anew how much of its longest output a request produces."""
        decodes.sort(key=lambda one: (len(one.output), -one.prompt_tokens, -one.number), reverse=True)
        while len(decodes) > 1 and self._lacks_blocks(decodes):
            self._retract(decodes.pop(), now_ms)
        if self._lacks_blocks(decodes) and self._chunked is not None:
            self._retract(self._chunked, now_ms)
            self._chunked = None
        done = sum(len(one.output) + LOOK_AHEAD_STEPS for one in decodes)
        self._ratio = min(1.0, done / (sum(one.job.max_tokens for one in decodes) + 1))
