"""Who operates: the admin key, and what becomes of those who guess at it."""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from redis.asyncio import Redis
from starlette.types import Scope

from fairlane.gateway.errors import ApiError, invalid_api_key
from fairlane.gateway.http.connections import holder_of
from fairlane.gateway.identity.credentials import bearer

FREE_GUESSES = 10
"""Wrong keys of one address that are answered at once…"""
GUESS_EVERY_S = 1.0
"""…then one in so long."""
LONGEST_HOLD_S = 10.0
"""A wrong key whose turn is later is refused at once."""
MOST_HELD = 256
"""Answers that wait for their turn, of all addresses."""
REMEMBERED_ADDRESSES = 10_000
_SALT_BYTES = 16


class Guesses:
    """Wrong admin keys by the address that they come from, whose answers wait for their turn.

    Each address has a bucket of its own, and only what is wrong goes into it: a right key waits for nobody, whatever
    others sent from its address.
    """

    def __init__(self, *, free: int = FREE_GUESSES, clock: Callable[[], float] = time.monotonic) -> None:
        self._free_s = free * GUESS_EVERY_S
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """When each address has all of its free guesses again."""
        self._held = 0

    async def slow(self, address: str) -> None:
        """Wait for the turn of a wrong key. Raises ApiError `rate_limit_exceeded` where that is too far off."""
        now_s, holder = self._clock(), holder_of(address)
        full_at = max(self._full_at.pop(holder, now_s), now_s) + GUESS_EVERY_S
        wait_s = full_at - self._free_s - now_s
        if wait_s > LONGEST_HOLD_S or (wait_s > 0 and self._held >= MOST_HELD):
            self._full_at[holder] = full_at - GUESS_EVERY_S
            raise ApiError(
                "Too many wrong admin keys came from this address.", "rate_limit_exceeded", None, None, wait_s
            )
        self._full_at[holder] = full_at
        while len(self._full_at) > REMEMBERED_ADDRESSES:
            self._full_at.popitem(last=False)
        if wait_s > 0:
            self._held += 1
            try:
                await asyncio.sleep(wait_s)
            finally:
                self._held -= 1


class AdminKeys:
    """The operators' key: the one that the settings name, else one that was made once and is kept as a keyed hash."""

    STORED_AT = "fl:admin-key"

    def __init__(self, client: Redis, configured: str | None, guesses: Guesses | None = None) -> None:
        self._client = client
        self._configured = None if configured is None else _kept(configured)
        self._fingerprint = None if configured is None else hashlib.sha256(configured.encode()).digest()
        self._guesses = guesses or Guesses()

    async def ensure(self) -> str | None:
        """Make a key where there is none; returns it that one time only, else None. Raises redis.RedisError."""
        if self._configured is not None:
            return None
        key = f"fla-{secrets.token_urlsafe(32)}"
        return key if await self._client.set(self.STORED_AT, _kept(key).hex(), nx=True) else None

    async def check(self, headers: Iterable[tuple[bytes, bytes]], address: str) -> None:
        """Pass the operator through. Raises ApiError for anyone else, slowly where many came from that address:
        `invalid_api_key`, `rate_limit_exceeded`. Raises redis.RedisError."""
        if not await self._works(bearer(headers)):
            await self._guesses.slow(address)
            raise invalid_api_key()

    async def fingerprint(self) -> bytes:
        """Another one with each key, and the same on every gateway; not to be stored. Raises redis.RedisError."""
        return self._fingerprint or await self._stored() or b""

    async def _works(self, key: str) -> bool:
        known = self._configured or await self._stored()
        return known is not None and hmac.compare_digest(known[_SALT_BYTES:], _keyed_hash(known[:_SALT_BYTES], key))

    async def _stored(self) -> bytes | None:
        stored = await self._client.get(self.STORED_AT)
        return None if stored is None else bytes.fromhex(stored.decode() if isinstance(stored, bytes) else stored)


def _kept(key: str) -> bytes:
    """What is kept of a key: a salt, and a hash under it."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return salt + _keyed_hash(salt, key)


def _keyed_hash(salt: bytes, key: str) -> bytes:
    return hmac.digest(salt, key.encode(), "sha256")


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
