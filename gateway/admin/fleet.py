"""Operators' calls on what serves: workers and lanes."""

import logging

from starlette.responses import Response

from fairlane.gateway.admin.history import HistoryView
from fairlane.gateway.admin.inputs import HistoryQuery, LanesQuery, LiveQuery, Nothing, PageQuery
from fairlane.gateway.admin.live import LiveResponse
from fairlane.gateway.admin.overview import OverviewView, lane_view
from fairlane.gateway.admin.router import Call
from fairlane.gateway.admin.views import LaneView, Page, WorkerView, page, worker_view
from fairlane.gateway.errors import not_found
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.queue.types import LaneDepth
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)


async def list_workers(call: Call, query: PageQuery) -> Page[WorkerView]:
    """Every worker that is alive, by id."""
    alive = sorted(await call.parts.fleet.workers(), key=lambda status: status.worker_id)
    following = [status for status in alive if status.worker_id > (query.after or "")]
    return page(following, query.limit, worker_view, lambda status: status.worker_id)


async def drain_worker(call: Call, _: Nothing) -> WorkerView:
    """Let a worker take no more jobs, and finish or hand back what it runs."""
    return await _set_draining(call, draining=True)


async def undrain_worker(call: Call, _: Nothing) -> WorkerView:
    """Let a worker that drains, or has drained, take jobs again."""
    return await _set_draining(call, draining=False)


async def _set_draining(call: Call, *, draining: bool) -> WorkerView:
    fleet, worker_id = call.parts.fleet, call.path["worker"]
    known = {status.worker_id: status for status in await fleet.workers()}
    tell, verb = (fleet.drain, "drain") if draining else (fleet.undrain, "undrain")
    if worker_id not in known or not await tell(worker_id):
        raise not_found("worker")
    before = worker_view(known[worker_id])
    # Each call is noted: what the worker's last heartbeat said may be older than the last call.
    note = call.note(f"worker.{verb}", worker_id, {"draining": before["draining"]}, {"draining": draining})
    try:
        await call.parts.audit.append(note)
    except STORE_ERRORS:
        log.error("the %s of %s from %s is not in the audit log", verb, worker_id, call.address)
        raise
    return {**before, "draining": draining}


async def get_overview(call: Call, _: Nothing) -> OverviewView:
    """What the console shows, of the whole fleet."""
    return await call.parts.overview.view()


async def watch(call: Call, query: LiveQuery) -> Response:
    """The same, as it changes."""
    return LiveResponse(call.parts.live, call.parts.live.enter(call.operator.actor, call.check, kv=query.kv))


async def get_history(call: Call, query: HistoryQuery) -> HistoryView:
    """The same over a stretch of time."""
    return await call.parts.history.view(query.span, lane=query.lane, tenant=query.tenant, until_s=query.until)


async def list_lanes(call: Call, query: LanesQuery) -> Page[LaneView]:
    """Each lane, of all models or of one, most urgent first, which is also by name. Raises ApiError for a model that is
    not known."""
    alive, depths = await call.parts.fleet.workers(), await call.parts.fleet.depths(query.model)
    workers = [status for status in alive if query.model in (None, status.model)]
    following = [lane for lane in LaneName if lane.value > (query.after or "")]
    return page(
        following,
        query.limit,
        lambda lane: lane_view(call.parts.lanes[lane], depths.get(lane, LaneDepth(0, 0)), workers),
        lambda lane: lane.value,
    )
