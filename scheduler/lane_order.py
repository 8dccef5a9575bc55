"""The order in which one `take` hands out jobs: (owed, lane, returned, outside Θ, class, slack, counter, flight_id)."""

from collections.abc import Iterable, Mapping, Sequence

from scheduler.lane_places import Entry, Places
from scheduler.queue_types import SUSPECT_LOSSES
from scheduler.steps import Capacity

Key = tuple[bool, int, bool, bool, bool, float, float, str]


class Room:
    """What a worker can still start, by lane. What one lane takes is gone for it and for all lanes below it.

    `most` is, by lane, the most sequences and KV tokens that this worker ever offered; it is kept up to date here.
    """

    def __init__(
        self, lanes: Sequence[Places], capacity: Capacity, most: dict[str, tuple[int, int]], *, suspect: bool
    ) -> None:
        names = [places.lane.name for places in lanes]
        self._sequences = [capacity.sequences.get(name, 0) for name in names]
        self._kv_tokens = [capacity.kv_tokens.get(name, 0) for name in names]
        self._suspect = suspect
        for name, sequences, kv_tokens in zip(names, self._sequences, self._kv_tokens, strict=True):
            before = most.get(name, (0, 0))
            most[name] = max(before[0], sequences), max(before[1], kv_tokens)
        self._most = [most[name] for name in names]

    def is_open(self, level: int) -> bool:
        """Anything could be started in this lane."""
        return self._sequences[level] > 0

    def is_suspect(self, entry: Entry) -> bool:
        """May have killed its workers, and one such job is here already: the poisoned one shall fail alone."""
        return self._suspect and entry.losses >= SUSPECT_LOSSES

    def fits(self, level: int, entry: Entry) -> bool:
        """Room in lane `level` for all its choices."""
        return entry.job.n <= self._sequences[level] and entry.tokens <= self._kv_tokens[level]

    def could_fit(self, level: int, entry: Entry) -> bool:
        """Fits this worker once enough of what runs there has ended."""
        sequences, kv_tokens = self._most[level]
        return entry.job.n <= sequences and entry.tokens <= kv_tokens

    def take(self, level: int, entry: Entry) -> None:
        """Give the room to this job."""
        for below in range(level, len(self._sequences)):
            self._sequences[below] -= entry.job.n
            self._kv_tokens[below] -= entry.tokens
        self._suspect = self._suspect or entry.losses >= SUSPECT_LOSSES

    def close(self, first: int, last: int) -> None:
        """Give nothing more to these lanes, so that room gathers."""
        for level in range(first, last + 1):
            self._sequences[level] = 0


class Order:
    """The candidates of one `take`: of each lane the heads of the tenants served least, the returned, the promoted.

    Seats are the caller's: after `pick` it takes the job from its place, charges it, and calls `took`.
    """

    def __init__(self, lanes: Sequence[Places], entries: Mapping[str, Entry], room: Room, now_ms: int) -> None:
        self._lanes, self._entries, self._room, self._now_ms = lanes, entries, room, now_ms
        self._levels = {places.lane.name: level for level, places in enumerate(lanes)}
        self._tenants = [set(places.lowest()) for places in lanes]
        self._candidates: dict[str, Entry] = {}
        for level, places in enumerate(lanes):
            if not room.is_open(level):
                continue
            self._add(places.returned())
            self._add(places.promoted(now_ms) if level else ())
            self._add(head for tenant in self._tenants[level] if (head := places.head(tenant)))

    def pick(self) -> Entry | None:
        """The first candidate that fits. None: nothing more to take.

        One that does not fit is passed over until it is due. From then on nothing behind it is taken from its lane, so
        that room gathers for it and small jobs do not starve it; unless this worker could never hold it.
        """
        while self._candidates:
            entry = min(self._candidates.values(), key=self._key)
            del self._candidates[entry.job.flight_id]
            level = self._levels[entry.job.lane]
            if self._room.is_suspect(entry):
                continue
            if self._room.fits(level, entry):
                return entry
            if entry.due_ms <= self._now_ms and self._room.could_fit(level, entry):
                self._room.close(self._rank(entry), level)
        return None

    def took(self, entry: Entry) -> None:
        """The picked job was taken: its tenant's next one is a candidate now."""
        level = self._levels[entry.job.lane]
        self._room.take(level, entry)
        head = self._lanes[level].head(entry.job.tenant)
        if head and entry.job.tenant in self._tenants[level]:
            self._add((head,))

    def _add(self, flights: Iterable[str]) -> None:
        for flight in flights:
            entry = self._entries[flight]
            places = self._lanes[self._levels[entry.job.lane]]
            if self._now_ms < entry.expires_ms(places.lane.max_wait_ms):
                self._candidates[flight] = entry

    def _rank(self, entry: Entry) -> int:
        level = self._levels[entry.job.lane]
        return level - (level > 0 and self._lanes[level].is_promoted(entry.queued_ms, self._now_ms))

    def _key(self, entry: Entry) -> Key:
        level = self._levels[entry.job.lane]
        places, tenant = self._lanes[level], entry.job.tenant
        return (
            not places.is_owed(entry),
            self._rank(entry),
            not entry.returned,
            not places.eligible(tenant),
            not entry.job.guaranteed,
            entry.slack(self._now_ms),
            places.counters.value(tenant),
            entry.job.flight_id,
        )
