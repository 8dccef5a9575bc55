"""The order in which one `take` hands out jobs: (owed, lane, returned, outside Θ, class, urgency, counter, flight_id).

A job's class and urgency are those of `scheduler.urgency`, as far as the queue can tell: it knows prompts, and from
the worker how long a token of one takes to compute there.

Compared for each job taken are the heads of the TENANTS_PER_TAKE tenants of a lane whose counters are lowest at that
moment, so that a take costs the same however many wait. The least served tenant is always among them, and who is
outside its window comes after it: the bound of `scheduler.fairness` holds for any such number. What the limit costs:
of more tenants that are backlogged, those served more wait for their turn however urgent their work is, and room that
fits none of the heads compared stays free.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.lane_places import Entry, Places
from scheduler.queue_types import SUSPECT_LOSSES
from scheduler.steps import Capacity
from scheduler.urgency import prospects

Key = tuple[bool, bool, int, float, float, str]


class Room:
    """What a worker can still start, by lane. What one lane takes is gone for it and for all lanes below it.

    A job that could not end here is never given here: each choice alone may need all that it can grow to. To start it
    needs what its next step holds; one that has grown beyond the pool, its choices in turns, needs all of that.
    """

    def __init__(self, lanes: Sequence[Places], capacity: Capacity, *, suspect: bool) -> None:
        names = [places.lane.name for places in lanes]
        self._sequences = [capacity.sequences.get(name, 0) for name in names]
        self._kv_tokens = [capacity.kv_tokens.get(name, 0) for name in names]
        self._capacity = capacity
        self._suspect = suspect

    def is_open(self, level: int) -> bool:
        """Anything could be started in this lane."""
        return self._sequences[level] > 0 and self._kv_tokens[level] > 0

    def is_barred(self, entry: Entry) -> bool:
        """May have killed its workers, and one such job is here already: the poisoned one shall fail alone."""
        return self._suspect and entry.losses >= SUSPECT_LOSSES

    def fits(self, level: int, entry: Entry) -> bool:
        """Room in lane `level` for all its choices, now and until they end."""
        has_room = entry.job.n <= self._sequences[level] and self._tokens(entry) <= self._kv_tokens[level]
        return has_room and self.could_fit(entry)

    def could_fit(self, entry: Entry) -> bool:
        """Fits this worker once enough of what runs there has ended."""
        return self._capacity.holds(entry.job.n, entry.job.max_total_tokens)

    def occupy(self, level: int, entry: Entry) -> None:
        """Give the room to this job."""
        for below in range(level, len(self._sequences)):
            self._sequences[below] -= entry.job.n
            self._kv_tokens[below] -= self._tokens(entry)
        self._suspect = self._suspect or entry.losses >= SUSPECT_LOSSES

    def close(self, first: int, last: int) -> None:
        """Give nothing more to these lanes, so that room gathers."""
        for level in range(first, last + 1):
            self._sequences[level] = 0

    def _tokens(self, entry: Entry) -> int:
        return min(entry.tokens, self._capacity.most_tokens)


class Order:
    """What one `take` chooses from, job by job, for a worker that computes a prompt's token in `prefill_ms`.

    Seats are the caller's: after `pick` it takes the job from its place and charges it before it picks again.
    """

    def __init__(
        self, lanes: Sequence[Places], entries: Mapping[str, Entry], room: Room, now_ms: int, prefill_ms: float
    ) -> None:
        self._lanes, self._entries, self._room = lanes, entries, room
        self._now_ms, self._prefill_ms = now_ms, prefill_ms
        self._levels = {places.lane.name: level for level, places in enumerate(lanes)}
        self._windows = [places.window(prefill_ms) for places in lanes]
        self._least: list[float] = []

    def pick(self) -> Entry | None:
        """The first candidate that fits, its room taken. None: nothing more to take.

        One that does not fit is passed over until it is due. From then on nothing behind it is taken from its lane, so
        that room gathers for it and small jobs do not starve it; unless this worker could never hold it.
        """
        if not any(map(self._room.is_open, range(len(self._lanes)))):
            return None
        self._least = [places.least_counter() for places in self._lanes]
        for rank, candidates in self._tiers():
            for entry in sorted(candidates, key=self._key):
                level = self._levels[entry.job.lane]
                if not self._room.is_open(level) or self._room.is_barred(entry):
                    continue
                if self._room.fits(level, entry):
                    self._room.occupy(level, entry)
                    return entry
                if entry.due_ms <= self._now_ms and self._room.could_fit(entry):
                    self._room.close(rank, level)
        return None

    def _tiers(self) -> Iterator[tuple[int, list[Entry]]]:
        """With the rank of a lane: what its share floor is behind enough for; then its own and what is promoted to it.

        In both what came back from a worker comes first.
        """
        for level, places in enumerate(self._lanes):
            if places.owed > 0.0:
                yield level, list(filter(places.is_owed, self._returned(level)))
                yield level, list(filter(places.is_owed, self._heads(level)))
        for level in range(len(self._lanes)):
            yield level, self._returned(level)
            yield level, self._heads(level) + self._promoted(level + 1)

    def _returned(self, level: int) -> list[Entry]:
        return self._in_time(level, self._lanes[level].returned())

    def _heads(self, level: int) -> list[Entry]:
        heads = map(self._lanes[level].head, self._lanes[level].least_served())
        return self._in_time(level, filter(None, heads))

    def _promoted(self, level: int) -> list[Entry]:
        return self._in_time(level, self._lanes[level].promoted(self._now_ms)) if level < len(self._lanes) else []

    def _in_time(self, level: int, flights: Iterable[str]) -> list[Entry]:
        if not self._room.is_open(level):
            return []
        max_wait_ms = self._lanes[level].lane.max_wait_ms
        entries = map(self._entries.__getitem__, flights)
        return [entry for entry in entries if self._now_ms < entry.expires_ms(max_wait_ms)]

    def _key(self, entry: Entry) -> Key:
        job, level = entry.job, self._levels[entry.job.lane]
        counter = self._lanes[level].counters.value(job.tenant)
        lead = counter - self._least[level]
        standing, urgency = self._prospects(entry, lead, self._lanes[level].lane.long_wait_ms)
        return not entry.returned, lead > self._windows[level], standing, urgency, counter, job.flight_id

    def _prospects(self, entry: Entry, lead: float, long_wait_ms: float) -> tuple[int, float]:
        """Class and urgency. What came back from a worker has begun, and is as urgent as it is late."""
        guaranteed = entry.job.guaranteed
        service_ms = 0.0 if entry.returned else len(entry.job.prompt) * self._prefill_ms
        lead_ms = 0.0 if guaranteed or entry.returned else lead * self._prefill_ms
        slack_ms, waited_ms = entry.due_ms - self._now_ms - service_ms, self._now_ms - entry.queued_ms
        relegated, urgency = prospects(slack_ms, service_ms, lead_ms, waited_ms, long_wait_ms, guaranteed=guaranteed)
        return 0 if guaranteed else 1 + relegated, urgency
