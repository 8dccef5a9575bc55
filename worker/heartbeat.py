"""The worker's heartbeat, with its load and recent speed, and its learned costs for a simulator (`/costs`)."""

import math
import time
from collections.abc import Callable, Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import msgspec

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.fading import FadingRatio, FadingSum
from fairlane.scheduler.protocol.messages import WorkerStatus
from fairlane.scheduler.simulation.calibration import Calibration, of_costs
from fairlane.scheduler.simulation.workload import MAX_NOISE
from fairlane.worker.reports import EngineObserver, Report, WorkerLoad

# Approximate window of the token rates.
RECENT_S = 10.0
# Minimum window; a rate over less time would be noise.
LEAST_S = 0.5
# Weight of each step relative to the next, in the speeds of a heartbeat.
STEP_FADING = 0.95
# The same for the figures of `/costs`.
COST_FADING = 0.995


class Heartbeat(EngineObserver):
    """Builds a WorkerStatus from the engine's turns."""

    def __init__(self, about: WorkerStatus, costs: CostModel, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._about = about
        self._costs = costs
        self._clock = clock
        self._load = WorkerLoad()
        self.kv_blocks: dict[str, int] = {}
        self._output: dict[str, _Rate] = {}
        self._step_ms = FadingRatio(STEP_FADING)
        self._prefill_per_s = FadingRatio(STEP_FADING)

    def turned(self, report: Report) -> None:
        self._load = report.load
        if report.step is None or not report.ran:
            return
        now_s, result = self._clock(), report.step.result
        for lane, tokens in report.tokens.items():
            self._output.setdefault(lane, _Rate(now_s)).add(tokens.output, now_s)
        self._step_ms.add(result.run_ms + result.copy_ms)
        prefill = sum(tokens.prefill for tokens in report.tokens.values())
        if prefill:
            self._prefill_per_s.add(prefill, result.run_ms / 1e3)

    def status(self, *, draining: bool) -> WorkerStatus:
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
            kv_blocks=self.kv_blocks,
            step_ms=self._step_ms.value,
            single_stream_ms=self._costs.single_stream_ms,
            prefill_tokens_per_s=self._prefill_per_s.value,
            step_weights=self._costs.step_weights() if self._costs.has_learnt else (),
        )


class _Rate:
    def __init__(self, now_s: float) -> None:
        self._sum, self._since_s = FadingSum(RECENT_S, since=now_s), now_s

    def add(self, value: float, now_s: float) -> None:
        self._sum.add(value, now_s)

    def per_s(self, now_s: float) -> float:
        looks_back_s = RECENT_S * -math.expm1((self._since_s - now_s) / RECENT_S)
        return self._sum.at(now_s) / max(looks_back_s, LEAST_S)


class CostReport(EngineObserver):
    """Measures what the cost model omits: the time between steps, and the deviation of steps from its forecast."""

    def __init__(self, costs: CostModel, *, clock: Callable[[], float] = time.monotonic, **sizes: int) -> None:
        self._costs = costs
        self._sizes = sizes
        self._clock = clock
        # End of the last step, if the next one follows at once.
        self._ended_ms: float | None = None
        self._between = FadingRatio(COST_FADING)
        self._error, self._error_squared = FadingRatio(COST_FADING), FadingRatio(COST_FADING)

    def turned(self, report: Report) -> None:
        if report.step is not None and report.ran:
            result = report.step.result
            self._stepped(result.run_ms + result.copy_ms, report.step.plan.predicted_ms)
        if report.jobs == 0 or (report.step is not None and not report.ran):
            self._ended_ms = None  # idle time does not count as time between steps

    def calibration(self) -> Calibration:
        variance = self._error_squared.value - self._error.value**2
        return msgspec.structs.replace(
            of_costs(self._costs, **self._sizes),
            overhead_ms=max(0.0, self._between.value),
            noise=min(MAX_NOISE, math.sqrt(max(0.0, variance))),
        )

    def mounted_on(self, other: WSGIApplication) -> WSGIApplication:
        def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            if environ["PATH_INFO"] != "/costs":
                return other(environ, start_response)
            start_response("200 OK", [("Content-Type", "application/json")])
            return [self.calibration().to_json()]

        return app

    def _stepped(self, took_ms: float, predicted_ms: float) -> None:
        now_ms = self._clock() * 1e3
        if self._ended_ms is not None:
            self._between.add(now_ms - self._ended_ms - took_ms)
        self._ended_ms = now_ms
        if self._costs.has_learnt and took_ms > 0.0 and predicted_ms > 0.0:
            error = math.log(took_ms / predicted_ms)
            self._error.add(error)
            self._error_squared.add(error * error)
