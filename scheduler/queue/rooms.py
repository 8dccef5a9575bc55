"""Which worker is called for a new job: one that has said that it has room.

    1. A `take` that finds nothing registers what its worker could start: its room.
    2. `put` calls one worker whose room fits the job, and subtracts the job from that room. The job's home comes first
       (`scheduler.queue.homes`), then the worker with the most free KV. A worker that was called already, and has not
       taken since, is not called again: its `take` will see both jobs.
    3. Where no room fits, every worker is woken: full workers may have work that yields to the new job.
    4. A `take` answers its worker's calls. A job that it was called for and that still waits passes on to the worker
       that was called last and has not taken since; where there is none, every worker is woken.
    5. A worker that has not answered after CALL_PATIENCE_MS, that stopped taking or whose lease lapsed loses its room,
       and every worker is woken if a job that it was called for still waits. Gateways check this with `rouse`.

A call is a hint: `take` gives out jobs in the same order with or without it. `lua/lib/rooms.lua` holds the same rules.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlane.scheduler.planner.steps import Capacity
from fairlane.store import bounds

CALL_PATIENCE_MS = 200
"""How long a called worker may take to answer: an order of magnitude more than a `take` on a busy machine."""
ROOMS_PER_PUT = 8
"""Workers whose rooms are compared with a job: those with the most free KV in its lane."""


class Need(NamedTuple):
    """What a job needs to start, and to end."""

    sequences: int
    kv_tokens: int
    whole_tokens: int
    """KV tokens that a choice can grow to."""


@dataclass(slots=True)
class Room:
    """What a worker could start: sequences and KV tokens by lane, and what it could ever hold."""

    sequences: list[int]
    kv_tokens: list[int]
    most_sequences: int
    most_tokens: int

    def is_open(self, level: int) -> bool:
        return self.sequences[level] > 0 and self.kv_tokens[level] > 0

    def fits(self, level: int, need: Need) -> bool:
        could_hold = need.sequences <= self.most_sequences and need.whole_tokens <= self.most_tokens
        has_tokens = min(need.kv_tokens, self.most_tokens) <= self.kv_tokens[level]
        return could_hold and need.sequences <= self.sequences[level] and has_tokens

    def occupy(self, level: int, need: Need) -> None:
        for below in range(level, len(self.sequences)):
            self.sequences[below] -= need.sequences
            self.kv_tokens[below] -= min(need.kv_tokens, self.most_tokens)


class WorkerCalls:
    """The registered rooms, and the calls that workers have not answered."""

    def __init__(self, lanes: Sequence[str]) -> None:
        """`lanes`: their names, most urgent first."""
        self._lanes = lanes
        self._rooms: dict[str, Room] = {}
        self._by_kv: list[list[tuple[int, str]]] = [[] for _ in lanes]
        """Of each lane, the workers with room in it, by free KV tokens."""
        self._called: dict[str, int] = {}
        """Workers that have not answered, and since when."""
        self._jobs: dict[str, set[str]] = defaultdict(set)
        """Jobs that each was called for."""
        self.told: dict[str, int] = defaultdict(int)
        """How often each worker was called."""
        self.wakes: tuple[int, str] = 0, ""
        """How often every worker was woken, and who was to take first at the last time."""

    def wake(self, home: str = "") -> None:
        """Wake every worker, the `home` a little before the others."""
        self.wakes = self.wakes[0] + 1, home

    def offer(self, worker_id: str, capacity: Capacity) -> None:
        """Register a worker's room."""
        sequences = [capacity.sequences.get(lane, 0) for lane in self._lanes]
        kv_tokens = [capacity.kv_tokens.get(lane, 0) for lane in self._lanes]
        self._file(worker_id, Room(sequences, kv_tokens, capacity.most_sequences, capacity.most_tokens))

    def withdraw(self, worker_id: str) -> None:
        """Forget a worker's room."""
        room = self._rooms.pop(worker_id, None)
        if room is not None:
            for level, listed in enumerate(self._by_kv):
                if room.is_open(level):
                    del listed[bisect_left(listed, (room.kv_tokens[level], worker_id))]

    def call(self, now_ms: int, job_id: str, level: int, need: Need, home: str) -> str:
        """Call a worker for a new job, or wake all; the worker's id, empty where all were woken."""
        worker_id = self._find(level, need, home)
        if not worker_id:
            self.wake(home)
            return ""
        room = self._rooms[worker_id]
        self.withdraw(worker_id)
        room.occupy(level, need)
        self._file(worker_id, room)
        self._jobs[worker_id].add(job_id)
        if worker_id not in self._called:
            self._called[worker_id] = now_ms
            self.told[worker_id] += 1
        return worker_id

    def settle(self, worker_id: str, waits: Callable[[str], bool], *, may_pass_on: bool = True) -> None:
        """A worker has answered its calls, or never will. `waits`: whether a job is still queued."""
        self._called.pop(worker_id, None)
        jobs = self._jobs.pop(worker_id, set())
        if not any(map(waits, jobs)):
            return
        if may_pass_on and self._called:
            _, last = max((called_ms, name) for name, called_ms in self._called.items())
            self._jobs[last] |= jobs
        else:
            self.wake()

    def rouse(self, now_ms: int, waits: Callable[[str], bool]) -> int:
        """Give up on workers that have not answered in time, PER_CALL at most, and on those that were called at a time
        that is yet to come: the clock was set back. Return milliseconds until the next call is late, 0 where every call
        was answered."""
        by_time = sorted((called_ms, name) for name, called_ms in self._called.items())
        late = [name for called_ms, name in by_time if called_ms <= now_ms - CALL_PATIENCE_MS]
        early = [name for called_ms, name in by_time if called_ms > now_ms]
        most = bounds.PER_CALL // 2
        for worker_id in (*late[:most], *early[:most]):
            self.withdraw(worker_id)
            self.settle(worker_id, waits, may_pass_on=False)
        first = min(self._called.values(), default=None)
        return 0 if first is None else max(1, first + CALL_PATIENCE_MS - now_ms)

    def _find(self, level: int, need: Need, home: str) -> str:
        nearest = [name for _, name in reversed(self._by_kv[level][-ROOMS_PER_PUT:])]
        candidates = ([home] if home else []) + nearest
        fitting = (name for name in candidates if name in self._rooms and self._rooms[name].fits(level, need))
        return next(fitting, "")

    def _file(self, worker_id: str, room: Room) -> None:
        self._rooms[worker_id] = room
        for level, listed in enumerate(self._by_kv):
            if room.is_open(level):
                insort(listed, (room.kv_tokens[level], worker_id))
