"""A header on every answer to a tenant that says which store is away, so that nobody has to guess from the refusals."""

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-fairlane-degraded"


class Degraded:
    """Wraps one endpoint. While nothing is away it costs one call of `missing`."""

    def __init__(self, app: ASGIApp, missing: Callable[[], str]) -> None:
        """`missing`: the stores that are away as a request comes, with commas; empty: none."""
        self._app = app
        self._missing = missing

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """One ASGI call: the endpoint's own, without a coroutine around it."""
        missing = self._missing()
        return self._app(scope, receive, _told(send, missing.encode()) if missing else send)


def _told(send: Send, missing: bytes) -> Send:
    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (HEADER, missing)]}
        await send(message)

    return tell
