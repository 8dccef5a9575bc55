"""Budgets in Redis: each operation one script, atomic over all limits of a request. Only conversion stands here."""

import time
from collections.abc import Iterable
from contextlib import suppress

from fairlane.quotas import keyspace, packing
from fairlane.quotas.audit import AuditOutbox
from fairlane.quotas.limits import RULES, LimitStatus
from fairlane.quotas.scripts import Database, Redis, Reply
from fairlane.quotas.store import (
    DEFAULT_LEASE_MS,
    MAX_LEASE_MS,
    TOMBSTONE_MS,
    AccessDenied,
    AlreadySettled,
    Ask,
    Charge,
    Denied,
    Extension,
    Lapsed,
    Need,
    Reservation,
    Settled,
)
from fairlane.quotas.windows import MINUTE, Slicing
from fairlane.store.errors import StoreUnavailable

ROOTS_PER_LOOK = 256
"""Roots that one call of `some` gives; the next goes on from there."""
ENLIST_EVERY_S = 3_600.0
QUIET_AFTER_MS = 86_400_000


class Roots:
    """The list, as one process keeps it up. Every call may raise StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._enlisted: dict[str, float] = {}
        """When this process did so, on its monotonic clock."""
        self._next = 0

    async def enlist(self, root: str) -> None:
        """Somebody has to look here from now on."""
        await self._database.call("ZADD", keyspace.ROOTS, await self._database.now_ms(), root)
        self._enlisted[root] = time.monotonic()

    def is_enlisted(self, root: str) -> bool:
        """This process has done so lately: nobody forgets it for a long while."""
        return time.monotonic() - self._enlisted.get(root, -ENLIST_EVERY_S) < ENLIST_EVERY_S

    async def some(self) -> list[str]:
        """The next ones on the way round."""
        last = self._next + ROOTS_PER_LOOK - 1
        roots: list[str] = await self._database.call("ZRANGE", keyspace.ROOTS, self._next, last)
        self._next = last + 1 if len(roots) == ROOTS_PER_LOOK else 0
        return roots

    async def quiet(self) -> set[str]:
        """Some that were enlisted so long ago that no process counts on it."""
        some = ("LIMIT", 0, ROOTS_PER_LOOK)
        return set(await self._database.call("ZRANGEBYSCORE", keyspace.ROOTS, "-inf", await self._quiet_ms(), *some))

    async def forget(self, root: str) -> None:
        """One that is quiet and has nothing; it stays where somebody has enlisted it anew."""
        await self._database.run("unlist", keyspace.ROOTS, root, await self._quiet_ms())

    async def _quiet_ms(self) -> int:
        return await self._database.now_ms() - QUIET_AFTER_MS


LEDGER_ENTRIES = 100_000


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
        self._roots = Roots(self._database)
        self._outbox = AuditOutbox(self._database)
        self._lease_ms = lease_ms
        self._slicing = slicing

    async def reserve(self, ask: Ask) -> Reservation:
        if not self._roots.is_enlisted(ask.root):
            await self._roots.enlist(ask.root)
        kind, *rest = await self._database.ask(
            "reserve",
            keyspace.of_root(ask.root),
            ask.reservation_id,
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
            *_once(ask),
            ask.start.published,
            ask.start.ended,
            ask.start.going,
            ask.start.longest,
        )
        if kind == b"denied":
            raise self._denied(*rest)
        if kind == b"access":
            raise AccessDenied(rest[0].decode())
        if kind == b"settled":
            raise AlreadySettled(ask.reservation_id)
        granted, most, shadowed, now_ms, *levels = rest
        return Reservation(
            granted_tokens=granted,
            most_tokens=most,
            statuses=packing.statuses(levels, now_ms, self._slicing),
            shadowed=tuple([RULES[int(number) - 1].name for number in shadowed.split(b",")[:-1]]),
        )

    async def extend(self, root: str, reservation_id: str, need: Need) -> Extension:
        reply = await self._database.ask(
            "extend",
            keyspace.of_root(root),
            reservation_id,
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
            raise AlreadySettled(reservation_id)
        granted, limited_by, spent, retry_ms, paused = reply
        return Extension(
            granted_tokens=granted,
            limited_by=limited_by.decode(),
            spent=bool(spent),
            retry_after_s=retry_ms / 1e3,
            paused=bool(paused),
        )

    async def settle(self, root: str, reservation_id: str, charge: Charge) -> Settled:
        first, *rest = await self._database.ask(
            "settle",
            keyspace.of_root(root),
            reservation_id,
            charge.outcome,
            int(charge.is_refund),
            charge.prompt_tokens,
            charge.cached_tokens,
            charge.output_tokens,
            charge.preemptions,
            TOMBSTONE_MS,
            LEDGER_ENTRIES,
        )
        statuses = packing.statuses(rest[1:], rest[0], self._slicing) if first else None
        return Settled(first=bool(first), statuses=statuses)

    async def book(self, ask: Ask) -> bool:
        await self._roots.enlist(ask.root)
        noted = await self._database.ask(
            "book",
            keyspace.of_root(ask.root),
            ask.reservation_id,
            ask.tenant,
            ask.key_id,
            ask.model,
            ask.lane,
            len(ask.prompts),
            self._lease_ms,
            *_once(ask),
        )
        return bool(noted)

    async def renew(self, root: str, reservation_ids: Iterable[str]) -> set[str]:
        return set(await self._database.run("renew", keyspace.of_root(root), self._lease_ms, *reservation_ids))

    async def expired(self, limit: int) -> list[Lapsed]:
        """Reservations whose lease has run out: see QuotaStore. On its way round it brings the audit log what killed
        gateways have left."""
        if limit < 1 or not await self._database.run("watch", keyspace.REAPER, self._lease_ms):
            return []
        found: list[Lapsed] = []
        quiet = await self._roots.quiet()
        for root in await self._roots.some():
            try:
                in_air, lapsed, unheard = await self._database.run(
                    "expired", keyspace.of_root(root), limit - len(found), self._lease_ms, MAX_LEASE_MS
                )
            except StoreUnavailable:  # the node of this root: those of others may answer
                continue
            found += [_lapsed(root, reservation) for reservation in lapsed]
            if unheard:
                with suppress(StoreUnavailable):  # the node of the log: the next round comes
                    await self._outbox.move(root)
            elif root in quiet and not in_air:
                await self._roots.forget(root)
            if len(found) >= limit:
                break
        return found

    async def statuses(
        self, root: str, tenant: str, key_id: str | None = None, *, model: str = "", lane: str = ""
    ) -> list[LimitStatus]:
        prefix = keyspace.of_root(root)
        now_ms, *levels = await self._database.ask("statuses", prefix, tenant, key_id or "", model, lane)
        return list(packing.statuses(levels, now_ms, self._slicing))

    def _denied(self, rule: int, requested: int, retry_ms: int, never: int, now_ms: int, *level: Reply) -> Denied:
        name = RULES[rule - 1].name
        status = next(status for status in packing.statuses(level, now_ms, self._slicing) if status.name == name)
        retry_after_s = None if retry_ms < 0 else retry_ms / 1e3
        return Denied(status, requested, retry_after_s, "exceeds" if never else RULES[rule - 1].kind)


def _once(ask: Ask) -> tuple[str, int]:
    return ("", 0) if ask.once is None else (ask.once.name, ask.once.until_ms)


def _lapsed(root: str, reply: Reply) -> Lapsed:
    reservation_id, tenant, model, lane, prompts, once_until_ms = reply
    return Lapsed(
        root=root,
        reservation_id=reservation_id,
        tenant=tenant,
        model=model,
        lane=lane,
        prompts=prompts,
        once_until_ms=once_until_ms,
    )


PRESENT_MS = 10_000
"""A gateway that was silent for so long is none."""


class GatewayPresence:
    """One gateway among those that ask one store. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis, gateway_id: str) -> None:
        self._database = Database(client)
        self._gateway_id = gateway_id

    async def beat(self) -> tuple[int, int]:
        """Say that this one lives; how many do, and the store's clock in ms."""
        now_ms = await self._database.now_ms()
        await self._database.call("ZADD", keyspace.GATEWAYS, now_ms, self._gateway_id)
        await self._database.call("ZREMRANGEBYSCORE", keyspace.GATEWAYS, "-inf", now_ms - PRESENT_MS)
        return int(await self._database.call("ZCARD", keyspace.GATEWAYS)), now_ms

    async def leave(self) -> None:
        await self._database.call("ZREM", keyspace.GATEWAYS, self._gateway_id)
