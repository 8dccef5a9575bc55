"""Paths as clients write them: below the deployment's prefix, with doubled slashes and one at the end."""

import re
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

# Served without the prefix too: the deployment's own probes do not pass through its proxy.
PROBES = frozenset({"/healthz", "/health", "/readyz"})
# Served as they are written only: a proxy's rule for operators' paths cannot be evaded, and the page of `/docs` loads
# its files by relative links.
_EXACT = ("/admin", "/console", "/metrics", "/docs")
_SLASHES = re.compile("/{2,}")
_VERSION = "/v1"
# Of a wrong path, to look for the right one in.
MOST_STEPS = 12


@dataclass(eq=False)
class PlainPaths:
    """Passes requests on with the path that their route has. `outside` serves those that are not below `root_path`."""

    app: ASGIApp
    outside: ASGIApp
    root_path: str

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        app, root = self.app, self.root_path
        if scope["type"] != "http":
            return app(scope, receive, send)
        path: str = scope["path"]
        if "//" in path or path.endswith("/"):
            path = self._plain(path)
        if root:
            scope["app_root_path"] = root
            if f"{path}/".startswith(f"{root}/"):
                path = path[len(root) :] or "/"
            elif path not in PROBES:
                app = self.outside
        scope["path"] = path
        return app(scope, receive, send)

    def _plain(self, path: str) -> str:
        """Return the path without needless slashes. What follows `/models/` is an id, which may contain any."""
        head, models, model = path.partition("/models/")
        plain = (_SLASHES.sub("/", head + models) + model).rstrip("/") or "/"
        return path if plain.removeprefix(self.root_path).startswith(_EXACT) else plain


def root_path_of(scope: Scope) -> str:
    """Return the prefix of the paths that a browser asks for; empty without one."""
    return str(scope.get("app_root_path", ""))


def right_path(routes: Iterable[BaseRoute], path: str) -> str:
    """Return the path of the route that a request was probably meant for; else "". Its beginning may be another
    server's, or a base URL that is itself an endpoint, and `/v1` may be missing or doubled."""
    steps = path.split("/")[1 : MOST_STEPS + 1]
    ends = ["/" + "/".join(steps[start:]) for start in range(len(steps))]
    candidates = [each for end in ends for each in (end, _VERSION + end)]
    known = [route for route in routes if isinstance(route, Route)]
    found = (route.path_format for each in candidates for route in known if route.path_regex.match(each))
    return next(found, "")
