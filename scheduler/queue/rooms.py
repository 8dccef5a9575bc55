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

A call is a hint: `take` hands out jobs in the same order with or without it. `lua/lib/rooms.lua` is the code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlane.scheduler.planner.steps import Capacity

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
        sequences = [capacity.sequences.get(lane, 0) for lane in lanes]
        kv_tokens = [capacity.kv_tokens.get(lane, 0) for lane in lanes]
        return cls(sequences, kv_tokens, capacity.most_sequences, capacity.most_tokens)

    def is_open(self, level: int) -> bool:
        return self.sequences[level] > 0 and self.kv_tokens[level] > 0

    def could_hold(self, need: Need) -> bool:
        """Return whether a job could finish here: all its choices in one step, and each on its own at full length."""
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
        for level in range(first, last + 1):
            self.sequences[level] = 0
