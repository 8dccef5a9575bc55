"""`GET /v1/requests/{id}`: the outcome of one of the calling tenant's requests, and the reason for it."""

import time
from dataclasses import dataclass

from fairlane.gateway.errors import not_found
from fairlane.gateway.http.sse import send_json
from fairlane.gateway.insight.request_records.search import Records
from fairlane.gateway.insight.request_records.views import for_tenant, request_detail
from fairlane.gateway.pipeline.context import RequestContext

ONE_PATH = "/v1/requests/{request:path}"


@dataclass(eq=False)
class ShowRequest:
    """`GET /v1/requests/{id}`, by `x-request-id` or the response's id. Another tenant's request is not found."""

    records: Records

    async def __call__(self, context: RequestContext) -> None:
        caller = context.caller
        record = await self.records.find(context.path_params["request"], caller.account)
        if record is None:
            raise not_found("request")
        await send_json(context.send, request_detail(for_tenant(record), time.time()), [])
