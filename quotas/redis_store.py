"""Budgets in Redis: one atomic script per operation. This module only converts arguments and replies."""

import struct
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from fairlane.quotas import keyspace, packing
from fairlane.quotas.audit import AuditOutbox
from fairlane.quotas.escrow.transfers import VALID_MS, Entry, Progress, Rights, Transfer, Transferred
from fairlane.quotas.limits import FREE, RULES, LimitStatus, Prices
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
from fairlane.quotas.upkeep import ActiveRoots
from fairlane.quotas.windows import MINUTE, Slicing
from fairlane.store.bounds import PER_CALL, chunks
from fairlane.store.errors import StoreUnavailable

# Approximate size of one tenant's entries in the store: some 120,000 of them.
LEDGER_BYTES = 16 * 2**20
_PRICES = struct.Struct("<3d")


class RedisQuotaStore:
    """The QuotaStore of every gateway."""

    def __init__(
        self,
        client: Redis,
        *,
        lease_ms: int = DEFAULT_LEASE_MS,
        ledger_bytes: int = LEDGER_BYTES,
        clock: str | None = None,
        slicing: Slicing = MINUTE,
    ) -> None:
        """`ledger_bytes`: per tenant; the oldest entries over it are dropped. `clock`, `slicing`: see Database."""
        if not 0 < lease_ms <= MAX_LEASE_MS:
            raise ValueError(f"lease_ms must be from 1 to {MAX_LEASE_MS}")
        self._database = Database(client, clock=clock, slicing=slicing)
        self._roots = ActiveRoots(self._database)
        self._outbox = AuditOutbox(self._database)
        self._lease_ms = lease_ms
        self._ledger_bytes = ledger_bytes
        self._slicing = slicing

    async def reserve(self, ask: Ask) -> Reservation:
        if not self._roots.is_enlisted(ask.root):
            await self._roots.enlist(ask.root)
        start = ask.start
        kind, *rest = await self._database.call_function(
            "reserve",
            keyspace.of_root(ask.root),
            *_names(ask),
            ask.prompt_tokens,
            max(ask.prompts),
            len(ask.prompts),
            ask.max_output_tokens,
            int(ask.explicit_max),
            ask.quantum or 0,
            self._lease_ms,
            *_once(ask),
            start.published,
            start.ended,
            start.going,
            start.longest,
            int(ask.is_batch),
            _packed(ask.prices),
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
            shadowed=_shadowed(shadowed) if shadowed else (),
        )

    async def extend(self, root: str, reservation_id: str, need: Need) -> Extension:
        reply = await self._database.call_function(
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
        first, *rest = await self._database.call_function(
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
            self._ledger_bytes,
            charge.gpu_us,
            charge.kv_block_ms,
            self._database.new_call(),
        )
        statuses = packing.statuses(rest[1:], rest[0], self._slicing) if first else None
        return Settled(first=bool(first), statuses=statuses)

    async def transfer(self, order: Transfer) -> Transferred:
        if not self._roots.is_enlisted(order.root):
            await self._roots.enlist(order.root)
        made, last_or_requests, *rest = await self._database.call_function(
            "transfer",
            keyspace.of_root(order.root),
            *(order.pool, order.account, order.key_id, order.model, order.lane),
            order.call,
            order.first,
            order.share,
            *(order.wanted.requests, order.wanted.input, order.wanted.output),
            VALID_MS,
            self._lease_ms,
            TOMBSTONE_MS,
            self._ledger_bytes,
            msgspec.msgpack.encode([_entry(entry) for entry in order.entries]),
        )
        if not made:
            return Transferred(rights=None, call=last_or_requests)
        input_tokens, output_tokens, now_ms, *levels = rest
        return Transferred(
            rights=Rights(last_or_requests, input_tokens, output_tokens),
            call=order.call,
            statuses=packing.statuses(levels, now_ms, self._slicing),
        )

    async def book(self, ask: Ask) -> bool:
        await self._roots.enlist(ask.root)
        noted = await self._database.call_function(
            "book",
            keyspace.of_root(ask.root),
            *_names(ask),
            len(ask.prompts),
            self._lease_ms,
            *_once(ask),
            int(ask.is_batch),
            _packed(ask.prices),
        )
        return bool(noted)

    async def renew(self, root: str, reservation_ids: Iterable[str]) -> set[str]:
        lost = set[str]()
        for chunk in chunks(reservation_ids):
            lost.update(await self._database.run("renew", keyspace.of_root(root), self._lease_ms, *chunk))
        return lost

    async def expired(self, limit: int) -> list[Lapsed]:
        """Return reservations whose lease has run out: see QuotaStore. Also move audit entries that killed gateways
        have left in their outboxes."""
        if limit < 1 or not await self._database.run("watch", keyspace.REAPER, self._lease_ms):
            return []
        found: list[Lapsed] = []
        quiet = await self._roots.idle()
        for root in await self._roots.next_batch():
            try:
                open_count, lapsed, waiting, pools, until_ms = await self._database.run(
                    "expired", keyspace.of_root(root), min(PER_CALL, limit - len(found)), self._lease_ms, MAX_LEASE_MS
                )
                for pool in pools:
                    reap = (pool, until_ms, self._lease_ms, TOMBSTONE_MS)
                    await self._database.call_function("escrow_reap", keyspace.of_root(root), *reap)
            except StoreUnavailable:  # other roots' nodes may answer
                continue
            found += [_lapsed(root, reservation) for reservation in lapsed]
            if waiting:
                with suppress(StoreUnavailable):  # retried in the next round
                    await self._outbox.move(root)
            elif root in quiet and not open_count:
                await self._roots.forget(root)
            if len(found) >= limit:
                break
        return found

    async def statuses(
        self, root: str, account: str, key_id: str | None = None, *, model: str = "", lane: str = ""
    ) -> list[LimitStatus]:
        prefix = keyspace.of_root(root)
        now_ms, *levels = await self._database.call_function("statuses", prefix, account, key_id or "", model, lane)
        return list(packing.statuses(levels, now_ms, self._slicing))

    def _denied(self, rule: int, requested: int, retry_ms: int, never: int, now_ms: int, *level: Reply) -> Denied:
        name = RULES[rule - 1].name
        status = next(status for status in packing.statuses(level, now_ms, self._slicing) if status.name == name)
        retry_after_s = None if retry_ms < 0 else retry_ms / 1e3
        return Denied(status, requested, retry_after_s, "exceeds" if never else RULES[rule - 1].kind)


def _shadowed(numbers: bytes) -> tuple[str, ...]:
    return tuple([RULES[int(number) - 1].name for number in numbers.split(b",")[:-1]])


def _names(ask: Ask) -> tuple[str, str, str, str, str]:
    return ask.reservation_id, ask.account, ask.key_id, ask.model, ask.lane


def _packed(prices: Prices) -> bytes:
    return b"" if prices == FREE else _PRICES.pack(prices.input, prices.cached, prices.output)


def _entry(entry: Entry) -> list[str | int]:
    """Return an entry as the function `transfer` reads it."""
    prices = entry.ask.prices
    name, costs = entry.ask.reservation_id, (prices.input, prices.cached, prices.output)
    if isinstance(entry, Progress):
        charged = (entry.charged_input, entry.charged_output)
        return [name, "", *costs, entry.input, entry.output, *charged, entry.choice, entry.ceiling]
    charge = entry.charge
    tokens = (charge.prompt_tokens, charge.cached_tokens, charge.output_tokens)
    measured = (str(charge.preemptions), str(charge.gpu_us), str(charge.kv_block_ms))
    return [name, charge.outcome, *costs, int(charge.is_refund), *tokens, *measured]


def _once(ask: Ask) -> tuple[str, int]:
    return ("", 0) if ask.once is None else (ask.once.name, ask.once.until_ms)


def _lapsed(root: str, reply: Reply) -> Lapsed:
    reservation_id, account, model, lane, prompts, once_until_ms = reply
    return Lapsed(
        root=root,
        reservation_id=reservation_id,
        tenant=keyspace.tenant_of(account),
        incarnation=keyspace.incarnation_of(account),
        model=model,
        lane=lane,
        prompts=prompts,
        once_until_ms=once_until_ms,
    )
