"""One request without a server: its context, and its only job."""

from typing import Any

from starlette.types import Message, Scope, Send

from fairlane.gateway.http.exchange import exchange_of
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.pipeline.context import RequestContext
from fairlane.gateway.request.live_request import LiveJob, LiveRequest
from tests.support.quotas.house import ask


async def _nothing_to_receive() -> Message:
    raise AssertionError


async def _nothing_to_send(_: Any) -> None:
    raise AssertionError


def a_context(caller: Caller, *, send: Send = _nothing_to_send) -> RequestContext:
    """Return the context of an authenticated request without a body."""
    scope: Scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    exchange = exchange_of(scope)
    context = RequestContext(scope, _nothing_to_receive, send, exchange, "/", exchange.request_id, 0.0)
    context.authenticated(caller)
    return context


QUEUE = "tiny@0"


def job(job_id: str = "f", *, n: int = 1, max_output_tokens: int = 9) -> LiveJob:
    """A request of ten prompt tokens of acme's, on the latency lane."""
    asked = ask(job_id, model="tiny", max_output_tokens=max_output_tokens, n=n)
    request = LiveRequest(asked)
    request.jobs = [LiveJob(job_id, request, 10, QUEUE)]
    return request.jobs[0]
