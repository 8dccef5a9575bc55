"""The console's sessions: whoever signed in with the admin key goes on without it, by a cookie no script can read.

What the store keeps is a hash of the session's id, and under it a hash of both the id and the admin key: neither can be
told from it, every gateway can check it, and with another key no session works any more.
"""

import hashlib
import hmac
import secrets

from redis.asyncio import Redis
from starlette.types import Scope

from fairlane.gateway.errors import ApiError, invalid_api_key
from fairlane.gateway.operators import AdminKeys

LASTS_S = 8 * 3_600
CSRF_HEADER = b"x-fairlane-csrf"
"""That a form of another site cannot send."""
_STORED_AT = "fl:session:"
_SAFE = ("GET", "HEAD")


class Sessions:
    """All that are signed in. Every call may raise redis.RedisError."""

    def __init__(self, client: Redis, admin_keys: AdminKeys) -> None:
        self._client = client
        self._admin_keys = admin_keys

    async def begin(self) -> str:
        """A session of who has just shown the admin key; its id, which is kept nowhere."""
        session = secrets.token_urlsafe(32)
        await self._client.set(_place(session), await self._bound(session), ex=LASTS_S)
        return session

    async def check(self, session: str) -> None:
        """Pass whoever is signed in. Raises ApiError `invalid_api_key`."""
        stored = await self._client.get(_place(session))
        known = stored.encode() if isinstance(stored, str) else stored
        if known is None or not hmac.compare_digest(known, (await self._bound(session)).encode()):
            raise invalid_api_key()

    async def end(self, session: str) -> None:
        """Sign out."""
        await self._client.unlink(_place(session))

    async def _bound(self, session: str) -> str:
        return hmac.new(session.encode(), await self._admin_keys.fingerprint(), "sha256").hexdigest()


def _place(session: str) -> str:
    return _STORED_AT + hashlib.sha256(session.encode()).hexdigest()


def session_of(scope: Scope) -> str | None:
    """The session that a request's cookie names."""
    wanted = f"{_cookie_name(scope)}="
    for name, value in scope["headers"]:
        if name == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                if pair.strip().startswith(wanted):
                    return str(pair.strip().removeprefix(wanted)) or None
    return None


def cookie(scope: Scope, session: str | None) -> str:
    """What a browser is told to keep; None: to forget."""
    lasts_s = 0 if session is None else LASTS_S
    secure = "; Secure" if _is_secure(scope) else ""
    return f"{_cookie_name(scope)}={session or ''}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Strict{secure}"


def check_origin(scope: Scope) -> None:
    """What a browser sends unasked must not change anything: only the console's own page may.

    Raises ApiError `origin_not_allowed`.
    """
    if scope["method"] in _SAFE:
        return
    given: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        given.setdefault(name, []).append(value)
    host = given.get(b"host", [b""])[0]
    schemes = (b"https",) if _is_secure(scope) else (b"http", b"https")  # a proxy that is not trusted may end TLS
    is_own = given.get(b"origin") in [[scheme + b"://" + host] for scheme in schemes]
    if not (host and is_own and any(given.get(CSRF_HEADER, ()))):
        raise ApiError("Only the console's own page may do that with a session.", "origin_not_allowed")


def _cookie_name(scope: Scope) -> str:
    return "__Host-fairlane" if _is_secure(scope) else "fairlane"


def _is_secure(scope: Scope) -> bool:
    return bool(scope.get("scheme") == "https")
