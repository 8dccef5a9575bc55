"""Contexts of requests that come without a server."""

from typing import Any

from starlette.types import Message, Scope, Send

from fairlane.gateway.http.exchange import exchange_of
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.pipeline.context import RequestContext


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
