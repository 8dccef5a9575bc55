"""The short way of the requests that come in thousands: past the router, to their endpoints with what those need.

Each middleware of the application and the router itself wrap every message of an answer once more, and a stream has a
message for each token.
"""

from collections.abc import Awaitable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class Express:
    """Serves some routes itself and leaves all else to the application."""

    def __init__(self, app: ASGIApp, routes: Mapping[tuple[str, str], ASGIApp]) -> None:
        """`routes`: by method and path; each is a route of the application too."""
        self._app = app
        self._routes = routes

    @property
    def routes(self) -> set[tuple[str, str]]:
        """Methods and paths that go the short way."""
        return set(self._routes)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """One ASGI call: the chosen one's own, without a coroutine around it."""
        app = self._app
        if scope["type"] == "http":
            app = self._routes.get((scope["method"], scope["path"]), app)
        return app(scope, receive, send)
