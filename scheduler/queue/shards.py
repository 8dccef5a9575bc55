"""One model's queue as several shards, each a script server of its own, that share workers fairly.

    1. A tenant's jobs are all in one shard, chosen by its root (`home_of`). So order, caps, promises and counters of a
       tenant need no other shard.
    2. A worker divides its free room between the shards and tells each its part. A shard leases into its part at once,
       and never into another's, so that no room is given twice (`worker.shards.division`).
    3. Every answer of a shard carries its head: what waits in each lane, and the lane's virtual time, which is the
       counter of the least served tenant that waits there.
    4. A worker reports an end to the shard of that job. It leaves the room there, unless another shard has more urgent
       work or is behind by more than the window Θ (`Rivals.choose`). Shards thus advance together: each of two
       that share workers is at most Θ, and what is leased before the news arrives, ahead of the other.
    5. A worker's call carries the highest virtual time of the other shards that it knows (`Rivals.floors`). A tenant
       that becomes backlogged starts there (`ShardCounters`), so that it gains nothing from a shard that was idle.
    6. Promised time and share floors are divided: each shard promises its part of the workers' time (`divided`) and
       keeps a floor within its own work. A worker gives the floor's part of its room to a shard in which only the
       lower lane waits.

The source is MQFQ (Hedayati et al., ATC 2019): virtual time in each queue, with bounded lag. The second shard of a
worker is drawn anew from time to time, since fixed pairs leave room idle when one shard has all the work."""

from binascii import crc32
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from fairlane.scheduler.planner.ordering import Counters
from fairlane.scheduler.protocol.messages import Job

MAX_SHARDS = 64
# A head older than this says nothing about what waits. Workers hear from both shards several times as often.
FRESH_MS = 5_000.0
# Jobs that have waited less get the next room of their own shard. Workers' knowledge of other shards is about as old.
PATIENCE_MS = 100.0


class LaneHead(NamedTuple):
    """One lane of one shard, as its answers describe it."""

    # The lane's virtual time in weighted tokens: the least counter of a tenant that waits, or where one would start.
    counter: float
    # How long the oldest job has waited; negative if none waits.
    oldest_ms: float
    # Whether a guaranteed job waits.
    guaranteed: bool = False

    @property
    def waits(self) -> bool:
        return self.oldest_ms >= 0.0

    @property
    def needs_room(self) -> bool:
        return self.oldest_ms >= PATIENCE_MS


class LaneFloor(NamedTuple):
    """What a worker's call tells a shard about one lane of the other shards."""

    counter: float
    # Whether jobs wait there.
    contended: bool


class ShardNews(NamedTuple):
    """What a shard's answer tells a worker."""

    # It offers no room before the worker has read the leases in its stream.
    is_unread: bool
    # A job waits that would fit into more room of this worker.
    lacks_room: bool
    # Each lane, in rank order.
    head: tuple[LaneHead, ...]


def home_of(root: str, shards: int) -> int:
    """Return the shard of a root tenant."""
    return crc32(root.encode()) % shards


def shards_of(queue: str) -> int:
    """Return the number of shards of a model's queue, from its name or from that of a shard."""
    card = queue.rpartition("@")[2]
    if "/" not in card:
        return 1
    count = card.partition("/")[2].partition(".")[0]
    return int(count) if count.isdecimal() else 1


def shard_names(queue: str) -> list[str]:
    """Return the queues of all shards of a model's queue. The first one has the queue's own name: `model@card/3`, then
    `model@card/3.1` and `model@card/3.2`. A queue of one shard is `model@card`."""
    return [queue, *(f"{queue}.{shard}" for shard in range(1, shards_of(queue)))]


def queue_of(shard: str) -> str:
    """Return the model's queue to which a shard belongs."""
    if shards_of(shard) == 1:
        return shard
    model, _, card = shard.rpartition("@")
    return f"{model}@{card.partition('.')[0]}"


def shard_for(queue: str, root: str) -> str:
    """Return the shard of a model's queue that holds the jobs of a root tenant."""
    shards = shards_of(queue)
    return queue if shards == 1 else shard_names(queue)[home_of(root, shards)]


def divided(job: Job, shards: int) -> Job:
    """Return a job whose work counts as a shard sees it, to which 1 / `shards` of all workers' time belongs."""
    if shards == 1:
        return job
    return msgspec.structs.replace(job, claim_ms=job.claim_ms * shards, work_ms=job.work_ms * shards)


class ShardCounters(Counters):
    """The counters of one lane in one shard, level with those of the other shards."""

    def __init__(self, window: float) -> None:
        super().__init__(window)
        self._others, self._contended_until_ms, self._now_ms = 0.0, 0.0, 0.0

    def receive(self, floor: LaneFloor, now_ms: float) -> None:
        self._now_ms = now_ms
        self._others = max(self._others, floor.counter)
        if floor.contended:
            self._contended_until_ms = now_ms + FRESH_MS

    @property
    def _is_contended(self) -> bool:
        return self._now_ms < self._contended_until_ms

    def floor(self, backlogged: Iterable[str]) -> float:
        values = [self._values.get(tenant, 0.0) for tenant in backlogged]
        if values:
            return min(values)
        return self._others if self._is_contended else max(self._others, super().floor(()))

    def lift(self, tenant: str, backlogged: Iterable[str]) -> float:
        self._values[tenant] = max(super().lift(tenant, backlogged), self._others)
        return self._values[tenant]

    def level_out(self) -> None:
        """Forget what idle capacity was used for, unless tenants of other shards wait and would pay for that."""
        if self._is_contended:
            self.forget(self._others, len(self._values))
        else:
            super().level_out()


class Rivals:
    """One worker's knowledge of its shards, and its choice of the one to offer free room to.

    `window` is the queue's Θ, `share_floors` those of the lanes in rank order."""

    def __init__(self, window: float, share_floors: Sequence[float]) -> None:
        self._window, self._floors = window, share_floors
        self._heads: dict[int, tuple[Sequence[LaneHead], float]] = {}
        # By lane, room that its share floor is owed from this worker.
        self._owed = [0.0 for _ in share_floors]

    def receive(self, shard: int, head: Sequence[LaneHead], now_ms: float) -> None:
        self._heads[shard] = head, now_ms

    def waits(self, shard: int, now_ms: float) -> bool:
        return any(lane.waits for lane in self._fresh(shard, now_ms))

    def floors(self, shard: int, now_ms: float) -> list[LaneFloor]:
        floors = [LaneFloor(0.0, False) for _ in self._floors]
        for other, (head, at_ms) in self._heads.items():
            if other == shard:
                continue
            is_fresh = now_ms - at_ms < FRESH_MS
            floors = [
                LaneFloor(max(floor.counter, lane.counter), floor.contended or (is_fresh and lane.waits))
                for floor, lane in zip(floors, head, strict=True)
            ]
        return floors

    def choose(self, home: int, other: int, now_ms: float) -> int:
        """Return the shard to offer a unit of room to: `home`, where it became free, or `other`."""
        mine, theirs = self._fresh(home, now_ms), self._fresh(other, now_ms)
        if not theirs or home == other:
            return home
        for level, share in enumerate(self._floors):
            self._owed[level] = min(1.0, self._owed[level] + share)
        for level in reversed(range(len(self._floors))):
            found = _only_below(mine, theirs, level)
            if found is not None and self._owed[level] >= 1.0:
                self._owed[level] = 0.0
                return other if found else home
        return other if self._is_ahead(theirs, mine) else home

    def _is_ahead(self, one: Sequence[LaneHead], other: Sequence[LaneHead]) -> bool:
        if not other:
            return any(lane.needs_room for lane in one)
        for mine, theirs in zip(one, other, strict=True):
            ranks = _rank(mine), _rank(theirs)
            if ranks[0] != ranks[1]:
                return ranks[0] < ranks[1]
            if mine.needs_room:
                return mine.counter < theirs.counter - self._window
        return False

    def _fresh(self, shard: int, now_ms: float) -> Sequence[LaneHead]:
        head, at_ms = self._heads.get(shard, ((), 0.0))
        return head if now_ms - at_ms < FRESH_MS else ()


def _rank(lane: LaneHead) -> int:
    return 0 if lane.guaranteed else 1 if lane.needs_room else 2


def _only_below(mine: Sequence[LaneHead], theirs: Sequence[LaneHead], level: int) -> bool | None:
    """Return whether `theirs` is the one of two shards in which this lane waits and none above; None if not exactly
    one is."""
    only = [bool(head) and head[level].needs_room and not any(lane.needs_room for lane in head[:level])
            for head in (mine, theirs)]  # fmt: skip
    return only[1] if only[0] != only[1] else None
