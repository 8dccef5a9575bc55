"""Who calls: by a key of ours, an issuer's token, or in the name of a tenant; with a short memory."""

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

MEMORY_S = 0.4
"""How long a looked-up key is taken as it was where another gateway's operator changes something: with the store's own
delay, a revoked key fails within a second. What this gateway's own admin API changes, it forgets at once."""
REMEMBERED = 10_000
Known = tuple[bytes, bytes, str]
"""Hashes of what a request brought, and the tenant that it names: one name for each way to be somebody."""


class KeyLookup(Protocol):
    """What knows whose key it is; `quotas.api_keys.KeyStore` is one."""

    async def lookup(self, full_key: str) -> Identity | None:
        """The key's owner, or None where it does not work."""


class DelegationLookup(Protocol):
    """What knows the keys of those who come through others; `quotas.delegated_keys.DelegatedKeys` is one."""

    async def identity(self, delegation: Delegation) -> Identity | None:
        """Who comes on this way, or None where nobody may."""


@dataclass(slots=True)
class Caller:
    """A recognised key and what this answer can say of its limits; lives as long as one request."""

    identity: Identity
    secret: str = field(default="", repr=False)
    """The key or token that it was recognised by; empty: the request came by no connection."""
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
    def account(self) -> str:
        """Name under which the store keeps what belongs to the caller's tenant."""
        return self.identity.tenant.account

    @property
    def key_id(self) -> str:
        """Public id of the caller's key."""
        return self.identity.key.id

    @property
    def holder(self) -> bytes:
        """Who of a key's users it is, where several have secrets of their own: a token's; empty: there is but one."""
        return hashlib.sha256(self.secret.encode()).digest() if is_token(self.secret) else b""


class Authenticator:
    """Requests to callers. Remembers, by a hash of what they bring, what the store said at most MEMORY_S ago."""

    def __init__(
        self,
        keys: KeyLookup,
        delegations: DelegationLookup | None = None,
        *,
        reader: CredentialReader | None = None,
        tokens: Tokens | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`delegations`: where tokens are taken or tenants may be named. `tokens`: of the issuers that are taken."""
        self._keys = keys
        self._delegations = delegations
        self._reader = reader or CredentialReader()
        self._tokens = tokens
        self._clock = clock
        self._known: OrderedDict[Known, tuple[float, Identity]] = OrderedDict()
        self._asking: dict[Known, asyncio.Task[Identity | None]] = {}

    async def identify(self, scope: Scope) -> Caller:
        """Whose a request is, whatever it may be used for: `check` says that.

        Raises ApiError: those of CredentialReader, Tokens and `invalid_api_key`, `identity_conflict`,
        `tenant_not_allowed`, `tenant_suspended`. Raises StoreUnavailable.
        """
        brought = self._reader.read(scope)
        identity = self._remembered(brought) or await self._lookup(brought)
        return Caller(identity, brought.secret)

    def remembered(self, scope: Scope) -> Caller | None:
        """The same where the store need not be asked. Raises ApiError."""
        brought = self._reader.read(scope)
        identity = self._remembered(brought)
        return None if identity is None else Caller(identity, brought.secret)

    def forget(self) -> None:
        """Ask anew from now on: something of a tenant or a key has changed. What was asked before is not remembered."""
        self._known, self._asking = OrderedDict(), {}

    def _remembered(self, brought: Credentials) -> Identity | None:
        before = self._known.get(_name(brought))
        return before[1] if before is not None and self._clock() - before[0] < MEMORY_S else None

    async def _lookup(self, brought: Credentials) -> Identity:
        now_s, name, known = self._clock(), _name(brought), self._known
        identity = await asyncio.shield(self._asked(brought, name))  # who else waits must not lose it
        if identity is None:
            known.pop(name, None)
            raise invalid_api_key()
        known[name] = (now_s, identity)
        known.move_to_end(name)
        while len(known) > REMEMBERED:
            known.popitem(last=False)
        return identity

    def _asked(self, brought: Credentials, name: Known) -> "asyncio.Task[Identity | None]":
        """The question to the store, one for all that ask it at the same time."""
        asking = self._asking.get(name)
        if asking is None:
            asking = self._asking[name] = asyncio.ensure_future(self._resolve(brought))
            asking.add_done_callback(lambda done: self._answered(name, done))
        return asking

    def _answered(self, name: Known, asked: "asyncio.Task[Identity | None]") -> None:
        if self._asking.get(name) is asked:
            del self._asking[name]
        if not asked.cancelled():
            asked.exception()  # where nobody waits any more, nobody needs to hear of it

    async def _resolve(self, brought: Credentials) -> Identity | None:
        """The one identity of all that a request brings."""
        own = await self._of_secret(brought.secret)
        if own is None:
            return None
        if brought.also and await self._keys.lookup(brought.also) is not None:
            raise identity_conflict()
        return await self._acting(own, brought.tenant) if brought.tenant not in ("", own.tenant.id) else own

    async def _of_secret(self, secret: str) -> Identity | None:
        if self._tokens is None or not is_token(secret):
            return await self._keys.lookup(secret)
        return await self._delegated(await self._tokens.delegation(secret))

    async def _acting(self, own: Identity, tenant: str) -> Identity | None:
        """The tenant in whose name the holder of a key comes."""
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
        return None if self._delegations is None else await self._delegations.identity(delegation)


def _name(brought: Credentials) -> Known:
    """Under which what is known of it is remembered: each part apart, so that none runs into another."""
    also = _digest(brought.also) if brought.also else b""
    return _digest(brought.secret), also, brought.tenant


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


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
    """Return whether the caller's key may be used for a path: a scope covers a path and all below it."""
    endpoints = caller.identity.key.scopes.endpoints
    return endpoints is None or f"{path}/".startswith(tuple(f"{each}/" for each in endpoints))
