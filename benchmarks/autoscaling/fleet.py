"""The number of workers under a changing load, by a HorizontalPodAutoscaler's rule on the gateways' metrics as KEDA
reads them.

Each metric requires enough workers to keep its target per worker; the largest requirement counts, with a tolerance of a
tenth. Rates and the stabilisation of scaling down are those of `behavior` in autoscaling/v2. A worker costs from its
start on and serves once it is ready. When it is scaled down it takes no more jobs and finishes those that it has."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fairlane.scheduler.protocol.lanes import LaneName


class FleetLoad(NamedTuple):
    """The gateways' metrics at one moment, by lane."""

    queued_tokens: Mapping[LaneName, int]
    running: Mapping[LaneName, int]


# kube-controller-manager's `horizontal-pod-autoscaler-tolerance`.
TOLERANCE = 0.1
Phase = Literal["off", "starts", "serves", "drains"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRule:
    """The chart's `autoscaling` settings, and the startup time of a worker. Times are milliseconds."""

    least: int
    most: int
    # Target per worker, by lane; other lanes do not affect scaling.
    queued_tokens: Mapping[LaneName, float] = field(default_factory=dict)
    # Target of running requests per worker, by lane.
    running: Mapping[LaneName, float] = field(default_factory=dict)
    # Interval of the checks.
    every_ms: float = 15_000.0
    # From the decision until a worker takes work: the start of a pod, and loading the model.
    start_ms: float = 90_000.0
    # Maximum growth in `up_period_ms`, as a fraction of the workers.
    up_share: float = 1.0
    up_period_ms: float = 60_000.0
    # Maximum number of workers to remove in `down_period_ms`.
    down_workers: int = 1
    down_period_ms: float = 120_000.0
    # Scale down only if no check within this time required more.
    down_window_ms: float = 600_000.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"a rule needs 1 <= least <= most, not {self.least} and {self.most}")

    def asked(self, load: FleetLoad, workers: int) -> int:
        """Return the workers that the load requires, between `least` and `most`, given the present number."""
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
    """The rule over time, with its recent recommendations and changes."""

    def __init__(self, rule: ScalingRule) -> None:
        self.rule = rule
        self._asked: deque[tuple[float, int]] = deque()
        self._grown: deque[tuple[float, int]] = deque()
        self._shrunk: deque[tuple[float, int]] = deque()

    def wanted(self, now_ms: float, load: FleetLoad, workers: int) -> int:
        """Return how many workers there should be, if `workers` are starting or serving now."""
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
    """The fleet after a check."""

    at_ms: float
    wanted: int
    serving: int


class ScaledFleet:
    """The workers of a simulation that exist; `workers` must cover those that serve and drain at one time."""

    def __init__(self, autoscaler: Autoscaler, workers: int) -> None:
        self._autoscaler, self._rule = autoscaler, autoscaler.rule
        # After each check.
        self.sizes: list[FleetSize] = []
        # Lifetime of all workers so far; `close` adds those that still exist.
        self.paid_ms = 0.0
        least = autoscaler.rule.least
        if workers < autoscaler.rule.most:
            raise ValueError(f"a rule for up to {autoscaler.rule.most} workers cannot scale {workers}")
        self._phases: list[Phase] = ["serves" if number < least else "off" for number in range(workers)]
        self._since = [0.0] * workers

    @property
    def every_ms(self) -> float:
        return self._rule.every_ms

    @property
    def start_ms(self) -> float:
        return self._rule.start_ms

    def serves(self, number: int) -> bool:
        return self._phases[number] == "serves"

    def look(self, now_ms: float, load: FleetLoad, held: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the workers that start, and those that are scaled down. `held`: number of jobs that each holds."""
        there = [number for number, phase in enumerate(self._phases) if phase in ("starts", "serves")]
        wanted = self._autoscaler.wanted(now_ms, load, len(there))
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
        """Return whether a starting worker is ready and now serves; False if it was scaled down before."""
        if self._phases[number] != "starts" or now_ms < self._since[number] + self.start_ms:
            return False
        self._phases[number] = "serves"
        return True

    def emptied(self, number: int, now_ms: float) -> bool:
        """Return whether a worker without jobs has ended; a draining one ends now."""
        if self._phases[number] == "drains":
            self._end(number, now_ms)
        return self._phases[number] == "off"

    def close(self, now_ms: float) -> None:
        """End all workers, at the end of the simulation."""
        for number, phase in enumerate(self._phases):
            if phase != "off":
                self._end(number, now_ms)

    def _end(self, number: int, now_ms: float) -> None:
        self.paid_ms += now_ms - self._since[number]
        self._phases[number] = "off"
