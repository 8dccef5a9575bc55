"""Virtual token counter: fair among tenants by served tokens (VTC, OSDI'24; the artefact's `vtc_req_queue.py`).

Each tenant has a counter and a FIFO. A tenant whose FIFO was empty is lifted to the least counter among those with a
backlog. Admission takes the head of the least counter again and again and charges its prompt; it stops at the first
that does not fit, without looking past it. Each output token charges 2, both over the tenant's weight. A request
fits if the peak that all running ones can reach together, each up to its longest output, is within the pool.

As in the artefact (S-LoRA's manager), admission comes every tenth decode step, and what it admits is prefilled in a
step of its own. With `oracle`, lengths are known: they are charged at admission and bound the peak.

Deviations: the first output token is charged as the others are; the peak counts whole blocks; a prompt that exceeds
a step is computed in parts; what is alone in the pool is always admitted.
"""

from bisect import insort
from collections import deque

from benchmarks.scheduling.policies.base import Engine
from benchmarks.scheduling.policies.setup import Request, Setup
from fairlane.scheduler.planner.ordering import DECODE_WEIGHT, PREFILL_WEIGHT
from fairlane.scheduler.planner.sequence import State
from fairlane.scheduler.planner.steps import StepResult, require


class Vtc(Engine[Request]):
    """The least served tenant first, without preemption."""

    def __init__(self, setup: Setup, *, oracle: bool = False, decode_steps: int = 10) -> None:
        require("decode_steps", decode_steps, 1)
        super().__init__(setup, Request)
        self._lengths = setup.oracle("vtc with an oracle") if oracle else None
        self._decode_steps = decode_steps
        self._since_admission = 0
        self.counters: dict[str, float] = {}
        """Weighted service by tenant."""
        self._backlog: dict[str, deque[Request]] = {}
        """Tenants with waiting requests."""

    def _enqueue(self, request: Request, now_ms: float) -> None:
        tenant = request.job.tenant
        self.counters.setdefault(tenant, 0.0)
        if tenant not in self._backlog:
            if self._backlog:
                least = min(self.counters[other] for other in self._backlog)
                self.counters[tenant] = max(self.counters[tenant], least)
            self._backlog[tenant] = deque()
        self._backlog[tenant].append(request)

    def _schedule(self, now_ms: float) -> None:
        begun = [request for request in self._running if request.state is State.PREFILL]
        if not begun and self._backlog and (not self._running or self._since_admission >= self._decode_steps):
            begun = self._admit()
        if begun:
            self._since_admission = 0
            for request in begun:
                self._put(request, min(request.pending, self._tokens_left))
            return
        self._since_admission += 1
        for request in self._running:
            self._run(request, 1)

    def _served(self, result: StepResult, now_ms: float) -> None:
        if self._lengths is not None:
            return
        counters = self.counters
        for row, request in zip(self._rows, self._picked, strict=True):
            if row.samples:
                counters[request.job.tenant] += DECODE_WEIGHT / request.job.weight

    def _admit(self) -> list[Request]:
        admitted: list[Request] = []
        left = self._tokens_left
        footprints = sorted(self._footprint(request) for request in self._running)
        while self._backlog and left > 0:
            tenant = min(self._backlog, key=self.counters.__getitem__)
            request = self._backlog[tenant][0]
            insort(footprints, self._footprint(request))
            alone = not self._running
            if not (alone or (self._fits(footprints) and request.pending <= left)):
                break
            self._backlog[tenant].popleft()
            if not self._backlog[tenant]:
                del self._backlog[tenant]
            left -= request.pending
            self._begin(request)
            admitted.append(request)
        return admitted

    def _begin(self, request: Request) -> None:
        self._grow(request, request.length)
        request.move(State.PREFILL)
        self._running.append(request)
        charge = PREFILL_WEIGHT * request.prompt_tokens
        if self._lengths is not None:
            charge += DECODE_WEIGHT * self._remaining(request)
        self.counters[request.job.tenant] += charge / request.job.weight

    def _remaining(self, request: Request) -> int:
        if self._lengths is None:
            return request.remaining
        return self._lengths(request.id.job_id) - len(request.output)

    def _footprint(self, request: Request) -> tuple[int, int]:
        """Tokens still to come, negative for the order, and tokens held, with what the last block may waste."""
        return -self._remaining(request), request.length + self._block_size - 1

    def _fits(self, footprints: list[tuple[int, int]]) -> bool:
        """Does the peak stay within the pool? When the k-th longest ends, the k - 1 before it have grown as much."""
        if len(footprints) > self._setup.max_sequences:
            return False
        most, held = self._setup.blocks * self._block_size, 0
        for count, (remaining, tokens) in enumerate(footprints, 1):
            held += tokens
            if held - count * remaining > most:
                return False
        return True
