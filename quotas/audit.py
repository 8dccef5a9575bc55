"""Who changed what, when: one entry for each call of the admin API that changed something."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quotas import keyspace
from quotas.database import Database, Redis

ENTRIES = 100_000
LONGEST_CHANGES = 10_000
LONGEST_VALUE = 300
"""Of one field, where all together are longer than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change. `changes` holds no secret: what was asked for, as the caller wrote it."""

    id: str
    """Position, for `after`."""
    at: float
    """Epoch seconds by the store's clock."""
    actor: str
    address: str
    """Where the call came from; empty: not known."""
    action: str
    """As `tenant.create`, `key.revoke`."""
    target: str
    """As `acme`, `acme/<key id>`."""
    changes: dict[str, Any]


class Audit:
    """The audit log; about the last ENTRIES entries are kept. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)

    async def append(
        self,
        actor: str,
        action: str,
        target: str,
        changes: Mapping[str, object] | None = None,
        *,
        address: str = "",
    ) -> str:
        """Write one entry; returns its id. Of changes too long to keep, the longest fields are left out and say so."""
        text = json.dumps(dict(changes or {}))
        if len(text) > LONGEST_CHANGES:
            text = json.dumps(_shortened(dict(changes or {})))
        at_ms = await self._database.now_ms()
        who = ("actor", actor, "address", address)
        entry = ("at_ms", at_ms, *who, "action", action, "target", target, "changes", text)
        entry_id: str = await self._database.call("XADD", keyspace.AUDIT, "MAXLEN", "~", ENTRIES, "*", *entry)
        return entry_id

    async def list(self, limit: int = 100, after: str | None = None) -> list[AuditEntry]:
        """At most `limit` entries, newest first, from the one after (older than) `after`."""
        if after is not None and not any(map(int, after.split("-"))):
            return []  # the stores take no end that lies before it
        start = "+" if after is None else f"({after}"
        reply = await self._database.call("XREVRANGE", keyspace.AUDIT, start, "-", "COUNT", limit)
        return [_entry(entry_id, values) for entry_id, values in reply]


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
