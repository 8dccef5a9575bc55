"""Counts this gateway's requests for the fleet's metrics; the cost is a few additions when a request ends."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from fairlane.gateway.errors import TABLE
from fairlane.gateway.insight.fleet_metrics.sums import OTHERS, LaneSums, Sums, observe

OK = "ok"
NO_LANE = "none"
# Tenants that are counted separately between two reports; the others are counted together.
MOST_COUNTED = 256
# Error types of failures caused by the system, not the caller.
_OURS = frozenset({"overloaded_error", "server_error", "timeout_error"})
_CALLERS = frozenset({"request_timeout"})
JUDGED = frozenset(code for code, rule in TABLE.items() if rule.type in _OURS and code not in _CALLERS)
REFUSED = JUDGED | frozenset(code for code, rule in TABLE.items() if rule.status in (403, 429))


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A request that has ended; a time is None if the request never reached that point."""

    tenant: str
    lane: str
    code: str
    ttft_s: float | None
    pace_s: float | None
    # Time from arrival until a worker began the request.
    queue_s: float | None


@dataclass(slots=True)
class InHand:
    """A tenant's current jobs at this gateway."""

    running: int = 0
    queued: int = 0
    published: int = 0


class Recorder:
    """The sums of the current slot. For one event loop."""

    def __init__(self) -> None:
        self.sums = Sums()
        # TTFT and TPOT in ms by lane, set by the reporter.
        self.targets_ms: Mapping[str, tuple[float, float]] = {}
        self._settled: defaultdict[str, int] = defaultdict(int)
        self._published: dict[str, int] = {}

    def ended(self, request: Ended) -> None:
        sums, code = self.sums, request.code
        if code != OK and code in REFUSED:
            sums.refusals[code] = sums.refusals.get(code, 0) + 1
        if request.lane == NO_LANE:
            return
        is_late = self._count(sums.lane(request.lane), request)
        tenant = sums.tenant(self._known(request.tenant))
        tenant.requests += 1
        tenant.refused += code in REFUSED
        if is_late:
            tenant.late[request.lane] = tenant.late.get(request.lane, 0) + 1

    def charged(self, tenant: str, output_tokens: int) -> None:
        self._settled[self._known(tenant)] += output_tokens

    def look(self, in_hand: Mapping[str, InHand], since_s: float) -> None:
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

    def _count(self, lane: LaneSums, request: Ended) -> bool:
        """Count a request, and return whether it should have met the lane's targets and did not."""
        code, ttft_s, pace_s = request.code, request.ttft_s, request.pace_s
        lane.requests += 1
        lane.refused += code in REFUSED
        if request.queue_s is not None:
            observe(lane.queue_wait, request.queue_s * 1e3)
        if ttft_s is not None:
            observe(lane.ttft, ttft_s * 1e3)
        if pace_s is not None:
            observe(lane.tpot, pace_s * 1e3)
        if code != OK and code not in JUDGED:
            return False
        has_met = code == OK and ttft_s is not None and self._met(request.lane, ttft_s, pace_s)
        lane.judged += 1
        lane.met += has_met
        return not has_met

    def _met(self, lane: str, ttft_s: float, pace_s: float | None) -> bool:
        ttft_ms, tpot_ms = self.targets_ms.get(lane, (math.inf, math.inf))
        return ttft_s * 1e3 <= ttft_ms and (pace_s is None or pace_s * 1e3 <= tpot_ms)

    def _known(self, tenant: str) -> str:
        known = self.sums.tenants
        return tenant if tenant in known or len(known) < MOST_COUNTED else OTHERS


def in_hand(jobs: Iterable[tuple[str, bool, int]]) -> dict[str, InHand]:
    """Sum jobs by tenant. Each job is its tenant, whether it has begun, and its received tokens."""
    found: defaultdict[str, InHand] = defaultdict(InHand)
    for tenant, begun, published in jobs:
        had = found[tenant]
        had.running += begun
        had.queued += not begun
        had.published += published
    return dict(found)
