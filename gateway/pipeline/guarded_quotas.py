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
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from fairlane.gateway.identity.auth import DelegationLookup, KeyLookup
from fairlane.quotas.api_keys import ApiKey, Identity
from fairlane.quotas.delegated_keys import Delegation
from fairlane.quotas.limits import BATCH_LIMIT, RULES, Limits, LimitsBy, LimitStatus, Scope
from fairlane.quotas.memory_levels import MemoryKey, MemoryTenant
from fairlane.quotas.memory_store import MemoryQuotaStore
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Ask, Charge, Extension, Lapsed, Need, QuotaError, Reservation, Settled
from fairlane.quotas.tenants import Tenant
from fairlane.quotas.upkeep import GatewayPresence
from fairlane.store.circuit_breaker import StoreAway
from fairlane.store.errors import STORE_ERRORS, StoreFailures, StoreUnavailable
from fairlane.store.retry import every

Mode = Literal["fail_closed", "fail_open", "local_share"]
ModelLane = tuple[str, str]
"""As `limits_by` names them; empty: any."""
LOOK_EVERY_S = 30.0
_WINDOWS = {rule.name: rule.window for rule in RULES} | {BATCH_LIMIT: "request"}  # no request meets that one
_LONG = ("day", "month")


@dataclass(frozen=True, slots=True)
class Modes:
    """What the settings say."""

    default: Mode = "fail_closed"
    by_limit: Mapping[str, Mode] = field(default_factory=dict)

    @property
    def are_closed(self) -> bool:
        """Nothing is ever admitted unasked."""
        return {self.default, *self.by_limit.values()} == {"fail_closed"}

    def of(self, name: str) -> Mode:
        """Of one limit."""
        return self.by_limit.get(name, self.default)

    def share(self, limits: Limits, left: Mapping[str, int], used: Mapping[str, int], gateways: int) -> Limits:
        """The limits that hold here meanwhile. `left`: of a day's or month's limit, as the store last said, where it
        did; `used`: of that, what this gateway has admitted unasked before."""
        here: dict[str, int] = {}
        for name, figure in limits.as_dict().items():
            if _WINDOWS[name] == "request":
                here[name] = figure
            elif self.of(name) == "local_share":
                here[name] = left.get(name, figure) // gateways + used.get(name, 0)
        return Limits(**here)


@dataclass(frozen=True, slots=True)
class Known:
    """A tenant or a key as the store last had it, and what was left of its days and months."""

    of: Tenant | ApiKey
    left: Mapping[str, int]
    seen_s: float
    left_by: Mapping[ModelLane, Mapping[str, int]] = field(default_factory=dict)
    """Of what a tenant's models and lanes have of their own."""

    @classmethod
    def now(
        cls,
        of: Tenant | ApiKey,
        statuses: list[LimitStatus],
        seen_s: float,
        by: Mapping[ModelLane, list[LimitStatus]] | None = None,
    ) -> "Known":
        """`statuses`: of itself or beside others'. `by`: what a request of each of `long_by` meets."""
        scope: Scope = "tenant" if isinstance(of, Tenant) else "key"
        left_by = {name: _least(found, "model_lane", _remaining) for name, found in (by or {}).items()}
        return cls(of, _least(statuses, scope, _remaining), seen_s, left_by)


def long_by(tenant: Tenant) -> list[ModelLane]:
    """Models and lanes of a tenant that have a day's or month's limit of their own."""
    return [
        (by.model, by.lane) for by in tenant.limits_by if any(_WINDOWS[name] in _LONG for name in by.limits.as_dict())
    ]


class LocalShare:
    """What this gateway admits alone: the twin of the store over its share, and what it knows of tenants and keys."""

    def __init__(self, modes: Modes, twin: MemoryQuotaStore) -> None:
        self.modes = modes
        self.twin = twin
        self.gateways = 1
        """How many share the limits."""
        self.known: dict[tuple[str, str], Known] = {}
        """By what it is, `tenant` or `key`, and its id."""
        self._above: set[str] = set()
        """Tenants above those that are known."""
        self._stored: dict[tuple[str, str], Known] = {}
        """What the twin has of them."""

    def forget(self, kind: str, name: str) -> None:
        """Forget a tenant or a key, unless it is a tenant above another one."""
        if kind != "tenant" or name not in self._above:
            self.known.pop((kind, name), None)
            self._stored.pop((kind, name), None)

    def keep(self, tenants: Collection[str]) -> None:
        """Forget every tenant that is neither one of these nor above one of them."""
        found = [known.of for known in (self.known.get(("tenant", name)) for name in tenants) if known is not None]
        self._above = {name for tenant in found if isinstance(tenant, Tenant) for name in tenant.above}
        for kind, name in list(self.known):
            if kind == "tenant" and name not in tenants:
                self.forget(kind, name)

    async def prepare(self, ask: Ask) -> None:
        """Let the twin know all that counts a request. Raises StoreUnavailable where it may not be admitted unasked."""
        own = self._tenant(ask.tenant)
        chain = [own, *(self._tenant(parent) for parent in own.above)]
        key = self.known.get(("key", ask.key_id)) if ask.key_id else None
        if ask.key_id and key is None:
            raise StoreUnavailable("nothing is known of the key")
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
            raise StoreUnavailable("nothing is known of the tenant")
        return known.of

    async def _put(self, root: str, kind: str, name: str) -> None:
        """Once for each look at the store: what was used of a share stays used."""
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
            self.twin.put_tenant(root, found.id, share, _memory_tenant(found), by)
        else:
            expires_ms = None if found.expires_at is None else round(found.expires_at * 1e3)
            key = MemoryKey(tenant=found.tenant, expires_ms=expires_ms, revoked=found.state != "active")
            self.twin.put_key(root, found.id, share, key)

    async def _share_by(self, root: str, known: Known, by: LimitsBy) -> Limits:
        """Of what one model, lane or both have of their own."""
        met = await self.twin.statuses(root, known.of.id, model=by.model, lane=by.lane)
        left = known.left_by.get((by.model, by.lane), {})
        return self.modes.share(by.limits, left, _least(met, "model_lane", _used), self.gateways)


def _least(statuses: Iterable[LimitStatus], scope: Scope, figure: Callable[[LimitStatus], int]) -> dict[str, int]:
    """A figure of each day's and month's limit of a scope. Where a model in a lane meets several of one name, the
    least: no more than that is left to it, and what it used itself is within what the wider ones did."""
    found: dict[str, int] = {}
    for status in statuses:
        if status.scope == scope and _WINDOWS[status.name] in _LONG:
            found[status.name] = min(figure(status), found.get(status.name, figure(status)))
    return found


def _remaining(status: LimitStatus) -> int:
    return status.remaining


def _used(status: LimitStatus) -> int:
    return status.used


def _refusing(tenant: Tenant) -> set[str]:
    """Its limits on any level that are not in shadow."""
    levels = [tenant.limits, *(by.limits for by in tenant.limits_by)]
    return {name for limits in levels for name in limits.as_dict()} - set(tenant.shadow)


def _memory_tenant(tenant: Tenant) -> MemoryTenant:
    return MemoryTenant(
        timezone=tenant.timezone,
        shadow=frozenset(tenant.shadow),
        barred="suspended" if tenant.state == "suspended" else None,
        parents=tenant.above,
    )


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
        self._seen: OrderedDict[tuple[str, str], tuple[float, Ask]] = OrderedDict()
        """Of each tenant and key the last request that the store has admitted, and when: who to look up."""
        self._keys_of: Counter[str] = Counter()
        """How many of these are a tenant's."""
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
        """Send heartbeats, report and look until cancelled. The heartbeat has a task of its own: reports and look-ups
        take seconds once much is remembered, and a gateway without a heartbeat does not count in the others' shares."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(every(UPKEEP_EVERY_S, "the heartbeat to the budgets' store", self.beat))
            tasks.create_task(every(UPKEEP_EVERY_S, "reporting to the budgets' store", self.keep))

    async def aclose(self, timeout_s: float) -> None:
        """Charge what is due for so long; what is left is lost."""
        with suppress(TimeoutError, *STORE_ERRORS):
            async with asyncio.timeout(timeout_s):
                await self._report()
                await self._presence.leave()
        if self._backlog:
            log.error("%d requests that were admitted without the budgets' store are never charged", len(self._backlog))

    async def beat(self) -> None:
        """Send a heartbeat, and learn how many gateways share the limits. Raises StoreUnavailable."""
        self._share.gateways, now_ms = await self._presence.beat()
        self._epoch_ms = now_ms - self._clock() * 1e3

    async def keep(self) -> None:
        """Charge what is due, then look up who asked lately. Raises StoreUnavailable."""
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
        self, root: str, account: str, key_id: str | None = None, *, model: str = "", lane: str = ""
    ) -> list[LimitStatus]:
        """Every limit that is set: see QuotaStore."""
        return await self._store.statuses(root, account, key_id, model=model, lane=lane)

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
            log.warning("all that budgets had to hear is charged, %.1f s later", self._clock() - self._away_since_s)
            self._away_since_s = None

    def _remember(self, ask: Ask) -> None:
        who = ask.tenant, ask.key_id
        self._keys_of[ask.tenant] += who not in self._seen
        self._seen[who] = self._clock(), ask
        self._seen.move_to_end(who)
        if len(self._seen) > REMEMBERED:
            self._forget(*next(iter(self._seen)))

    def _forget(self, tenant_id: str, key_id: str) -> None:
        """Forget a tenant's key, and the tenant with the last of its keys."""
        if self._seen.pop((tenant_id, key_id), None) is None:
            return
        self._share.forget("key", key_id)
        self._keys_of[tenant_id] -= 1
        if not self._keys_of[tenant_id]:
            del self._keys_of[tenant_id]
            self._share.forget("tenant", tenant_id)

    async def _look(self) -> None:
        """Look at tenants and keys whose figures are old. Forget those that sent nothing for TRUSTED_S:
        their keys would not be trusted either, and look-ups follow the traffic."""
        due_s, failures = self._clock() - LOOK_EVERY_S, StoreFailures()
        while self._seen and next(iter(self._seen.values()))[0] < self._clock() - TRUSTED_S:
            self._forget(*next(iter(self._seen)))
        for _, ask in list(self._seen.values()):
            key = self._share.known.get(("key", ask.key_id))
            tenant = self._share.known.get(("tenant", ask.tenant))
            if tenant is None or tenant.seen_s <= due_s or (ask.key_id and (key is None or key.seen_s <= due_s)):
                with failures:
                    await self._look_at(ask)
        self._share.keep(self._keys_of)
        failures.raise_last()

    async def _look_at(self, ask: Ask) -> None:
        tenant, now_s = await self._find_tenant(ask.tenant), self._clock()
        if tenant is None:
            self._forget(ask.tenant, ask.key_id)
            return
        statuses = await self._store.statuses(ask.root, tenant.account, ask.key_id)
        by = {
            (model, lane): await self._store.statuses(ask.root, tenant.account, model=model, lane=lane)
            for model, lane in long_by(tenant)
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
    """A job that was admitted here."""

    ask: Ask
    may_be_stored: bool
    """The store was asked and did not answer: it may hold the job all the same."""


class RememberedKeys:
    """Takes keys, and those who come through others, as they were last seen while their store is away, for at most
    TRUSTED_S."""

    def __init__(
        self,
        keys: KeyLookup,
        delegations: DelegationLookup | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._delegations = delegations
        self._clock = clock
        self._known: OrderedDict[bytes | Delegation, tuple[float, Identity]] = OrderedDict()

    async def lookup(self, full_key: str) -> Identity | None:
        """The key's owner, or None where it does not work. Raises StoreUnavailable where nothing is remembered."""
        return await self._remembering(hashlib.sha256(full_key.encode()).digest(), self._keys.lookup(full_key))

    async def identity(self, delegation: Delegation) -> Identity | None:
        """The same of who comes on a way."""
        if self._delegations is None:
            return None
        return await self._remembering(delegation, self._delegations.identity(delegation))

    async def _remembering(self, name: bytes | Delegation, asked: Awaitable[Identity | None]) -> Identity | None:
        try:
            identity = await asked
        except StoreUnavailable:
            seen_s, remembered = self._known.get(name, (float("-inf"), None))
            if remembered is None or self._clock() - seen_s > TRUSTED_S:
                raise
            return remembered
        self._known.pop(name, None)
        if identity is not None:
            self._known[name] = self._clock(), identity
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return identity
