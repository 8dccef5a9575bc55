"""The rooms of workers in memory: the rules of `fairlane.scheduler.queue.rooms`."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence

from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.queue.rooms import ROOMS_PER_PUT, Need, Room


class WorkerRooms:
    """The registered rooms, and what workers have been given or called for."""

    def __init__(self, lanes: Sequence[str]) -> None:
        """`lanes`: their names, most urgent first."""
        self._rooms: dict[str, Room] = {}
        # Workers that know from their last turn that jobs wait.
        self._aware: set[str] = set()
        # Of each lane, the workers with room in it, by free KV tokens, and those whose work may yield, by sequences.
        self._by_kv: list[list[tuple[int, str]]] = [[] for _ in lanes]
        self._yielding: list[dict[str, int]] = [{} for _ in lanes]
        # Leases that each worker was given, and jobs that it was called for, until it reads them.
        self.given: dict[str, list[Lease]] = defaultdict(list)
        self.calls: dict[str, list[str]] = defaultdict(list)

    def register(self, worker_id: str, room: Room, yielding: Sequence[int], *, jobs_wait: bool) -> None:
        """Register what a worker could start: `yielding` has the sequences of each lane that would yield."""
        self.withdraw(worker_id)
        (self._aware.add if jobs_wait else self._aware.discard)(worker_id)
        self._file(worker_id, room)
        for lane, sequences in zip(self._yielding, yielding, strict=True):
            if sequences > 0:
                lane[worker_id] = sequences

    def withdraw(self, worker_id: str) -> None:
        self._unfile(worker_id)
        for lane in self._yielding:
            lane.pop(worker_id, None)

    def find(self, level: int, need: Need, preferred: str) -> str:
        """Return a worker whose room fits a job, or an empty string."""
        near = self._near(level, need, preferred)
        return next((name for name in near if self._rooms[name].fits(level, need)), "")

    def _near(self, level: int, need: Need, preferred: str) -> list[str]:
        nearest = [name for _, name in reversed(self._by_kv[level][-ROOMS_PER_PUT:])]
        return self._able(([preferred] if preferred else []) + nearest, need)

    def _able(self, workers: Iterable[str], need: Need) -> list[str]:
        return [name for name in workers if name in self._rooms and self._rooms[name].could_hold(need)]

    def occupy(self, worker_id: str, level: int, need: Need) -> None:
        room = self._unfile(worker_id)
        assert room is not None
        room.occupy(level, need)
        self._file(worker_id, room)

    def call(self, job_id: str, level: int, need: Need, preferred: str) -> str:
        """Call a worker for a waiting job. Return it, or an empty string if there is none."""
        by_sequences = sorted((sequences, name) for name, sequences in self._yielding[level].items())
        yielding = self._able([name for _, name in by_sequences[: -ROOMS_PER_PUT - 1 : -1]], need)
        grown = [
            name
            for name in self._near(level, need, preferred)
            if self._rooms[name].sequences[level] > 0 and name not in self._aware
        ]
        found = [self.find(level, need, preferred), *yielding, *grown]
        worker_id = next(filter(None, found), "")
        if worker_id:
            self.withdraw(worker_id)
            self.calls[worker_id].append(job_id)
        return worker_id

    def _file(self, worker_id: str, room: Room) -> None:
        self._rooms[worker_id] = room
        for level, listed in enumerate(self._by_kv):
            if room.is_open(level):
                insort(listed, (room.kv_tokens[level], worker_id))

    def _unfile(self, worker_id: str) -> Room | None:
        room = self._rooms.pop(worker_id, None)
        if room is not None:
            for level, listed in enumerate(self._by_kv):
                if room.is_open(level):
                    del listed[bisect_left(listed, (room.kv_tokens[level], worker_id))]
        return room
