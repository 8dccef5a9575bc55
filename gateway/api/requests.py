"""`GET /v1/requests/{id}`: what became of a request of the calling tenant, and why."""

import time

from starlette.types import Receive, Scope, Send

from fairlane.gateway.auth import Caller
from fairlane.gateway.errors import not_found
from fairlane.gateway.http.sse import send_json
from fairlane.gateway.records.search import Records
from fairlane.gateway.records.views import for_tenant, request_detail

ONE_PATH = "/v1/requests/{request:path}"


class ShowRequest:
    """By its `x-request-id`, or the id of its answer. Another tenant's is none."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call, inside its tenant middleware. Raises ApiError where there is no such record, and
        StoreUnavailable."""
        caller: Caller = scope["state"]["caller"]
        record = await self._records.find(scope["path_params"]["request"], caller.account)
        if record is None:
            raise not_found("request")
        await send_json(send, request_detail(for_tenant(record), time.time()), [])
