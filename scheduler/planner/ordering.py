"""What comes first: fairness between the tenants of a lane, urgency, and when a first token is due.

When a first token is due is one rule for gateway, queue and planner (`next_due_ms`). A stated end pulls the first token
forward by the time that the others take. How long that is the gateway knows best, from what workers report; it writes
the pace that it reckoned with on the job, so that nobody orders by another figure. Among work that has not begun, what
can still be in time goes first, of that the short and the pressed (`prospects`).

Fairness is VTC's: a virtual token counter for each tenant and lane, with an eligibility window Θ. A counter is the
weighted service a tenant has had: `tokens / weight`, summed. It never falls behind on idleness: a tenant that begins to
wait is lifted to the smallest counter of those that already do (credit is use it or lose it, debt is kept). Where
nobody waits everyone has had what it asked for, and the lane is level again, as at the end of a busy period in
start-time fair queueing: whoever comes starts from the largest counter, and who runs stands there too, so that a tenant
that had the lane to itself is not made to wait for it afterwards, nor one for having asked for little.

Invariant: with every charge at most Δ, and only those within Θ of the smallest counter served while one of them is, the
counters of tenants that go on waiting differ by at most Θ + Δ; neither KV pool nor output lengths enter. A worker
serves the others too where rows are free, and takes their blocks and rows away for one request a step up to 2 Θ, and
for all beyond: there counters differ by at most 3 Θ + 2 Δ, Δ being a step's prefill tokens and twice its sequences,
divided by the smallest weight; but for what a tenant cannot use, because its own requests leave the pool no room for
its next one (tests/scheduler/planner/test_planner_fairness.py hunts for a violation). Without host slots the leader's
remaining cost comes on top; over several workers each adds what it has taken and not reported yet, a quantum and a
batch of reports. Θ is that of the lane (`Lane.window`): where deadlines press, what a worker computes in
`Lane.burst_ms` at least.

A newcomer, of whose tenant nothing that is there has a token yet, goes before all begun work but of tenants that are
behind it by more than Θ, one more of them a step: its first token is not made to wait for rows, blocks or time that
others hold, however many steps its prompt takes; it leaves each step's decodes their tokens. Where a tenant has begun
less than a quarter as much as another, prompts in progress counted higher (`LaneIndex.held`), its next request goes
before that one's in the same way, in lanes whose Θ is wide because deadlines press: a stream of its own puts nobody's
next request behind another's flood or long prompts. Where Θ is a few steps who is behind is served soon
anyhow, and tenants with few rows and with many would take them from each other without end. The tenant's counter pays
for it as for all else, so this moves who is first within Θ, and not the bound. Where two tenants have begun for each
row of a lane, nobody is a newcomer there (`priority.CROWD`). A stream that was stopped for want of a row counts as
waiting: its tenant's counter bounds how far the others may be ahead. Who has a row keeps it for a turn (`priority`).

What is guaranteed its deadline is served whether its tenant is outside Θ or not, and counts. So while a tenant has
guaranteed work, it may be ahead by as much more as that comes to; but the queue promises nothing to a tenant that is
ahead of another that waits by more than Θ, with what it was promised already and waits for: so that is no more than Θ
and the work of one request, and what had begun by then. Of all workers' time until any moment at most 1 /
`promises.MARGIN`, two thirds, is promised. Promises are kept as early as they can be, and what that frees is promised
anew: a tenant that dates everything may have all of the time for long. Of newcomers this holds: where promised work
waits in a worker, the first of a tenant that has no token there goes before it, one step of such prompts at once and
beyond that `lane_index.NEWCOMER_PART`, a quarter, of what promised prompts compute meanwhile. Those take a quarter
longer for it at most, which the margin covers; newcomers beyond that, and all else that is not promised, wait until
the promises are kept or their tenant is promised no more because it is ahead.
Source: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024); the window is that of WF2Q and EEVDF.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import chain

from fairlane.scheduler.planner.steps import require
from fairlane.scheduler.protocol.lanes import Lane
from fairlane.scheduler.protocol.messages import Job

PREFILL_WEIGHT = 1.0
DECODE_WEIGHT = 2.0
"""Service of a computed prompt token and of a produced one (VTC, OSDI'24)."""
QUEUE_WINDOW = 4096.0
"""Θ of the global queue in weighted tokens: jobs are taken whole, so about twice the cost of a mean request."""
STEP_WINDOW = 800.0
"""Θ of a worker, which evens out step by step: in VTC's overload, about the cost of one request."""

BEHIND = 1.0
"""Weighted tokens by which whoever comes to the queue starts behind the least served that waits there. Of many tenants
with one request each, all of which start where those before them did, the first would else be whoever's name is."""

SPARE_COUNTERS = 256
"""A worker looks for counters to forget once a lane has so many."""

HELD_BACK = 0.25
"""Part of the time until it is due for which guaranteed work of a lower lane waits behind the lanes above."""


class Counters:
    """The counters of one lane. `backlogged` is always the caller's set of tenants with work to be done."""

    def __init__(self, window: float = QUEUE_WINDOW) -> None:
        require("window", window, 0.0)
        self.window = window
        self.level = 0.0
        """Where tenants without a counter stand: the smallest backlogged counter when others were last forgotten."""
        self._values: dict[str, float] = {}
        self._most = SPARE_COUNTERS

    def value(self, tenant: str) -> float:
        """Weighted tokens; 0 for a tenant never seen."""
        return self._values.get(tenant, 0.0)

    @property
    def values(self) -> Mapping[str, float]:
        """Weighted tokens of each tenant that was seen: a live view."""
        return self._values

    def floor(self, backlogged: Iterable[str]) -> float:
        """The smallest counter of the backlogged; with none of them the largest of all: where a newcomer starts."""
        least = min(map(self.value, backlogged), default=None)
        return max(self._values.values(), default=self.level) if least is None else least

    def lift(self, tenant: str, backlogged: Iterable[str]) -> float:
        """To call when `tenant` becomes backlogged; returns its counter: BEHIND those who were there before it.
        `backlogged` may hold it already."""
        others = [other for other in backlogged if other != tenant]
        self._values[tenant] = max(self.value(tenant), self.floor(others) + (BEHIND if others else 0.0))
        return self._values[tenant]

    def lift_to(self, tenant: str, least: float) -> None:
        """The same for a caller that knows the smallest backlogged counter."""
        self._values[tenant] = max(self.value(tenant), least)

    def charge(self, tenant: str, tokens: float, weight: float) -> float:
        """Count `tokens` of service (negative: a refund) for a tenant of this weight (> 0); returns its counter."""
        value = self._values[tenant] = self._values.get(tenant, self.level) + tokens / weight
        return value

    def level_out(self) -> None:
        """Forget all counters, where no work waits: all tenants stand at the largest of them."""
        self.level = self.floor(())
        self._values.clear()

    def forget(self, least: float, most: int) -> bool:
        """Forget counters below `least`, the smallest of the backlogged: a tenant that becomes backlogged is lifted to
        that anyway. At most `most`, the lowest first. Return whether more are left."""
        below = sorted((value, tenant) for tenant, value in self._values.items() if value < least)
        for _, tenant in below[:most]:
            del self._values[tenant]
        self.level = least if below else self.level
        return len(below) > most

    def forget_idle(self, *busy: Iterable[str]) -> None:
        """Forget counters below those of all `busy` tenants, once there are twice as many counters as the last time
        left: a call costs O(1) on average."""
        if len(self._values) >= self._most:
            self.forget(self.floor(chain(*busy)), len(self._values))
            self._most = max(SPARE_COUNTERS, 2 * len(self._values))


PLENTY = 50.0
"""Slack, in units of the time that the first token takes to compute, beyond which a deadline orders nothing."""
SHORT_FIRST = 30.0
"""How much sooner a deadline counts for each millisecond that the first token takes to compute."""
LEAD = 3.0
"""How much later a deadline counts for each millisecond of the worker's time by which its tenant is ahead."""


def prospects(
    slack_ms: float,
    service_ms: float,
    lead_ms: float,
    waited_ms: float,
    long_wait_ms: float,
    *,
    guaranteed: bool = False,
) -> tuple[bool, float]:
    """Whether to relegate waiting work of its class, and its urgency (lower is sooner). What was guaranteed its
    deadline is never relegated.

    `service_ms`: what its first token takes to compute, 0.0 while nobody knows; `slack_ms`: time to spare before that
    has to begin; `lead_ms`: how long its tenant's lead over the least served would take to compute as prompts.

    A deadline far off does not order: the tenants' counters do. Of others the earlier comes first, and the shorter far
    more so (Niyama's blend of EDF and shortest prefill first): under overload few long prompts wait instead of
    everyone. Who has had more counts as due later, step by step: the window alone would let a tenant run ahead
    unhindered, and then stop it dead. What is too late anyway is relegated: among that no deadline orders any more, but
    the tenants' counters do. Once it has waited `long_wait_ms`, the eldest comes first.
    """
    is_known = service_ms > 0.0
    if waited_ms >= long_wait_ms:
        return False, -waited_ms
    if is_known and slack_ms > PLENTY * service_ms:
        return False, math.inf
    if is_known and slack_ms < 0.0 and not guaranteed:
        return True, math.inf
    return False, slack_ms + SHORT_FIRST * service_ms + LEAD * lead_ms


def first_due_ms(job: Job) -> float:
    """From a job's arrival to when its first token is due: by its target, or as stated, whatever is earliest."""
    stated = job.ttft_ms if job.hard_ttft_ms is None else min(job.ttft_ms, job.hard_ttft_ms)
    return max(0.0, next_due_ms(stated, job.deadline_ms, job.max_tokens, job.pace_ms or job.tpot_ms))


def promised_due_ms(job: Job) -> float:
    """From its arrival to when the first token of a guaranteed job must be there: by what was stated alone."""
    pace_ms = job.pace_ms or job.tpot_ms
    stated = None if job.hard_ttft_ms is None else job.hard_ttft_ms - pace_ms
    return max(0.0, next_due_ms(stated, job.deadline_ms, job.max_tokens, pace_ms))


def promoted_ms(job: Job, lane: Lane) -> float:
    """From a job's arrival to when it counts for the lane above: once it has waited long; or, of what was guaranteed,
    once a part of the time until its first token has passed."""
    if not job.guaranteed:
        return lane.long_wait_ms
    return min(lane.long_wait_ms, HELD_BACK * promised_due_ms(job))


def next_due_ms(ttft_ms: float | None, end_ms: float | None, tokens: int, pace_ms: float) -> float:
    """The same of any request with so many tokens yet to come, each `pace_ms` after its elder. `ttft_ms`: None once the
    first is there. Infinity where nothing is due; below zero where it is too late."""
    dues = [] if ttft_ms is None else [ttft_ms]
    if end_ms is not None:
        dues.append(end_ms - tokens * pace_ms)
    return min(dues, default=math.inf)
