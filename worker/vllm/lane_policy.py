"""What a request claims of an engine, and the one order of its waiting and of its running requests.

The rules are the planner's: lane, fairness window of the tenant, promise, and what can still be in time before what
cannot (`prospects`); work that has begun before work that has not. What differs is what an engine's request carries:
its `priority`, and two extra arguments.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.ordering import DECODE_WEIGHT, PREFILL_WEIGHT, STEP_WINDOW, Counters, prospects
from fairlane.scheduler.protocol.engine_priority import decode
from fairlane.scheduler.protocol.lanes import Lane, LaneName

TENANT, WEIGHT = "fairlane_tenant", "fairlane_weight"
"""Extra arguments of a request (`vllm_xargs`): whom its service counts for, and what that one's share is, 1 by
default."""
BEGUN = "fairlane_begun"
"""Extra argument of a request with a grammar: how many of its prompt's last tokens that has to begin with."""
PACED = "fairlane_paced"
"""Extra argument of a request whose sender meters the prompts of lower lanes itself: to cut them again would keep the
first lane's pace twice, and a slot that waits for the rest of its prompt yields nothing."""
LONGEST_TENANT = 256
WEIGHTS = (1e-3, 1e6)


class Claim(NamedTuple):
    """What a request claims; it never changes."""

    lane: Lane
    plain: int
    """Its `priority` where that is a plain number, 0 else: the lower goes first in its lane."""
    guaranteed: bool
    due_ms: float
    """When its first token is due."""
    arrived_ms: float
    tenant: str
    weight: float
    is_paced: bool
    """Its prompt is not cut."""


def service(claim: Claim, prefilled: int, produced: int) -> float:
    """What so many tokens of its prompt and of its output count for."""
    return (PREFILL_WEIGHT * prefilled + DECODE_WEIGHT * produced) / claim.weight


class Progress(NamedTuple):
    """How far a request is."""

    tokens: int
    """Known: of its prompt and of its output."""
    computed: int
    """Of those, the ones whose KV is there."""
    has_output: bool


class Rank(NamedTuple):
    """A place in the order, lower is more urgent. Waiting and running work are never compared by it but in the lane."""

    keeps_floor: int
    """0: it goes first, for its lane lacks a slot of its share floor; 1 else."""
    lane: int
    plain: int
    outside_window: bool
    service_class: int
    """0 guaranteed, 1 best effort, 2 too late anyway."""
    phase: int
    """0: it has output; 1: it has none yet."""
    urgency: float
    cost: float
    """Of waiting work its tenant's counter. Of running work the tokens that it would lose by yielding, negated: the
    least goes last."""
    due_ms: float
    arrived_ms: float


def claim_of(priority: int, extra: Mapping[str, object] | None, arrived_ms: float, lanes: Iterable[Lane]) -> Claim:
    """Read a claim. Extra arguments that make no sense are left out: a client's mistake disturbs nobody.

    A rank beyond the last lane's is the last lane's. A plain priority of 0 or less, vLLM's default, is of the first
    lane, and one above 0 of the last.
    """
    ranked = sorted(lanes, key=lambda one: one.rank)
    told, given = decode(priority), extra or {}
    tenant, weight = given.get(TENANT), given.get(WEIGHT)
    is_weight = isinstance(weight, int | float) and WEIGHTS[0] <= weight <= WEIGHTS[1]
    lane = ranked[min(told.lane_rank, len(ranked) - 1)] if told else ranked[0 if priority <= 0 else -1]
    return Claim(
        lane=lane,
        plain=0 if told else priority,
        guaranteed=told is not None and told.guaranteed,
        due_ms=told.due_ms if told else arrived_ms + lane.ttft_ms,
        arrived_ms=arrived_ms,
        tenant=tenant if isinstance(tenant, str) and len(tenant) <= LONGEST_TENANT else "",
        weight=float(weight) if is_weight and isinstance(weight, int | float) else 1.0,
        is_paced=bool(given.get(PACED)),
    )


def begun_of(extra: Mapping[str, object] | None) -> int:
    """How many of a prompt's last tokens its grammar has to begin with; 0 where that is not said."""
    begun = (extra or {}).get(BEGUN)
    return max(0, begun) if isinstance(begun, int) and not isinstance(begun, bool) else 0


class LanePolicy:
    """The order at a moment, and the tenants' counters behind it. `costs` learns elsewhere."""

    def __init__(self, lanes: Mapping[LaneName, Lane], costs: CostModel, window: float = STEP_WINDOW) -> None:
        self.lanes = lanes
        self._costs = costs
        self._window = window
        self.counters = {name: Counters(window) for name in lanes}
        self._here: dict[LaneName, set[str]] = {name: set() for name in lanes}
        """Tenants whose requests wait or run, as of late."""
        self._least = dict.fromkeys(lanes, math.inf)
        """The smallest counter of those that wait; infinity where nobody does."""
        self._ends = dict.fromkeys(lanes, math.inf)
        """Counters up to which a tenant is inside the window."""
        self._now_ms = 0.0
        self._base_ms = self._token_ms = self._pair_ms = 0.0

    def begin(self, now_ms: float, waiting: Iterable[Claim], running: Iterable[Claim]) -> None:
        """Look at the time, at who is here, and at what steps cost. To be called before ranks are asked for anew."""
        self._now_ms = now_ms
        if self._costs.knows_steps:
            self._base_ms = self._costs.step_weights()[0]
            self._token_ms, self._pair_ms = self._costs.prefill_ms()
        waits: dict[LaneName, set[str]] = {name: set() for name in self.lanes}
        runs: dict[LaneName, set[str]] = {name: set() for name in self.lanes}
        for claims, tenants in ((waiting, waits), (running, runs)):
            for claim in claims:
                tenants[claim.lane.name].add(claim.tenant)
        for name in self.lanes:
            if not (waits[name] or runs[name]):  # the lane is level again
                self.counters[name] = Counters(self._window)
            self._least[name] = min(map(self.counters[name].value, waits[name]), default=math.inf)
            self._here[name] = waits[name] | runs[name]
            self.counters[name].forget_idle(self._here[name])
            self._ends[name] = self._least[name] + self.lanes[name].window(self._window, self._token_ms)

    def arrive(self, claim: Claim) -> None:
        """A request came. A tenant of which nothing is here starts from the least served of those that are."""
        here, counters = self._here[claim.lane.name], self.counters[claim.lane.name]
        if claim.tenant not in here:
            counters.lift(claim.tenant, here)
            here.add(claim.tenant)

    def charge(self, lane: LaneName, tenant: str, service: float) -> None:
        """Count a step's service (`service`), each token by its request's weight."""
        self.counters[lane].charge(tenant, service, 1.0)

    def lane_rank(self, claim: Claim) -> int:
        """Its lane's rank, one higher once it has waited long."""
        is_promoted = self._now_ms - claim.arrived_ms >= claim.lane.long_wait_ms
        return max(0, claim.lane.rank - is_promoted)

    def waiting_rank(self, claim: Claim, progress: Progress, *, keeps_floor: bool = False) -> Rank:
        """The place of a request that waits, for the first time or again."""
        counter = self._counter(claim)
        return self._rank(claim, progress, counter, 0 if keeps_floor else 1, counter)

    def running_rank(self, claim: Claim, progress: Progress) -> Rank:
        """The place of a request that runs: the last yields first, and is the last to get a step's tokens."""
        return self._rank(claim, progress, self._counter(claim), 1, -progress.computed)

    def _rank(self, claim: Claim, progress: Progress, counter: float, floor: int, cost: float) -> Rank:
        """`floor`, `cost`: as `Rank` has them."""
        service_class, urgency = self._prospects(claim, progress, counter)
        return Rank(
            floor,
            self.lane_rank(claim),
            claim.plain,
            self._is_outside(claim, counter),
            service_class,
            not progress.has_output,
            urgency,
            cost,
            claim.due_ms,
            claim.arrived_ms,
        )

    def _counter(self, claim: Claim) -> float:
        return self.counters[claim.lane.name].value(claim.tenant)

    def _is_outside(self, claim: Claim, counter: float) -> bool:
        """Its tenant had more than Θ above the least served that waits. A promise holds whatever its tenant has had."""
        return not claim.guaranteed and counter > self._ends[claim.lane.name]

    def _prospects(self, claim: Claim, progress: Progress, counter: float) -> tuple[int, float]:
        """Class and urgency. With its first token out nothing is due any more that an engine was told of."""
        if progress.has_output:
            return (0 if claim.guaranteed else 1), math.inf
        tokens = progress.tokens
        service_ms = 2.0 * self._base_ms + tokens * (self._token_ms + self._pair_ms * tokens)
        lead = 0.0 if claim.guaranteed else max(0.0, counter - self._least[claim.lane.name])
        relegated, urgency = prospects(
            claim.due_ms - self._now_ms - service_ms,
            service_ms,
            lead * self._token_ms,
            self._now_ms - claim.arrived_ms,
            claim.lane.long_wait_ms,
            guaranteed=claim.guaranteed,
        )
        return (0 if claim.guaranteed else 2 if relegated else 1), urgency
