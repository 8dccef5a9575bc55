"""Authentication: maps the key, token or tenant header of a request to its caller, with a short-lived cache."""

import asyncio
import dataclasses
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import Scope

from fairlane.gateway.errors import ApiError, identity_conflict, invalid_api_key, tenant_not_allowed
from fairlane.gateway.identity.credentials import CredentialReader, Credentials
from fairlane.gateway.identity.tokens import Tokens, is_token
from fairlane.quotas.api_keys import KEY_WAY, Identity
from fairlane.quotas.delegated_keys import Delegation
from fairlane.quotas.limits import LimitStatus
from fairlane.quotas.store import Once

# Lifetime of a cached identity. Together with the store's delay, a key that another gateway revokes fails within a
# second. Changes through this gateway's own admin API clear the cache at once.
MEMORY_S = 0.4
REMEMBERED = 10_000
# A cache key: hashes of the secrets of a request, and the tenant that it names.
Known = tuple[bytes, bytes, str]


class KeyLookup(Protocol):
    """Finds the owner of a key, as `quotas.api_keys.KeyStore` does."""

    async def lookup(self, full_key: str) -> Identity | None: ...


class DelegationLookup(Protocol):
    """Finds the identity of a delegated caller, as `quotas.delegated_keys.DelegatedKeys` does."""

    async def identity(self, delegation: Delegation) -> Identity | None: ...


@dataclass(slots=True)
class Caller:
    """An authenticated caller with the state of its limits, for the duration of one request."""

    identity: Identity
    # The key or token that it authenticated with; empty for a request without a connection (a batch line).
    secret: str = field(default="", repr=False)
    # As of the last store operation; None before the first.
    statuses: Sequence[LimitStatus] | None = field(default=None, repr=False)
    # What every run of this request shares; None without an idempotency key.
    once: Once | None = None
    runs: tuple[str, ...] = ()
    # For a line of a batch: time until the batch's window ends.
    batch_due_ms: float | None = None
    root: str = field(init=False)
    tenant_id: str = field(init=False)
    key_id: str = field(init=False)

    def __post_init__(self) -> None:
        tenant = self.identity.tenant
        self.root, self.tenant_id, self.key_id = tenant.root, tenant.id, self.identity.key.id

    @property
    def account(self) -> str:
        return self.identity.tenant.account

    @property
    def holder(self) -> bytes:
        """Return a hash that distinguishes the holders of one key: set for tokens, empty for API keys."""
        return hashlib.sha256(self.secret.encode()).digest() if is_token(self.secret) else b""


@dataclass(eq=False)
class Authenticator:
    """Maps requests to callers. Caches the store's answers for MEMORY_S, keyed by a hash of the credentials.

    `delegations` is needed where tokens or tenant headers are accepted."""

    keys: KeyLookup
    delegations: DelegationLookup | None = None
    reader: CredentialReader = field(default_factory=CredentialReader)
    tokens: Tokens | None = None
    clock: Callable[[], float] = time.monotonic
    _known: OrderedDict[Known, tuple[float, Identity]] = field(default_factory=OrderedDict, init=False)
    _asking: dict[Known, asyncio.Task[Identity | None]] = field(default_factory=dict, init=False)

    async def identify(self, scope: Scope) -> Caller:
        """Return the caller of a request. `check` decides what the caller may do.

        Raises ApiError: those of CredentialReader and Tokens, `invalid_api_key`, `identity_conflict`,
        `tenant_not_allowed`, `tenant_suspended`. Raises StoreUnavailable."""
        brought = self.reader.read(scope)
        identity = self._remembered(brought) or await self._lookup(brought)
        return Caller(identity, brought.secret)

    def forget(self) -> None:
        """Clear the cache after a change of a tenant or key. Lookups in progress are not cached."""
        self._known, self._asking = OrderedDict(), {}

    def _remembered(self, brought: Credentials) -> Identity | None:
        before = self._known.get(_name(brought))
        return before[1] if before is not None and self.clock() - before[0] < MEMORY_S else None

    async def _lookup(self, brought: Credentials) -> Identity:
        now_s, name, known = self.clock(), _name(brought), self._known
        identity = await asyncio.shield(self._asked(brought, name))  # other callers may share this lookup
        if identity is None:
            known.pop(name, None)
            raise invalid_api_key()
        known[name] = (now_s, identity)
        known.move_to_end(name)
        while len(known) > REMEMBERED:
            known.popitem(last=False)
        return identity

    def _asked(self, brought: Credentials, name: Known) -> "asyncio.Task[Identity | None]":
        asking = self._asking.get(name)
        if asking is None:
            asking = self._asking[name] = asyncio.ensure_future(self._resolve(brought))
            asking.add_done_callback(lambda done: self._answered(name, done))
        return asking

    def _answered(self, name: Known, asked: "asyncio.Task[Identity | None]") -> None:
        if self._asking.get(name) is asked:
            del self._asking[name]
        if not asked.cancelled():
            asked.exception()  # marks it as retrieved: its callers may all have disconnected

    async def _resolve(self, brought: Credentials) -> Identity | None:
        own = await self._of_secret(brought.secret)
        if own is None:
            return None
        if brought.also and await self.keys.lookup(brought.also) is not None:
            raise identity_conflict()
        return await self._acting(own, brought.tenant) if brought.tenant not in ("", own.tenant.id) else own

    async def _of_secret(self, secret: str) -> Identity | None:
        if self.tokens is None or not is_token(secret):
            return await self.keys.lookup(secret)
        return await self._delegated(await self.tokens.delegation(secret))

    async def _acting(self, own: Identity, tenant: str) -> Identity | None:
        scopes = own.key.scopes
        if scopes.act_as is None or own.key.via:
            raise identity_conflict()
        if not scopes.may_act_as(tenant):
            raise tenant_not_allowed()
        if own.tenant.state == "suspended":
            raise ApiError("The tenant of this key is suspended.", "tenant_suspended")
        passed_on = dataclasses.replace(scopes, act_as=None)
        return await self._delegated(Delegation(via=f"{KEY_WAY}{own.key.id}", tenant=tenant, scopes=passed_on))

    async def _delegated(self, delegation: Delegation) -> Identity | None:
        return None if self.delegations is None else await self.delegations.identity(delegation)


def _name(brought: Credentials) -> Known:
    also = _digest(brought.also) if brought.also else b""
    return _digest(brought.secret), also, brought.tenant


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def check(caller: Caller, scope: Scope) -> None:
    """Check that a caller may use a tenant path.

    Raises ApiError: `address_not_allowed`, `endpoint_not_allowed`, `tenant_suspended`."""
    scopes = caller.identity.key.scopes
    if scopes.cidrs is not None and not scopes.allows_address((scope.get("client") or ("",))[0]):
        raise ApiError("This key may not be used from this address.", "address_not_allowed")
    if not may_ask(caller, scope["path"]):
        raise ApiError("This key may not be used for this path.", "endpoint_not_allowed")
    if caller.identity.tenant.state == "suspended":
        raise ApiError("This tenant is suspended.", "tenant_suspended")


def may_ask(caller: Caller, path: str) -> bool:
    """Return whether the caller's key may be used for a path. A scope covers a path and all paths below it."""
    endpoints = caller.identity.key.scopes.endpoints
    return endpoints is None or f"{path}/".startswith(tuple(f"{each}/" for each in endpoints))
