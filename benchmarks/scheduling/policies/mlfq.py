"""Skip-join multi-level feedback queue with proactive swapping: FastServe (2305.05920; `fastserve/scheduler.py`).

A request joins the first queue whose quantum covers its prefill; queue i has `base · 2^i`. Every step takes requests
from the highest queue down until the batch is full. One that has run for longer than its queue's quantum moves down
one. Each 1,000 steps, whoever has not run for 3 s moves to the top. KV that the batch needs comes from those that are
not in it, lowest queue and last place first, by swap; some blocks are kept free for the next batch, and while nothing
had to be swapped out, the next in order are swapped in ahead. New requests wait while less than 10 % of the host pool
is free.

Deviations: a swap adds its time to the step, as every copy in the simulator does, where FastServe hides it. The
blocks kept free are at most 5 % of the pool. FastServe asserts that the host pool suffices: here, who needs more
blocks than are free or could be swapped out is passed over, and if nothing could run then, the last are dropped
(recompute). A prompt longer than a step is computed in parts.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from benchmarks.scheduling.policies.base import Engine
from benchmarks.scheduling.policies.setup import Request, Setup
from fairlane.scheduler.planner.sequence import State
from fairlane.scheduler.planner.steps import StepFeatures, StepResult, require

HOST_RESERVE = 0.1
AHEAD = 0.05


@dataclass(slots=True, eq=False)
class Ticket(Request):
    """A request and its place in the queues."""

    level: int = 0
    place: int = 0
    """Within its level, lower is earlier."""
    level_ms: float = 0.0
    """How long it has run in this level."""
    last_ms: float = 0.0
    """When it last ran, or arrived."""


@dataclass(slots=True)
class Level:
    """One queue: requests that nothing was computed of yet apart from the others, so that they can be passed over."""

    fresh: deque[Ticket] = field(default_factory=deque)
    begun: deque[Ticket] = field(default_factory=deque)

    def pop(self, fresh_too: bool) -> Ticket | None:
        """Take out the first; None where there is none."""
        queues = [queue for queue in (self.begun, self.fresh if fresh_too else None) if queue]
        return min(queues, key=lambda queue: queue[0].place).popleft() if queues else None


def _order(request: Ticket) -> tuple[int, int]:
    return request.level, request.place


class Mlfq(Engine[Ticket]):
    """FastServe's scheduler."""

    def __init__(
        self,
        setup: Setup,
        *,
        base_quantum_ms: float = 10.0,
        starvation_ms: float = 3_000.0,
        starvation_period_steps: int = 1_000,
    ) -> None:
        require("base_quantum_ms", base_quantum_ms, 0.001)
        require("starvation_ms", starvation_ms, 0.0)
        require("starvation_period_steps", starvation_period_steps, 1)
        super().__init__(setup, Ticket)
        self._base_quantum_ms = base_quantum_ms
        self._starvation_ms = starvation_ms
        self._starvation_period_steps = starvation_period_steps
        self._ahead = min(setup.max_sequences, int(AHEAD * setup.blocks))
        self._levels: list[Level] = []
        self._idle: dict[str, Ticket] = {}
        """Resident requests that are not in the batch."""
        self._swapped = 0
        self._first = 0
        """The lowest place given out; the highest is the number of arrivals."""

    def _enqueue(self, request: Ticket, now_ms: float) -> None:
        prefill = StepFeatures(1, request.pending, 0, request.pending * request.length)
        ratio = self._setup.hardware.step_ms(prefill) / self._base_quantum_ms
        request.level = max(0, math.ceil(math.log2(ratio))) if ratio > 0.0 else 0
        request.last_ms, request.place = now_ms, request.number
        self._level(request.level).fresh.append(request)

    def _schedule(self, now_ms: float) -> None:
        if self._steps and self._steps % self._starvation_period_steps == 0:
            self._promote(now_ms)
        batch = self._pick()
        left_out, calm = self._make_room(batch, now_ms)
        for request, count in batch:
            if request.state is State.SWAPPED:
                self._bring(request)
            elif not request.is_resident:
                request.move(State.PREFILL)
            self._run(request, count)
        for request in reversed(left_out):
            self._push_front(request)
        if calm and self._swapped:
            self._bring_ahead()

    def _served(self, result: StepResult, now_ms: float) -> None:
        took_ms = result.run_ms + result.copy_ms
        for request in reversed(self._picked):
            request.level_ms += took_ms
            request.last_ms = now_ms
            if request.level_ms > self._base_quantum_ms * 2.0**request.level:
                request.level, request.level_ms = request.level + 1, 0.0
            if request.state is not State.FINISHED:
                self._push_front(request)

    def _pick(self) -> list[tuple[Ticket, int]]:
        """The batch in order of the queues, with each one's tokens. A prompt that does not fit whole ends it; who
        would need more blocks than are free or could be swapped out is passed over."""
        fresh_too = self._pool.slots.free >= HOST_RESERVE * self._setup.host_slots
        room = self._pool.free_blocks + self._pool.slots.free
        batch: list[tuple[Ticket, int]] = []
        passed: list[Ticket] = []
        left = self._tokens_left
        prefills = 0
        for level in self._levels:
            while max(len(batch), len(passed)) < self._setup.max_sequences and left > 0:
                request = level.pop(fresh_too)
                if request is None:
                    break
                count = min(request.pending, left)
                need = self._need(request, count)
                if need > room and not request.is_resident:
                    fresh_too &= request.state is not State.WAITING
                    passed.append(request)
                    continue
                if count < request.pending and prefills:
                    passed.append(request)
                    left = 0
                    break
                room -= need
                prefills += count > 1
                left -= count
                batch.append((request, count))
        if passed and not batch:
            request = passed.pop(0)
            batch.append((request, min(request.pending, self._tokens_left)))
        for request, _ in batch:
            self._idle.pop(request.id.job_id, None)
        for request in reversed(passed):
            self._push_front(request)
        return batch

    def _make_room(self, batch: list[tuple[Ticket, int]], now_ms: float) -> tuple[list[Ticket], bool]:
        """Blocks for the batch, and some ahead if others have them. Shortens the batch where all others' are too few.

        Returns whom it had to leave out, in order, and whether nobody had to yield.
        """
        short = self._ahead - self._pool.free_blocks + sum(self._need(one, count) for one, count in batch)
        if short <= 0:
            return [], True
        for victim in sorted(self._idle.values(), key=_order, reverse=True):
            if short <= 0 or not self._pool.can_swap_out(self._blocks(victim.num_computed)):
                break
            short -= len(victim.table)
            self._evict(victim, now_ms)
        left_out: list[Ticket] = []
        lacking = sum(self._need(one, count) for one, count in batch) - self._pool.free_blocks
        for entry in batch[::-1]:
            if len(batch) == 1 or lacking <= 0:
                break
            request, count = entry
            swaps = request.is_resident and self._pool.can_swap_out(self._blocks(request.num_computed))
            if swaps or not request.is_resident:
                batch.remove(entry)
                left_out.append(request)
                lacking -= self._blocks(request.num_computed + count)
            if swaps:
                self._evict(request, now_ms)
        if not self._fits(batch):
            left_out += self._cut(batch, now_ms)
        left_out.sort(key=_order)
        return left_out, False

    def _need(self, request: Ticket, count: int) -> int:
        return self._blocks(request.num_computed + count) - len(request.table)

    def _fits(self, batch: list[tuple[Ticket, int]]) -> bool:
        return self._pool.can_allocate(sum(self._need(one, count) for one, count in batch))

    def _cut(self, batch: list[tuple[Ticket, int]], now_ms: float) -> list[Ticket]:
        """The host is full: drop idle ones, then the batch's last, until the rest of it fits."""
        for victim in sorted(self._idle.values(), key=_order, reverse=True):
            if self._fits(batch):
                return []
            self._evict(victim, now_ms)
        cut: list[Ticket] = []
        while not self._fits(batch):
            request = batch.pop()[0]
            cut.append(request)
            if request.is_resident:
                self._evict(request, now_ms)
        return cut

    def _evict(self, victim: Ticket, now_ms: float) -> None:
        self._idle.pop(victim.id.job_id, None)
        if self._pool.can_swap_out(self._blocks(victim.num_computed)):
            self._swap_out(victim, now_ms)
            self._swapped += 1
        else:
            self._drop(victim, now_ms)

    def _bring(self, request: Ticket) -> None:
        self._swap_in(request)
        self._swapped -= 1

    def _bring_ahead(self) -> None:
        """Swap in whoever comes next while there is room beyond what is kept free."""
        begun = (request for level in self._levels for request in level.begun)
        for request in list(islice(begun, self._setup.max_sequences)):
            room = self._pool.free_blocks - self._ahead
            if request.state is State.SWAPPED and len(request.slots) <= room:
                self._bring(request)
                self._idle[request.id.job_id] = request

    def _push_front(self, request: Ticket) -> None:
        self._first -= 1
        request.place = self._first
        level = self._level(request.level)
        (level.fresh if request.state is State.WAITING else level.begun).appendleft(request)
        if request.is_resident:
            self._idle[request.id.job_id] = request

    def _promote(self, now_ms: float) -> None:
        """Move to the top whoever has not run for too long."""
        starved: list[Ticket] = []
        for level in self._levels:
            for queue in (level.fresh, level.begun):
                late = [one for one in queue if now_ms - one.last_ms >= self._starvation_ms]
                if late:
                    starved += late
                    kept = [one for one in queue if now_ms - one.last_ms < self._starvation_ms]
                    queue.clear()
                    queue.extend(kept)
        for request in starved:
            request.level, request.level_ms = 0, 0.0
            self._push_front(request)

    def _level(self, number: int) -> Level:
        while len(self._levels) <= number:
            self._levels.append(Level())
        return self._levels[number]
