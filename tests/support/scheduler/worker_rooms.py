"""The rooms of workers in memory: the rules of `fairlane.scheduler.queue.rooms`."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence

from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.queue.rooms import ROOMS_PER_PUT, Need, Room


class WorkerRooms:
    """The registered rooms, and what workers have been given or called for."""

    def __init__(self, lanes: Sequence[str]) -> None:
        """`lanes`: their names, most urgent first."""
        self._rooms: dict[str, Room] = {}
        # Of each lane, the workers with room in it, by free KV tokens, and those whose work may yield, by sequences.
        self._by_kv: list[list[tuple[int, str]]] = [[] for _ in lanes]
        self._yielding: list[dict[str, int]] = [{} for _ in lanes]
        # Leases that each worker was given, and jobs that it was called for, until it reads them.
        self.given: dict[str, list[Lease]] = defaultdict(list)
        self.calls: dict[str, list[str]] = defaultdict(list)

    def register(self, worker_id: str, room: Room, yielding: Sequence[int]) -> None:
        """Register what a worker could start: `yielding` has the sequences of each lane that would yield."""
        self.withdraw(worker_id)
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
        nearest = [name for _, name in reversed(self._by_kv[level][-ROOMS_PER_PUT:])]
        candidates = ([preferred] if preferred else []) + nearest
        known = ((name, self._rooms[name]) for name in candidates if name in self._rooms)
        return next((name for name, room in known if room.could_hold(need) and room.fits(level, need)), "")

    def occupy(self, worker_id: str, level: int, need: Need) -> None:
        room = self._unfile(worker_id)
        assert room is not None
        room.occupy(level, need)
        self._file(worker_id, room)

    def call(self, job_id: str, level: int, need: Need, preferred: str) -> str:
        """Call a worker for a waiting job. Return it, or an empty string if there is none."""
        by_sequences = sorted((sequences, name) for name, sequences in self._yielding[level].items())
        worker_id = self.find(level, need, preferred) or (by_sequences[-1][1] if by_sequences else "")
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
