"""Offline work harvested from what online work leaves of a latency budget: HyGen (2501.14808, NeurIPS'25).

Lane rank 0 is online, all others are offline. First, as in Sarathi-Serve, online work: decodes, prompts in chunks of
up to 512 tokens, first come first served. Then offline work, decodes before prompts, first come first served, each
row only while the predicted time of the step stays within the latency budget. Online work that lacks blocks or slots
takes those of offline work, the latest first, which is recomputed; offline work never takes from online work.

Deviations: the budget, which HyGen's profiler finds for a stated tolerance of interference, is the online lane's
TPOT target; no prefixes are shared, so that the offline order is that of arrival. With no online row, a step too
long for the budget by itself still runs its first offline row.
"""

from benchmarks.scheduling.policies.base import Engine
from benchmarks.scheduling.policies.fcfs_sarathi import CHUNK_TOKENS, WATERMARK
from benchmarks.scheduling.policies.setup import Queue, Request, Setup, prefill_within
from fairlane.scheduler.planner.sequence import State
from fairlane.scheduler.planner.steps import require

LEAST_CHUNK = 32
"""Of an offline prompt that has a step to itself."""


class HyGen(Engine[Request]):
    """Two phases in each step: online without regard to the budget, offline within it."""

    def __init__(self, setup: Setup, *, budget_ms: float | None = None) -> None:
        super().__init__(setup, Request)
        online = min(setup.lanes.values(), key=lambda lane: lane.rank)
        self._budget_ms = online.tpot_ms if budget_ms is None else budget_ms
        require("budget_ms", self._budget_ms, 0.0)
        self._online_rank = online.rank
        self._online: Queue[Request] = Queue()
        self._offline: Queue[Request] = Queue()
        self._running_offline: list[Request] = []
        self._chunk_tokens = min(CHUNK_TOKENS, setup.max_step_tokens)
        self._reserve = int(WATERMARK * setup.blocks)

    def _enqueue(self, request: Request, now_ms: float) -> None:
        (self._online if self._is_online(request) else self._offline).push(request)

    def _is_online(self, request: Request) -> bool:
        return self._rank(request) == self._online_rank

    def _finish(self, finished: list[Request], now_ms: float) -> None:
        super()._finish(finished, now_ms)
        self._running_offline = [one for one in self._running_offline if one.state is not State.FINISHED]

    def _schedule(self, now_ms: float) -> None:
        self._tokens_left = self._chunk_tokens
        self._run_online(now_ms)
        self._admit_online(now_ms)
        self._run_offline(now_ms)
        self._admit_offline()

    # Online.

    def _run_online(self, now_ms: float) -> None:
        decodes = [request for request in self._running if request.state is State.DECODE]
        while self._lacks_blocks(decodes):
            victim = self._yield_last(now_ms)
            if decodes[-1] is victim:
                decodes.pop()
        for request in decodes[: self._tokens_left]:
            self._run(request, 1)
        for request in self._running:
            if request.state is State.PREFILL and self._tokens_left > 0:
                self._put(request, min(request.pending, self._tokens_left))

    def _yield_last(self, now_ms: float) -> Request:
        """Preempt the latest offline request, or where there is none the latest online one."""
        victim = (self._running_offline or self._running).pop()
        self._drop(victim, now_ms)
        self._enqueue(victim, now_ms)
        return victim

    def _admit_online(self, now_ms: float) -> None:
        while self._online and self._tokens_left > 0 and len(self._running) < self._setup.max_sequences:
            request = self._online.head
            needed = self._blocks(request.length) + (self._reserve if self._running else 0)
            held = sum(len(one.table) for one in self._running_offline)
            if self._pool.free_blocks + held < needed:
                return
            while not self._pool.can_allocate(needed):
                self._yield_last(now_ms)
            if self._resident >= self._setup.max_sequences:
                self._yield_last(now_ms)
            self._begin(self._online.pop(), self._running)
            self._put(request, min(request.pending, self._tokens_left))

    # Offline.

    def _run_offline(self, now_ms: float) -> None:
        decodes = [request for request in self._running_offline if request.state is State.DECODE]
        while self._lacks_blocks(decodes):
            victim = self._yield_last(now_ms)
            if decodes[-1] is victim:
                decodes.pop()
        for request in decodes:
            if self._spare_tokens(request) > 0:
                self._run(request, 1)
        for request in self._running_offline:
            if request.state is State.PREFILL:
                count = self._spare_tokens(request)
                if count > 0:
                    self._put(request, count)

    def _admit_offline(self) -> None:
        while self._offline and self._resident < self._setup.max_sequences:
            request = self._offline.head
            count = self._spare_tokens(request)
            reserve = self._reserve if self._resident else 0
            if count == 0 or not self._pool.can_allocate(self._blocks(request.length) + reserve):
                return
            self._begin(self._offline.pop(), self._running_offline)
            self._put(request, count)

    def _spare_tokens(self, request: Request) -> int:
        """Tokens of an offline request that the budget has room for."""
        hardware, most = self._setup.hardware, min(self._tokens_left, request.pending)
        if most <= 0:
            return 0
        spare_ms = self._budget_ms - (hardware.step_ms(self._features) if self._rows else hardware.step[0])
        if request.state is State.DECODE:
            row_ms = hardware.step[1] + hardware.step[3] * request.length
            return 1 if row_ms <= spare_ms or not self._rows else 0
        count = prefill_within(hardware, spare_ms, request.num_computed, most)
        return count if self._rows else max(count, min(most, LEAST_CHUNK))

    @property
    def _resident(self) -> int:
        return len(self._running) + len(self._running_offline)

    def _begin(self, request: Request, running: list[Request]) -> None:
        self._grow(request, request.length)
        request.move(State.PREFILL)
        running.append(request)
