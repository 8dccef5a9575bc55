"""The worker that gets a new job, from the free capacity ("room") that workers register.

    1. Each `turn` of a worker registers the room that its leases leave. A worker whose room has grown asks at once if
       jobs wait or if it has doubled, and otherwise with its next report (`worker/leases.py`).
    2. `put` leases a new job at once if a worker's room fits it and no waiting job may come first: one of its lane or
       a lane above, one that has waited long enough for promotion, or one owed to a share floor. The job's preferred
       worker comes first (`scheduler.queue.prefix_affinity`), then the worker with the most free KV. The worker reads
       the lease from its stream; the job is subtracted from its room.
    3. Otherwise the job waits, and `put` calls one worker that could finish it: one whose room fits, or else one with
       work that may yield, or else one with some room, which may have grown enough. The last kind is not called if its
       last `turn` said that jobs wait, since it then asks as soon as its room grows. A called worker has no room until
       its next `turn`, which hands out jobs in their order with or without a call. That `turn` names the jobs that the
       worker was called for; others are called for those that still wait.
    4. A job that came back from a worker calls one too.
    5. A gateway that has no stream of a job asks again (`rouse`): after CALL_PATIENCE_MS for a job that waits, and
       after HANDED_PATIENCE_MS for one that was leased at once, which returns from the worker's stream to the queue. No
       job is called for again more than ROOMS_PER_PUT times.
    6. A worker loses its room if it stops taking, if its lease expires, or if it has not started a job in time.
    7. Each `turn` names the gateways that the worker cannot reach now. It is neither leased nor called for their jobs
       until its next `turn`.

No call wakes more than one worker. A waiting job that nobody was called for goes to the worker whose room grows.
`lua/lib/rooms.lua` is the code."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.messages import Job

# Time that a called worker has to answer: an order of magnitude more than a `turn` on a busy machine.
CALL_PATIENCE_MS = 200
# Time that a worker has to start a job that it was given, a new link to the gateway included.
HANDED_PATIENCE_MS = 1_000
# Workers whose rooms are compared with a job: those with the most free KV in its lane.
ROOMS_PER_PUT = 8


class Need(NamedTuple):
    """Capacity that a job needs to start, and to finish."""

    sequences: int
    kv_tokens: int
    # KV tokens that a choice can grow to.
    whole_tokens: int
    # The gateway that its tokens go to.
    gateway_id: str = ""


@dataclass(slots=True)
class Room:
    """Capacity that a worker can start: sequences and KV tokens by lane, and the size of the whole worker.

    A job uses the room of its lane and of all lanes below. To start, it needs what its next step holds; if that exceeds
    the pool, its choices take turns and it needs the whole pool."""

    sequences: list[int]
    kv_tokens: list[int]
    most_sequences: int
    most_tokens: int
    # Gateways that the worker cannot reach.
    unreached: Collection[str] = ()

    @classmethod
    def of(cls, capacity: Capacity, lanes: Sequence[str], unreached: Collection[str] = ()) -> "Room":
        sequences = [capacity.sequences.get(lane, 0) for lane in lanes]
        kv_tokens = [capacity.kv_tokens.get(lane, 0) for lane in lanes]
        return cls(sequences, kv_tokens, capacity.most_sequences, capacity.most_tokens, unreached)

    def is_open(self, level: int) -> bool:
        return self.sequences[level] > 0 and self.kv_tokens[level] > 0

    def could_hold(self, need: Need) -> bool:
        """Return whether a job could finish here: all its choices in one step, each on its own at full length, and its
        gateway within reach."""
        fits = need.sequences <= self.most_sequences and need.whole_tokens <= self.most_tokens
        return fits and need.gateway_id not in self.unreached

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


def remaining(capacity: Capacity, jobs: Iterable[Job], lanes: Sequence[str]) -> Capacity:
    """Return the capacity that the queue still knows of after it leased these jobs. `lanes`: most urgent first."""
    room = Room.of(capacity, lanes)
    for job in jobs:
        room.occupy(lanes.index(job.lane), Need(job.n, len(job.prompt) + job.n, job.max_total_tokens))
    sequences = dict(zip(lanes, room.sequences, strict=True))
    return replace(capacity, sequences=sequences, kv_tokens=dict(zip(lanes, room.kv_tokens, strict=True)))
