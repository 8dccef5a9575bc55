"""Selection of the worker that is called for a new job, from the free capacity ("room") that workers register.

    1. A `take` that finds no job registers what its worker could start: its room.
    2. `put` calls one worker whose room fits the job and subtracts the job from that room. The job's preferred worker
       comes first (`scheduler.queue.prefix_affinity`), then the worker with the most free KV. A worker that was called
       already and has not taken since is not called again: its `take` will see both jobs.
    3. If no room fits, every worker is woken: full workers may have work that yields to the new job.
    4. A `take` answers its worker's calls. A job that it was called for and that still waits passes to the worker that
       was called last and has not taken since. If there is none, every worker is woken.
    5. A worker loses its room if it has not answered after CALL_PATIENCE_MS, if it stops taking or if its lease
       expires. Every worker is woken if a job that it was called for still waits. Gateways check this with `rouse`.

A call is a hint: `take` hands out jobs in the same order with or without it. `lua/lib/rooms.lua` has the same rules."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlane.scheduler.planner.steps import Capacity
from fairlane.store import bounds

# Time that a called worker has to answer: an order of magnitude more than a `take` on a busy machine.
CALL_PATIENCE_MS = 200
# Workers whose rooms are compared with a job: those with the most free KV in its lane.
ROOMS_PER_PUT = 8


class Need(NamedTuple):
    """Capacity that a job needs to start, and to finish."""

    sequences: int
    kv_tokens: int
    # KV tokens that a choice can grow to.
    whole_tokens: int


@dataclass(slots=True)
class Room:
    """Capacity that a worker can start: sequences and KV tokens by lane, and the size of the whole worker.

    A job uses the room of its lane and of all lanes below. To start, it needs what its next step holds; if that exceeds
    the pool, its choices take turns and it needs the whole pool."""

    sequences: list[int]
    kv_tokens: list[int]
    most_sequences: int
    most_tokens: int

    @classmethod
    def of(cls, capacity: Capacity, lanes: Sequence[str]) -> "Room":
        """Return the room of a worker; `lanes`: their names, most urgent first."""
        sequences = [capacity.sequences.get(lane, 0) for lane in lanes]
        kv_tokens = [capacity.kv_tokens.get(lane, 0) for lane in lanes]
        return cls(sequences, kv_tokens, capacity.most_sequences, capacity.most_tokens)

    def is_open(self, level: int) -> bool:
        return self.sequences[level] > 0 and self.kv_tokens[level] > 0

    def could_hold(self, need: Need) -> bool:
        """Return whether a job could finish here: all its choices in one step, and each alone at its longest."""
        return need.sequences <= self.most_sequences and need.whole_tokens <= self.most_tokens

    def tokens(self, need: Need) -> int:
        return min(need.kv_tokens, self.most_tokens)

    def fits(self, level: int, need: Need) -> bool:
        return need.sequences <= self.sequences[level] and self.tokens(need) <= self.kv_tokens[level]

    def occupy(self, level: int, need: Need) -> None:
        for below in range(level, len(self.sequences)):
            self.sequences[below] -= need.sequences
            self.kv_tokens[below] -= self.tokens(need)

    def close(self, first: int, last: int) -> None:
        """Start no more jobs in these lanes, so that room gathers."""
        for level in range(first, last + 1):
            self.sequences[level] = 0


class WorkerCalls:
    """The registered rooms, and the calls that workers have not answered."""

    def __init__(self, lanes: Sequence[str]) -> None:
        """`lanes`: their names, most urgent first."""
        self._lanes = lanes
        self._rooms: dict[str, Room] = {}
        # Of each lane, the workers with room in it, by free KV tokens.
        self._by_kv: list[list[tuple[int, str]]] = [[] for _ in lanes]
        # Workers that have not answered, and the time of the call.
        self._called: dict[str, int] = {}
        # Jobs that each worker was called for.
        self._jobs: dict[str, set[str]] = defaultdict(set)
        # Number of calls of each worker.
        self.call_counts: dict[str, int] = defaultdict(int)
        # Number of times that every worker was woken, and the preferred worker of the last time.
        self.wakes: tuple[int, str] = 0, ""

    def wake(self, preferred: str = "") -> None:
        self.wakes = self.wakes[0] + 1, preferred

    def offer(self, worker_id: str, capacity: Capacity) -> None:
        self._file(worker_id, Room.of(capacity, self._lanes))

    def withdraw(self, worker_id: str) -> None:
        room = self._rooms.pop(worker_id, None)
        if room is not None:
            for level, listed in enumerate(self._by_kv):
                if room.is_open(level):
                    del listed[bisect_left(listed, (room.kv_tokens[level], worker_id))]

    def call(self, now_ms: int, job_id: str, level: int, need: Need, preferred: str) -> str:
        """Call a worker for a new job, or wake all. Return the worker's id, or an empty string if all were woken."""
        worker_id = self._find(level, need, preferred)
        if not worker_id:
            self.wake(preferred)
            return ""
        room = self._rooms[worker_id]
        self.withdraw(worker_id)
        room.occupy(level, need)
        self._file(worker_id, room)
        self._jobs[worker_id].add(job_id)
        if worker_id not in self._called:
            self._called[worker_id] = now_ms
            self.call_counts[worker_id] += 1
        return worker_id

    def settle(self, worker_id: str, waits: Callable[[str], bool], *, may_pass_on: bool = True) -> None:
        """Close a worker's calls, because it answered or never will. `waits` returns whether a job is still queued."""
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
        """Close calls that were not answered in time, at most PER_CALL of them.

        Calls with a future time, after the clock was set back, are closed too. Return milliseconds until the next call
        is late, or 0 if none is open."""
        by_time = sorted((called_ms, name) for name, called_ms in self._called.items())
        late = [name for called_ms, name in by_time if called_ms <= now_ms - CALL_PATIENCE_MS]
        early = [name for called_ms, name in by_time if called_ms > now_ms]
        most = bounds.PER_CALL // 2
        for worker_id in (*late[:most], *early[:most]):
            self.withdraw(worker_id)
            self.settle(worker_id, waits, may_pass_on=False)
        first = min(self._called.values(), default=None)
        return 0 if first is None else max(1, first + CALL_PATIENCE_MS - now_ms)

    def _find(self, level: int, need: Need, preferred: str) -> str:
        nearest = [name for _, name in reversed(self._by_kv[level][-ROOMS_PER_PUT:])]
        candidates = ([preferred] if preferred else []) + nearest
        known = ((name, self._rooms[name]) for name in candidates if name in self._rooms)
        return next((name for name, room in known if room.could_hold(need) and room.fits(level, need)), "")

    def _file(self, worker_id: str, room: Room) -> None:
        self._rooms[worker_id] = room
        for level, listed in enumerate(self._by_kv):
            if room.is_open(level):
                insort(listed, (room.kv_tokens[level], worker_id))
