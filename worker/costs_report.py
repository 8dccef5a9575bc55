"""What this worker has learnt of its own costs, for a simulator of workers like it: `/costs`, beside `/metrics`."""

import math
import time
from collections.abc import Callable, Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import msgspec

from scheduler.calibration import Calibration, of_costs
from scheduler.costs import CostModel
from scheduler.messages import Lease
from scheduler.workload import MOST_NOISE
from worker.report import Report

FADING = 0.995
"""What an older step counts for beside the next."""


class CostReport:
    """Watches the engine's turns for what the cost model leaves out: the time between steps, and how steps scatter."""

    def __init__(self, costs: CostModel, *, clock: Callable[[], float] = time.monotonic, **sizes: int) -> None:
        self._costs = costs
        self._sizes = sizes
        self._clock = clock
        self._ended_ms: float | None = None
        """When the last step ended, if the next follows at once."""
        self._between = _Mean()
        self._error, self._error_squared = _Mean(), _Mean()

    def took(self, leases: Iterable[Lease]) -> None:
        """Nothing to learn."""

    def lost(self, flight_ids: Iterable[str]) -> None:
        """Nothing to learn."""

    def turned(self, report: Report) -> None:
        """The engine has moved on."""
        if report.step is not None and report.ran:
            result, now_ms = report.step.result, self._clock() * 1e3
            self._stepped(result.run_ms + result.copy_ms, report.step.plan.predicted_ms, now_ms)
        if report.flights == 0 or (report.step is not None and not report.ran):
            self._ended_ms = None  # it idles or rests now: that is no time between two steps

    def calibration(self) -> Calibration:
        """This worker in figures, as they stand."""
        variance = self._error_squared.value - self._error.value**2
        return msgspec.structs.replace(
            of_costs(self._costs, **self._sizes),
            overhead_ms=max(0.0, self._between.value),
            noise=min(MOST_NOISE, math.sqrt(max(0.0, variance))),
        )

    def beside(self, other: WSGIApplication) -> WSGIApplication:
        """An application that answers `/costs`, and leaves all else to the other."""

        def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            if environ["PATH_INFO"] != "/costs":
                return other(environ, start_response)
            start_response("200 OK", [("Content-Type", "application/json")])
            return [self.calibration().to_json()]

        return app

    def _stepped(self, took_ms: float, predicted_ms: float, now_ms: float) -> None:
        if self._ended_ms is not None:
            self._between.add(now_ms - self._ended_ms - took_ms)
        self._ended_ms = now_ms
        if self._costs.has_learnt and took_ms > 0.0 and predicted_ms > 0.0:
            error = math.log(took_ms / predicted_ms)
            self._error.add(error)
            self._error_squared.add(error * error)


class _Mean:
    """Of what was of late; 0 before the first."""

    def __init__(self) -> None:
        self._sum = self._count = 0.0

    def add(self, value: float) -> None:
        self._sum = FADING * self._sum + value
        self._count = FADING * self._count + 1.0

    @property
    def value(self) -> float:
        return self._sum / self._count if self._count else 0.0
