"""How many workers serve while the load changes: a HorizontalPodAutoscaler's rule on what KEDA reads of the gateways.

Each figure asks for so many workers that its target is kept by each; the largest counts. A tenth too much or too little
changes nothing. Rates and the stabilisation of going down are those of `behavior` in autoscaling/v2. A worker costs
from its start on, serves once it is ready, and, told to go, takes no more and finishes what it has.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fairlane.scheduler.protocol.lanes import LaneName

TOLERANCE = 0.1
"""kube-controller-manager's `horizontal-pod-autoscaler-tolerance`."""
Phase = Literal["off", "starts", "serves", "drains"]


class FleetLoad(NamedTuple):
    """What gateways tell at one moment, by lane."""

    queued_tokens: Mapping[LaneName, int]
    running: Mapping[LaneName, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRule:
    """As `autoscaling` of the chart states it, and what starting a worker takes. Times are milliseconds."""

    least: int
    most: int
    queued_tokens: Mapping[LaneName, float] = field(default_factory=dict)
    """For each worker, by lane; a lane that is not named asks for nobody."""
    running: Mapping[LaneName, float] = field(default_factory=dict)
    """The same of requests."""
    every_ms: float = 15_000.0
    """Between two looks."""
    start_ms: float = 90_000.0
    """From the decision until a worker takes work: a pod's start, and loading the model."""
    up_share: float = 1.0
    """Part of the workers by which they may grow in `up_period_ms`."""
    up_period_ms: float = 60_000.0
    down_workers: int = 1
    """So many may go in `down_period_ms`."""
    down_period_ms: float = 120_000.0
    down_window_ms: float = 600_000.0
    """Fewer are wanted once no look in so long has wanted more."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"a rule needs 1 <= least <= most, not {self.least} and {self.most}")

    def asked(self, load: FleetLoad, workers: int) -> int:
        """Workers that the load asks for, where there are so many; between `least` and `most`."""
        figures = [
            (load.queued_tokens.get(lane, 0), target) for lane, target in self.queued_tokens.items()
        ] + [(load.running.get(lane, 0), target) for lane, target in self.running.items()]  # fmt: skip
        wanted = [_for_one(value, target, workers) for value, target in figures]
        return min(self.most, max(self.least, *wanted)) if wanted else max(self.least, workers)


def _for_one(value: float, target: float, workers: int) -> int:
    if workers and abs(value / (target * workers) - 1.0) <= TOLERANCE:
        return workers
    return math.ceil(value / target)


class Autoscaler:
    """The rule over time: it remembers what it wanted and what it changed."""

    def __init__(self, rule: ScalingRule) -> None:
        self.rule = rule
        self._asked: deque[tuple[float, int]] = deque()
        self._grown: deque[tuple[float, int]] = deque()
        self._shrunk: deque[tuple[float, int]] = deque()

    def wanted(self, now_ms: float, load: FleetLoad, workers: int) -> int:
        """How many there should be from now on, where `workers` start or serve."""
        rule = self.rule
        asked = rule.asked(load, workers)
        self._asked.append((now_ms, asked))
        _forget(self._asked, now_ms - rule.down_window_ms)
        if asked > workers:
            before = workers - _sum_since(self._grown, now_ms - rule.up_period_ms)
            wanted = min(asked, max(workers, math.ceil(before * (1.0 + rule.up_share))))
        else:
            before = workers + _sum_since(self._shrunk, now_ms - rule.down_period_ms)
            lowest = max(before - rule.down_workers, max(asked for _, asked in self._asked))
            wanted = min(workers, lowest)
        changes = self._grown if wanted > workers else self._shrunk
        if wanted != workers:
            changes.append((now_ms, abs(wanted - workers)))
        return wanted


def _forget(kept: deque[tuple[float, int]], before_ms: float) -> None:
    while kept and kept[0][0] <= before_ms:
        kept.popleft()


def _sum_since(kept: deque[tuple[float, int]], since_ms: float) -> int:
    _forget(kept, since_ms)
    return sum(many for _, many in kept)


class FleetSize(NamedTuple):
    """The fleet after a look."""

    at_ms: float
    wanted: int
    serving: int


class ScaledFleet:
    """Which of a simulation's workers there are. It needs as many as may serve and drain at a time."""

    def __init__(self, autoscaler: Autoscaler, workers: int) -> None:
        self.autoscaler = autoscaler
        self.sizes: list[FleetSize] = []
        """After each look."""
        self.paid_ms = 0.0
        """Of all workers, from start to end; those that still are there are added by `close`."""
        least = autoscaler.rule.least
        if workers < autoscaler.rule.most:
            raise ValueError(f"{workers} workers cannot become {autoscaler.rule.most}")
        self._phases: list[Phase] = ["serves" if number < least else "off" for number in range(workers)]
        self._since = [0.0] * workers

    def serves(self, number: int) -> bool:
        """It takes work."""
        return self._phases[number] == "serves"

    def look(self, now_ms: float, load: FleetLoad, held: Sequence[int]) -> tuple[list[int], list[int]]:
        """Those that begin to start, and those that are told to go; `held`: how much each has in hand."""
        there = [number for number, phase in enumerate(self._phases) if phase in ("starts", "serves")]
        wanted = self.autoscaler.wanted(now_ms, load, len(there))
        free = [number for number, phase in enumerate(self._phases) if phase == "off"]
        started = free[: max(0, wanted - len(there))]
        by_worth = sorted(there, key=lambda number: (self._phases[number] == "serves", held[number], -number))
        gone = by_worth[: max(0, len(there) - wanted)]
        for number in started:
            self._phases[number], self._since[number] = "starts", now_ms
        for number in gone:
            if held[number] and self.serves(number):
                self._phases[number] = "drains"
            else:
                self._end(number, now_ms)
        self.sizes.append(FleetSize(now_ms, wanted, self._phases.count("serves")))
        return started, gone

    def ready(self, number: int, now_ms: float) -> bool:
        """Its model is loaded. False where it was told to go before that."""
        if self._phases[number] != "starts" or now_ms < self._since[number] + self.autoscaler.rule.start_ms:
            return False
        self._phases[number] = "serves"
        return True

    def emptied(self, number: int, now_ms: float) -> bool:
        """It has nothing in hand: True where it ends with that, or has ended."""
        if self._phases[number] == "drains":
            self._end(number, now_ms)
        return self._phases[number] == "off"

    def close(self, now_ms: float) -> None:
        """The end of the simulation."""
        for number, phase in enumerate(self._phases):
            if phase != "off":
                self._end(number, now_ms)

    def _end(self, number: int, now_ms: float) -> None:
        self.paid_ms += now_ms - self._since[number]
        self._phases[number] = "off"
