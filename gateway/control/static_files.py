"""Files that browsers load, each read once, under a strict content security policy."""

import hashlib
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

# Nothing inline, from other origins or in a frame: an injected script has nothing to use.
POLICY: Mapping[str, str] = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # revalidated each time, answered 304 if unchanged
}


def policy_text(rules: Mapping[str, str] = POLICY) -> str:
    """Return a policy as its header's value."""
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def file_route(
    path: str, content: bytes, media_type: str, policy: Mapping[str, str] = POLICY, *, root_path: str = ""
) -> Route:
    """Return the route that serves one file. A page's links, which begin with `/`, lead below `root_path`."""
    if media_type == "text/html":
        content = content.replace(b'="/', b'="%b/' % root_path.encode("ascii"))
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "content-security-policy": policy_text(policy), "etag": etag}

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return Route(path, serve, methods=["GET"])
