"""The order in which one `take` hands out jobs: (owed, lane, returned, outside Θ, class, slack, counter, flight_id)."""

from collections.abc import Iterable, Mapping, Sequence

from scheduler.lane_places import Entry, Places
from scheduler.queue_types import SUSPECT_LOSSES
from scheduler.steps import Capacity

Key = tuple[bool, int, bool, bool, bool, float, float, str]


class Room:
    """What a worker can still start, by lane. What one lane takes is gone for it and for all lanes below it."""

    def __init__(self, lanes: Sequence[Places], capacity: Capacity, *, suspect: bool) -> None:
        names = [places.lane.name for places in lanes]
        self._sequences = [capacity.sequences.get(name, 0) for name in names]
        self._kv_tokens = [capacity.kv_tokens.get(name, 0) for name in names]
        self._suspect = suspect

    def fits(self, level: int, entry: Entry) -> bool:
        """Room in lane `level` for all choices, and no second suspect of having killed its workers."""
        suspect = self._suspect and entry.losses >= SUSPECT_LOSSES
        return entry.job.n <= self._sequences[level] and entry.tokens <= self._kv_tokens[level] and not suspect

    def take(self, level: int, entry: Entry) -> None:
        """Give the room to this job."""
        for below in range(level, len(self._sequences)):
            self._sequences[below] -= entry.job.n
            self._kv_tokens[below] -= entry.tokens
        self._suspect = self._suspect or entry.losses >= SUSPECT_LOSSES


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
            self._add(places.returned())
            self._add(places.promoted(now_ms) if level else ())
            self._add(head for tenant in self._tenants[level] if (head := places.head(tenant)))

    def pick(self) -> Entry | None:
        """The first candidate that fits; those that do not are passed over. None: nothing more to take."""
        while self._candidates:
            entry = min(self._candidates.values(), key=self._key)
            del self._candidates[entry.job.flight_id]
            if self._room.fits(self._levels[entry.job.lane], entry):
                return entry
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

    def _key(self, entry: Entry) -> Key:
        level = self._levels[entry.job.lane]
        places, tenant = self._lanes[level], entry.job.tenant
        promoted = level > 0 and places.is_promoted(entry.queued_ms, self._now_ms)
        return (
            not places.is_owed(entry),
            level - promoted,
            not entry.returned,
            not places.eligible(tenant),
            not entry.job.guaranteed,
            entry.slack(self._now_ms),
            places.counters.value(tenant),
            entry.job.flight_id,
        )
