"""Admin calls on requests, running or recently ended, and on open batches, over all tenants."""

import time

from fairlane.gateway.batches.batch_records import StandingBatch
from fairlane.gateway.control.admin.call import Call
from fairlane.gateway.control.admin.inputs import OpenBatchesQuery, RequestsQuery
from fairlane.gateway.control.admin.operation import Operations
from fairlane.gateway.control.admin.views import OpenBatchView, Page, open_batch_view, page
from fairlane.gateway.errors import not_found
from fairlane.gateway.insight.request_records.search import RecordQuery
from fairlane.gateway.insight.request_records.views import RequestDetail, RequestView, request_detail, request_view

operations = Operations()


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
