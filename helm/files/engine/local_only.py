"""Middleware of vLLM in a pod: containers of the pod may call it, and everyone may read its health and metrics.

A caller of vLLM chooses its priority, which only Fairlane may do. But kubelet and Prometheus come from other addresses.
"""

from collections.abc import Awaitable, Callable
from typing import Any

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

OWN = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
OPEN = frozenset({"/health", "/metrics"})


class LocalOnly:
    """Refuses HTTP and WebSockets of other pods, except for `OPEN`."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        kind = scope["type"]
        peer, _ = scope.get("client") or ("", 0)
        if kind == "lifespan" or peer in OWN or (kind == "http" and scope["path"] in OPEN):
            await self.app(scope, receive, send)
        elif kind == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send(
                {"type": "http.response.body", "body": b"Only the pod's own lease holders may call this engine.\n"}
            )
        else:
            await send({"type": "websocket.close", "code": 1008})
