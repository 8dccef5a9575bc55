"""Who changed what, when: one entry for each call of the admin API that changed something.

The log is one stream for all, and a change stands in the slot of its root: no script sees both. So the script of a
change writes its entry too, into an outbox of the root. From there it is moved into the log: by who made the change,
right after it, or, if that was killed, by whoever looks for lapsed reservations next. An entry has an id, by which the
log takes it once, however often it is moved.
"""

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fairlane.quotas import keyspace
from fairlane.quotas.scripts import Database, Redis, Reply, ResponseError
from fairlane.quotas.upkeep import ActiveRoots
from fairlane.store.circuit_breaker import StoreAway
from fairlane.store.errors import StoreUnavailable

ENTRIES = 100_000
LONGEST_CHANGES = 10_000
LONGEST_VALUE = 300
"""Of one field, where all together are longer than that."""
MOVED_AT_ONCE = 100
REDACTED_AT_ONCE = 200
_REDACTED = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A change as it is to be told. `changes` holds no secret."""

    actor: str
    address: str = ""
    """Where the call came from; empty: not known."""
    action: str
    """As `tenant.create`, `key.revoke`."""
    target: str
    """As `acme`, `acme/<key id>`."""
    changes: Mapping[str, object]

    def encoded(self) -> str:
        """An entry of its own, with an id. Of changes too long to keep, the longest fields are left out and say so."""
        changes = json.dumps(self.changes)
        if len(changes) > LONGEST_CHANGES:
            changes = json.dumps(_shortened(self.changes))
        who = {"actor": self.actor, "address": self.address}
        entry = {"id": secrets.token_hex(12), **who, "action": self.action, "target": self.target, "changes": changes}
        return json.dumps(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change, as it was noted."""

    id: str
    """Position, for `after`."""
    at: float
    """Epoch seconds by the store's clock."""
    actor: str
    address: str
    action: str
    target: str
    changes: dict[str, Any]


class Audit:
    """The audit log; about the last ENTRIES entries are kept. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)

    async def append(self, note: Note) -> None:
        """Write an entry of what no root holds."""
        await _write(self._database, str(await self._database.now_ms()), note.encoded())

    async def list(self, limit: int = 100, after: str | None = None) -> list[AuditEntry]:
        """At most `limit` entries, newest first, from the one after (older than) `after`."""
        if after is not None and not any(map(int, after.split("-"))):
            return []  # the stores take no end that lies before it
        start = "+" if after is None else f"({after}"
        reply = await self._database.call("XREVRANGE", keyspace.AUDIT, start, "-", "COUNT", limit)
        return [_entry(entry_id, values) for entry_id, values in reply]


class AuditRedaction:
    """Removes what was changed of an erased tenant from its entries; who changed something, and when, stays. Every call
    may raise StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def redact(self, tenant: str, until_ms: int) -> int:
        """Redact the entries of a tenant and its keys up to a moment; how many. The log is copied part by part, and the
        copy takes its place: what is appended meanwhile is in the last part. Repeating it is harmless."""
        count = await self._count(tenant, until_ms)
        if not count:
            return 0
        holder, last = secrets.token_hex(8), ""
        while True:
            args = holder, tenant, until_ms, last, REDACTED_AT_ONCE
            last = await self._database.run("audit_redact", keyspace.AUDIT, *args)
            if last is None:
                raise StoreUnavailable("audit_redact: another gateway rewrites the log")
            if not last:
                return count

    async def _count(self, tenant: str, until_ms: int) -> int:
        """How many entries there are to redact."""
        start, count = "-", 0
        while part := await self._database.call("XRANGE", keyspace.AUDIT, start, "+", "COUNT", REDACTED_AT_ONCE):
            for entry_id, fields in part:
                is_its = fields["target"].partition("/")[0] == tenant and int(fields["at_ms"]) <= until_ms
                count += is_its and fields["changes"] != _REDACTED
                start = f"({entry_id}"
        return count


class AuditOutbox:
    """Changes with their entries. Every call may raise StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._roots = ActiveRoots(database)

    async def change(self, script: str, root: str, *args: str | int | bytes, note: Note | None) -> Reply:
        """Run a script that changes something of a root, with its audit entry. Return its reply."""
        if note is None:
            return await self._run(script, root, *args, "", self._database.new_call())
        await self._roots.enlist(root)
        reply = await self._run(script, root, *args, note.encoded(), self._database.new_call())
        if reply == "unheard":
            raise StoreUnavailable(f"{script}: the audit log does not follow")
        with suppress(StoreUnavailable):  # the change is made, and the entry is kept until it can be moved
            await self.move(root)
        return reply

    async def _run(self, script: str, root: str, *args: str | int | bytes) -> Reply:
        """Run it, and once more if no reply came: the store answers the repeat as the first call. Otherwise a new key
        whose predecessor has ended would be lost with its secret."""
        try:
            return await self._database.run(script, keyspace.of_root(root), *args)
        except StoreAway:
            raise
        except StoreUnavailable as error:
            if isinstance(error.__cause__, ResponseError):
                raise
            return await self._database.run(script, keyspace.of_root(root), *args)

    async def move(self, root: str) -> None:
        """Bring the log what waits, the oldest first, MOVED_AT_ONCE at most. Any number may do so at a time."""
        outbox = keyspace.outbox(root)
        for waiting in await self._database.call("LRANGE", outbox, 0, MOVED_AT_ONCE - 1):
            at_ms, _, entry = waiting.partition(" ")
            await _write(self._database, at_ms, entry)
            await self._database.call("LREM", outbox, 1, waiting)


async def _write(database: Database, at_ms: str, encoded: str) -> None:
    entry: dict[str, str] = json.loads(encoded)
    entry_id = entry.pop("id")
    fields = [part for field in entry.items() for part in field]
    await database.run("audit_write", keyspace.AUDIT, ENTRIES, entry_id, "at_ms", at_ms, *fields)


def _shortened(value: object) -> object:
    """The same objects, each other value that is long replaced by how long it is."""
    if isinstance(value, Mapping):
        return {name: _shortened(inner) for name, inner in value.items()}
    length = len(json.dumps(value))
    return value if length <= LONGEST_VALUE else {"left_out": f"{length} characters"}


def _entry(entry_id: str, values: dict[str, str]) -> AuditEntry:
    return AuditEntry(
        id=entry_id,
        at=int(values["at_ms"]) / 1e3,
        actor=values["actor"],
        address=values.get("address", ""),
        action=values["action"],
        target=values["target"],
        changes=json.loads(values["changes"]),
    )
