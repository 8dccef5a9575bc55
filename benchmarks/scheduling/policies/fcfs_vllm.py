"""First come, first served as in vLLM's V1 scheduler (vLLM 0.32, `v1/core/sched/scheduler.py`).

A step has one token budget. Running requests take theirs first, in order of admission and with no word on prefill or
decode; what is left goes to the waiting ones, first come first, and the first that does not fit ends it. A running
request that cannot grow takes all blocks of the last admitted, which is recomputed later; nothing is admitted in a
step that preempted.

Deviations: no prefix cache, no speculation, no look-ahead of one step. A prompt must fit whole before it is begun
(`scheduler_reserve_full_isl`, on by default); the watermark is 0, the default.
"""

from benchmarks.scheduling.policies.base import Engine
from benchmarks.scheduling.policies.setup import Queue, Request, Setup
from fairlane.scheduler.planner.sequence import State
from fairlane.scheduler.planner.steps import require


class FcfsVllm(Engine[Request]):
    """vLLM's `--scheduling-policy fcfs`."""

    def __init__(self, setup: Setup, *, step_tokens: int | None = None) -> None:
        super().__init__(setup, Request)
        self._step_tokens = setup.max_step_tokens if step_tokens is None else step_tokens
        require("step_tokens", self._step_tokens, 1, setup.max_step_tokens)
        self._waiting: Queue[Request] = Queue()

    def _enqueue(self, request: Request, now_ms: float) -> None:
        # A preempted request came before all that wait, so order of arrival also puts it first again.
        self._waiting.push(request, self._priority(request))

    def _priority(self, request: Request) -> float:
        """Lower is more urgent."""
        return 0.0

    def _victim(self) -> Request:
        return self._running[-1]

    def _schedule(self, now_ms: float) -> None:
        self._tokens_left = self._step_tokens
        if self._run_running(now_ms):
            self._admit()

    def _run_running(self, now_ms: float) -> bool:
        """Give the running requests their tokens; did nobody have to yield?"""
        preempted, at = False, 0
        while at < len(self._running) and self._tokens_left > 0:
            request = self._running[at]
            count = 1 if request.state is State.DECODE else min(request.pending, self._tokens_left)
            while not self._run(request, count):
                preempted = True
                victim = self._victim()
                at -= self._running.index(victim) < at
                self._preempt(victim, now_ms)
                if victim is request:
                    return False
            at += 1
        return not preempted

    def _preempt(self, victim: Request, now_ms: float) -> None:
        self._take_back(victim)
        self._running.remove(victim)
        self._drop(victim, now_ms)
        self._enqueue(victim, now_ms)

    def _admit(self) -> None:
        while self._waiting and self._tokens_left > 0 and len(self._running) < self._setup.max_sequences:
            request = self._waiting.head
            if not self._pool.can_allocate(self._blocks(request.length)):
                return
            self._waiting.pop()
            request.move(State.PREFILL)
            self._running.append(request)
            self._run(request, min(request.pending, self._tokens_left))
