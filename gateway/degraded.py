"""A header on every answer to a tenant that says which store is away, so that nobody has to guess from the refusals."""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-fairlane-degraded"


class Degraded:
    """Wraps one endpoint. While nothing is away it costs one call of `missing`."""

    def __init__(self, app: ASGIApp, missing: Callable[[], str]) -> None:
        """`missing`: the stores that are away as a request comes, with commas; empty: none."""
        self._app = app
        self._missing = missing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call."""
        missing = self._missing()
        await self._app(scope, receive, _told(send, missing.encode()) if missing else send)


def _told(send: Send, missing: bytes) -> Send:
    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (HEADER, missing)]}
        await send(message)

    return tell
