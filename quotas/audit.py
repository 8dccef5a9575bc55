"""The audit log: one entry for each admin API call that changed something.

No script sees both the log and a root. The script of a change therefore writes its entry to an outbox in the root; its
caller, or the upkeep if the caller was killed, moves it to the log, idempotently by the entry's id."""

import asyncio
import builtins
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from fairlane.quotas import keyspace
from fairlane.quotas.escrow.transfers import VALID_MS
from fairlane.quotas.scripts import Database, Redis, Reply, ResponseError
from fairlane.quotas.upkeep import ActiveRoots, Unexported
from fairlane.store.circuit_breaker import StoreAway
from fairlane.store.errors import StoreUnavailable

ENTRIES = 100_000
LONGEST_CHANGES = 10_000
# Characters. Applies to each field when all of them together exceed LONGEST_CHANGES.
LONGEST_VALUE = 300
MOVED_AT_ONCE = 100
# A search reads so many entries in one call, and in all.
PART, SEARCHED = 500, 10_000
MOVED_LATE_S = 3_600
REDACTED_AT_ONCE = 200
_REDACTED = "{}"
# The rest of the log's name after its key, and the name of its export's marks.
_EXPORTED = ("", keyspace.AUDIT_EXPORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A change to record. `changes` holds no secret."""

    actor: str
    address: str = ""
    action: str
    target: str
    changes: Mapping[str, object]

    def encoded(self) -> str:
        """Encode the note as an entry with a new id. If the changes are too long, replace fields by lengths."""
        changes = json.dumps(self.changes)
        if len(changes) > LONGEST_CHANGES:
            changes = json.dumps(_shortened(self.changes))
        who = {"actor": self.actor, "address": self.address}
        entry = {"id": secrets.token_hex(12), **who, "action": self.action, "target": self.target, "changes": changes}
        return json.dumps(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry(Note):
    """One recorded change."""

    id: str
    # Epoch seconds by the store's clock.
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """The entries to find; None: any. `action` and `target` also find what is below them: `tenant` finds
    `tenant.update`, and `acme` the keys `acme/…`."""

    # A part of the name, in any case.
    actor: str | None = None
    action: str | None = None
    target: str | None = None
    first_s: float | None = None
    # Inclusive.
    last_s: float | None = None

    def has(self, entry: AuditEntry) -> bool:
        return (
            (self.actor is None or self.actor.casefold() in entry.actor.casefold())
            and (self.action is None or f"{entry.action}.".startswith(f"{self.action}."))
            and (self.target is None or f"{entry.target}/".startswith(f"{self.target}/"))
            and (self.last_s is None or entry.at <= self.last_s)
            and (self.first_s is None or entry.at >= self.first_s)
        )

    @property
    def edges(self) -> tuple[str, str]:
        """The newest and oldest ids in the log that may match: an entry is appended up to MOVED_LATE_S after `at`."""
        newest = "+" if self.last_s is None else str(int((self.last_s + MOVED_LATE_S) * 1e3))
        return newest, "-" if self.first_s is None else str(int(self.first_s * 1e3))


class Audit:
    """The audit log; it keeps about the last ENTRIES entries. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)

    async def append(self, note: Note) -> None:
        await _write(self._database, str(await self._database.now_ms()), note.encoded())

    async def list(self, limit: int = 100, after: str | None = None) -> list[AuditEntry]:
        if after is not None and not any(map(int, after.split("-"))):
            return []  # the id 0-0, before which XREVRANGE takes no end
        start = "+" if after is None else f"({after}"
        reply = await self._database.call("XREVRANGE", keyspace.AUDIT, start, "-", "COUNT", limit)
        return _entries(reply)

    async def accounts(self, *, lately: bool = False) -> AsyncIterator[tuple[str, str]]:
        """Yield the one place of entries to export: the log belongs to no account and root."""
        yield "", ""

    async def export_state(self) -> str:
        return await self._database.call("GET", keyspace.AUDIT_EXPORT) or ""

    async def write_export_state(self, seen: str, new: str) -> bool:
        return bool(await self._database.run("export_write", keyspace.AUDIT_EXPORT, seen, new))

    async def unexported(self, root: str, account: str, limit: int) -> Unexported[AuditEntry]:
        after, number, lost, reply = await self._database.run("ledger_unexported", keyspace.AUDIT, *_EXPORTED, limit)
        return Unexported(after, number, lost, _entries(reply))

    async def between(self, root: str, account: str, after: str, last: str) -> builtins.list[AuditEntry]:
        return _entries(await self._database.call("XRANGE", keyspace.AUDIT, f"({after}", last))

    async def exported(self, root: str, account: str, after: str, last: str, number: int) -> None:
        await self._database.run("ledger_exported", keyspace.AUDIT, *_EXPORTED, after, last, number)

    async def search(
        self, wanted: AuditFilter, limit: int, after: str | None
    ) -> tuple[builtins.list[AuditEntry], str | None]:
        """Return at most `limit` matching entries, newest first, and the id to go on after; None: there are no more.
        Reads at most SEARCHED entries."""
        if after is not None and not any(map(int, after.split("-"))):
            return [], None  # the id 0-0, before which XREVRANGE takes no end
        found = []
        newest, oldest = wanted.edges
        for _ in range(SEARCHED // PART):
            start = newest if after is None else f"({after}"
            reply = await self._database.call("XREVRANGE", keyspace.AUDIT, start, oldest, "COUNT", PART)
            for entry_id, values in reply:
                after, entry = entry_id, _entry(entry_id, values)
                found += [entry] if wanted.has(entry) else []
                if len(found) == limit:
                    return found, after
            if len(reply) < PART:
                return found, None
        return found, after

    async def redact(self, tenant: str, until_ms: int) -> int:
        """Remove the changed values from the entries of a tenant and its keys up to a time; actor, action and time
        stay. Return how many entries were changed.

        The log is copied part by part, then replaced by the copy; entries appended meanwhile are in the last part.
        Repeating it is harmless."""
        count = await self._count(tenant, until_ms)
        if not count:
            return 0
        holder, last = secrets.token_hex(8), ""
        while True:
            args = holder, tenant, until_ms, last, REDACTED_AT_ONCE
            last = await self._database.run("audit_redact", keyspace.AUDIT, *args)
            if last is None:
                raise StoreUnavailable("audit_redact: another gateway is rewriting the log")
            if not last:
                return count

    async def _count(self, tenant: str, until_ms: int) -> int:
        start, count = "-", 0
        while part := await self._database.call("XRANGE", keyspace.AUDIT, start, "+", "COUNT", REDACTED_AT_ONCE):
            for entry_id, fields in part:
                is_its = fields["target"].partition("/")[0] == tenant and int(fields["at_ms"]) <= until_ms
                count += is_its and fields["changes"] != _REDACTED
                start = f"({entry_id}"
        return count


class AuditOutbox:
    """Runs changes together with their audit entries. Every call may raise StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._roots = ActiveRoots(database)

    async def change(self, script: str, root: str, *args: str | int | bytes, note: Note | None) -> Reply:
        """Make a change, and return once no gateway spends rights that the store gave it before."""
        if note is None:
            reply = await self._run(script, root, *args, "", self._database.new_call())
            await self._outlast_rights(root)
            return reply
        await self._roots.enlist(root)
        reply = await self._run(script, root, *args, note.encoded(), self._database.new_call())
        if reply == "outbox_full":
            raise StoreUnavailable(f"{script}: entries cannot be moved to the audit log")
        with suppress(StoreUnavailable):  # the change is made, and its entry is stored
            await self.move(root)
        await self._outlast_rights(root)
        return reply

    async def _outlast_rights(self, root: str) -> None:
        escrows, left_ms = keyspace.of_root(root) + "escrows", VALID_MS
        with suppress(StoreUnavailable):  # then for as long as rights can last
            newest = await self._database.call("ZRANGE", escrows, -1, -1)
            until_ms = await self._database.call("ZSCORE", escrows, newest[0]) if newest else None
            left_ms = 0 if until_ms is None else int(float(until_ms)) - await self._database.now_ms()
        if left_ms > 0:
            await asyncio.sleep(min(left_ms, VALID_MS) / 1e3)

    async def _run(self, script: str, root: str, *args: str | int | bytes) -> Reply:
        """Run a script, and repeat it once if no reply came: the store answers the repeat as the first call.

        Otherwise the secret of a new key would be lost after its predecessor was expired."""
        try:
            return await self._database.run(script, keyspace.of_root(root), *args)
        except StoreAway:
            raise
        except StoreUnavailable as error:
            if isinstance(error.__cause__, ResponseError):
                raise
            return await self._database.run(script, keyspace.of_root(root), *args)

    async def move(self, root: str) -> None:
        outbox = f"{keyspace.of_root(root)}audit"
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
    if isinstance(value, Mapping):
        return {name: _shortened(inner) for name, inner in value.items()}
    length = len(json.dumps(value))
    return value if length <= LONGEST_VALUE else {"left_out": f"{length} characters"}


def _entries(reply: Reply) -> list[AuditEntry]:
    # A command returns fields as a dict, a script as a list.
    return [
        _entry(name, values if isinstance(values, dict) else dict(zip(values[::2], values[1::2], strict=True)))
        for name, values in reply
    ]


def _entry(entry_id: str, values: dict[str, str]) -> AuditEntry:
    at, changes = int(values.pop("at_ms")) / 1e3, json.loads(values.pop("changes"))
    return AuditEntry(id=entry_id, at=at, changes=changes, **values)
