"""The admin key, and the delay after wrong guesses at it or at a token."""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from redis.asyncio import Redis

from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.connections import holder_of

FREE_GUESSES = 10
GUESS_EVERY_S = 1.0
LONGEST_HOLD_S = 10.0
MOST_HELD = 256
REMEMBERED_ADDRESSES = 10_000
_SALT_BYTES = 16


class Guesses:
    """Delays the responses to wrong admin keys, by address.

    Each address has a token bucket that only wrong keys use: a correct key is never delayed."""

    def __init__(self, *, free: int = FREE_GUESSES, clock: Callable[[], float] = time.monotonic) -> None:
        self._free_s = free * GUESS_EVERY_S
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        self._held = 0

    async def slow(self, address: str) -> None:
        """Wait before a wrong key is answered. Raises ApiError `rate_limit_exceeded` if the wait would be too long."""
        now_s, holder = self._clock(), holder_of(address)
        full_at = max(self._full_at.pop(holder, now_s), now_s) + GUESS_EVERY_S
        wait_s = full_at - self._free_s - now_s
        if wait_s > LONGEST_HOLD_S or (wait_s > 0 and self._held >= MOST_HELD):
            self._full_at[holder] = full_at - GUESS_EVERY_S
            message = "Too many wrong admin keys came from this address."
            raise ApiError(message, "rate_limit_exceeded", retry_after_s=wait_s)
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
    """The admin key: configured, or generated once and stored as a keyed hash."""

    STORED_AT = "fl:admin-key"

    def __init__(self, client: Redis, configured: str | None) -> None:
        self._client = client
        self._configured = None if configured is None else kept(configured)
        self._fingerprint = None if configured is None else hashlib.sha256(configured.encode()).digest()

    async def ensure(self) -> str | None:
        """Generate a key if there is none, and return it; later calls do not. Raises redis.RedisError."""
        if self._configured is not None:
            return None
        key = f"fla-{secrets.token_urlsafe(32)}"
        made = kept(key)
        is_set = await self._client.set(self.STORED_AT, made.hex(), nx=True)
        return key if is_set or await self._stored() == made else None  # the call may have been resent

    async def works(self, key: str) -> bool:
        known = self._configured or await self._stored()
        return known is not None and is_kept(known, key)

    async def fingerprint(self) -> bytes:
        """Return a value derived from the key, equal on all gateways. Do not store it. Raises redis.RedisError."""
        return self._fingerprint or await self._stored() or b""

    async def _stored(self) -> bytes | None:
        stored = await self._client.get(self.STORED_AT)
        return None if stored is None else bytes.fromhex(stored.decode() if isinstance(stored, bytes) else stored)


def kept(key: str) -> bytes:
    """Return the stored form of a key: a salt, and a keyed hash."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return salt + _keyed_hash(salt, key)


def is_kept(known: bytes, key: str) -> bool:
    """Return whether `known` is the stored form of this key."""
    return hmac.compare_digest(known[_SALT_BYTES:], _keyed_hash(known[:_SALT_BYTES], key))


def _keyed_hash(salt: bytes, key: str) -> bytes:
    return hmac.digest(salt, key.encode(), "sha256")
