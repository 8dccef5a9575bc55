"""Fairness between the tenants of a lane, urgency, and due times of first tokens.

The rules and their bounds are in docs/internals/scheduling.md. Source: Sheng et al., "Fairness in Serving Large
Language Models" (VTC, OSDI 2024); the eligibility window Θ is that of WF2Q and EEVDF."""

import math
from collections.abc import Iterable, Mapping
from itertools import chain

from fairlane.scheduler.planner.steps import require
from fairlane.scheduler.protocol.lanes import Lane
from fairlane.scheduler.protocol.messages import Job

PREFILL_WEIGHT = 1.0
# Service of a computed prompt token and of a produced token (VTC, OSDI'24).
DECODE_WEIGHT = 2.0
# Θ of the global queue in weighted tokens: jobs are taken whole, so about twice the cost of a mean request.
QUEUE_WINDOW = 4096.0
# Θ of a worker, which balances step by step: in VTC's overload, about the cost of one request.
STEP_WINDOW = 800.0

# Weighted tokens by which a tenant that enters the queue starts behind the least served waiting one. Otherwise many
# tenants with one request each would all start level, and their names would decide the order.
BEHIND = 1.0

# Number of counters in a lane at which a worker first drops unneeded ones.
SPARE_COUNTERS = 256

# Fraction of the time until its due time for which guaranteed work of a lower lane waits behind the lanes above.
HELD_BACK = 0.25


class Counters:
    """The counters of one lane. `backlogged` is always the caller's set of tenants with pending work."""

    def __init__(self, window: float = QUEUE_WINDOW) -> None:
        require("window", window, 0.0)
        self.window = window
        # Counter of tenants without an entry: the smallest backlogged counter when entries were last dropped.
        self.level = 0.0
        self._values: dict[str, float] = {}
        self._most = SPARE_COUNTERS

    def value(self, tenant: str) -> float:
        return self._values.get(tenant, 0.0)

    @property
    def values(self) -> Mapping[str, float]:
        return self._values

    def floor(self, backlogged: Iterable[str]) -> float:
        least = min(map(self.value, backlogged), default=None)
        return max(self._values.values(), default=self.level) if least is None else least

    def lift(self, tenant: str, backlogged: Iterable[str]) -> float:
        """Lift a tenant that becomes backlogged to BEHIND the others, and return its counter."""
        others = [other for other in backlogged if other != tenant]
        self._values[tenant] = max(self.value(tenant), self.floor(others) + (BEHIND if others else 0.0))
        return self._values[tenant]

    def lift_to(self, tenant: str, least: float) -> None:
        self._values[tenant] = max(self.value(tenant), least)

    def charge(self, tenant: str, tokens: float, weight: float) -> float:
        """Add `tokens` of service (negative: a refund) for a tenant of this weight (> 0). Return its counter."""
        value = self._values[tenant] = self._values.get(tenant, self.level) + tokens / weight
        return value

    def level_out(self) -> None:
        self.level = self.floor(())
        self._values.clear()

    def forget(self, least: float, most: int) -> bool:
        """Drop at most `most` counters below `least`, the smallest backlogged one, lowest first. Return whether more
        are left."""
        below = sorted((value, tenant) for tenant, value in self._values.items() if value < least)
        for _, tenant in below[:most]:
            del self._values[tenant]
        self.level = least if below else self.level
        return len(below) > most

    def forget_idle(self, *busy: Iterable[str]) -> None:
        """Drop counters below those of all `busy` tenants, once their number has doubled: amortised O(1)."""
        if len(self._values) >= self._most:
            self.forget(self.floor(chain(*busy)), len(self._values))
            self._most = max(SPARE_COUNTERS, 2 * len(self._values))


# Slack, as a multiple of the first token's computing time, above which a deadline does not affect the order.
PLENTY = 50.0
# Milliseconds by which a deadline counts as sooner, per millisecond of the first token's computing time.
SHORT_FIRST = 30.0
# Milliseconds by which a deadline counts as later, per millisecond of worker time by which its tenant is ahead.
LEAD = 3.0


def prospects(
    slack_ms: float,
    service_ms: float,
    lead_ms: float,
    waited_ms: float,
    long_wait_ms: float,
    *,
    guaranteed: bool = False,
) -> tuple[bool, float]:
    """Return whether to relegate waiting work within its class, and its urgency (lower is sooner).

    `service_ms`: time to compute the first token, 0.0 if not known; `slack_ms`: time left before that must start;
    `lead_ms`: time to compute its tenant's lead over the least served one as prompts.

    Distant deadlines do not affect the order. Among others the earlier comes first, with a strong preference for
    shorter ones (Niyama's blend of EDF and shortest prefill first): under overload a few long prompts wait instead of
    all work. A tenant's lead delays its deadlines, since with the window alone it would run ahead and then be stopped.
    Late work is relegated unless it is guaranteed. After `long_wait_ms`, the oldest comes first."""
    is_known = service_ms > 0.0
    if waited_ms >= long_wait_ms:
        return False, -waited_ms
    if is_known and slack_ms > PLENTY * service_ms:
        return False, math.inf
    if is_known and slack_ms < 0.0 and not guaranteed:
        return True, math.inf
    return False, slack_ms + SHORT_FIRST * service_ms + LEAD * lead_ms


def first_due_ms(job: Job) -> float:
    """Return the time from a job's arrival until its first token is due, by its target and its stated deadlines."""
    stated = job.ttft_ms if job.hard_ttft_ms is None else min(job.ttft_ms, job.hard_ttft_ms)
    return max(0.0, next_due_ms(stated, job.deadline_ms, job.max_tokens, job.pace_ms or job.tpot_ms))


def promised_due_ms(job: Job) -> float:
    """Return the time from arrival by which a guaranteed job's first token is due, from stated deadlines only."""
    pace_ms = job.pace_ms or job.tpot_ms
    stated = None if job.hard_ttft_ms is None else job.hard_ttft_ms - pace_ms
    return max(0.0, next_due_ms(stated, job.deadline_ms, job.max_tokens, pace_ms))


def promoted_ms(job: Job, lane: Lane) -> float:
    """Return the time from a job's arrival until it counts for the lane above."""
    if not job.guaranteed:
        return lane.long_wait_ms
    return min(lane.long_wait_ms, HELD_BACK * promised_due_ms(job))


def next_due_ms(ttft_ms: float | None, end_ms: float | None, tokens: int, pace_ms: float) -> float:
    """Return the due time of the next of `tokens` remaining tokens, each `pace_ms` after the previous one.

    `ttft_ms` is None after the first token. Infinity means no due time; a negative value means too late."""
    due_ms = math.inf if ttft_ms is None else ttft_ms
    return due_ms if end_ms is None else min(due_ms, end_ms - tokens * pace_ms)
