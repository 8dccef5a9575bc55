"""Admin calls on workers and lanes, and on the fleet's figures."""

from starlette.responses import Response

from fairlane.gateway.control.admin.call import Call
from fairlane.gateway.control.admin.history import HistoryView
from fairlane.gateway.control.admin.inputs import HistoryQuery, LanesQuery, LiveQuery, PageQuery
from fairlane.gateway.control.admin.live import LiveResponse
from fairlane.gateway.control.admin.operation import Operations
from fairlane.gateway.control.admin.overview import OverviewView, lane_view
from fairlane.gateway.control.admin.views import LaneView, Page, WorkerView, page, worker_view
from fairlane.gateway.control.operators.operator import Role
from fairlane.gateway.errors import not_found
from fairlane.gateway.http.sse import MEDIA_TYPE
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.queue.types import LaneDepth

operations = Operations()


@operations.add("GET /workers")
async def list_workers(call: Call, query: PageQuery) -> Page[WorkerView]:
    """List live workers."""
    alive = sorted(await call.parts.fleet.workers(), key=lambda status: status.worker_id)
    following = [status for status in alive if status.worker_id > (query.after or "")]
    return page(following, query.limit, worker_view, lambda status: status.worker_id)


@operations.add("POST /workers/{worker}/drain", role=Role.OPERATOR)
async def drain_worker(call: Call) -> WorkerView:
    """Drain a worker: it takes no more jobs."""
    return await _set_draining(call, draining=True)


@operations.add("POST /workers/{worker}/undrain", role=Role.OPERATOR)
async def undrain_worker(call: Call) -> WorkerView:
    """Let a draining worker take jobs again."""
    return await _set_draining(call, draining=False)


async def _set_draining(call: Call, *, draining: bool) -> WorkerView:
    fleet, worker_id = call.parts.fleet, call.path["worker"]
    known = {status.worker_id: status for status in await fleet.workers()}
    change, verb = (fleet.drain, "drain") if draining else (fleet.undrain, "undrain")
    if worker_id not in known or not await change(worker_id):
        raise not_found("worker")
    before = worker_view(known[worker_id])
    # Every call is recorded: the worker's last heartbeat may be older than the last call.
    changes = {"draining": before["draining"]}, {"draining": draining}
    await call.record(call.note(f"worker.{verb}", worker_id, *changes))
    return {**before, "draining": draining}


@operations.add("GET /overview")
async def get_overview(call: Call) -> OverviewView:
    """Return the console's overview: lanes, refusals, tenants, workers and models of the whole fleet."""
    return await call.parts.overview.view()


@operations.add("GET /live", media=(MEDIA_TYPE,), codes=("overloaded",))
async def watch_overview(call: Call, query: LiveQuery) -> Response:
    """Stream the overview (`overview`, about once a second) and the block map (`kv`) until the session ends."""
    return LiveResponse(call.parts.live, call.parts.live.enter(call.operator.actor, call.check, kv=query.kv))


@operations.add("GET /history")
async def get_history(call: Call, query: HistoryQuery) -> HistoryView:
    """Return the fleet's figures over 15 minutes, a day or a month, in at most 360 points."""
    return await call.parts.history.view(query.span, lane=query.lane, tenant=query.tenant, until_s=query.until)


@operations.add("GET /lanes", codes=("not_found",))
async def list_lanes(call: Call, query: LanesQuery) -> Page[LaneView]:
    """Return each lane's queue, running work and rate.

    The most urgent lane is first; this order is also alphabetical, so that a name works as the cursor."""
    alive, depths = await call.parts.fleet.workers(), await call.parts.fleet.depths(query.model)
    workers = [status for status in alive if query.model in (None, status.model)]
    following = [lane for lane in LaneName if lane.value > (query.after or "")]
    return page(
        following,
        query.limit,
        lambda lane: lane_view(call.parts.lanes[lane], depths.get(lane, LaneDepth(0, 0)), workers),
        lambda lane: lane.value,
    )
