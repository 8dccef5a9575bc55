"""What nobody foresaw: answered in our form like any other error, and logged without what it was about."""

import logging
import traceback

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import errors

log = logging.getLogger(__name__)


def log_fault(request_id: str, error: Exception) -> None:
    """Where an error of ours came from. Its own words may hold what a client sent: only its type is told."""
    stack = "".join(traceback.format_tb(error.__traceback__))
    log.error("request %s failed\n%s%s", request_id, stack, type(error).__qualname__)


class FaultMiddleware:
    """Ends a call with a 500 where the application raises. Put it inside what names the request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call; only HTTP is answered. An answer that has begun is left broken off: the server closes it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:  # noqa: BLE001 - the last place where it can be caught
            log_fault(scope.get("state", {}).get("request_id", ""), error)
            if not started:
                await errors.response(errors.internal_error())(scope, receive, send)
