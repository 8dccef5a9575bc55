"""Admin calls on requests: running ones, and those that ended recently."""

import time

from fairlane.gateway.control.admin.call import Call
from fairlane.gateway.control.admin.inputs import RequestsQuery
from fairlane.gateway.control.admin.operation import Operations
from fairlane.gateway.control.admin.views import Page, page
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
    """Return a request's record; by its id, its `x-request-id` or its answer's id."""
    record = await call.parts.records.find(call.path["request"])
    if record is None:
        raise not_found("request")
    return request_detail(record, time.time())
