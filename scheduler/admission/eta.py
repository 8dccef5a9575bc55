"""Expected remaining wait of a request, from the recent rate at which its tenant's positions have advanced.

Tenants take turns, so one tenant's queue does not predict another's wait. When a queue empties, its rate passes to the
others of its lane; that of an empty lane passes to the lanes below."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec

from fairlane.scheduler.planner.fading import FadingSum

# Time constant of a tenant's rate.
RECENT_MS = 10_000.0
# A job that started this soon did not wait for others to end, so it does not count as a sample of the rate.
AT_ONCE_MS = 200.0
# Jobs that waited and have started before a tenant's rate counts.
FEWEST = 2
# Above this number, tenants without waiting jobs are dropped.
MAX_TENANTS = 1_000
# Maximum number of queues whose emptying is simulated for one estimate.
MAX_PHASES = 64


class TenantLane(NamedTuple):
    """Identifies the queue of one tenant in one lane."""

    rank: int
    tenant: str


class Queued(NamedTuple):
    """The state of one tenant's queue."""

    places: float
    # Positions per millisecond.
    rate: float


@dataclass(slots=True)
class _Pace:
    waiting: int = 0
    _moved: FadingSum = field(default_factory=partial(FadingSum, RECENT_MS))
    _over_ms: FadingSum = field(default_factory=partial(FadingSum, RECENT_MS))
    _begun: int = 0
    _at_ms: float = 0.0

    def observe(self, places: float, over_ms: float, now_ms: float, *, begun: bool) -> None:
        self._at_ms = max(now_ms, self._at_ms)
        self._moved.add(max(0.0, places), self._at_ms)
        self._over_ms.add(over_ms, self._at_ms)
        self._begun += begun

    @property
    def rate(self) -> float | None:
        moved = self._moved.at(self._at_ms)
        return moved / self._over_ms.at(self._at_ms) if self._begun >= FEWEST and moved > 0.0 else None


class _Waiting(msgspec.Struct):
    own: TenantLane
    entered_ms: float
    place: int
    seen_ms: float


@dataclass(slots=True)
class Waits:
    """Waiting jobs of one queue that this gateway knows. Times are milliseconds on the gateway's clock."""

    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    _paces: dict[TenantLane, _Pace] = field(default_factory=dict)

    def seen(self, job_id: str, rank: int, tenant: str, place: int, now_ms: float) -> None:
        job = self._waiting.get(job_id)
        if job is None:
            own = TenantLane(rank, tenant)
            if own not in self._paces:
                if len(self._paces) >= MAX_TENANTS:
                    self._paces = {other: pace for other, pace in self._paces.items() if pace.waiting}
                self._paces[own] = _Pace()
            self._waiting[job_id] = _Waiting(own, now_ms, place, now_ms)
            self._paces[own].waiting += 1
        elif now_ms > job.seen_ms:
            self._paces[job.own].observe(job.place - place, now_ms - job.seen_ms, now_ms, begun=False)
            job.place, job.seen_ms = place, now_ms

    def begun(self, job_id: str, now_ms: float) -> None:
        job = self._waiting.get(job_id)
        if job is not None:
            if now_ms - job.entered_ms > AT_ONCE_MS:
                self._paces[job.own].observe(job.place, now_ms - job.seen_ms, now_ms, begun=True)
            self.left(job_id)

    def left(self, job_id: str) -> None:
        job = self._waiting.pop(job_id, None)
        if job is not None:
            self._paces[job.own].waiting -= 1

    def eta_ms(self, rank: int, tenant: str, place: int) -> float | None:
        own = TenantLane(rank, tenant)
        rate = self._rate(own)
        if rate is None:
            return None
        others = {
            other: Queued(found.waiting, found.rate)
            for other, found in self._paces.items()
            if other != own and other.rank <= rank and found.waiting and found.rate is not None
        }
        return time_to_start_ms(own, Queued(place, rate), others)

    def _rate(self, own: TenantLane) -> float | None:
        pace = self._paces.get(own)
        if pace is not None and pace.rate is not None:
            return pace.rate
        known = [found.rate for other, found in self._paces.items() if other.rank == own.rank and found.waiting]
        rates = [rate for rate in known if rate is not None]
        return sum(rates) / len(rates) if rates else None


def time_to_start_ms(own: TenantLane, queue: Queued, others: Mapping[TenantLane, Queued]) -> float:
    """Return the time until all positions of one queue have moved, as other queues of its lane and above end."""
    ends = sorted((queued.places / queued.rate, other) for other, queued in others.items())
    in_lanes: dict[int, float] = {own.rank: queue.rate}
    for other, queued in others.items():
        in_lanes[other.rank] = in_lanes.get(other.rank, 0.0) + queued.rate
    left, now_ms, gain = queue.places, 0.0, 1.0
    alive = in_lanes[own.rank]
    for end_ms, other in ends[:MAX_PHASES]:
        if left <= (end_ms - now_ms) * queue.rate * gain:
            break
        left -= (end_ms - now_ms) * queue.rate * gain
        now_ms = end_ms
        freed = others[other].rate
        if other.rank == own.rank:
            gain *= alive / max(queue.rate, alive - freed)
            alive = max(queue.rate, alive - freed)
        else:
            in_lanes[other.rank] -= freed
            if in_lanes[other.rank] <= 1e-12:
                above = sum(queued.rate for each, queued in others.items() if each.rank == other.rank)
                gain *= (in_lanes[own.rank] + above) / in_lanes[own.rank]
    return now_ms + left / (queue.rate * gain)
