"""Admin calls on workers and lanes, and on the fleet's figures."""

import logging

from starlette.responses import Response

from fairlane.gateway.control.admin.history import HistoryView
from fairlane.gateway.control.admin.inputs import HistoryQuery, LanesQuery, LiveQuery, Nothing, PageQuery
from fairlane.gateway.control.admin.live import LiveResponse
from fairlane.gateway.control.admin.overview import OverviewView, lane_view
from fairlane.gateway.control.admin.router import Call
from fairlane.gateway.control.admin.views import LaneView, Page, WorkerView, page, worker_view
from fairlane.gateway.errors import not_found
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.queue.types import LaneDepth
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)


async def list_workers(call: Call, query: PageQuery) -> Page[WorkerView]:
    """List live workers by id."""
    alive = sorted(await call.parts.fleet.workers(), key=lambda status: status.worker_id)
    following = [status for status in alive if status.worker_id > (query.after or "")]
    return page(following, query.limit, worker_view, lambda status: status.worker_id)


async def drain_worker(call: Call, _: Nothing) -> WorkerView:
    """Stop a worker from taking jobs; it finishes or hands back what it runs."""
    return await _set_draining(call, draining=True)


async def undrain_worker(call: Call, _: Nothing) -> WorkerView:
    """Let a draining or drained worker take jobs again."""
    return await _set_draining(call, draining=False)


async def _set_draining(call: Call, *, draining: bool) -> WorkerView:
    fleet, worker_id = call.parts.fleet, call.path["worker"]
    known = {status.worker_id: status for status in await fleet.workers()}
    tell, verb = (fleet.drain, "drain") if draining else (fleet.undrain, "undrain")
    if worker_id not in known or not await tell(worker_id):
        raise not_found("worker")
    before = worker_view(known[worker_id])
    # Every call is recorded: the worker's last heartbeat may be older than the last call.
    note = call.note(f"worker.{verb}", worker_id, {"draining": before["draining"]}, {"draining": draining})
    try:
        await call.parts.audit.append(note)
    except STORE_ERRORS:
        log.error("the %s of %s from %s was not written to the audit log", verb, worker_id, call.address)
        raise
    return {**before, "draining": draining}


async def get_overview(call: Call, _: Nothing) -> OverviewView:
    """Return the overview of the whole fleet."""
    return await call.parts.overview.view()


async def watch(call: Call, query: LiveQuery) -> Response:
    """Stream the overview as it changes."""
    return LiveResponse(call.parts.live, call.parts.live.enter(call.operator.actor, call.check, kv=query.kv))


async def get_history(call: Call, query: HistoryQuery) -> HistoryView:
    """Return the overview's figures over a span of time."""
    return await call.parts.history.view(query.span, lane=query.lane, tenant=query.tenant, until_s=query.until)


async def list_lanes(call: Call, query: LanesQuery) -> Page[LaneView]:
    """List the lanes, of all models or of one. Raise ApiError for an unknown model.

    The order is most urgent first, which is also alphabetical, so that a name works as the cursor."""
    alive, depths = await call.parts.fleet.workers(), await call.parts.fleet.depths(query.model)
    workers = [status for status in alive if query.model in (None, status.model)]
    following = [lane for lane in LaneName if lane.value > (query.after or "")]
    return page(
        following,
        query.limit,
        lambda lane: lane_view(call.parts.lanes[lane], depths.get(lane, LaneDepth(0, 0)), workers),
        lambda lane: lane.value,
    )
