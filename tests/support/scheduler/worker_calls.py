"""Calls of workers for new jobs, in memory: the rules of `fairlane.scheduler.queue.rooms`."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Sequence

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.queue.rooms import CALL_PATIENCE_MS, ROOMS_PER_PUT, Need, Room
from fairlane.store import bounds


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
