"""Console sessions: a cookie holds the session's id; the store holds a digest of the id and the operator.

A session is valid while the operator's credentials are: the admin key, the token, or the settings that admit
users of an identity provider. The newest few sessions of an operator are kept, and sign-ins per minute are bounded."""

import hashlib
import hmac
import secrets
import time
from typing import Any

import msgspec
from redis.asyncio import Redis
from starlette.datastructures import Headers
from starlette.types import Scope

from fairlane.gateway.control.operators.admin_key import AdminKeys
from fairlane.gateway.control.operators.admin_tokens import AdminTokens, operator_of
from fairlane.gateway.control.operators.operator import Operator
from fairlane.gateway.errors import ApiError, invalid_api_key
from fairlane.gateway.middleware.paths import root_path_of

LASTS_S = 8 * 3_600
SESSIONS_OF_AN_OPERATOR = 32
SIGN_INS_A_MINUTE = 30
# A header that a form of another site cannot send.
CSRF_HEADER = "x-fairlane-csrf"
_STORED_AT = "fl:session:"
_KEPT_AT = "fl:sessions:"
_COUNTED_AT = "fl:sign-ins:"
_COUNTED_FOR_S = 60
_SAFE = ("GET", "HEAD")
_SIGN_IN = "-sign-in"
SIGN_IN_S = 600


class Session(Operator, frozen=True, kw_only=True):
    """A session as it is stored: its operator, and the credentials or settings that it depends on."""

    # A digest, keyed by the session's id, of the operator and of what the session depends on.
    bound: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[Session] = msgspec.msgpack.Decoder(Session)


class Sessions:
    """All console sessions. Every call may raise redis.RedisError."""

    def __init__(self, client: Redis, admin_keys: AdminKeys, tokens: AdminTokens, *, users: bytes = b"") -> None:
        """`users` is a digest of the settings that admit users; their sessions end when it changes."""
        self._client = client
        self._admin_keys = admin_keys
        self._tokens = tokens
        self._users = users

    async def begin(self, operator: Operator) -> str:
        """Start a session of an operator who has just authenticated. Return its id, which is not stored.

        Above the limit, the operator's oldest session ends. Raises ApiError `rate_limit_exceeded`."""
        await self._count_sign_in(operator)
        session = secrets.token_urlsafe(32)
        stored = Session(**msgspec.structs.asdict(operator), bound=await self._bound(session, operator))
        await self._client.set(_place(session), _encode(stored), ex=LASTS_S)
        await self._keep_newest(operator, _place(session))
        return session

    async def operator(self, session: str) -> Operator:
        stored = await self._stored(session)
        if stored is None:
            raise invalid_api_key()
        operator = _operator_of(stored)
        if not hmac.compare_digest(stored.bound, await self._bound(session, operator)):
            raise invalid_api_key()
        if operator.kind != "token":
            return operator
        token = await self._tokens.get(operator.token)
        if token is None:
            raise invalid_api_key()
        return operator_of(token)

    async def end(self, session: str) -> None:
        stored = await self._stored(session)
        await self._client.unlink(_place(session))
        if stored is not None:
            await self._call("ZREM", _KEPT_AT + _digest(_operator_of(stored).actor), _place(session))
            await self._tokens.ended()

    async def _stored(self, session: str) -> Session | None:
        blob = await self._client.get(_place(session))
        if blob is None:
            return None
        try:
            return _decode.decode(blob.encode() if isinstance(blob, str) else blob)
        except msgspec.DecodeError:  # written by an earlier release
            return None

    async def _count_sign_in(self, operator: Operator) -> None:
        counter = _COUNTED_AT + _digest(operator.actor)
        count = await self._call("INCR", counter)
        await self._call("EXPIRE", counter, _COUNTED_FOR_S, "NX")
        if count > SIGN_INS_A_MINUTE:
            left_s = max(1, await self._call("TTL", counter))
            message = f"{operator.actor} has signed in {SIGN_INS_A_MINUTE} times within a minute."
            raise ApiError(message, "rate_limit_exceeded", retry_after_s=left_s)

    async def _keep_newest(self, operator: Operator, place: str) -> None:
        kept = _KEPT_AT + _digest(operator.actor)
        await self._call("ZADD", kept, time.time(), place)
        await self._call("EXPIRE", kept, LASTS_S)
        for oldest in await self._call("ZRANGE", kept, 0, -1 - SESSIONS_OF_AN_OPERATOR):
            await self._call("UNLINK", oldest)
            await self._call("ZREM", kept, oldest)
            await self._tokens.ended()

    async def _call(self, *command: str | bytes | float) -> Any:  # noqa: ANN401 - what a command returns
        return await self._client.execute_command(*command)  # type: ignore[no-untyped-call]

    async def _bound(self, session: str, operator: Operator) -> bytes:
        depends_on = {"key": await self._admin_keys.fingerprint(), "token": b"", "user": self._users}[operator.kind]
        bound_to = _encode((operator.name, operator.role, operator.kind, operator.token, depends_on))
        return hmac.digest(session.encode(), bound_to, "sha256")


def _operator_of(stored: Session) -> Operator:
    return Operator(name=stored.name, role=stored.role, kind=stored.kind, token=stored.token)


def _place(session: str) -> str:
    return _STORED_AT + _digest(session)


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def session_of(scope: Scope) -> str | None:
    """Return the session id in a request's cookie, if any."""
    return _cookie(scope, _cookie_name(scope))


def cookie_of(scope: Scope) -> str | None:
    """Return the cookie of a sign-in in progress at an identity provider, if any."""
    return _cookie(scope, _cookie_name(scope) + _SIGN_IN)


def _cookie(scope: Scope, name: str) -> str | None:
    """Return a cookie; if several have the same name, the first, which has the most specific path."""
    pairs = [pair.strip().partition("=") for sent in Headers(scope=scope).getlist("cookie") for pair in sent.split(";")]
    return next((value for found, _, value in pairs if found == name), "") or None


def cookie(scope: Scope, session: str | None) -> str:
    """Return the `set-cookie` value of a session; None deletes the cookie."""
    return _set_cookie(scope, _cookie_name(scope), session, LASTS_S, "Strict")


def sign_in_cookie(scope: Scope, kept: str | None) -> str:
    """Return the `set-cookie` value of a sign-in in progress; None deletes the cookie.

    It is `SameSite=Lax`, because the browser returns from another site."""
    return _set_cookie(scope, _cookie_name(scope) + _SIGN_IN, kept, SIGN_IN_S, "Lax")


def _set_cookie(scope: Scope, name: str, value: str | None, lasts_s: int, same_site: str) -> str:
    age_s, secure = 0 if value is None else lasts_s, "; Secure" if _is_secure(scope) else ""
    path = root_path_of(scope) or "/"
    return f"{name}={value or ''}; Path={path}; Max-Age={age_s}; HttpOnly; SameSite={same_site}{secure}"


def check_origin(scope: Scope) -> None:
    """Reject a change that was not sent by the console's own page: browsers send cookies with any site's requests.

    Raises ApiError `origin_not_allowed`."""
    if scope["method"] in _SAFE:
        return
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    schemes = ("https",) if _is_secure(scope) else ("http", "https")  # an untrusted proxy may terminate TLS
    is_own = headers.getlist("origin") in [[f"{scheme}://{host}"] for scheme in schemes]
    if not (host and is_own and any(headers.getlist(CSRF_HEADER))):
        raise ApiError("Only the console's own page may do that with a session.", "origin_not_allowed")


def _cookie_name(scope: Scope) -> str:
    if not _is_secure(scope):
        return "fairlane"
    return "__Secure-fairlane" if root_path_of(scope) else "__Host-fairlane"  # browsers keep `__Host-` for the path `/`


def _is_secure(scope: Scope) -> bool:
    return bool(scope.get("scheme") == "https")
