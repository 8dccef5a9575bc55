"""One line as a request, through the endpoint that a client's request would use, in this process."""

import asyncio
from collections.abc import Mapping

from fairlane.gateway.batches.lines import MAX_LINE_BYTES
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.body_budget import BodyBudget, BodyHold
from fairlane.gateway.http.disconnect import Disconnect
from fairlane.gateway.http.exchange import Exchange
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.gateway.middleware.idempotent_run import RecordedChannel, Recording
from fairlane.gateway.pipeline.context import Endpoint, RequestContext
from fairlane.gateway.request.service_level import LANE_HEADER
from fairlane.scheduler.protocol.lanes import LaneName

_HEADERS = [(b"content-type", b"application/json"), (LANE_HEADER.encode(), LaneName.THROUGHPUT.value.encode())]


class AnswerTooLarge(Exception):
    """The line was served and charged, but its response exceeds the size limit."""


class LineCalls:
    """Calls endpoints with lines."""

    def __init__(
        self, endpoints: Mapping[str, Endpoint], telemetry: Telemetry, *, max_answer_bytes: int, at_once: int
    ) -> None:
        """`endpoints`: by path, without the tenant middleware. `at_once`: lines that may run concurrently."""
        self._endpoints = endpoints
        self._telemetry = telemetry
        self._max_answer_bytes = max_answer_bytes
        room = at_once * 2 * MAX_LINE_BYTES
        self._bodies = BodyBudget(most_bytes=room, most_tenant_bytes=room)

    async def run(
        self, path: str, body: bytes, caller: Caller, request_id: str, leave: Disconnect, link: str = ""
    ) -> tuple[int, bytes]:
        """Return status and body of the response to one line. `link`: trace context of the batch.

        Raise ApiError, STORE_ERRORS or AnswerTooLarge; ClientDisconnect after `leave`."""
        recording, hold = Recording(self._max_answer_bytes), BodyHold(self._bodies)
        exchange = Exchange(leave, RecordedChannel(body, recording), request_id, hold)
        scope = {"type": "http", "method": "POST", "path": path, "headers": _HEADERS}
        now_s = asyncio.get_running_loop().time()
        context = RequestContext(scope, recording.receive, recording.send, exchange, path, request_id, now_s)
        context.authenticated(caller)
        try:
            with self._telemetry.request_span(f"BATCH {path}", _HEADERS, request_id, link) as context.span:
                try:
                    await self._endpoints[path](context)
                except ApiError as error:
                    context.code = error.code
                    raise
                finally:
                    context.status = recording.status
                    context.describe_span()
        finally:
            hold.release()
            self._telemetry.requests.add(path, LaneName.THROUGHPUT.value, context.code)
            if context.is_refusal:
                self._telemetry.refused_line(caller.tenant_id, context.code)
        if recording.body is None:
            raise AnswerTooLarge
        return recording.status, recording.body
