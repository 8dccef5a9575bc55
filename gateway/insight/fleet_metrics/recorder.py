"""What this gateway counts of its requests for the fleet's figures: some additions to a dict when a request ends."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from fairlane.gateway.errors import TABLE
from fairlane.gateway.insight.fleet_metrics.sums import OTHERS, LaneSums, Sums, observe
from fairlane.scheduler.protocol.lanes import Lane, LaneName

OK = "ok"
NO_LANE = "none"
MOST_COUNTED = 256
"""Tenants that a gateway tells apart between two tellings; what others do meanwhile is added up."""
_OURS = frozenset({"overloaded_error", "server_error", "timeout_error"})
"""Families of errors by which the system, not the caller, failed a request."""
_CALLERS = frozenset({"request_timeout"})
JUDGED = frozenset(code for code, rule in TABLE.items() if rule.type in _OURS and code not in _CALLERS)
REFUSED = JUDGED | frozenset(code for code, rule in TABLE.items() if rule.status in (403, 429))


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A request that is over; seconds are None where it never came so far."""

    tenant: str
    lane: str
    code: str
    ttft_s: float | None
    """From its arrival to its first token."""
    pace_s: float | None
    """Mean time from one of its tokens to the next."""
    queue_s: float | None
    """From its arrival until a worker began with it."""


@dataclass(slots=True)
class InHand:
    """What a tenant has at this gateway now."""

    running: int = 0
    queued: int = 0
    published: int = 0
    """Tokens of those jobs that have arrived."""


class Recorder:
    """The sums of the current slot. For one event loop."""

    def __init__(self) -> None:
        self.sums = Sums()
        self.targets_ms: Mapping[str, tuple[float, float]] = {}
        """By lane: TTFT and TPOT; whoever tells the figures knows how fast the workers are."""
        self._settled: defaultdict[str, int] = defaultdict(int)
        """Output tokens charged since the last telling, by tenant."""
        self._published: dict[str, int] = {}
        """Tokens that had arrived of jobs in hand at the last telling, by tenant."""

    def ended(self, request: Ended) -> None:
        """Count a request that is over."""
        sums, code = self.sums, request.code
        if code != OK and code in REFUSED:
            sums.refusals[code] = sums.refusals.get(code, 0) + 1
        if request.lane == NO_LANE:
            return
        lane = sums.lane(request.lane)
        self._count(lane, request)
        tenant = sums.tenant(self._known(request.tenant))
        tenant.requests += 1
        tenant.refused += code in REFUSED

    def charged(self, tenant: str, output_tokens: int) -> None:
        """A job was settled."""
        self._settled[self._known(tenant)] += output_tokens

    def look(self, in_hand: Mapping[str, InHand], since_s: float) -> None:
        """Count what the tenants have in hand, who had it for so long, and what they got since the last look."""
        published: dict[str, int] = {}
        for name in {*in_hand, *self._settled, *self._published}:
            known, had = self._known(name), in_hand.get(name, InHand())
            tenant = self.sums.tenant(known)
            tenant.running_s += had.running * since_s
            tenant.queued_s += had.queued * since_s
            new = had.published + self._settled.get(name, 0) - self._published.get(name, 0)
            tenant.output_tokens += max(0, new)
            if had.published:
                published[name] = had.published
        self._published = published
        self._settled.clear()

    def begin(self) -> None:
        """Start the next slot."""
        self.sums = Sums()

    def _count(self, lane: LaneSums, request: Ended) -> None:
        code, ttft_s, pace_s = request.code, request.ttft_s, request.pace_s
        lane.requests += 1
        lane.refused += code in REFUSED
        if request.queue_s is not None:
            observe(lane.queue_wait, request.queue_s * 1e3)
        if ttft_s is not None:
            observe(lane.ttft, ttft_s * 1e3)
        if pace_s is not None and math.isfinite(pace_s):
            observe(lane.tpot, pace_s * 1e3)
        if code == OK or code in JUDGED:
            lane.judged += 1
            lane.met += code == OK and ttft_s is not None and self._met(request.lane, ttft_s, pace_s)

    def _met(self, lane: str, ttft_s: float, pace_s: float | None) -> bool:
        ttft_ms, tpot_ms = self.targets_ms.get(lane, (math.inf, math.inf))
        paces = pace_s is not None and math.isfinite(pace_s)
        return ttft_s * 1e3 <= ttft_ms and not (paces and pace_s is not None and pace_s * 1e3 > tpot_ms)

    def _known(self, tenant: str) -> str:
        known = self.sums.tenants
        return tenant if tenant in known or len(known) < MOST_COUNTED else OTHERS


def targets(lanes: Mapping[LaneName, Lane], single_stream_ms: float) -> dict[str, tuple[float, float]]:
    """What each lane aims at on workers of that speed: TTFT and TPOT in ms."""
    return {name.value: (lane.ttft_ms, lane.tpot_on(single_stream_ms)) for name, lane in lanes.items()}


def in_hand(jobs: Iterable[tuple[str, bool, int]]) -> dict[str, InHand]:
    """By tenant, from each job's tenant, whether it has begun, and its tokens that have arrived."""
    found: defaultdict[str, InHand] = defaultdict(InHand)
    for tenant, begun, published in jobs:
        had = found[tenant]
        had.running += begun
        had.queued += not begun
        had.published += published
    return dict(found)
