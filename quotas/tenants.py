"""Tenants: their configuration, stored as whole, versioned documents in Redis.

The index decides which root organisation owns an id, permanently once a tenant was put in the root's slot. There, a
claim whose creation was interrupted can be barred: the first of put and bar wins, and another root may take the id."""

import asyncio
import dataclasses
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfoNotFoundError

import msgspec

from fairlane.quotas import field_checks, keyspace, packing
from fairlane.quotas.audit import AuditOutbox, Note
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.limits import LIMIT_NAMES, Limits, LimitsBy
from fairlane.quotas.scripts import Database, Redis
from fairlane.quotas.store import QuotaError
from fairlane.quotas.windows import zone_table
from fairlane.store.bounds import chunks
from fairlane.store.errors import StoreUnavailable

# `taken`: by a tenant of another root. `kept`: by a deleted one, for its ledger.
Taken = Literal["taken", "kept"]


class TenantIds:
    """The index of tenants. Every call may raise StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def root(self, tenant_id: str) -> str | None:
        entries = await self._database.call(
            "ZRANGEBYLEX", keyspace.TENANTS, f"[{tenant_id} ", f"({tenant_id} \x7f", "LIMIT", 0, 1
        )
        return entries[0].split(" ")[1] if entries else None

    async def accounts(self, tenant_id: str, root: str) -> list[str]:
        """Return the accounts of an id: the latest tenant's first, deleted or not, then those of deleted ones whose
        ledger is kept, latest deletion first."""
        return list(dict.fromkeys(await self._database.run("tenant_accounts", keyspace.of_root(root), tenant_id)))

    async def claim_of(self, tenant_id: str) -> int:
        name = hashlib.sha1(tenant_id.encode(), usedforsecurity=False).hexdigest()
        return int(await self._database.call("HGET", keyspace.CLAIMS, name) or 0)

    async def claim(self, tenant_id: str, root: str) -> int | Taken:
        """Claim the id for a root; return the number under which its tenant may be put, or why it cannot be claimed."""
        barred: int | Literal[""] = ""
        while True:  # repeats only if another root got the id meanwhile
            owner, number = await self._database.run("tenant_claim", keyspace.TENANTS, tenant_id, root, barred)
            if owner == root:
                return int(number)
            state = await self._database.run("tenant_bar", keyspace.of_root(owner), tenant_id, number)
            if state:
                return "kept" if state == "deleted" else "taken"
            barred = number

    async def page(self, after: str | None, limit: int) -> list[list[str]]:
        start = "-" if after is None else f"({after} \x7f"
        entries = await self._database.call("ZRANGEBYLEX", keyspace.TENANTS, start, "+", "LIMIT", 0, limit)
        return [entry.split(" ") for entry in entries]

    async def search(self, text: str, limit: int) -> list[list[str]]:
        """Return ids that begin with a text, then those of the first SEARCHED_IDS that contain it in any case."""
        if not TENANT_ID.fullmatch(f"a{text}"):
            return []
        index = keyspace.TENANTS
        begin = await self._database.call("ZRANGEBYLEX", index, f"[{text}", f"({text}\x7f", "LIMIT", 0, limit)
        first = await self._database.call("ZRANGEBYLEX", index, "-", "+", "LIMIT", 0, SEARCHED_IDS)
        contain = [entry for entry in first if text.lower() in entry.partition(" ")[0].lower()]
        return [entry.split(" ") for entry in dict.fromkeys([*begin, *contain[:limit]])]


LANES = ("latency", "throughput")
LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000.0


def _timezone(value: object) -> str:
    zone = field_checks.text(value, "timezone")
    try:
        zone_table(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a zone directory
        raise FieldError("timezone", "must be an IANA name such as Europe/Berlin") from None
    return zone


UnknownFields = Literal["ignore", "refuse"]
SelfService = Literal["none", "keys"]
# Each takes the stated value and the tenant's previous limits, and raises FieldError.
PARSERS: dict[str, Callable[[object, Limits], object]] = {
    "name": lambda value, _: field_checks.text(value, "name"),
    "timezone": lambda value, _: _timezone(value),
    "weight": lambda value, _: field_checks.number(value, "weight", LEAST_WEIGHT, MOST_WEIGHT),
    "default_lane": lambda value, _: LANES[0] if value is None else field_checks.one_of(value, "default_lane", LANES),
    "lanes": lambda value, _: field_checks.texts(value, "lanes", LANES),
    "models": lambda value, _: None if value is None else field_checks.texts(value, "models"),
    "model_aliases": lambda value, _: {} if value is None else field_checks.names(value, "model_aliases"),
    "limits": lambda value, before: Limits() if value is None else before.merged(value),
    "limits_by": lambda value, _: LimitsBy.parse_all(value, LANES),
    "shadow": lambda value, _: field_checks.texts(value, "shadow", LIMIT_NAMES),
    "reserve": lambda value, _: field_checks.one_of(value, "reserve", ("progressive", "full")),
    "preemption": lambda value, _: field_checks.one_of(value, "preemption", ("exact", "fast")),
    "unknown_fields": lambda value, _: (
        None if value is None else field_checks.one_of(value, "unknown_fields", ("ignore", "refuse"))
    ),
    "self_service": lambda value, _: (
        "none" if value is None else field_checks.one_of(value, "self_service", get_args(SelfService))
    ),
    "share_group": lambda value, _: "" if value is None else field_checks.text(value, "share_group"),
}


PAGE = 100
INCARNATION_BYTES = 6
TENANT_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")
_TRIES = 20
# A search reads at most this many ids, about 100 KB.
SEARCHED_IDS = 2_000
DEEPEST = 4


class TenantExists(QuotaError):
    """A tenant with this id exists."""


class TenantNotFound(QuotaError):
    """No tenant has this id, or it was deleted."""


class TenantHasChildren(QuotaError):
    """Other tenants have this one as their parent and must be deleted first."""


class VersionConflict(QuotaError):
    """The document was changed since the version that the caller saw."""


class _IdUsed(QuotaError):
    """A deleted tenant had this id, so the new one needs an incarnation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant. Its id, incarnation, root and parent never change."""

    id: str
    # Distinguishes tenants with the same id; empty for the first one and for those of versions without incarnations.
    incarnation: str = ""
    name: str = ""
    # The organisation at the top, whose hash tag its keys carry; the tenant itself if it has no parent.
    root: str
    parent: str | None = None
    # Accounts of all tenants above, nearest first.
    parents: tuple[str, ...] = ()
    # IANA name; it defines when days and months begin.
    timezone: str = "UTC"
    weight: float = 1.0
    default_lane: str = LANES[0]
    lanes: tuple[str, ...] = LANES
    # Models it may use; None allows all.
    models: tuple[str, ...] | None = None
    # Aliases of the tenant's own, resolved to the model everywhere.
    model_aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limits: Limits = dataclasses.field(default_factory=Limits)
    limits_by: tuple[LimitsBy, ...] = ()
    # Limits of its own (not of its keys) that are counted and reported, but never refuse a request.
    shadow: tuple[str, ...] = ()
    # Hold output quantum by quantum, or the maximum from the start.
    reserve: Literal["progressive", "full"] = "progressive"
    preemption: Literal["exact", "fast"] = "fast"
    # What becomes of unknown fields in its requests; None: as the deployment does it.
    unknown_fields: UnknownFields | None = None
    # `keys`: keys that an operator made may make and end others of the tenant.
    self_service: SelfService = "none"
    # Tenants of one group share cached prompts, and so can detect what the others have sent; empty shares with none.
    share_group: str = ""
    state: Literal["active", "suspended"] = "active"
    # Epoch seconds.
    created_at: float = 0.0
    # Epoch seconds; None if it is not suspended.
    suspended_at: float | None = None
    version: int = 0

    @property
    def is_exact(self) -> bool:
        return self.preemption == "exact"

    @property
    def account(self) -> str:
        return keyspace.account(self.id, self.incarnation)

    @property
    def above(self) -> tuple[str, ...]:
        return tuple([keyspace.tenant_of(account) for account in self.parents])

    def changed(self, changes: Mapping[str, object]) -> "Tenant":
        """Return the tenant with these fields replaced; `limits` are merged. Raises FieldError.

        If `lanes` change and no longer include the default lane, that becomes the first of them unless it is stated."""
        known = field_checks.document(changes, "", PARSERS.keys() | {"parent"})
        if known.pop("parent", self.parent) != self.parent:
            raise FieldError("parent", "cannot change")
        new: dict[str, Any] = {name: PARSERS[name](value, self.limits) for name, value in known.items()}
        tenant = dataclasses.replace(self, **new)
        if tenant.default_lane in tenant.lanes:
            return tenant
        if known.get("default_lane") is not None or not tenant.lanes:
            raise FieldError("default_lane", "must be one of the tenant's lanes")
        return dataclasses.replace(tenant, default_lane=tenant.lanes[0])


async def enlist_erasure(database: Database, root: str) -> None:
    """List a root for erasure rounds, before its first tenant is deleted."""
    await database.call("ZADD", keyspace.ERASING, await database.now_ms(), root)


def decode_tenant(document: str | None, state: str, version: str) -> Tenant | None:
    """Decode a tenant from its record; None if it has no document."""
    if document is None:
        return None
    return dataclasses.replace(
        msgspec.json.decode(document, type=Tenant),
        state="suspended" if state == "suspended" else "active",
        version=int(version),
    )


class TenantStore:
    """All tenants. Every call may raise StoreUnavailable; a change holds for the next request on every gateway. Its
    `note` is written to the audit log atomically; the note's previous values are only guaranteed with a `version`."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)
        self._outbox = AuditOutbox(self._database)
        self._ids = TenantIds(self._database)

    async def create(self, document: Mapping[str, object], note: Callable[[Tenant], Note] | None = None) -> Tenant:
        """Create a tenant from its `id` and other fields. Raises FieldError, TenantExists."""
        stated = field_checks.document(document, "", PARSERS.keys() | {"id", "parent"})
        tenant_id = stated.pop("id", None)
        if not isinstance(tenant_id, str) or not TENANT_ID.fullmatch(tenant_id):
            raise FieldError(
                "id", "must be 1 to 63 letters, digits, dots, dashes or underscores, starting with a letter or digit"
            )
        now_ms = await self._database.now_ms()
        parent = await self._parent(stated.pop("parent", None))
        root, parents = (tenant_id, ()) if parent is None else (parent.root, (parent.account, *parent.parents))
        parent_id = None if parent is None else parent.id
        tenant = Tenant(id=tenant_id, root=root, parent=parent_id, parents=parents, created_at=now_ms / 1e3).changed(
            stated
        )
        claim = await self._ids.claim(tenant.id, tenant.root)
        if claim == "taken":
            raise TenantExists(tenant.id)
        if claim == "kept":
            raise FieldError("id", "belonged to a tenant of another organisation, whose ledger is kept")
        try:
            return await self._put(tenant, 0, note and note(tenant), claim)
        except _IdUsed:
            tenant = dataclasses.replace(tenant, incarnation=secrets.token_hex(INCARNATION_BYTES))
            return await self._put(tenant, 0, note and note(tenant), claim)

    async def get(self, tenant_id: str) -> Tenant | None:
        root = await self.root(tenant_id)
        return None if root is None else await self._read(tenant_id, root)

    async def list(self, limit: int = PAGE, after: str | None = None) -> list[Tenant]:
        found: list[Tenant] = []
        while len(found) < limit:
            entries = await self._ids.page(after, limit - len(found))
            for some in chunks(entries):
                read = await asyncio.gather(*[self._read_with_others(tenant_id, root) for tenant_id, root in some])
                found += [tenant for tenant in read if tenant is not None]
            if not entries:
                break
            after = entries[-1][0]
        return found

    async def search(self, text: str, limit: int) -> Sequence[Tenant]:
        """Return at most `limit` tenants whose id begins with or contains a text."""
        entries = await self._ids.search(text, 2 * limit)  # some may be of deleted tenants
        read = await asyncio.gather(*[self._read_with_others(tenant_id, root) for tenant_id, root in entries])
        return [tenant for tenant in read if tenant is not None][:limit]

    async def update(
        self, tenant_id: str, changes: Mapping[str, object], *, version: int | None = None, note: Note | None = None
    ) -> Tenant:
        """Change some fields. Raises TenantNotFound, FieldError, and VersionConflict if `version` is outdated."""
        return await self._change(tenant_id, lambda tenant: tenant.changed(changes), version, note)

    async def suspend(self, tenant_id: str, *, version: int | None = None, note: Note | None = None) -> Tenant:
        """Reject the tenant's requests until it is resumed. Raises TenantNotFound, and VersionConflict as `update`."""
        now_s = await self._database.now_ms() / 1e3

        def suspended(tenant: Tenant) -> Tenant:
            return dataclasses.replace(tenant, state="suspended", suspended_at=tenant.suspended_at or now_s)

        return await self._change(tenant_id, suspended, version, note)

    async def resume(self, tenant_id: str, *, version: int | None = None, note: Note | None = None) -> Tenant:
        return await self._change(
            tenant_id, lambda tenant: dataclasses.replace(tenant, state="active", suspended_at=None), version, note
        )

    async def delete(self, tenant_id: str, *, version: int | None = None, note: Note | None = None) -> None:
        """End a tenant and its keys at once, and list its data for erasure; its ledger and index entry stay. Raises
        TenantNotFound, TenantHasChildren, VersionConflict."""
        root, seen = await self.root(tenant_id), "" if version is None else version
        if root is None:
            raise TenantNotFound(tenant_id)
        await enlist_erasure(self._database, root)
        deleted = await self._outbox.change("tenant_delete", root, tenant_id, seen, note=note)
        if deleted is None:
            raise TenantNotFound(tenant_id)
        if deleted == "conflict":
            raise VersionConflict(tenant_id)
        if deleted == "children":
            raise TenantHasChildren(tenant_id)

    async def _change(
        self, tenant_id: str, change: Callable[[Tenant], Tenant], version: int | None = None, note: Note | None = None
    ) -> Tenant:
        for _ in range(_TRIES):
            tenant = await self.get(tenant_id)
            if tenant is None:
                raise TenantNotFound(tenant_id)
            if version is not None and tenant.version != version:
                raise VersionConflict(tenant_id)
            try:
                return await self._put(change(tenant), tenant.version, note)
            except VersionConflict:
                continue
        raise VersionConflict(tenant_id)

    async def _parent(self, parent_id: object) -> Tenant | None:
        if parent_id is None:
            return None
        parent = await self.get(parent_id) if isinstance(parent_id, str) else None
        if parent is None:
            raise FieldError("parent", "must be an existing tenant")
        if len(parent.parents) + 2 > DEEPEST:
            raise FieldError("parent", f"may have at most {DEEPEST - 2} tenants above it")
        return parent

    async def _put(self, tenant: Tenant, version: int, note: Note | None, claim: int = 0) -> Tenant:
        by = [(each.model, each.lane) for each in tenant.limits_by]
        card = packing.tenant_card(tenant.state, tenant.limits, tenant.shadow, by, tenant.parents)
        levels: list[str | bytes] = [keyspace.tenant_level(tenant.account), card]
        for each in tenant.limits_by:
            level = keyspace.model_lane_level(tenant.account, each.model, each.lane)
            levels += [level, packing.model_lane_card(each.limits, tenant.shadow)]
        reply = await self._outbox.change(
            "tenant_put",
            tenant.root,
            *(tenant.account, version, claim),
            tenant.state,
            json.dumps(zone_table(tenant.timezone)),
            msgspec.json.encode(tenant).decode(),
            json.dumps(by),
            json.dumps(tenant.parents),
            *levels,
            note=note,
        )
        refusals = {
            "used": _IdUsed(tenant.id),
            "exists": TenantExists(tenant.id),
            "barred": TenantExists(tenant.id),
            "orphan": FieldError("parent", "must be an existing tenant"),
            "missing": TenantNotFound(tenant.id),
            "conflict": VersionConflict(tenant.id),
        }
        if reply in refusals:
            raise refusals[reply]
        return dataclasses.replace(tenant, version=reply)

    async def root(self, tenant_id: str) -> str | None:
        """Return the root of a tenant, also of a deleted one; None if there never was one."""
        return await self._ids.root(tenant_id) if TENANT_ID.fullmatch(tenant_id) else None

    async def accounts(self, tenant_id: str, root: str) -> Sequence[str]:
        return await self._ids.accounts(tenant_id, root)

    async def _read_with_others(self, tenant_id: str, root: str) -> Tenant | None:
        """Read a tenant by a script, which can share a packet with others. Where scripts cannot run, for example in a
        Cluster slot that is being moved, read it directly."""
        try:
            return decode_tenant(*await self._database.run("tenant_read", keyspace.of_root(root), tenant_id))
        except StoreUnavailable:
            return await self._read(tenant_id, root)

    async def _read(self, tenant_id: str, root: str) -> Tenant | None:
        record = keyspace.of_root(root) + keyspace.tenant_level(tenant_id)
        return decode_tenant(*await self._database.call("HMGET", record, "doc", "state", "version"))
