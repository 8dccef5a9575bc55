"""The console's first page: lanes, refusals, tenants, workers and models, over all gateways.

Levels are at most half a second old (the fleet cache). Distributions and counts cover about the last minute, as all
gateways reported them to the store, so that any gateway can report on the whole fleet."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from typing_extensions import TypedDict

from fairlane.common.views import about, view_of
from fairlane.gateway.control.admin.alarms import WINDOW_S, AlarmView, LaneState, alarms, began
from fairlane.gateway.control.admin.models import OverviewModel, model_view
from fairlane.gateway.control.admin.views import LaneView, WorkerState, worker_state
from fairlane.gateway.errors import fleet_unknown
from fairlane.gateway.fleet import FleetCache, ServedModel, queued, together
from fairlane.gateway.insight.fleet_metrics.metrics_store import RINGS, SLOT_S, FleetMetricsStore, GatewayReport, Step
from fairlane.gateway.insight.fleet_metrics.sums import (
    OTHERS,
    Buckets,
    LaneSums,
    Sums,
    TenantSums,
    merged,
    percentiles_ms,
)
from fairlane.gateway.insight.request_traces.figures import PercentilesView
from fairlane.scheduler.planner.costs import slowest_ms
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import WorkerStatus
from fairlane.scheduler.queue.types import LaneDepth

# Closed slots in the window, in addition to the current one.
WINDOW_SLOTS = 6
# Seconds between two reads of the store; gateways report every five seconds.
READ_EVERY_S = 4.0
# A gateway that has reported nothing for this long is considered dead, with its requests.
SILENT_AFTER_MS = 15_000
MOST_TENANTS_SHOWN = 64
# Steps of each ring in which the start of an alarm is looked for: an hour, then a day.
ALARM_STEPS = 360, 288


class LaneResults(TypedDict):
    """Results of a lane's requests over a span of time. The error of each percentile is at most 10%."""

    ttft_ms: Annotated[PercentilesView | None, about("Time to the first token; null: not measured")]
    tpot_ms: Annotated[PercentilesView | None, about("Mean time per output token; null: not measured")]
    queue_wait_ms: Annotated[PercentilesView | None, about("Wait until a worker began; null: not measured")]
    goodput: Annotated[float | None, about("Share of the requests that met the lane's targets; null: none ended")]
    requests: Annotated[int, about("Requests that ended")]
    refused: Annotated[int, about("Requests that a limit refused, or that the system refused or failed")]


class LaneFiguresView(LaneView, LaneResults):
    """One lane: its current levels, and the results of the window."""


class TenantFiguresView(TypedDict):
    """One tenant's current work; its rate is over the window."""

    tenant: Annotated[str, about("Id of the tenant")]
    running: Annotated[int, about("Running choices")]
    queued: Annotated[int, about("Waiting jobs, also those that a worker took but has not begun")]
    tokens_per_s: Annotated[float, about("Output tokens generated per second")]
    kv_blocks: Annotated[int, about("KV blocks of its running and waiting choices")]


class KvPoolView(TypedDict):
    """A worker's KV pool, in blocks."""

    blocks: Annotated[int, about("Blocks of the pool")]
    free: Annotated[int, about("Blocks with no data in use")]
    host_blocks: Annotated[int, about("Blocks that fit into host memory")]
    host_free: Annotated[int, about("Free slots of host memory")]


class OverviewWorker(WorkerState):
    """One worker, and its KV pool."""

    kv: Annotated[KvPoolView, about("Use of its KV pool")]


class OverviewView(TypedDict):
    """A summary of the fleet."""

    at: Annotated[float, about("Unix seconds")]
    window_s: Annotated[float, about("Span of counts and distributions, in seconds")]
    lanes: Annotated[list[LaneFiguresView], about("Lanes that may be used")]
    refusals: Annotated[dict[str, int], about("Refused requests of the window, by code")]
    tenants: Annotated[list[TenantFiguresView], about("The busiest tenants, at most 64")]
    workers: Annotated[list[OverviewWorker], about("Every live worker")]
    models: Annotated[list[OverviewModel], about("Every model announced in the last seven days")]
    alarms: Annotated[list[AlarmView], about("What needs attention, the gravest first; at most four seconds old")]


class Overview:
    """The overview of the fleet; all callers together read the store at most once per READ_EVERY_S."""

    def __init__(
        self,
        fleet: FleetCache,
        fleet_metrics: FleetMetricsStore,
        lanes: Mapping[LaneName, Lane],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._fleet_metrics = fleet_metrics
        self._lanes = lanes
        self._clock = clock
        self._reports: list[GatewayReport] = []
        self._sums = Sums()
        self._asked_s = -READ_EVERY_S
        self._asking = asyncio.Lock()
        self._alarms: list[AlarmView] = []
        # When each alarm that holds began, by kind and lane.
        self._began: dict[tuple[str, str | None], float] = {}

    @property
    def models(self) -> Mapping[str, ServedModel]:
        return self._fleet.models

    async def view(self) -> OverviewView:
        """Return the current overview. Raise redis.RedisError, or ApiError `quota_store_unavailable` if the fleet was
        not read recently."""
        if not self._fleet.is_fresh:
            raise fleet_unknown()
        reports = await self._recent()
        now_s = self._clock()
        since_s = (int(now_s // SLOT_S) - WINDOW_SLOTS) * SLOT_S
        sums, window_s = self._sums, now_s - since_s
        workers, models = self._fleet.workers, list(self._fleet.models.values())
        return {
            "at": now_s,
            "window_s": window_s,
            "lanes": _lanes(self._lanes, sums, workers, together([model.depths for model in models])),
            "refusals": dict(sorted(sums.refusals.items())),
            "tenants": _tenants(sums, _open_requests(reports, now_s * 1e3), workers, window_s),
            "workers": [_worker(status) for status in sorted(workers, key=lambda status: status.worker_id)],
            "models": [model_view(model) for model in models],
            "alarms": self._alarms,
        }

    async def _recent(self) -> list[GatewayReport]:
        async with self._asking:
            now_s = self._clock()
            if not 0.0 <= now_s - self._asked_s < READ_EVERY_S:
                slot = int(now_s // SLOT_S)
                self._reports = await self._fleet_metrics.recent(range(slot - WINDOW_SLOTS, slot + 1))
                self._sums, self._asked_s = merged(one.state.sums for one in self._reports), now_s
                self._alarms = await self._alarmed(now_s)
            return self._reports

    async def _alarmed(self, now_s: float) -> list[AlarmView]:
        waiting = together([model.depths for model in self._fleet.models.values()])
        workers, slowest = self._fleet.workers, slowest_ms(self._fleet.workers)
        lanes = [
            LaneState(
                name.value,
                lane.ttft_ms,
                lane.tpot_on(slowest),
                queued(name, waiting[name], workers),
                waiting[name].oldest_wait_ms,
            )
            for name, lane in self._lanes.items()
        ]
        found = alarms(self._sums, lanes, workers, self._fleet.models, now_s)
        steps: dict[int, list[Step]] = {}
        since: dict[tuple[str, str | None], float] = {}
        for view, held in found:
            key = view["kind"], view["lane"]
            start = self._began.get(key, now_s)
            if key not in self._began and held is not None:
                for ring, count in zip(RINGS, ALARM_STEPS, strict=False):
                    if ring.step_s not in steps:
                        last = int(now_s // ring.step_s)
                        steps[ring.step_s] = await self._fleet_metrics.read(ring, last - count, last)
                    start = began(held, steps[ring.step_s], ring.step_s, start)
                    if start > now_s - count * ring.step_s + 2 * WINDOW_S:
                        break  # before the oldest step of this ring it did not hold
            since[key] = view["since"] = start
        self._began = since
        return [view for view, _ in found]


def lane_results(lane: LaneSums) -> LaneResults:
    """Return the results of a lane's requests."""
    return {
        "ttft_ms": percentiles(lane.ttft),
        "tpot_ms": percentiles(lane.tpot),
        "queue_wait_ms": percentiles(lane.queue_wait),
        "goodput": lane.met / lane.judged if lane.judged else None,
        "requests": lane.requests,
        "refused": lane.refused,
    }


def percentiles(buckets: Buckets) -> PercentilesView | None:
    """Return the percentiles of a distribution, or None if it is empty."""
    if not buckets:
        return None
    p50, p95, p99 = percentiles_ms(buckets, (0.5, 0.95, 0.99))
    return {"p50": p50, "p95": p95, "p99": p99}


def _open_requests(reports: Sequence[GatewayReport], now_ms: float) -> dict[str, tuple[int, int]]:
    # The latest report of each gateway counts.
    latest = {one.gateway: one.state for one in sorted(reports, key=lambda one: one.state.at_ms)}
    running, waiting = Counter[str](), Counter[str]()
    for state in latest.values():
        if now_ms - state.at_ms < SILENT_AFTER_MS:
            for tenant, (runs, waits) in state.now.items():
                running[tenant] += runs
                waiting[tenant] += waits
    return {tenant: (running[tenant], waiting[tenant]) for tenant in running}


def _lanes(
    lanes: Mapping[LaneName, Lane], sums: Sums, workers: Sequence[WorkerStatus], waiting: Mapping[LaneName, LaneDepth]
) -> list[LaneFiguresView]:
    return [
        {
            **lane_view(lanes[name], waiting.get(name, LaneDepth(0, 0)), workers),
            **lane_results(sums.lanes.get(name.value, LaneSums())),
        }
        for name in LaneName
    ]


def lane_view(lane: Lane, depth: LaneDepth, workers: Sequence[WorkerStatus]) -> LaneView:
    """Return a lane's current levels."""
    return view_of(
        LaneView,
        depth,
        lane=lane.name.value,
        queued=queued(lane.name, depth, workers),
        running=sum(status.running.get(lane.name, 0) for status in workers),
        preempted=sum(status.preempted.get(lane.name, 0) for status in workers),
        tokens_per_s=sum(status.tokens_per_s.get(lane.name, 0.0) for status in workers),
        ttft_target_ms=lane.ttft_ms,
        tpot_target_ms=lane.tpot_on(slowest_ms(workers)),
    )


def _tenants(
    sums: Sums, now: Mapping[str, tuple[int, int]], workers: Sequence[WorkerStatus], window_s: float
) -> list[TenantFiguresView]:
    blocks = Counter[str]()
    for worker in workers:
        blocks.update(worker.kv_blocks)
    names = {*sums.tenants, *now, *blocks} - {OTHERS}
    shown: list[TenantFiguresView] = []
    for name in names:
        running, waits = now.get(name, (0, 0))
        rate = sums.tenants.get(name, TenantSums()).output_tokens / window_s
        shown.append(
            {"tenant": name, "running": running, "queued": waits, "tokens_per_s": rate, "kv_blocks": blocks[name]}
        )
    shown.sort(key=lambda one: (-one["running"] - one["queued"], -one["tokens_per_s"], one["tenant"]))
    return shown[:MOST_TENANTS_SHOWN]


def _worker(status: WorkerStatus) -> OverviewWorker:
    kv: KvPoolView = {
        "blocks": status.blocks_total,
        "free": status.blocks_free,
        "host_blocks": status.host_slots_total,
        "host_free": status.host_slots_free,
    }
    return {**worker_state(status), "kv": kv}
