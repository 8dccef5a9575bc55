"""Budgets that outlast their store, as far as the settings allow: what was admitted without it is charged later.

    reserve ──the store answers──────────> its reservation     extend, settle: the store
            └─it does not, but limits may> the twin's          extend, settle: the twin ──backlog──> the store

A job stays where it was admitted. The backlog is written by job id, `book` and then `settle`, both of which do
nothing twice: each charge arrives exactly once, in the windows of its arrival. It is kept in memory: a gateway that
dies before the store is back takes with it what it admitted meanwhile.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from fairlane.gateway.auth import KeyLookup
from fairlane.gateway.requests.quota_fallback import LOOK_EVERY_S, Known, LocalShare, Modes, long_by
from fairlane.quotas.api_keys import ApiKey, Identity
from fairlane.quotas.memory_store import MemoryQuotaStore
from fairlane.quotas.presence import GatewayPresence
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Ask, Charge, Extension, Lapsed, LimitStatus, Need, QuotaError, Reservation, Settled
from fairlane.quotas.tenants import Tenant
from fairlane.store.circuit_breaker import StoreAway
from fairlane.store.connections import STORE_TROUBLE, Troubles, every
from fairlane.store.trouble import StoreUnavailable

log = logging.getLogger(__name__)

UPKEEP_EVERY_S = 0.5
MOST_UNREPORTED = 100_000
"""Requests that were admitted without the store and not charged there yet; more are refused."""
MOST_FAILED = 16
"""Roots whose charges fail in one round; the rest of it is left to the next."""
REMEMBERED = 10_000
TRUSTED_S = 600.0
"""How long a key is taken as it was last seen while nobody can say whether it was revoked."""


class GuardedQuotas:
    """A QuotaStore over another. `run` has to run beside it."""

    def __init__(
        self,
        store: RedisQuotaStore,
        presence: GatewayPresence,
        tenant: Callable[[str], Awaitable[Tenant | None]],
        key: Callable[[Tenant, str], Awaitable[ApiKey | None]],
        modes: Modes,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tenant`, `key`: look one up. `clock`: seconds that never step back; while the store is away, its clock is
        carried on by this one."""
        self._store = store
        self._presence = presence
        self._find_tenant, self._find_key = tenant, key
        self._clock = clock
        self._epoch_ms = time.time() * 1e3 - clock() * 1e3
        self._twin = MemoryQuotaStore(self._now_ms)
        self._share = LocalShare(modes, self._twin)
        self._seen: OrderedDict[tuple[str, str], Ask] = OrderedDict()
        """Of each tenant and key a request that the store has admitted: who to look up."""
        self._local: dict[str, _Unasked] = {}
        self._backlog: deque[tuple[Ask, Charge]] = deque()
        self._away_since_s: float | None = None

    @property
    def unreported(self) -> int:
        """Requests that were admitted without the store and not charged there yet."""
        return len(self._local) + len(self._backlog)

    def knows(self, tenant_id: str) -> bool:
        """It has looked at the tenant's limits."""
        return ("tenant", tenant_id) in self._share.known

    async def run(self) -> None:
        """Until cancelled."""
        await every(UPKEEP_EVERY_S, "reporting to the budgets' store", self.keep)

    async def aclose(self, timeout_s: float) -> None:
        """Charge what is due for so long; what is left is lost."""
        with suppress(TimeoutError, *STORE_TROUBLE):
            async with asyncio.timeout(timeout_s):
                await self._report()
                await self._presence.leave()
        if self._backlog:
            log.error("%d requests that were admitted without the budgets' store are never charged", len(self._backlog))

    async def keep(self) -> None:
        """One round: charge what is due, say that this gateway lives, look at who asked lately. StoreUnavailable."""
        self._share.gateways, now_ms = await self._presence.beat()
        self._epoch_ms = now_ms - self._clock() * 1e3
        await self._report()
        if not self._backlog:  # which the store's figures do not have yet
            await self._look()

    async def reserve(self, ask: Ask) -> Reservation:
        """Hold the tokens of one request, there or here: see QuotaStore."""
        if ask.reservation_id not in self._local:
            try:
                reservation = await self._store.reserve(ask)
            except StoreUnavailable as error:
                return await self._admit(ask, error)
            self._remember(ask)
            return reservation
        return await self._twin.reserve(ask)

    async def extend(self, root: str, reservation_id: str, need: Need) -> Extension:
        """Hold more where the job was admitted: see QuotaStore."""
        store = self._twin if reservation_id in self._local else self._store
        return await store.extend(root, reservation_id, need)

    async def settle(self, root: str, reservation_id: str, charge: Charge) -> Settled:
        """Charge a job where it was admitted; here, to be reported: see QuotaStore."""
        unasked = self._local.pop(reservation_id, None)
        if unasked is None:
            return await self._store.settle(root, reservation_id, charge)
        settled = await self._twin.settle(root, reservation_id, charge)
        self._twin.ledger.clear()
        if unasked.may_be_stored or not charge.is_refund:
            self._backlog.append((unasked.ask, charge))
        return settled

    async def book(self, ask: Ask) -> bool:
        """Note a job that the store has forgotten: see QuotaStore."""
        return await self._store.book(ask)

    async def renew(self, root: str, reservation_ids: Iterable[str]) -> set[str]:
        """Extend leases; those of jobs that were admitted here do not end, but the store may hold them too."""
        return await self._store.renew(root, reservation_ids) - self._local.keys()

    async def expired(self, limit: int) -> list[Lapsed]:
        """Reservations whose lease has run out: see QuotaStore."""
        return await self._store.expired(limit)

    async def statuses(
        self, root: str, tenant: str, key_id: str | None = None, *, model: str = "", lane: str = ""
    ) -> list[LimitStatus]:
        """Every limit that is set: see QuotaStore."""
        return await self._store.statuses(root, tenant, key_id, model=model, lane=lane)

    async def _admit(self, ask: Ask, error: StoreUnavailable) -> Reservation:
        """By this gateway's share. Raises the store's error where the limits do not allow that."""
        if self.unreported >= MOST_UNREPORTED:
            raise error
        try:
            await self._share.prepare(ask)
        except StoreUnavailable:
            raise error from None
        may_be_stored = not isinstance(error, StoreAway)
        try:
            reservation = await self._twin.reserve(ask)
        except QuotaError as refused:
            refused.may_be_stored = may_be_stored
            raise
        self._local[ask.reservation_id] = _Unasked(ask, may_be_stored)
        if self._away_since_s is None:
            self._away_since_s = self._clock()
            log.warning("budgets cannot be asked: requests are admitted by what is known of them here")
        return reservation

    async def _report(self) -> None:
        """Charge what is due, whatever becomes of other roots: a Cluster has them on several nodes."""
        failed, troubles = set[str](), Troubles()
        for _ in range(len(self._backlog)):
            ask, charge = self._backlog[0]
            if ask.root not in failed and len(failed) < MOST_FAILED:
                failed.add(ask.root)
                with troubles:
                    if not charge.is_refund:
                        await self._store.book(ask)
                    await self._store.settle(ask.root, ask.reservation_id, charge)
                    failed.discard(ask.root)
                    self._backlog.popleft()
                    continue
            self._backlog.rotate(-1)
        troubles.tell()
        if self._away_since_s is not None and not self._local:
            log.warning("all that budgets had to hear is charged, %.1f s later", self._clock() - self._away_since_s)
            self._away_since_s = None

    def _remember(self, ask: Ask) -> None:
        who = ask.tenant, ask.key_id
        self._seen[who] = ask
        self._seen.move_to_end(who)
        if len(self._seen) > REMEMBERED:
            self._forget(*self._seen.popitem(last=False)[0])

    def _forget(self, tenant_id: str, key_id: str) -> None:
        """A tenant is forgotten with the last of its keys."""
        known = self._share.known
        known.pop(("key", key_id), None)
        if not any(tenant_id == other for other, _ in self._seen):
            known.pop(("tenant", tenant_id), None)

    async def _look(self) -> None:
        """At tenants and keys that nobody has looked at for a while."""
        due_s, troubles = self._clock() - LOOK_EVERY_S, Troubles()
        for ask in list(self._seen.values()):
            key = self._share.known.get(("key", ask.key_id))
            tenant = self._share.known.get(("tenant", ask.tenant))
            if tenant is None or tenant.seen_s <= due_s or (ask.key_id and (key is None or key.seen_s <= due_s)):
                with troubles:
                    await self._look_at(ask)
        troubles.tell()

    async def _look_at(self, ask: Ask) -> None:
        tenant, now_s = await self._find_tenant(ask.tenant), self._clock()
        if tenant is None:
            self._seen.pop((ask.tenant, ask.key_id), None)
            self._forget(ask.tenant, ask.key_id)
            return
        statuses = await self._store.statuses(ask.root, tenant.id, ask.key_id)
        by = {
            (model, lane): await self._store.statuses(ask.root, tenant.id, model=model, lane=lane)
            for model, lane in long_by(tenant)
        }
        found = {("tenant", tenant.id): Known.now(tenant, statuses, now_s, by)}
        key = await self._find_key(tenant, ask.key_id) if ask.key_id else None
        if key is not None:
            found["key", key.id] = Known.now(key, statuses, now_s)
        for above in tenant.parents:
            parent = await self._find_tenant(above)
            if parent is not None:
                found["tenant", above] = Known.now(parent, await self._store.statuses(ask.root, above), now_s)
        self._share.known.update(found)

    def _now_ms(self) -> int:
        return round(self._epoch_ms + self._clock() * 1e3)


@dataclass(frozen=True, slots=True)
class _Unasked:
    """A job that was admitted here."""

    ask: Ask
    may_be_stored: bool
    """The store was asked and did not answer: it may hold the job all the same."""


class RememberedKeys:
    """A KeyLookup that takes keys as they were last seen while their store is away, for at most TRUSTED_S."""

    def __init__(self, keys: KeyLookup, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, Identity]] = OrderedDict()

    async def lookup(self, full_key: str) -> Identity | None:
        """The key's owner, or None where it does not work. Raises StoreUnavailable where nothing is remembered."""
        digest = hashlib.sha256(full_key.encode()).digest()
        try:
            identity = await self._keys.lookup(full_key)
        except StoreUnavailable:
            seen_s, remembered = self._known.get(digest, (float("-inf"), None))
            if remembered is None or self._clock() - seen_s > TRUSTED_S:
                raise
            return remembered
        self._known.pop(digest, None)
        if identity is not None:
            self._known[digest] = self._clock(), identity
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return identity
