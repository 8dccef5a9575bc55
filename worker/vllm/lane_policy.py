"""A request's claim on the engine, and the order of waiting and of running requests, by the planner's rules.

A vLLM request carries less information than a job: its `priority`, and the extra arguments below."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.ordering import DECODE_WEIGHT, PREFILL_WEIGHT, STEP_WINDOW, Counters, prospects
from fairlane.scheduler.protocol.engine_priority import decode
from fairlane.scheduler.protocol.lanes import Lane, LaneName

# Extra arguments of a request (`vllm_xargs`): the tenant to charge, and its weight, 1 by default.
TENANT, WEIGHT = "fairlane_tenant", "fairlane_weight"
# Extra argument of a request with a grammar: the number of its prompt's last tokens that the grammar starts with.
BEGUN = "fairlane_begun"
# Extra argument of a request whose sender already paces the prompts of lower lanes, so that they are not paced twice.
PACED = "fairlane_paced"
LONGEST_TENANT = 256
WEIGHTS = (1e-3, 1e6)


class Claim(NamedTuple):
    """A request's claim on the engine. Immutable."""

    lane: Lane
    # Its `priority` if that does not encode a lane, else 0; lower is served first within its lane.
    plain: int
    guaranteed: bool
    due_ms: float
    arrived_ms: float
    tenant: str
    weight: float
    # Its prompt must not be split.
    is_paced: bool


def service(claim: Claim, prefilled: int, produced: int) -> float:
    """Return the service of this many prompt and output tokens."""
    return (PREFILL_WEIGHT * prefilled + DECODE_WEIGHT * produced) / claim.weight


class Progress(NamedTuple):
    """A request's number of known tokens, and of those with KV."""

    tokens: int
    computed: int
    has_output: bool


class Rank(NamedTuple):
    """A place in the order, lower is more urgent. Ranks of waiting and of running work are comparable only by lane."""

    # 0 if its lane has fewer slots than its share floor, so that it ranks first; else 1.
    keeps_floor: int
    lane: int
    plain: int
    outside_window: bool
    # 0 guaranteed, 1 best effort, 2 deadline already missed.
    service_class: int
    # 0 with output, 1 without.
    phase: int
    urgency: float
    # Waiting work: its tenant's counter. Running work: minus the number of tokens lost by yielding.
    cost: float
    due_ms: float
    arrived_ms: float


def claim_of(priority: int, extra: Mapping[str, object] | None, arrived_ms: float, lanes: Iterable[Lane]) -> Claim:
    """Read a request's claim. Invalid extra arguments are ignored, so that a client's mistake does not affect other
    clients.

    A plain priority of 0 or less, vLLM's default, means the first lane, and one above 0 the last."""
    ranked = sorted(lanes, key=lambda one: one.rank)
    encoded, given = decode(priority), extra or {}
    tenant, weight = given.get(TENANT), given.get(WEIGHT)
    is_weight = isinstance(weight, int | float) and WEIGHTS[0] <= weight <= WEIGHTS[1]
    lane = ranked[min(encoded.lane_rank, len(ranked) - 1)] if encoded else ranked[0 if priority <= 0 else -1]
    return Claim(
        lane=lane,
        plain=0 if encoded else priority,
        guaranteed=encoded is not None and encoded.guaranteed,
        due_ms=encoded.due_ms if encoded else arrived_ms + lane.ttft_ms,
        arrived_ms=arrived_ms,
        tenant=tenant if isinstance(tenant, str) and len(tenant) <= LONGEST_TENANT else "",
        weight=float(weight) if is_weight and isinstance(weight, int | float) else 1.0,
        is_paced=bool(given.get(PACED)),
    )


def begun_of(extra: Mapping[str, object] | None) -> int:
    """Return the number of the prompt's last tokens that its grammar starts with; 0 by default."""
    begun = (extra or {}).get(BEGUN)
    return max(0, begun) if isinstance(begun, int) and not isinstance(begun, bool) else 0


class LanePolicy:
    """The current order, and the tenants' counters that it depends on. `costs` is trained elsewhere."""

    def __init__(self, lanes: Mapping[LaneName, Lane], costs: CostModel) -> None:
        self.lanes = lanes
        self._costs = costs
        self.counters = {name: Counters(STEP_WINDOW) for name in lanes}
        # Tenants with waiting or running requests.
        self._here: dict[LaneName, set[str]] = {name: set() for name in lanes}
        # The smallest counter among waiting tenants; infinity without any.
        self._least = dict.fromkeys(lanes, math.inf)
        # Counters up to which a tenant is inside the window.
        self._ends = dict.fromkeys(lanes, math.inf)
        self._now_ms = 0.0
        self._base_ms = self._token_ms = self._pair_ms = 0.0

    def begin(self, now_ms: float, waiting: Iterable[Claim], running: Iterable[Claim]) -> None:
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
            if not (waits[name] or runs[name]):  # an idle lane forgets its history
                self.counters[name] = Counters(STEP_WINDOW)
            self._least[name] = min(map(self.counters[name].value, waits[name]), default=math.inf)
            self._here[name] = waits[name] | runs[name]
            self.counters[name].forget_idle(self._here[name])
            self._ends[name] = self._least[name] + self.lanes[name].window(STEP_WINDOW, self._token_ms)

    def arrive(self, claim: Claim) -> None:
        """Record an arrival. A new tenant starts at the counter of the least served tenant present."""
        here, counters = self._here[claim.lane.name], self.counters[claim.lane.name]
        if claim.tenant not in here:
            counters.lift(claim.tenant, here)
            here.add(claim.tenant)

    def charge(self, lane: LaneName, tenant: str, service: float) -> None:
        self.counters[lane].charge(tenant, service, 1.0)

    def lane_rank(self, claim: Claim) -> int:
        is_promoted = self._now_ms - claim.arrived_ms >= claim.lane.long_wait_ms
        return max(0, claim.lane.rank - is_promoted)

    def waiting_rank(self, claim: Claim, progress: Progress, *, keeps_floor: bool = False) -> Rank:
        counter = self._counter(claim)
        return self._rank(claim, progress, counter, 0 if keeps_floor else 1, counter)

    def running_rank(self, claim: Claim, progress: Progress) -> Rank:
        return self._rank(claim, progress, self._counter(claim), 1, -progress.computed)

    def _rank(self, claim: Claim, progress: Progress, counter: float, floor: int, cost: float) -> Rank:
        service_class, urgency = self._prospects(claim, progress, counter)
        return Rank(
            floor,
            self.lane_rank(claim),
            claim.plain,
            not claim.guaranteed and counter > self._ends[claim.lane.name],
            service_class,
            not progress.has_output,
            urgency,
            cost,
            claim.due_ms,
            claim.arrived_ms,
        )

    def _counter(self, claim: Claim) -> float:
        return self.counters[claim.lane.name].value(claim.tenant)

    def _prospects(self, claim: Claim, progress: Progress, counter: float) -> tuple[int, float]:
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
