"""First come, first served with chunked prefill as in Sarathi-Serve (OSDI'24; branch `osdi-sarathi-serve`).

A step has a fixed token budget, 512 by default: all decodes first, then prompts that are begun, then new ones, first
come first, until the budget is spent. A prompt's blocks are all taken when it is begun, if 1 % of the pool stays free
besides. While the decodes lack blocks, whoever stands last gives up all of its own and is recomputed later.

Deviations: a decode asks for a block when it needs one, not at every step. What is alone may use the last 1 %.
"""

from bisect import insort

from benchmarks.scheduling.policies.base import Engine
from benchmarks.scheduling.policies.setup import Queue, Request, Setup
from fairlane.scheduler.planner.sequence import State
from fairlane.scheduler.planner.steps import require

CHUNK_TOKENS = 512
WATERMARK = 0.01


class FcfsSarathi(Engine[Request]):
    """Stall-free batches in order of arrival."""

    def __init__(self, setup: Setup, *, chunk_tokens: int | None = None) -> None:
        super().__init__(setup, Request)
        self._chunk_tokens = min(CHUNK_TOKENS, setup.max_step_tokens) if chunk_tokens is None else chunk_tokens
        require("chunk_tokens", self._chunk_tokens, 1, setup.max_step_tokens)
        self._reserve = int(WATERMARK * setup.blocks)
        self._waiting: Queue[Request] = Queue()

    def _priority(self, request: Request) -> float:
        """Lower comes first, running and waiting."""
        return 0.0

    def _enqueue(self, request: Request, now_ms: float) -> None:
        self._waiting.push(request, self._priority(request))

    def _schedule(self, now_ms: float) -> None:
        self._tokens_left = self._chunk_tokens
        decodes = [request for request in self._running if request.state is State.DECODE]
        while self._lacks_blocks(decodes):
            self._yield_last(decodes, now_ms)
        for request in decodes[: self._tokens_left]:
            self._run(request, 1)
        for request in self._running:
            if request.state is State.PREFILL and self._tokens_left > 0:
                self._put(request, min(request.pending, self._tokens_left))
        self._admit()

    def _yield_last(self, decodes: list[Request], now_ms: float) -> None:
        victim = self._running.pop()
        if decodes[-1] is victim:
            decodes.pop()
        self._drop(victim, now_ms)
        self._enqueue(victim, now_ms)

    def _admit(self) -> None:
        while self._waiting and self._tokens_left > 0 and len(self._running) < self._setup.max_sequences:
            request = self._waiting.head
            reserve = self._reserve if self._running else 0
            if not self._pool.can_allocate(self._blocks(request.length) + reserve):
                return
            self._waiting.pop()
            request.move(State.PREFILL)
            self._grow(request, request.length)
            insort(self._running, request, key=lambda one: (self._priority(one), one.number))
            self._put(request, min(request.pending, self._tokens_left))
