"""The fleet's figures over 15 minutes, a day, a month or any period, from the rings in the store."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from typing_extensions import TypedDict

from fairlane.common.views import about, view_of
from fairlane.gateway.control.admin.overview import LaneResults, lane_results
from fairlane.gateway.insight.fleet_metrics.metrics_store import (
    LATE_SLOTS,
    RINGS,
    SLOT_S,
    FleetMetricsStore,
    Ring,
    Step,
)
from fairlane.gateway.insight.fleet_metrics.sums import LaneSums, Sums, TenantSums, merged
from fairlane.quotas.field_checks import FieldError

Span = Literal["15m", "day", "month"]
# The ring to read, and the number of its steps.
SPANS: dict[Span, tuple[Ring, int]] = {"15m": (RINGS[0], 90), "day": (RINGS[1], 288), "month": (RINGS[2], 360)}

# No response has more points: the coarsest ring.
MOST_POINTS = RINGS[-1].steps


class LaneHistoryView(LaneResults):
    """One lane over a step: levels are means, `oldest_wait_ms` is the maximum."""

    queued: Annotated[float, about("Mean number of waiting jobs")]
    oldest_wait_ms: Annotated[float, about("Longest wait observed")]
    running: Annotated[float, about("Mean number of running choices")]
    preempted: Annotated[float, about("Mean number of preempted choices")]
    tokens_per_s: Annotated[float, about("Output tokens generated per second")]


class TenantHistoryView(TypedDict):
    """One tenant over a step."""

    requests: Annotated[int, about("Requests that ended")]
    refused: Annotated[int, about("Refused requests")]
    tokens_per_s: Annotated[float, about("Output tokens generated per second")]
    running: Annotated[float, about("Mean number of running requests")]
    queued: Annotated[float, about("Mean number of waiting requests")]


class HistoryPoint(TypedDict):
    """One step of the history."""

    at: Annotated[float, about("Unix seconds of the step's start")]
    lanes: Annotated[dict[str, LaneHistoryView], about("Figures by lane")]
    refusals: Annotated[dict[str, int], about("Refused requests of the step, by code")]
    kv_used: Annotated[float, about("Share of all KV blocks in use, 0 to 1")]
    tenant: Annotated[
        TenantHistoryView | None,
        about("The requested tenant; zeros if it was not among the busiest; null: none was requested"),
    ]


class HistoryView(TypedDict):
    """Steps in order; steps in which no gateway ran are absent."""

    step_s: Annotated[int, about("Length of a step in seconds")]
    points: Annotated[list[HistoryPoint], about("One for each step in which a gateway ran, in order")]


class History:
    """The history of the whole fleet. `view` may raise redis.RedisError."""

    def __init__(self, fleet_metrics: FleetMetricsStore, *, clock: Callable[[], float]) -> None:
        """`clock` returns Unix seconds by the store's clock."""
        self._fleet_metrics = fleet_metrics
        self._clock = clock

    async def view(
        self,
        span: Span,
        *,
        lane: str | None = None,
        tenant: str | None = None,
        since_s: float | None = None,
        until_s: float | None = None,
    ) -> HistoryView:
        """Return the span that ends at `until_s` or now, or what is since `since_s`, of one lane or all, with one
        tenant's figures if it is named. Raise FieldError for a period that is too long."""
        now_s = self._clock()
        end_s = now_s if until_s is None else min(now_s, until_s)
        ring, count = SPANS[span] if since_s is None else ring_of(since_s, end_s, now_s)
        last = int(end_s // ring.step_s) - 1
        steps = await self._fleet_metrics.read(ring, last - count + 1, last)
        if ring.step_s == SLOT_S:
            steps = [*steps, *await self._unmerged(steps, last, now_s)]
        return await asyncio.to_thread(_view, ring.step_s, steps, lane, tenant)  # a month takes about ten milliseconds

    async def _unmerged(self, steps: Sequence[Step], last: int, now_s: float) -> list[Step]:
        newest = int(now_s // SLOT_S) - 1
        known = {step.number for step in steps}
        missing = [number for number in range(newest - LATE_SLOTS, last + 1) if number not in known]
        if not missing:
            return []
        parts: dict[int, list[Sums]] = {}
        for report in await self._fleet_metrics.recent(missing):
            parts.setdefault(report.slot, []).append(report.state.sums)
        return [Step(number, merged(found)) for number, found in sorted(parts.items())]


def ring_of(since_s: float, end_s: float, now_s: float) -> tuple[Ring, int]:
    """Return the finest ring that has all of a period in at most MOST_POINTS steps, and their number."""
    for ring in RINGS:
        count = int(end_s // ring.step_s) - int(since_s // ring.step_s)
        reaches = now_s - since_s <= ring.steps * ring.step_s or ring is RINGS[-1]
        if count <= MOST_POINTS and reaches:
            return ring, max(count, 0)
    raise FieldError("from", "must be at most 31 days before `until`")


def _view(step_s: int, steps: Sequence[Step], lane: str | None, tenant: str | None) -> HistoryView:
    return {"step_s": step_s, "points": [_point(step, step_s, lane, tenant) for step in steps]}


def _point(step: Step, step_s: int, lane: str | None, tenant: str | None) -> HistoryPoint:
    sums, samples = step.sums, max(1, step.sums.samples)
    lanes = {name: _lane(found, samples) for name, found in sorted(sums.lanes.items()) if lane in (None, name)}
    return {
        "at": float(step.number * step_s),
        "lanes": lanes,
        "refusals": dict(sorted(sums.refusals.items())),
        "kv_used": sums.kv_used / samples,
        "tenant": None if tenant is None else _tenant(sums.tenants.get(tenant, TenantSums()), step_s),
    }


def _lane(sums: LaneSums, samples: int) -> LaneHistoryView:
    means = {name: getattr(sums, name) / samples for name in ("queued", "running", "preempted", "tokens_per_s")}
    return view_of(LaneHistoryView, sums, **means, **lane_results(sums))


def _tenant(sums: TenantSums, step_s: int) -> TenantHistoryView:
    means = {"running": sums.running_s / step_s, "queued": sums.queued_s / step_s}
    return view_of(TenantHistoryView, sums, tokens_per_s=sums.output_tokens / step_s, **means)
