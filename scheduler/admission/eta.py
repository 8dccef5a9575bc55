"""How long does a waiting request still wait for a worker? From how fast its tenant's places have moved of late.

The measure is of its tenant, not of the queue: tenants take turns, so that a long queue of one says little of another.
What is measured goes on until somebody's queue is empty; what that one had then goes to the others of its lane, and
that of an empty lane to the lanes below. Until a tenant's places have moved, the gateway's first guess stands. No
clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from fairlane.scheduler.planner.fading import FadingSum

RECENT_MS = 10_000.0
"""Over how long a tenant's rate is taken."""
AT_ONCE_MS = 200.0
"""Who began so soon did not wait for others to end: it says nothing of how fast they do."""
FEWEST = 2
"""So many that waited must have begun before their rate counts."""
MOST_TENANTS = 1_000
"""Beyond so many, those of which nobody waits are forgotten."""
MOST_PHASES = 64
"""Queues that are followed to their ends for one answer."""


class Own(NamedTuple):
    """The queue of one tenant in one lane."""

    rank: int
    tenant: str


class Queued(NamedTuple):
    """How a queue stands."""

    places: float
    rate: float
    """Places by which it moves, per millisecond."""


@dataclass(slots=True)
class _Pace:
    """How fast one queue moved of late; the past fades."""

    waiting: int = 0
    _moved: FadingSum = field(default_factory=partial(FadingSum, RECENT_MS))
    _over_ms: FadingSum = field(default_factory=partial(FadingSum, RECENT_MS))
    _begun: int = 0
    _at_ms: float = 0.0

    def saw(self, places: float, over_ms: float, now_ms: float, *, begun: bool) -> None:
        """One that waits came forward so far; `begun`: and waits no more."""
        self._at_ms = max(now_ms, self._at_ms)
        self._moved.add(max(0.0, places), self._at_ms)
        self._over_ms.add(over_ms, self._at_ms)
        self._begun += begun

    @property
    def rate(self) -> float | None:
        """Places per millisecond; None where too little is known."""
        moved = self._moved.at(self._at_ms)
        return moved / self._over_ms.at(self._at_ms) if self._begun >= FEWEST and moved > 0.0 else None


@dataclass(slots=True)
class _Seat:
    own: Own
    entered_ms: float
    place: int
    seen_ms: float


@dataclass(slots=True)
class Waits:
    """Who waits in one queue, as far as one gateway knows. Times are milliseconds on the gateway's clock."""

    _seats: dict[str, _Seat] = field(default_factory=dict)
    _paces: dict[Own, _Pace] = field(default_factory=dict)

    def seen(self, job_id: str, rank: int, tenant: str, place: int, now_ms: float) -> None:
        """Note that a job waits as the `place`-th of its tenant's in its lane."""
        seat = self._seats.get(job_id)
        if seat is None:
            own = Own(rank, tenant)
            self._make_room(own)
            self._seats[job_id] = _Seat(own, now_ms, place, now_ms)
            self._paces.setdefault(own, _Pace()).waiting += 1
        elif now_ms > seat.seen_ms:
            self._paces[seat.own].saw(seat.place - place, now_ms - seat.seen_ms, now_ms, begun=False)
            seat.place, seat.seen_ms = place, now_ms

    def begun(self, job_id: str, now_ms: float) -> None:
        """Note that a job's first token has come."""
        seat = self._seats.get(job_id)
        if seat is not None:
            if now_ms - seat.entered_ms > AT_ONCE_MS:
                self._paces[seat.own].saw(seat.place, now_ms - seat.seen_ms, now_ms, begun=True)
            self.left(job_id)

    def left(self, job_id: str) -> None:
        """Forget a job; one that did not wait is fine."""
        seat = self._seats.pop(job_id, None)
        if seat is not None:
            self._paces[seat.own].waiting -= 1

    def eta_ms(self, rank: int, tenant: str, place: int) -> float | None:
        """How long the `place`-th of a tenant's waits from now; None where its rate is not known."""
        own = Own(rank, tenant)
        rate = self._rate(own)
        if rate is None:
            return None
        others = {
            other: Queued(found.waiting, found.rate)
            for other, found in self._paces.items()
            if other != own and other.rank <= rank and found.waiting and found.rate is not None
        }
        return time_to_start_ms(own, Queued(place, rate), others)

    def _make_room(self, own: Own) -> None:
        if own not in self._paces and len(self._paces) >= MOST_TENANTS:
            self._paces = {other: pace for other, pace in self._paces.items() if pace.waiting}

    def _rate(self, own: Own) -> float | None:
        """Its own, or that of the other tenants of its lane; None where neither is known."""
        pace = self._paces.get(own)
        if pace is not None and pace.rate is not None:
            return pace.rate
        known = [found.rate for other, found in self._paces.items() if other.rank == own.rank and found.waiting]
        rates = [rate for rate in known if rate is not None]
        return sum(rates) / len(rates) if rates else None


def time_to_start_ms(own: Own, mine: Queued, others: Mapping[Own, Queued]) -> float:
    """Until all of one queue's places have moved, as the others' beside and above it end before."""
    ends = sorted((queued.places / queued.rate, other) for other, queued in others.items())
    in_lanes: dict[int, float] = {own.rank: mine.rate}
    for other, queued in others.items():
        in_lanes[other.rank] = in_lanes.get(other.rank, 0.0) + queued.rate
    left, now_ms, gain = mine.places, 0.0, 1.0
    alive = in_lanes[own.rank]
    for end_ms, other in ends[:MOST_PHASES]:
        if left <= (end_ms - now_ms) * mine.rate * gain:
            break
        left -= (end_ms - now_ms) * mine.rate * gain
        now_ms = end_ms
        freed = others[other].rate
        if other.rank == own.rank:
            gain *= alive / max(mine.rate, alive - freed)
            alive = max(mine.rate, alive - freed)
        else:
            in_lanes[other.rank] -= freed
            if in_lanes[other.rank] <= 1e-12:
                above = sum(queued.rate for each, queued in others.items() if each.rank == other.rank)
                gain *= (in_lanes[own.rank] + above) / in_lanes[own.rank]
    return now_ms + left / (mine.rate * gain)
