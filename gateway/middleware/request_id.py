"""Request ids: `x-request-id` is the caller's if well-formed, else generated here.

Unexpected exceptions become internal errors, and are logged without their message."""

import logging
import traceback
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlane.gateway import errors
from fairlane.gateway.http.exchange import exchange_of
from fairlane.gateway.http.request_id import HEADER

log = logging.getLogger(__name__)


def log_fault(request_id: str, error: Exception) -> None:
    """Log where an exception was raised, and its type. Its message is left out: it may contain data that a client
    sent."""
    stack = "".join(traceback.format_tb(error.__traceback__))
    log.error("request %s failed\n%s%s", request_id, stack, type(error).__qualname__)


@dataclass(eq=False)
class RequestIdMiddleware:
    """Adds the id to the response, and ends a call with a 500 if the application raises.

    A response that has started is left incomplete: the server closes its connection."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = exchange_of(scope).request_id
        named = (HEADER, request_id.encode("ascii"))
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            started = True
            if message["type"] == "http.response.start":
                others = [header for header in message.get("headers", ()) if header[0].lower() != HEADER]
                message = {**message, "headers": [*others, named]}
            await send(message)

        try:
            await self.app(scope, receive, send_named)
        except Exception as error:  # noqa: BLE001 - the last place to catch it
            log_fault(request_id, error)
            if not started:
                answer = errors.response(errors.internal_error(), path=scope["path"], request_id=request_id)
                await answer(scope, receive, send_named)
