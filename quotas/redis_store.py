"""Budgets in Redis: each operation one script, atomic over all limits of a request. Only conversion stands here."""

import time
from collections.abc import Iterable
from contextlib import suppress

from quotas import keyspace, packed
from quotas.audit import Outbox, enlist
from quotas.database import Database, Redis, Reply
from quotas.limits import RULES
from quotas.store import (
    DEFAULT_LEASE_MS,
    MAX_LEASE_MS,
    TOMBSTONE_MS,
    AccessDenied,
    Ask,
    Charge,
    Denied,
    Extension,
    FlightSettled,
    Lapsed,
    LimitStatus,
    Need,
    Reservation,
    Settled,
    StoreUnavailable,
)
from quotas.windows import MINUTE, Slicing

LEDGER_ENTRIES = 100_000
ROOTS_PER_LOOK = 256
"""Roots that one call of `expired` looks at; the next call goes on from there."""
ENLIST_EVERY_S = 3_600.0
QUIET_AFTER_MS = 86_400_000


class RedisQuotaStore:
    """The QuotaStore of every gateway."""

    def __init__(
        self,
        client: Redis,
        *,
        lease_ms: int = DEFAULT_LEASE_MS,
        clock: str | None = None,
        slicing: Slicing = MINUTE,
    ) -> None:
        """`clock`, `slicing`: see Database."""
        if not 0 < lease_ms <= MAX_LEASE_MS:
            raise ValueError(f"lease_ms must be from 1 to {MAX_LEASE_MS}")
        self._database = Database(client, clock=clock, slicing=slicing)
        self._outbox = Outbox(self._database)
        self._lease_ms = lease_ms
        self._slicing = slicing
        self._enlisted: dict[str, float] = {}
        self._next_root = 0

    async def reserve(self, ask: Ask) -> Reservation:
        """Hold the tokens of one request: see QuotaStore."""
        if not self._is_enlisted(ask.root):
            await self._enlist(ask.root)
        kind, *rest = await self._database.ask(
            "reserve",
            keyspace.of_root(ask.root),
            ask.flight_id,
            ask.tenant,
            ask.key_id,
            ask.model,
            ask.lane,
            ask.prompt_tokens,
            max(ask.prompts),
            len(ask.prompts),
            ask.max_output_tokens,
            ask.choices,
            int(ask.explicit_max),
            ask.quantum or 0,
            self._lease_ms,
        )
        if kind == b"denied":
            raise self._denied(*rest)
        if kind == b"access":
            raise AccessDenied(rest[0].decode())
        if kind == b"settled":
            raise FlightSettled(ask.flight_id)
        granted, most, shadowed, now_ms, *levels = rest
        return Reservation(
            flight_id=ask.flight_id,
            tenant=ask.tenant,
            granted_tokens=granted,
            most_tokens=most,
            statuses=self._statuses(now_ms, levels),
            shadowed=tuple([RULES[int(number) - 1].name for number in shadowed.split(b",")[:-1]]),
        )

    async def extend(self, root: str, flight_id: str, need: Need) -> Extension:
        """Charge what has come so far, hold more: see QuotaStore."""
        reply = await self._database.ask(
            "extend",
            keyspace.of_root(root),
            flight_id,
            need.published,
            need.known,
            need.most,
            need.unit,
            need.quantum,
            int(need.stuck),
            need.prompt_tokens,
            need.ended,
        )
        if reply is None:
            raise FlightSettled(flight_id)
        granted, limited_by, spent, retry_ms, paused = reply
        return Extension(
            granted_tokens=granted,
            limited_by=limited_by.decode(),
            spent=bool(spent),
            retry_after_s=retry_ms / 1e3,
            paused=bool(paused),
        )

    async def settle(self, root: str, flight_id: str, charge: Charge) -> Settled:
        """Charge a flight and release the rest: see QuotaStore."""
        first, *rest = await self._database.ask(
            "settle",
            keyspace.of_root(root),
            flight_id,
            charge.outcome,
            int(charge.is_refund),
            charge.prompt_tokens,
            charge.cached_tokens,
            charge.output_tokens,
            charge.preemptions,
            TOMBSTONE_MS,
            LEDGER_ENTRIES,
        )
        return Settled(first=bool(first), statuses=self._statuses(rest[0], rest[1:]) if first else None)

    async def book(self, ask: Ask) -> bool:
        """Note a flight that runs though nothing is held for it: see QuotaStore."""
        await self._enlist(ask.root)
        noted = await self._database.ask(
            "book",
            keyspace.of_root(ask.root),
            ask.flight_id,
            ask.tenant,
            ask.key_id,
            ask.model,
            ask.lane,
            len(ask.prompts),
            self._lease_ms,
        )
        return bool(noted)

    async def renew(self, root: str, flight_ids: Iterable[str]) -> set[str]:
        """Extend leases: see QuotaStore."""
        return set(await self._database.run("renew", keyspace.of_root(root), self._lease_ms, *flight_ids))

    async def expired(self, limit: int) -> list[Lapsed]:
        """Reservations whose lease has run out: see QuotaStore. On its way round it brings the audit log what killed
        gateways have left."""
        if limit < 1 or not await self._database.run("watch", keyspace.REAPER, self._lease_ms):
            return []
        found: list[Lapsed] = []
        quiet_since_ms = await self._database.now_ms() - QUIET_AFTER_MS
        quiet = await self._quiet_roots(quiet_since_ms)
        for root in await self._some_roots():
            try:
                in_air, lapsed, unheard = await self._database.run(
                    "expired", keyspace.of_root(root), limit - len(found), self._lease_ms, MAX_LEASE_MS
                )
            except StoreUnavailable:  # the node of this root: those of others may answer
                continue
            found += [_lapsed(root, flight) for flight in lapsed]
            if unheard:
                with suppress(StoreUnavailable):  # the node of the log: the next round comes
                    await self._outbox.move(root)
            elif root in quiet and not in_air:
                await self._database.run("unlist", keyspace.ROOTS, root, quiet_since_ms)
            if len(found) >= limit:
                break
        return found

    async def statuses(
        self, root: str, tenant: str, key_id: str | None = None, *, model: str = "", lane: str = ""
    ) -> list[LimitStatus]:
        """Every limit that is set: see QuotaStore."""
        prefix = keyspace.of_root(root)
        now_ms, *levels = await self._database.ask("statuses", prefix, tenant, key_id or "", model, lane)
        return list(self._statuses(now_ms, levels))

    def _statuses(self, now_ms: int, levels: Reply) -> tuple[LimitStatus, ...]:
        return tuple(packed.statuses(levels, now_ms, self._slicing))

    def _denied(self, rule: int, requested: int, retry_ms: int, never: int, now_ms: int, *level: Reply) -> Denied:
        name = RULES[rule - 1].name
        status = next(status for status in packed.statuses(level, now_ms, self._slicing) if status.name == name)
        retry_after_s = None if retry_ms < 0 else retry_ms / 1e3
        return Denied(status, requested, retry_after_s, "exceeds" if never else RULES[rule - 1].kind)

    async def _enlist(self, root: str) -> None:
        """Before a root's first reservation here, and hourly: note where `expired` has to look."""
        await enlist(self._database, root)
        self._enlisted[root] = time.monotonic()

    def _is_enlisted(self, root: str) -> bool:
        return time.monotonic() - self._enlisted.get(root, -ENLIST_EVERY_S) < ENLIST_EVERY_S

    async def _some_roots(self) -> list[str]:
        last = self._next_root + ROOTS_PER_LOOK - 1
        roots: list[str] = await self._database.call("ZRANGE", keyspace.ROOTS, self._next_root, last)
        self._next_root = last + 1 if len(roots) == ROOTS_PER_LOOK else 0
        return roots

    async def _quiet_roots(self, since_ms: int) -> set[str]:
        """Roots enlisted so long ago that no store counts on it: forgotten once nothing of theirs is in the air."""
        some = ("LIMIT", 0, ROOTS_PER_LOOK)
        return set(await self._database.call("ZRANGEBYSCORE", keyspace.ROOTS, "-inf", since_ms, *some))


def _lapsed(root: str, reply: Reply) -> Lapsed:
    flight_id, tenant, model, lane, prompts = reply
    return Lapsed(root=root, flight_id=flight_id, tenant=tenant, model=model, lane=lane, prompts=prompts)
