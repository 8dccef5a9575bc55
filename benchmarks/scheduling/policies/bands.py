"""Flow control before an engine: llm-d's router and the Gateway API inference extension (`pkg/epp/flowcontrol`).

Lanes are priority bands, tenants the flows of a band. While the engine is not saturated, the highest band that has
work gives up one request: that of the flow with the best score, 0.8 x (1 - attained service) + 0.2 x (wait of its
head), both scaled to the range over the band's flows. Service is prompt tokens plus 2 per output token, added when a
request completes, and halves each 60 s that a flow idles. Saturated is max(engine's queue / 5, KV in use / 0.8) >= 1.
A request that waits longer than its band's limit, the lane's longest wait, expires. The engine behind is
`fcfs_sarathi` and knows neither bands nor tenants: running work is never preempted for what waits here.

Deviations: the engine's queue and KV are read fresh at every step instead of being scraped.
"""

from collections import deque
from dataclasses import dataclass, field

from benchmarks.scheduling.policies.fcfs_sarathi import FcfsSarathi
from benchmarks.scheduling.policies.setup import Request, Setup
from fairlane.scheduler.planner.ordering import DECODE_WEIGHT, PREFILL_WEIGHT
from fairlane.scheduler.planner.steps import require
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Outcome

SERVICE_SHARE = 0.8
WAIT_SHARE = 0.2


@dataclass(slots=True)
class Flow:
    """One tenant's requests in one band."""

    queue: deque[Request] = field(default_factory=deque)
    service: float = 0.0
    in_flight: int = 0
    anchor_ms: float = 0.0
    """Since when its service fades."""


@dataclass(slots=True)
class Band:
    """One lane's flows."""

    max_wait_ms: float
    flows: dict[str, Flow] = field(default_factory=dict)
    waiting: dict[str, Flow] = field(default_factory=dict)
    """Flows whose queue is not empty."""
    arrivals: deque[Request] = field(default_factory=deque)
    """All that came, oldest first, until dispatched or expired."""


class Bands(FcfsSarathi):
    """Strict bands, least attained service within each, first come first served behind."""

    def __init__(
        self,
        setup: Setup,
        *,
        queue_limit: int = 5,
        kv_limit: float = 0.8,
        half_life_ms: float = 60_000.0,
    ) -> None:
        require("queue_limit", queue_limit, 1)
        require("kv_limit", kv_limit, 0.01, 1.0)
        require("half_life_ms", half_life_ms, 1.0)
        super().__init__(setup)
        self._queue_limit = queue_limit
        self._kv_limit = kv_limit
        self._half_life_ms = half_life_ms
        self._queued: set[str] = set()
        """Jobs that wait here, not in the engine."""
        order = sorted(setup.lanes.values(), key=lambda lane: lane.rank)
        self._bands: dict[LaneName, Band] = {lane.name: Band(lane.max_wait_ms) for lane in order}

    def _enqueue(self, request: Request, now_ms: float) -> None:
        if request.preemptions:
            super()._enqueue(request, now_ms)  # back in the engine's own queue
            return
        band = self._bands[request.job.lane]
        flow = band.flows.setdefault(request.job.tenant, Flow(anchor_ms=now_ms))
        if not flow.queue and not flow.in_flight:
            flow.service *= 0.5 ** ((now_ms - flow.anchor_ms) / self._half_life_ms)
            flow.anchor_ms = now_ms
        flow.queue.append(request)
        band.waiting[request.job.tenant] = flow
        band.arrivals.append(request)
        self._queued.add(request.id.job_id)

    def _schedule(self, now_ms: float) -> None:
        for band in self._bands.values():
            self._expire(band, now_ms)
            while band.waiting and not self._is_saturated():
                self._dispatch(band, now_ms)
        super()._schedule(now_ms)

    def _finish(self, finished: list[Request], now_ms: float) -> None:
        for request in finished:
            flow = self._bands[request.job.lane].flows[request.job.tenant]
            flow.in_flight -= 1
            flow.service += PREFILL_WEIGHT * request.prompt_tokens + DECODE_WEIGHT * len(request.output)
            flow.anchor_ms = now_ms
        super()._finish(finished, now_ms)

    def _is_saturated(self) -> bool:
        kv = 1.0 - self._pool.free_blocks / self._setup.blocks
        return len(self._waiting) >= self._queue_limit or kv >= self._kv_limit

    def _dispatch(self, band: Band, now_ms: float) -> None:
        tenant = _best(band.waiting, now_ms)
        flow = band.waiting[tenant]
        request = flow.queue.popleft()
        if not flow.queue:
            del band.waiting[tenant]
        flow.in_flight += 1
        self._queued.discard(request.id.job_id)
        self._arrivals += 1
        request.number = self._arrivals  # for the engine it comes only now
        super()._enqueue(request, now_ms)

    def _expire(self, band: Band, now_ms: float) -> None:
        """End what has waited here for too long; `arrivals` also loses what was dispatched."""
        while band.arrivals:
            request = band.arrivals[0]
            queued = request.id.job_id in self._queued
            if queued and now_ms - request.arrived_ms <= band.max_wait_ms:
                return
            band.arrivals.popleft()
            if queued:
                self._queued.discard(request.id.job_id)
                flow = band.flows[request.job.tenant]
                flow.queue.remove(request)
                if not flow.queue:
                    del band.waiting[request.job.tenant]
                self._end(request, Outcome.EXPIRED, "waited too long")


def _best(flows: dict[str, Flow], now_ms: float) -> str:
    """The tenant with the best score, the first among equals."""
    if len(flows) == 1:
        return next(iter(flows))
    services = [flow.service for flow in flows.values()]
    waits = [now_ms - flow.queue[0].arrived_ms for flow in flows.values()]
    service_low, wait_low = min(services), min(waits)
    service_range, wait_range = max(services) - service_low, max(waits) - wait_low
    best, best_score = "", -1.0
    for tenant, service, wait in zip(flows, services, waits, strict=True):
        attained = (service - service_low) / service_range if service_range else 0.0
        waited = (wait - wait_low) / wait_range if wait_range else 0.0
        score = SERVICE_SHARE * (1.0 - attained) + WAIT_SHARE * waited
        if score > best_score:
            best, best_score = tenant, score
    return best
