"""Keys without a secret: one for each trusted way in which a tenant's requests arrive.

A way is an identity provider, optionally with one of its groups, or the key of a gateway in front. Its key is created
at its first use, under an id derived from the way and the tenant, so gateways never create two."""

import base64
import dataclasses
import hashlib
import json
from dataclasses import dataclass, field

from fairlane.quotas import keyspace
from fairlane.quotas.api_keys import ApiKey, Identity, KeyStore, Scopes
from fairlane.quotas.audit import Note
from fairlane.quotas.limits import LIMIT_NAMES, Limits
from fairlane.quotas.scripts import Database, Redis
from fairlane.quotas.store import QuotaError
from fairlane.quotas.tenants import TenantStore

ACTOR = "gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """One way to one tenant. Each pair of way and tenant has its own key."""

    # For example `issuer:login`, `issuer:login/research`, `key:<public id>`.
    via: str
    tenant: str
    # For all requests on this way together; None keeps what operators set on its key.
    limits: Limits | None = None
    scopes: Scopes = field(default_factory=Scopes)

    @property
    def key_id(self) -> str:
        return self.key_of(self.tenant)

    def key_of(self, account: str) -> str:
        digest = hashlib.sha256(json.dumps([self.via, account]).encode()).digest()
        return base64.b32encode(digest[:10]).decode().lower()


class DelegatedKeys:
    """The keys of delegations. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)
        self._keys = KeyStore(client)
        self._tenants = TenantStore(client)
        self._applied: dict[str, Delegation] = {}

    async def identity(self, delegation: Delegation) -> Identity | None:
        way = keyspace.api_key(delegation.key_id)
        root, tenant_id, named = await self._database.call("HMGET", way, "root", "tenant", "key")
        key_id = named or delegation.key_id
        found = None if root is None else await self._keys.identity(root, tenant_id, key_id)
        if found is None:
            if root is not None and await self._keys.has_key(root, key_id):
                # Revoked, unless another gateway has written it since the first look.
                return await self._keys.identity(root, tenant_id, key_id)
            return await self._make(delegation)
        if self._applied.get(key_id) != delegation:
            found = await self._apply(delegation, found)
        return found and Identity(found.tenant, dataclasses.replace(found.key, scopes=delegation.scopes))

    async def _make(self, delegation: Delegation) -> Identity | None:
        tenant = await self._tenants.get(delegation.tenant)
        if tenant is None:
            return None
        key_id = delegation.key_of(tenant.account)
        where = ("root", tenant.root, "tenant", tenant.id, "key", key_id)
        await self._database.call("HSET", keyspace.api_key(delegation.key_id), *where)
        if key_id != delegation.key_id:
            await self._database.call("HSET", keyspace.api_key(key_id), "way", delegation.key_id)
        key = ApiKey(
            id=key_id,
            tenant=tenant.id,
            name=delegation.via[:200],
            created_at=await self._database.now_ms() / 1e3,
            limits=delegation.limits or Limits(),
            scopes=delegation.scopes,
            via=delegation.via,
        )
        target = f"{tenant.id}/{key_id}"
        note = Note(actor=ACTOR, action="key.create", target=target, changes={"via": {"after": delegation.via}})
        await self._keys.put(tenant, key, note)  # or another gateway has written the same key
        return await self._keys.identity(tenant.root, tenant.id, key_id)

    async def _apply(self, delegation: Delegation, found: Identity) -> Identity | None:
        """Update the key once per process, so that processes with different settings do not keep overwriting it."""
        tenant, key, stated = found.tenant, found.key, _stated(delegation)
        if key.changed(stated) != key:
            try:
                key = await self._keys.update(tenant, key, stated)
            except QuotaError:  # changed or revoked meanwhile: retried by the next request
                return await self._keys.identity(tenant.root, tenant.id, key.id)
        self._applied[key.id] = delegation
        return Identity(tenant, key)


def _stated(delegation: Delegation) -> dict[str, object]:
    scopes = dataclasses.asdict(delegation.scopes)
    if delegation.limits is None:
        return {"scopes": scopes}
    return {"scopes": scopes, "limits": dict.fromkeys(LIMIT_NAMES) | delegation.limits.as_dict()}
