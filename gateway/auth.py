"""Who calls: API keys of tenants, with a short memory."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import Scope

from fairlane.gateway.errors import ApiError, invalid_api_key
from fairlane.quotas.api_keys import Identity
from fairlane.quotas.limits import LimitStatus
from fairlane.quotas.store import Once

MEMORY_S = 0.4
"""How long a looked-up key is taken as it was where another gateway's operator changes something: with the store's own
delay, a revoked key fails within a second. What this gateway's own admin API changes, it forgets at once."""
REMEMBERED = 10_000
_BEARER = "bearer"
_KEY_HEADER = b"x-api-key"
_LONGEST_KEY = 512


class KeyLookup(Protocol):
    """What knows whose key it is; `quotas.api_keys.KeyStore` is one."""

    async def lookup(self, full_key: str) -> Identity | None:
        """The key's owner, or None where it does not work."""


@dataclass(slots=True)
class Caller:
    """A recognised key and what this answer can say of its limits; lives as long as one request."""

    identity: Identity
    statuses: Sequence[LimitStatus] | None = field(default=None, repr=False)
    """As the last operation on the store saw them; None: nobody asked yet."""
    once: Once | None = None
    """What every run of this request has in common; None: it has no idempotency key."""
    runs: tuple[str, ...] = ()
    """Its earlier runs, by the ids of their reservations, the newest first."""
    batch_due_ms: float | None = None
    """Where it is a line of a batch: when that batch's window ends, from now."""

    @property
    def root(self) -> str:
        """Hash tag of the caller's budgets."""
        return self.identity.tenant.root

    @property
    def tenant_id(self) -> str:
        """Id of the caller's tenant."""
        return self.identity.tenant.id

    @property
    def key_id(self) -> str:
        """Public id of the caller's key."""
        return self.identity.key.id


class Authenticator:
    """API keys to callers. Remembers, by a hash of the key, what the store said at most MEMORY_S ago."""

    def __init__(self, keys: KeyLookup, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, Identity]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Identity | None]] = {}

    async def identify(self, scope: Scope) -> Caller:
        """Whose key a request carries, whatever it may be used for: `check` says that.

        Raises ApiError `invalid_api_key`. Raises StoreUnavailable.
        """
        return self.remembered(scope) or Caller(await self._lookup(api_key(scope["headers"])))

    def remembered(self, scope: Scope) -> Caller | None:
        """The same where the store need not be asked. Raises ApiError `invalid_api_key`."""
        before = self._known.get(_digest(api_key(scope["headers"])))
        return Caller(before[1]) if before is not None and self._clock() - before[0] < MEMORY_S else None

    def forget(self) -> None:
        """Ask anew from now on: something of a tenant or a key has changed. What was asked before is not remembered."""
        self._known, self._asking = OrderedDict(), {}

    async def _lookup(self, key: str) -> Identity:
        now_s, digest, known = self._clock(), _digest(key), self._known
        identity = await asyncio.shield(self._asked(key, digest))  # who else waits must not lose it
        if identity is None:
            known.pop(digest, None)
            raise invalid_api_key()
        known[digest] = (now_s, identity)
        known.move_to_end(digest)
        while len(known) > REMEMBERED:
            known.popitem(last=False)
        return identity

    def _asked(self, key: str, digest: bytes) -> "asyncio.Task[Identity | None]":
        """The question to the store, one for all that ask it at the same time."""
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.ensure_future(self._keys.lookup(key))
            asking.add_done_callback(lambda done: self._answered(digest, done))
        return asking

    def _answered(self, digest: bytes, asked: "asyncio.Task[Identity | None]") -> None:
        if self._asking.get(digest) is asked:
            del self._asking[digest]
        if not asked.cancelled():
            asked.exception()  # where nobody waits any more, nobody needs to hear of it


def _digest(key: str) -> bytes:
    """What is remembered of a key."""
    return hashlib.sha256(key.encode()).digest()


def check(caller: Caller, scope: Scope) -> None:
    """Let a recognised caller's request for one of the tenant paths through.

    Raises ApiError: `address_not_allowed`, `endpoint_not_allowed`, `tenant_suspended`.
    """
    if not caller.identity.key.scopes.allows_address((scope.get("client") or ("",))[0]):
        raise ApiError("This key may not be used from this address.", "address_not_allowed")
    if not may_ask(caller, scope["path"]):
        raise ApiError("This key may not be used for this path.", "endpoint_not_allowed")
    if caller.identity.tenant.state == "suspended":
        raise ApiError("This tenant is suspended.", "tenant_suspended")


def may_ask(caller: Caller, path: str) -> bool:
    """Whether the caller's key may be used for a path."""
    endpoints = caller.identity.key.scopes.endpoints
    return endpoints is None or any(each in endpoints for each in _covering(path))


def _covering(path: str) -> list[str]:
    """A path and all above it: who may use `/v1/models` may use `/v1/models/{id}`."""
    parts = path.rstrip("/").split("/")
    return ["/".join(parts[:length]) for length in range(len(parts), 1, -1)]


def api_key(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """A tenant's key: as `bearer` has it, or, without an `Authorization` header, in the one `x-api-key`, as Anthropic's
    clients send it. Raises ApiError `invalid_api_key`."""
    given = []
    for name, value in headers:
        if name == b"authorization":
            return bearer(headers)
        if name == _KEY_HEADER:
            given.append(value)
    if len(given) != 1 or len(given[0]) > _LONGEST_KEY:
        raise invalid_api_key()
    key = given[0].decode("latin-1").strip()
    if not key or not key.isascii():
        raise invalid_api_key()
    return key


def bearer(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The key in the one `Authorization: Bearer` header. Raises ApiError `invalid_api_key`."""
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1 or len(given[0]) > _LONGEST_KEY:
        raise invalid_api_key()
    scheme, _, key = given[0].decode("latin-1").strip().partition(" ")
    key = key.strip()
    if scheme.lower() != _BEARER or not key or not key.isascii():
        raise invalid_api_key()
    return key
