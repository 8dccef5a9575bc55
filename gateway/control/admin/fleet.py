"""Admin calls on workers, lanes and the fleet's figures, and on requests and open batches of all tenants."""

import time

from starlette.responses import Response

from fairlane.gateway.batches.batch_records import StandingBatch
from fairlane.gateway.control.admin.call import Call
from fairlane.gateway.control.admin.history import HistoryView
from fairlane.gateway.control.admin.inputs import (
    HistoryQuery,
    LanesQuery,
    LiveQuery,
    OpenBatchesQuery,
    PageQuery,
    RequestsQuery,
)
from fairlane.gateway.control.admin.live import LiveResponse
from fairlane.gateway.control.admin.operation import Operations
from fairlane.gateway.control.admin.overview import OverviewView, lane_view
from fairlane.gateway.control.admin.views import (
    LaneView,
    OpenBatchView,
    Page,
    WorkerView,
    open_batch_view,
    page,
    worker_view,
)
from fairlane.gateway.control.operators.operator import Role
from fairlane.gateway.errors import not_found
from fairlane.gateway.http.sse import MEDIA_TYPE
from fairlane.gateway.insight.request_records.search import RecordQuery
from fairlane.gateway.insight.request_records.views import RequestDetail, RequestView, request_detail, request_view
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
    """Return the fleet's figures over 15 minutes, a day, a month or any period, in at most 372 points."""
    history, span = call.parts.history, query.span
    return await history.view(span, lane=query.lane, tenant=query.tenant, since_s=query.first, until_s=query.until)


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


@operations.add("GET /requests")
async def list_requests(call: Call, query: RequestsQuery) -> Page[RequestView]:
    """List running and recently ended requests, the latest or the slowest first."""
    wanted = RecordQuery(**query.model_dump())
    return page(await call.parts.records.listed(wanted), query.limit, request_view, wanted.shown_place)


@operations.add("GET /requests/{request:path}")
async def get_request(call: Call) -> RequestDetail:
    """Return a request's record by its id, its `x-request-id` or its response's id."""
    record = await call.parts.records.find(call.path["request"])
    if record is None:
        raise not_found("request")
    return request_detail(record, time.time())


@operations.add("GET /batches")
async def list_open_batches(call: Call, query: OpenBatchesQuery) -> Page[OpenBatchView]:
    """List open batches and their progress, by the end of their windows."""
    found = [
        each
        for each in await call.parts.batches.open_batches()
        if query.tenant in (None, each.batch.tenant) and (query.after is None or _place(each) > query.after)
    ]
    return page(sorted(found, key=_place), query.limit, open_batch_view, _place)


def _place(standing: StandingBatch) -> str:
    """Return the batch's sort key, which stays valid when batches ahead of it end."""
    return f"{standing.batch.expires_at:012}:{standing.batch.id}"
