"""API keys and their scopes: `fl-<public id>-<secret>`, shown once, stored as a keyed hash.

The public id is safe in logs and metrics. The secret ends with a checksum, so a mistyped or invented key is rejected
without asking the store. Keys imported from other software (`sk-…`) get a public id that is not part of the key."""

import dataclasses
import hashlib
import hmac
import ipaddress
import re
import secrets
import string
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import msgspec

from fairlane.quotas import field_checks, keyspace, packing
from fairlane.quotas.audit import AuditOutbox, Note
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.limits import Limits
from fairlane.quotas.scripts import Database, Redis, Reply
from fairlane.quotas.store import QuotaError
from fairlane.quotas.tenants import LANES, PAGE, TENANT_ID, Tenant, VersionConflict, decode_tenant
from fairlane.store.bounds import chunks
from fairlane.store.errors import StoreUnavailable

ENDPOINT = re.compile(r"^(/v1(/[^/]+)*|/tokenize|/detokenize)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scopes:
    """What a key may be used for; None allows everything that its tenant may use."""

    models: tuple[str, ...] | None = None
    lanes: tuple[str, ...] | None = None
    # Path prefixes such as `/v1/chat/completions`.
    endpoints: tuple[str, ...] | None = None
    cidrs: tuple[str, ...] | None = None
    # Tenants that a gateway in front may name in a header; unlike in the other scopes, None allows none.
    act_as: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, value: object) -> "Scopes":
        stated = field_checks.document(
            {} if value is None else value, "scopes", [f.name for f in dataclasses.fields(cls)]
        )
        parsed: dict[str, tuple[str, ...]] = {}
        for name, listed in stated.items():
            if listed is not None:
                parsed[name] = field_checks.texts(listed, f"scopes.{name}", LANES if name == "lanes" else ())
        if not all(map(ENDPOINT.fullmatch, parsed.get("endpoints", ()))):
            raise FieldError("scopes.endpoints", "must be paths such as /v1/chat/completions")
        try:
            networks = [str(ipaddress.ip_network(cidr)) for cidr in parsed.get("cidrs", ())]
        except ValueError:
            raise FieldError("scopes.cidrs", "must be networks such as 10.0.0.0/8") from None
        if "cidrs" in parsed:
            parsed["cidrs"] = tuple(networks)
        if not all(map(TENANT_ID.fullmatch, parsed.get("act_as", ()))):
            raise FieldError("scopes.act_as", "must be ids of tenants")
        return cls(**parsed)

    def may_act_as(self, tenant: str) -> bool:
        return self.act_as is not None and tenant in self.act_as

    def allows_address(self, address: str) -> bool:
        if self.cidrs is None:
            return True
        try:
            caller = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(caller, ipaddress.IPv6Address) and caller.ipv4_mapped is not None:
            caller = caller.ipv4_mapped
        return any(caller in network for network in _networks(self.cidrs))


@lru_cache(maxsize=256)  # called for each request, and a key may name a thousand
def _networks(cidrs: tuple[str, ...]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(map(ipaddress.ip_network, cidrs))


# Prefix of `via` for keys that are used through another key, followed by that key's public id.
KEY_WAY = "key:"
CHANGEABLE = ("name", "expires_at", "limits", "scopes")
LONGEST_OVERLAP_S = 30 * 86_400.0
_RECORD = ("doc", "state", "expires_ms", "used_ms", "version")
_BASE62 = string.digits + string.ascii_letters
_SECRET_LENGTH, _CHECKSUM_LENGTH = 43, 6
_FORM = re.compile(rf"fl-([a-z2-7]{{16}})-([0-9A-Za-z]{{{_SECRET_LENGTH + _CHECKSUM_LENGTH}}})")
_IMPORTED = "sk-"
SHA256 = re.compile(r"^[0-9a-f]{64}$")
_ID_ALPHABET = string.ascii_lowercase + "234567"


class KeyExists(QuotaError):
    """The key was imported before."""


class KeyNotFound(QuotaError):
    """The tenant has no such key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """An API key without its secret."""

    id: str
    tenant: str
    name: str = ""
    created_at: float
    # Epoch seconds; None never expires.
    expires_at: float | None = None
    state: Literal["active", "revoked"] = "active"
    # Apply in addition to the tenant's limits.
    limits: Limits = field(default_factory=Limits)
    scopes: Scopes = field(default_factory=Scopes)
    # Where a key without a secret comes from: see delegated_keys.py.
    via: str = ""
    # Public id of the key that made it by self-service; empty: an operator did.
    made_by: str = ""
    # Epoch seconds, to the minute.
    last_used_at: float | None = None
    version: int = 0

    def changed(self, changes: Mapping[str, object]) -> "ApiKey":
        """Return the key with these fields replaced; `limits` are merged. Raises FieldError."""
        new: dict[str, Any] = field_checks.document(changes, "", CHANGEABLE)
        if "name" in new:
            new["name"] = field_checks.text("" if new["name"] is None else new["name"], "name")
        if new.get("expires_at") is not None:
            new["expires_at"] = field_checks.moment(new["expires_at"], "expires_at")
        if "limits" in new:
            new["limits"] = Limits() if new["limits"] is None else self.limits.merged(new["limits"])
        if "scopes" in new:
            new["scopes"] = Scopes.parse(new["scopes"])
        return dataclasses.replace(self, **new)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key; `secret` is the whole key, which cannot be read again."""

    key: ApiKey
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """The tenant and key of a request. The tenant may be suspended."""

    tenant: Tenant
    key: ApiKey


def public_id(full_key: str) -> str | None:
    """Return the public id of a well-formed key with a valid checksum, else None."""
    found = _FORM.fullmatch(full_key)
    if found is None or not hmac.compare_digest(_checksum(found[1], found[2][:_SECRET_LENGTH]), found[2][-6:]):
        return None
    return found[1]


def is_imported(full_key: str) -> bool:
    """Return whether a key has the form of imported keys: LiteLLM's start with `sk-`."""
    return full_key.startswith(_IMPORTED)


class KeyStore:
    """The keys of all tenants. Every call may raise StoreUnavailable. `note`: see TenantStore."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)
        self._outbox = AuditOutbox(self._database)
        self._pepper: bytes | None = None

    async def create(
        self,
        tenant: Tenant,
        document: Mapping[str, object],
        note: Callable[[ApiKey], Note] | None = None,
        made_by: str = "",
    ) -> NewKey:
        """Create a key from the fields of CHANGEABLE. Raises FieldError, KeyNotFound (no such tenant)."""
        key = dataclasses.replace(await self._new_key(tenant, document), made_by=made_by)
        return await self._add(tenant, key, note and note(key))

    async def adopt(
        self, tenant: Tenant, sha256: str, document: Mapping[str, object], note: Callable[[ApiKey], Note] | None = None
    ) -> ApiKey:
        """Import an `sk-…` key from other software, given its SHA-256 in hex, of which a keyed hash is stored.

        Raises FieldError, KeyNotFound (no such tenant), KeyExists (even if the key was revoked since), and
        VersionConflict if a concurrent import won."""
        if not SHA256.fullmatch(sha256):
            raise FieldError("sha256", "must be 64 lowercase hexadecimal digits")
        key = await self._new_key(tenant, document)
        place = await self._imported(sha256)
        if not await self._claim(place, key, tenant.root):
            raise KeyExists("another key has this secret")
        pointer = keyspace.api_key(key.id)
        await self._database.call("HSET", pointer, "root", tenant.root, "tenant", tenant.id, "imported", place)
        added = await self.put(tenant, key, note and note(key))
        if added == 1:
            return key
        await self._database.run("delete_if", place, "id", key.id)
        await self._database.call("DEL", pointer)
        raise VersionConflict(key.id) if added else KeyNotFound(f"no tenant {tenant.id}")

    async def update(
        self, tenant: Tenant, seen: ApiKey, changes: Mapping[str, object], note: Note | None = None
    ) -> ApiKey:
        """Change a key at the version seen. Raises FieldError, KeyNotFound (also if revoked), VersionConflict."""
        after = seen.changed(changes)
        if "expires_at" in changes:
            _check_expiry(after, await self._database.now_ms())
        changed = await self._outbox.change(
            "key_change",
            tenant.root,
            tenant.account,
            seen.id,
            seen.version,
            *_stored(after),
            _card(after, tenant.account),
            note=note,
        )
        if not changed:
            raise KeyNotFound(seen.id)
        if changed < 0:
            raise VersionConflict(seen.id)
        return dataclasses.replace(after, version=seen.version + 1)

    async def lookup(self, full_key: str) -> Identity | None:
        if is_imported(full_key):
            place = await self._imported(hashlib.sha256(full_key.encode()).hexdigest())
            found = await self._database.call("HMGET", place, "root", "tenant", "id")
            return await self.identity(*found) if all(found) else None
        identifier = public_id(full_key)
        if identifier is None:
            return None
        pointer = keyspace.api_key(identifier)
        root, tenant_id, digest = await self._database.call("HMGET", pointer, "root", "tenant", "hash")
        if digest is None or not hmac.compare_digest(digest, await self._hash(full_key)):
            return None
        return await self.identity(root, tenant_id, identifier)

    async def identity(self, root: str, tenant_id: str, key_id: str) -> Identity | None:
        reply = await self._database.run("identity", keyspace.of_root(root), tenant_id, key_id)
        now_ms, known, record = reply
        tenant = decode_tenant(*known)
        if tenant is None or record[0] is None:
            return None
        key = _decode_key(*record)
        if key.state != "active" or _is_over(key, now_ms):
            return None
        return Identity(tenant, key)

    async def is_open(self, key: ApiKey) -> bool:
        if not key.via.startswith(KEY_WAY):
            return True
        acting = key.via.removeprefix(KEY_WAY)
        root, tenant_id = await self._database.call("HMGET", keyspace.api_key(acting), "root", "tenant")
        found = None if root is None else await self.identity(root, tenant_id, acting)
        if found is None or found.tenant.state != "active":
            return False
        return found.key.scopes.may_act_as(key.tenant)

    async def has_key(self, root: str, key_id: str) -> bool:
        """Return whether an existing tenant has this key, even revoked; a deleted tenant's keys remain for a time."""
        prefix = keyspace.of_root(root)
        account = await self._database.call("HGET", prefix + keyspace.key_level(key_id), "tenant")
        if account is None:
            return False
        record = prefix + keyspace.tenant_level(keyspace.tenant_of(account))
        state, incarnation = await self._database.call("HMGET", record, "state", "incarnation")
        return state not in (None, "deleted") and (incarnation or "") == keyspace.incarnation_of(account)

    async def owner(self, key_id: str) -> str | None:
        """Return the id of the tenant that a key was created for, which may be deleted since."""
        tenant: str | None = await self._database.call("HGET", keyspace.api_key(key_id), "tenant")
        return tenant

    async def get(self, tenant: Tenant, key_id: str) -> ApiKey | None:
        record = keyspace.of_root(tenant.root) + keyspace.key_level(key_id)
        owner, *stored = await self._database.call("HMGET", record, "tenant", *_RECORD)
        return _decode_key(*stored) if owner == tenant.account else None

    async def count(self, tenant: Tenant) -> int:
        """Return how many keys a tenant has had, with those that are revoked or expired."""
        return int(await self._database.call("ZCARD", f"{keyspace.of_root(tenant.root)}keys:{tenant.account}"))

    async def list(self, tenant: Tenant, limit: int = PAGE, after: str | None = None) -> list[ApiKey]:
        index = f"{keyspace.of_root(tenant.root)}keys:{tenant.account}"
        start = 0
        if after is not None:
            rank = await self._database.call("ZRANK", index, after)
            if rank is None:
                return []
            start = rank + 1
        ids = await self._database.call("ZRANGE", index, start, start + limit - 1)
        found: list[ApiKey | None] = []
        for some in chunks(ids):
            found += await self._read_together(tenant, some)
        return [key for key in found if key is not None]

    async def _read_together(self, tenant: Tenant, ids: Sequence[str]) -> Sequence[ApiKey | None]:
        """Read keys as `get` does, in one call. Where scripts cannot run, for example in a Cluster slot that is being
        moved, read them one by one."""
        try:
            records = await self._database.run("keys_read", keyspace.of_root(tenant.root), *ids)
        except StoreUnavailable:
            return [await self.get(tenant, key_id) for key_id in ids]
        return [_decode_key(*stored) if owner == tenant.account else None for owner, *stored in records]

    async def revoke(self, tenant: Tenant, key_id: str, note: Note | None = None) -> ApiKey:
        """Revoke a key. Revoking it again changes nothing and is not audited. Raises KeyNotFound."""
        reply = await self._outbox.change("key_end", tenant.root, tenant.account, key_id, note=note)
        if reply is None:
            raise KeyNotFound(key_id)
        return _decode_key(*reply)

    async def rotate(
        self,
        tenant: Tenant,
        key_id: str,
        overlap_s: object = 0,
        *,
        version: int | None = None,
        note: Callable[[ApiKey], Note] | None = None,
    ) -> NewKey:
        """Create a copy of a key with a new secret and expire the old one after `overlap_s`, atomically.

        `note` describes the new key, whose own limits start unused. Raises KeyNotFound, FieldError, and VersionConflict
        if the old key was changed concurrently or `version` is given and outdated."""
        overlap_ms = checked_overlap_ms(overlap_s)
        old = await self.get(tenant, key_id)
        now_ms = await self._database.now_ms()
        if old is None or old.state != "active" or _is_over(old, now_ms):
            raise KeyNotFound(key_id)
        if old.via:
            raise FieldError("overlap_s", "this key has no secret to rotate")
        if version is not None and old.version != version:
            raise VersionConflict(key_id)
        fresh = dataclasses.replace(old, id=_random_id(), created_at=now_ms / 1e3, last_used_at=None, version=0)
        return await self._add(tenant, fresh, note and note(fresh), (old.id, old.version, now_ms + overlap_ms))

    async def _new_key(self, tenant: Tenant, document: Mapping[str, object]) -> ApiKey:
        now_ms = await self._database.now_ms()
        key = ApiKey(id=_random_id(), tenant=tenant.id, created_at=now_ms / 1e3).changed(document)
        _check_expiry(key, now_ms)
        return key

    async def _claim(self, place: str, key: ApiKey, root: str) -> bool:
        """Claim the imported secret at `place` for a key that is about to be written; False if another key has it.

        No script sees the secret's record and its owner's. If the owner was not written, it is barred: the first of
        `key_put` and `key_bar` wins. An interrupted import blocks no one, and a slow one writes no second key."""
        barred = ""
        while True:  # repeats only after a holder that was not written
            holder, its_root = await self._database.run("import_claim", place, key.id, root, key.tenant, barred)
            if holder == key.id:
                return True
            if await self._database.run("key_bar", keyspace.of_root(its_root), holder):
                return False
            barred = holder

    async def _add(
        self, tenant: Tenant, key: ApiKey, note: Note | None, old: tuple[str, int, int] = ("", 0, 0)
    ) -> NewKey:
        """`old`: the id and version of the key that this one replaces, and when it expires, in ms."""
        secret = _random_secret(key.id)
        # Written first, although it leads nowhere yet: the new key must work before the old one may expire.
        where = ("root", tenant.root, "tenant", tenant.id, "hash", await self._hash(secret))
        await self._database.call("HSET", keyspace.api_key(key.id), *where)
        added = await self.put(tenant, key, note, old)
        if added == 1:
            return NewKey(key, secret)
        await self._database.call("DEL", keyspace.api_key(key.id))
        raise VersionConflict(old[0]) if added else KeyNotFound(f"no tenant {tenant.id}")

    async def put(
        self, tenant: Tenant, key: ApiKey, note: Note | None, old: tuple[str, int, int] = ("", 0, 0)
    ) -> Literal[1, 0, -1, -2]:
        """Write a key's record unless its id exists; `old` as in `_add`. Returns the reply of `key_put`."""
        document, expires_ms = _stored(key)
        added: Literal[1, 0, -1, -2] = await self._outbox.change(
            "key_put",
            tenant.root,
            tenant.account,
            key.id,
            int(key.created_at * 1e3),
            expires_ms,
            document,
            _card(key, tenant.account),
            *old,
            note=note,
        )
        return added

    async def _imported(self, sha256: str) -> str:
        return f"fl:imported:{await self._hash(sha256)}"

    async def _hash(self, full_key: str) -> str:
        """Hash with the store's secret pepper, so that a copy of the hashes cannot confirm a guess."""
        if self._pepper is None:
            self._pepper = bytes.fromhex(await self._database.secret(keyspace.HASHING))
        return hmac.digest(self._pepper, full_key.encode(), "sha256").hex()


def checked_overlap_ms(overlap_s: object) -> int:
    """Parse how long a replaced key keeps working. Raises FieldError."""
    return int(field_checks.number(overlap_s, "overlap_s", 0, LONGEST_OVERLAP_S) * 1e3)


def _check_expiry(key: ApiKey, now_ms: int) -> None:
    if _is_over(key, now_ms):
        raise FieldError("expires_at", "must be in the future")


def _is_over(key: ApiKey, now_ms: int) -> bool:
    return key.expires_at is not None and key.expires_at * 1e3 <= now_ms


def _stored(key: ApiKey) -> tuple[str, str]:
    return msgspec.json.encode(key).decode(), "" if key.expires_at is None else str(int(key.expires_at * 1e3))


def _card(key: ApiKey, account: str) -> bytes:
    expires_ms = None if key.expires_at is None else int(key.expires_at * 1e3)
    return packing.key_card(key.state, expires_ms, key.limits, account)


def _decode_key(document: Reply, state: Reply, expires_ms: Reply, used_ms: Reply, version: Reply) -> ApiKey:
    return dataclasses.replace(
        msgspec.json.decode(document, type=ApiKey),
        state="active" if state == "active" else "revoked",
        expires_at=int(expires_ms) / 1e3 if expires_ms else None,
        last_used_at=int(used_ms) / 1e3 if used_ms else None,
        version=int(version or 0),
    )


def _random_id() -> str:
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(16))


def _random_secret(key_id: str) -> str:
    secret = _base62(secrets.randbits(256), _SECRET_LENGTH)
    return f"fl-{key_id}-{secret}{_checksum(key_id, secret)}"


def _checksum(key_id: str, secret: str) -> str:
    return _base62(zlib.crc32(f"{key_id}-{secret}".encode()), _CHECKSUM_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))
