"""Budgets during an outage of their store: requests are admitted locally as the settings allow, and charged later.

A job stays with the store that admitted it. The backlog is written by job id, with `book` and then `settle`, which are
both idempotent, so each charge is counted once, in the windows of its arrival. The backlog is lost if the gateway
dies."""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from fairlane.gateway.identity.auth import DelegationLookup, KeyLookup
from fairlane.quotas.api_keys import ApiKey, Identity
from fairlane.quotas.delegated_keys import Delegation
from fairlane.quotas.limits import BATCH_LIMIT, RULES, Limits, LimitsBy, LimitStatus, Scope
from fairlane.quotas.memory_levels import MemoryKey, MemoryTenant
from fairlane.quotas.memory_store import MemoryQuotaStore
from fairlane.quotas.store import Ask, Charge, Extension, Lapsed, Need, QuotaError, QuotaStore, Reservation, Settled
from fairlane.quotas.tenants import Tenant
from fairlane.quotas.upkeep import GatewayPresence
from fairlane.store.circuit_breaker import StoreAway
from fairlane.store.errors import STORE_ERRORS, StoreFailures, StoreUnavailable
from fairlane.store.retry import every

Mode = Literal["fail_closed", "fail_open", "local_share"]
# Model and lane as in `limits_by`; empty for any.
ModelLane = tuple[str, str]
LOOK_EVERY_S = 30.0
_remaining, _used = attrgetter("remaining"), attrgetter("used")
_WINDOWS = {rule.name: rule.window for rule in RULES} | {BATCH_LIMIT: "request"}  # no request matches that limit
_LONG = ("day", "month")


@dataclass(frozen=True, slots=True)
class Modes:
    """The configured fallback of each limit."""

    default: Mode = "fail_closed"
    by_limit: Mapping[str, Mode] = field(default_factory=dict)

    @property
    def are_closed(self) -> bool:
        return {self.default, *self.by_limit.values()} == {"fail_closed"}

    def of(self, name: str) -> Mode:
        return self.by_limit.get(name, self.default)

    def share(self, limits: Limits, left: Mapping[str, int], used: Mapping[str, int], gateways: int) -> Limits:
        """Return this gateway's share of the limits.

        `left` remained of limits per day or month when the store was last read; `used` of it was admitted here since.
        """
        here: dict[str, int] = {}
        for name, figure in limits.as_dict().items():
            if _WINDOWS[name] == "request":
                here[name] = figure
            elif self.of(name) == "local_share":
                here[name] = left.get(name, figure) // gateways + used.get(name, 0)
        return Limits(**here)


@dataclass(frozen=True, slots=True)
class Known:
    """A tenant or key as last read from the store, with what was left of its limits per day and month."""

    of: Tenant | ApiKey
    left: Mapping[str, int]
    seen_s: float
    # For the tenant's limits of single models and lanes.
    left_by: Mapping[ModelLane, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def now(
        cls,
        of: Tenant | ApiKey,
        statuses: list[LimitStatus],
        seen_s: float,
        by: Mapping[ModelLane, list[LimitStatus]] | None = None,
    ) -> "Known":
        """`statuses` are its own, possibly among others. `by` has those of each model and lane."""
        scope: Scope = "tenant" if isinstance(of, Tenant) else "key"
        left_by = {name: _least(found, "model_lane", _remaining) for name, found in (by or {}).items()}
        return cls(of, _least(statuses, scope, _remaining), seen_s, left_by)


@dataclass(eq=False)
class LocalShare:
    """Local admission: an in-memory quota store that holds this gateway's share of each limit."""

    modes: Modes
    twin: MemoryQuotaStore
    gateways: int = field(default=1, init=False)
    # By kind, `tenant` or `key`, and id.
    known: dict[tuple[str, str], Known] = field(default_factory=dict, init=False)
    _stored: dict[tuple[str, str], Known] = field(default_factory=dict, init=False)

    def keep(self, tenants: Collection[str], keys: Collection[str]) -> None:
        """Forget all but these tenants, their parents, and these keys."""
        found = [known.of for (_, name), known in self.known.items() if name in tenants]
        parents = [above for tenant in found if isinstance(tenant, Tenant) for above in tenant.above]
        kept = {("tenant", name) for name in (*tenants, *parents)} | {("key", name) for name in keys}
        self.known = {name: known for name, known in self.known.items() if name in kept}
        self._stored = {name: known for name, known in self._stored.items() if name in kept}

    async def prepare(self, ask: Ask) -> None:
        """Write a request's limits to the in-memory store. Raises StoreUnavailable if it must not be admitted."""
        own = self._tenant(ask.tenant)
        chain = [own, *(self._tenant(parent) for parent in own.above)]
        key = self.known.get(("key", ask.key_id)) if ask.key_id else None
        if ask.key_id and key is None:
            raise StoreUnavailable("the key is not cached")
        names = {name for tenant in chain for name in _refusing(tenant)} | set(key.of.limits.as_dict() if key else ())
        windowed = {name for name in names if _WINDOWS[name] != "request"}
        if "fail_closed" in ({self.modes.of(name) for name in windowed} or {self.modes.default}):
            raise StoreUnavailable("a limit that counts the request fails closed")
        for tenant in chain:
            await self._put(ask.root, "tenant", tenant.id)
        if key is not None:
            await self._put(ask.root, "key", ask.key_id)

    def _tenant(self, tenant_id: str) -> Tenant:
        known = self.known.get(("tenant", tenant_id))
        if known is None or not isinstance(known.of, Tenant):
            raise StoreUnavailable("the tenant is not cached")
        return known.of

    async def _put(self, root: str, kind: str, name: str) -> None:
        """Write a share once for each read of the store. What was used of the share stays used."""
        known = self.known[kind, name]
        if self._stored.get((kind, name)) is known:
            return
        self._stored[kind, name] = known
        found = known.of
        owner, key_id = (found.id, "") if isinstance(found, Tenant) else (found.tenant, found.id)
        used = _least(await self.twin.statuses(root, owner, key_id), "key" if key_id else "tenant", _used)
        share = self.modes.share(found.limits, known.left, used, self.gateways)
        if isinstance(found, Tenant):
            by = {(each.model, each.lane): await self._share_by(root, known, each) for each in found.limits_by}
            tenant = MemoryTenant(
                timezone=found.timezone,
                shadow=frozenset(found.shadow),
                barred="suspended" if found.state == "suspended" else None,
                parents=found.above,
            )
            self.twin.put_tenant(root, found.id, share, tenant, by)
        else:
            expires_ms = None if found.expires_at is None else round(found.expires_at * 1e3)
            key = MemoryKey(tenant=found.tenant, expires_ms=expires_ms, revoked=found.state != "active")
            self.twin.put_key(root, found.id, share, key)

    async def _share_by(self, root: str, known: Known, by: LimitsBy) -> Limits:
        met = await self.twin.statuses(root, known.of.id, model=by.model, lane=by.lane)
        left = known.left_by.get((by.model, by.lane), {})
        return self.modes.share(by.limits, left, _least(met, "model_lane", _used), self.gateways)


def _least(statuses: Iterable[LimitStatus], scope: Scope, figure: Callable[[LimitStatus], int]) -> dict[str, int]:
    """Return a figure of each limit per day or month in a scope: the lowest, if several limits have one name."""
    found: dict[str, int] = {}
    for status in statuses:
        if status.scope == scope and _WINDOWS[status.name] in _LONG:
            found[status.name] = min(figure(status), found.get(status.name, figure(status)))
    return found


def _refusing(tenant: Tenant) -> set[str]:
    levels = [tenant.limits, *(by.limits for by in tenant.limits_by)]
    return {name for limits in levels for name in limits.as_dict()} - set(tenant.shadow)


log = logging.getLogger(__name__)

UPKEEP_EVERY_S = 0.5
# Requests admitted without the store and not charged yet; above it requests are rejected.
MOST_UNREPORTED = 100_000
# Number of roots whose charges may fail in one round; the rest then waits for the next round.
MOST_FAILED = 16
REMEMBERED = 10_000
# How long a key is accepted while the store cannot say whether it was revoked.
TRUSTED_S = 600.0


class GuardedQuotas:
    """A QuotaStore in front of another one. `run` must run alongside it."""

    def __init__(
        self,
        store: QuotaStore,
        presence: GatewayPresence,
        tenant: Callable[[str], Awaitable[Tenant | None]],
        key: Callable[[Tenant, str], Awaitable[ApiKey | None]],
        modes: Modes,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tenant` and `key` look one up. `clock` is monotonic, and continues the store's clock during an outage."""
        self._store = store
        self._presence = presence
        self._find_tenant, self._find_key = tenant, key
        self._clock = clock
        self._epoch_ms = time.time() * 1e3 - clock() * 1e3
        self._twin = MemoryQuotaStore(self._now_ms)
        self._share = LocalShare(modes, self._twin)
        # The last request that the store admitted of each tenant and key, and its time: the tenants and keys to read.
        self._seen: OrderedDict[tuple[str, str], tuple[float, Ask]] = OrderedDict()
        self._local: dict[str, _Unasked] = {}
        self._backlog: deque[tuple[Ask, Charge]] = deque()
        self._away_since_s: float | None = None

    @property
    def unreported(self) -> int:
        return len(self._local) + len(self._backlog)

    def knows(self, tenant_id: str) -> bool:
        return ("tenant", tenant_id) in self._share.known

    async def run(self) -> None:
        """Send heartbeats, which slow reports and reads must not delay; report charges; read limits."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(every(UPKEEP_EVERY_S, "the heartbeat to the budgets' store", self.beat))
            tasks.create_task(every(UPKEEP_EVERY_S, "reporting to the budgets' store", self.keep))

    async def aclose(self, timeout_s: float) -> None:
        """Report charges for up to `timeout_s`. Unreported charges are lost."""
        with suppress(TimeoutError, *STORE_ERRORS):
            async with asyncio.timeout(timeout_s):
                await self._report()
                await self._presence.leave()
        if self._backlog:
            log.error("%d requests admitted without the budgets' store will never be charged", len(self._backlog))

    async def beat(self) -> None:
        self._share.gateways, now_ms = await self._presence.beat()
        self._epoch_ms = now_ms - self._clock() * 1e3

    async def keep(self) -> None:
        """Report charges, then read the limits of recent callers. Raises StoreUnavailable."""
        await self._report()
        if not self._backlog:  # otherwise the store's figures do not include the backlog
            await self._look()

    async def reserve(self, ask: Ask) -> Reservation:
        if ask.reservation_id not in self._local:
            try:
                reservation = await self._store.reserve(ask)
            except StoreUnavailable as error:
                return await self._admit(ask, error)
            self._remember(ask)
            return reservation
        return await self._twin.reserve(ask)

    async def extend(self, root: str, reservation_id: str, need: Need) -> Extension:
        store = self._twin if reservation_id in self._local else self._store
        return await store.extend(root, reservation_id, need)

    async def settle(self, root: str, reservation_id: str, charge: Charge) -> Settled:
        unasked = self._local.pop(reservation_id, None)
        if unasked is None:
            return await self._store.settle(root, reservation_id, charge)
        settled = await self._twin.settle(root, reservation_id, charge)
        self._twin.ledger.clear()
        if unasked.may_be_stored or not charge.is_refund:
            self._backlog.append((unasked.ask, charge))
        return settled

    async def book(self, ask: Ask) -> bool:
        return await self._store.book(ask)

    async def renew(self, root: str, reservation_ids: Iterable[str]) -> set[str]:
        """Extend leases. Jobs admitted here never expire, but the store may have some of them too."""
        return await self._store.renew(root, reservation_ids) - self._local.keys()

    async def expired(self, limit: int) -> list[Lapsed]:
        return await self._store.expired(limit)

    async def statuses(
        self, root: str, account: str, key_id: str | None = None, *, model: str = "", lane: str = ""
    ) -> list[LimitStatus]:
        return await self._store.statuses(root, account, key_id, model=model, lane=lane)

    async def _admit(self, ask: Ask, error: StoreUnavailable) -> Reservation:
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
            log.warning("the budgets' store does not answer: admitting requests from this gateway's share")
        return reservation

    async def _report(self) -> None:
        failed, failures = set[str](), StoreFailures()
        for _ in range(len(self._backlog)):
            ask, charge = self._backlog[0]
            if ask.root not in failed and len(failed) < MOST_FAILED:
                failed.add(ask.root)
                with failures:
                    if not charge.is_refund:
                        await self._store.book(ask)
                    await self._store.settle(ask.root, ask.reservation_id, charge)
                    failed.discard(ask.root)
                    self._backlog.popleft()
                    continue
            self._backlog.rotate(-1)
        failures.raise_last()
        if self._away_since_s is not None and not self._local:
            log.warning(
                "all requests admitted without the budgets' store are charged, %.1f s later",
                self._clock() - self._away_since_s,
            )
            self._away_since_s = None

    def _remember(self, ask: Ask) -> None:
        who = ask.tenant, ask.key_id
        self._seen[who] = self._clock(), ask
        self._seen.move_to_end(who)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

    async def _look(self) -> None:
        due_s, failures = self._clock() - LOOK_EVERY_S, StoreFailures()
        while self._seen and next(iter(self._seen.values()))[0] < self._clock() - TRUSTED_S:
            self._seen.popitem(last=False)
        for _, ask in list(self._seen.values()):
            key = self._share.known.get(("key", ask.key_id))
            tenant = self._share.known.get(("tenant", ask.tenant))
            if tenant is None or tenant.seen_s <= due_s or (ask.key_id and (key is None or key.seen_s <= due_s)):
                with failures:
                    await self._look_at(ask)
        self._share.keep({tenant for tenant, _ in self._seen}, {key for _, key in self._seen})
        failures.raise_last()

    async def _look_at(self, ask: Ask) -> None:
        tenant, now_s = await self._find_tenant(ask.tenant), self._clock()
        if tenant is None:
            self._seen.pop((ask.tenant, ask.key_id), None)
            return
        statuses = await self._store.statuses(ask.root, tenant.account, ask.key_id)
        by = {
            (each.model, each.lane): await self._store.statuses(
                ask.root, tenant.account, model=each.model, lane=each.lane
            )
            for each in tenant.limits_by
            if any(_WINDOWS[name] in _LONG for name in each.limits.as_dict())
        }
        found = {("tenant", tenant.id): Known.now(tenant, statuses, now_s, by)}
        key = await self._find_key(tenant, ask.key_id) if ask.key_id else None
        if key is not None:
            found["key", key.id] = Known.now(key, statuses, now_s)
        for above in tenant.above:
            parent = await self._find_tenant(above)
            if parent is not None:
                found["tenant", above] = Known.now(parent, await self._store.statuses(ask.root, parent.account), now_s)
        self._share.known.update(found)

    def _now_ms(self) -> int:
        return round(self._epoch_ms + self._clock() * 1e3)


@dataclass(frozen=True, slots=True)
class _Unasked:
    ask: Ask
    # The store was called and did not respond, so it may have the job too.
    may_be_stored: bool


@dataclass(eq=False)
class RememberedKeys:
    """Caches identities, and returns them during an outage of their store, for TRUSTED_S at most."""

    keys: KeyLookup
    delegations: DelegationLookup | None = None
    clock: Callable[[], float] = time.monotonic
    _known: OrderedDict[bytes | Delegation, tuple[float, Identity]] = field(default_factory=OrderedDict, init=False)

    async def lookup(self, full_key: str) -> Identity | None:
        return await self._remembering(hashlib.sha256(full_key.encode()).digest(), self.keys.lookup(full_key))

    async def identity(self, delegation: Delegation) -> Identity | None:
        if self.delegations is None:
            return None
        return await self._remembering(delegation, self.delegations.identity(delegation))

    async def _remembering(self, name: bytes | Delegation, asked: Awaitable[Identity | None]) -> Identity | None:
        try:
            identity = await asked
        except StoreUnavailable:
            seen_s, remembered = self._known.get(name, (float("-inf"), None))
            if remembered is None or self.clock() - seen_s > TRUSTED_S:
                raise
            return remembered
        self._known.pop(name, None)
        if identity is not None:
            self._known[name] = self.clock(), identity
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return identity
