"""Every answer names its request: `x-request-id` is the caller's if well-formed, else minted here."""

import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.random_ids import random_id

HEADER = b"x-request-id"
_WELL_FORMED = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


def mint() -> str:
    """A fresh id: 96 random bits."""
    return f"req_{random_id()}"


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's id if it sent exactly one, well-formed; else a fresh one."""
    given = [value for name, value in headers if name == HEADER]
    if len(given) == 1 and _WELL_FORMED.fullmatch(given[0]):
        return given[0].decode("ascii")
    return mint()


class RequestIdMiddleware:
    """Puts the id into `scope["state"]["request_id"]` and on the answer. Wrap it around the whole application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call; only HTTP is named."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope["headers"])
        scope.setdefault("state", {})["request_id"] = request_id
        named = (HEADER, request_id.encode("ascii"))

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [header for header in message.get("headers", ()) if header[0].lower() != HEADER]
                message = {**message, "headers": [*others, named]}
            await send(message)

        await self._app(scope, receive, send_named)
