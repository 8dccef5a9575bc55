"""What a worker says about itself in a heartbeat: how full it is, and how fast it has been of late."""

import math
import time
from collections.abc import Callable, Iterable

import msgspec

from scheduler.costs import CostModel
from scheduler.messages import Lease, WorkerStatus
from worker.report import Load, Report

RECENT_S = 10.0
"""Token rates look back about this long."""
LEAST_S = 0.5
"""A rate over less time than this would be noise."""
FADING = 0.95
"""What an older step counts for beside the next."""


class Vitals:
    """Learns from the engine's turns, and fills in a WorkerStatus."""

    def __init__(self, about: WorkerStatus, costs: CostModel, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`costs`: what the engine learns; only read here."""
        self._about = about
        self._costs = costs
        self._clock = clock
        self._load = Load()
        self._output: dict[str, _Rate] = {}
        self._steps = _Ratio()
        self._prefill = _Ratio()

    def took(self, leases: Iterable[Lease]) -> None:
        """Counted with the next turn's load."""

    def lost(self, flight_ids: Iterable[str]) -> None:
        """Counted with the next turn's load."""

    def turned(self, report: Report) -> None:
        """The engine has moved on."""
        self._load = report.load
        if report.step is None or not report.ran:
            return
        now_s, result = self._clock(), report.step.result
        for lane, tokens in report.tokens.items():
            self._output.setdefault(lane, _Rate(now_s)).add(tokens.output, now_s)
        self._steps.add(result.run_ms + result.copy_ms, 1.0)
        prefill = sum(tokens.prefill for tokens in report.tokens.values())
        if prefill:
            self._prefill.add(prefill, result.run_ms / 1e3)

    def status(self, *, draining: bool) -> WorkerStatus:
        """The heartbeat."""
        load, now_s = self._load, self._clock()
        return msgspec.structs.replace(
            self._about,
            draining=draining,
            blocks_free=load.blocks_free,
            host_slots_free=load.host_slots_free,
            running=load.running,
            waiting=load.waiting,
            preempted=load.preempted,
            tokens_per_s={lane: recent.per_s(now_s) for lane, recent in self._output.items()},
            step_ms=self._steps.value,
            single_stream_ms=self._costs.single_stream_ms,
            prefill_tokens_per_s=self._prefill.value,
            step_weights=self._costs.step_weights() if self._costs.has_learnt else (),
        )


class _Rate:
    """Events per second: a sum whose parts fade with their age, over the time that it looks back."""

    def __init__(self, now_s: float) -> None:
        self._sum = 0.0
        self._since_s = self._at_s = now_s

    def add(self, value: float, now_s: float) -> None:
        self._sum = self._faded(now_s) + value
        self._at_s = now_s

    def per_s(self, now_s: float) -> float:
        looks_back_s = RECENT_S * -math.expm1((self._since_s - now_s) / RECENT_S)
        return self._faded(now_s) / max(looks_back_s, LEAST_S)

    def _faded(self, now_s: float) -> float:
        return self._sum * math.exp((self._at_s - now_s) / RECENT_S)


class _Ratio:
    """A quotient over recent steps; 0 before the first."""

    def __init__(self) -> None:
        self._above = self._below = 0.0

    def add(self, above: float, below: float) -> None:
        self._above = FADING * self._above + above
        self._below = FADING * self._below + below

    @property
    def value(self) -> float:
        return self._above / self._below if self._below else 0.0
