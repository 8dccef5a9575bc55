"""The twin of the Redis store, in memory and by an injected clock: for tests and simulations, and their oracle.

It holds tenants and keys only as far as `reserve` looks at them: see `put_tenant` and `put_key`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from quotas import keyspace, limits
from quotas.limits import Demand, Level, Limits, LimitStatus, Scope
from quotas.store import (
    DEFAULT_LEASE_MS,
    MAX_LEASE_MS,
    TOMBSTONE_MS,
    AccessDenied,
    Ask,
    Charge,
    Denied,
    FlightSettled,
    Lapsed,
    Reason,
    Reservation,
    Settled,
)
from quotas.windows import Calendar, Minute, Span, Totals, calendar_at


@dataclass(slots=True)
class _Tenant:
    timezone: str
    shadow: frozenset[str]
    barred: Reason | None


@dataclass(slots=True)
class _Key:
    tenant: str
    expires_ms: int | None
    revoked: bool


@dataclass(slots=True)
class _Figures:
    """What one level has used and reserved."""

    minute: Minute = field(default_factory=Minute)
    live: Totals = field(default_factory=Totals)
    """Requests in the air, and the tokens they hold."""
    spent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Tokens charged by day and by month, under their ISO names."""


@dataclass(slots=True)
class _Flight:
    ask: Ask
    demand: Demand
    slice: int
    lease_ends_ms: int
    shadowed: tuple[str, ...]


@dataclass(slots=True)
class _Root:
    tenants: dict[str, _Tenant] = field(default_factory=dict)
    keys: dict[str, _Key] = field(default_factory=dict)
    limits: dict[str, Limits] = field(default_factory=lambda: defaultdict(Limits))
    figures: dict[str, _Figures] = field(default_factory=lambda: defaultdict(_Figures))
    flights: dict[str, _Flight] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    """Flights that are over, until when that is remembered."""


class MemoryQuotaStore:
    """A QuotaStore for one process. `now_ms` gives epoch milliseconds, and may step back."""

    def __init__(self, now_ms: Callable[[], int], *, lease_ms: int = DEFAULT_LEASE_MS) -> None:
        self._now_ms = now_ms
        self._lease_ms = lease_ms
        self._roots: dict[str, _Root] = defaultdict(_Root)
        self._seen_ms: int | None = None
        self._grace_ms = 0
        self.ledger: list[tuple[Ask, Charge]] = []

    def put_tenant(
        self,
        root: str,
        tenant: str,
        limits: Limits,
        *,
        timezone: str = "UTC",
        shadow: Iterable[str] = (),
        barred: Reason | None = None,
    ) -> None:
        """What TenantStore would have stored."""
        self._roots[root].tenants[tenant] = _Tenant(timezone, frozenset(shadow), barred)
        self._roots[root].limits[keyspace.tenant_level(tenant)] = limits

    def put_key(
        self,
        root: str,
        tenant: str,
        key_id: str,
        limits: Limits,
        *,
        expires_ms: int | None = None,
        revoked: bool = False,
    ) -> None:
        """What KeyStore would have stored."""
        self._roots[root].keys[key_id] = _Key(tenant, expires_ms, revoked)
        self._roots[root].limits[keyspace.key_level(key_id)] = limits

    async def reserve(self, ask: Ask) -> Reservation:
        """Hold the tokens of one request: see QuotaStore."""
        root, now_ms = self._roots[ask.root], self._now_ms()
        if root.settled.get(ask.flight_id, 0) > now_ms:
            raise FlightSettled(ask.flight_id)
        known = root.flights.get(ask.flight_id)
        if known is not None:
            return self._reservation(known, now_ms)
        _check_access(root, ask, now_ms)
        demand = Demand(ask.prompt_tokens, ask.max_output_tokens, ask.choices, longest=max(ask.prompts))
        levels = self._levels(root, ask.tenant, ask.key_id, now_ms)
        if not ask.explicit_max:
            demand = limits.cut_to_room(levels, demand)
        found = limits.refusals(levels, demand, now_ms)
        refusal = limits.heaviest(found)
        if refusal is not None:
            raise Denied(refusal.status, refusal.requested, refusal.retry_after_s, refusal.kind)
        shadowed = tuple(refused.status.name for refused in found)
        flight = _Flight(ask, demand, 0, now_ms + self._lease_ms, shadowed)
        for _, level_id in _level_ids(ask.tenant, ask.key_id):
            figures = root.figures[level_id]
            flight.slice = figures.minute.add(now_ms, Totals(requests=1))
            figures.live.add(Totals(1, demand.input, demand.output))
        root.flights[ask.flight_id] = flight
        return self._reservation(flight, now_ms)

    async def settle(self, root: str, flight_id: str, charge: Charge) -> Settled:
        """Charge a flight and release the rest: see QuotaStore."""
        house, now_ms = self._roots[root], self._now_ms()
        if house.settled.get(flight_id, 0) > now_ms:
            return Settled(first=False)
        house.settled[flight_id] = now_ms + TOMBSTONE_MS
        flight = house.flights.pop(flight_id, None)
        if flight is None:
            return Settled(first=False)
        calendar = _calendar(house, flight.ask.tenant, now_ms)
        for _, level_id in _level_ids(flight.ask.tenant, flight.ask.key_id):
            figures = house.figures[level_id]
            figures.live.add(Totals(-1, -flight.demand.input, -flight.demand.output))
            if charge.is_refund:
                figures.minute.uncount(now_ms, flight.slice)
            else:
                figures.minute.add(now_ms, Totals(0, charge.prompt_tokens, charge.output_tokens))
                for name in (calendar.today.isoformat(), calendar.month):
                    figures.spent[name] += charge.prompt_tokens + charge.output_tokens
        if not charge.is_refund:
            self.ledger.append((flight.ask, charge))
        levels = self._levels(house, flight.ask.tenant, flight.ask.key_id, now_ms)
        return Settled(first=True, statuses=limits.statuses(levels, now_ms))

    async def renew(self, root: str, flight_ids: Iterable[str]) -> set[str]:
        """Extend leases: see QuotaStore."""
        lost = set()
        for flight_id in flight_ids:
            flight = self._roots[root].flights.get(flight_id)
            if flight is None:
                lost.add(flight_id)
            else:
                flight.lease_ends_ms = self._now_ms() + self._lease_ms
        return lost

    async def expired(self, limit: int) -> list[Lapsed]:
        """Reservations whose lease has run out: see QuotaStore."""
        now_ms = self._now_ms()
        if limit < 1 or not self._may_look(now_ms):
            return []
        found: list[Lapsed] = []
        for name, root in self._roots.items():
            for flight in root.flights.values():
                if flight.lease_ends_ms > now_ms + MAX_LEASE_MS:
                    flight.lease_ends_ms = now_ms + self._lease_ms
            lapsed = [flight for flight in root.flights.values() if flight.lease_ends_ms <= now_ms]
            lapsed.sort(key=lambda flight: (flight.lease_ends_ms, flight.ask.flight_id))
            found += [_lapsed(name, flight.ask) for flight in lapsed]
        return found[:limit]

    async def statuses(self, root: str, tenant: str, key_id: str | None = None) -> list[LimitStatus]:
        """Every limit that is set: see QuotaStore."""
        now_ms = self._now_ms()
        return list(limits.statuses(self._levels(self._roots[root], tenant, key_id or "", now_ms), now_ms))

    def _reservation(self, flight: _Flight, now_ms: int) -> Reservation:
        ask = flight.ask
        levels = self._levels(self._roots[ask.root], ask.tenant, ask.key_id, now_ms)
        return Reservation(
            flight_id=ask.flight_id,
            tenant=ask.tenant,
            granted_tokens=flight.demand.choice,
            statuses=limits.statuses(levels, now_ms),
            shadowed=flight.shadowed,
        )

    def _levels(self, root: _Root, tenant: str, key_id: str, now_ms: int) -> list[Level]:
        calendar = _calendar(root, tenant, now_ms)
        known = root.tenants.get(tenant)
        shadow = frozenset[str]() if known is None else known.shadow
        return [
            _level(scope, root, level_id, calendar, shadow if scope == "tenant" else frozenset(), now_ms)
            for scope, level_id in _level_ids(tenant, key_id)
        ]

    def _may_look(self, now_ms: int) -> bool:
        seen_ms, self._seen_ms = self._seen_ms, now_ms
        if seen_ms is not None and now_ms - seen_ms > self._lease_ms / 2:
            self._grace_ms = now_ms + self._lease_ms
        self._grace_ms = min(self._grace_ms, now_ms + self._lease_ms)
        return now_ms >= self._grace_ms


def _level_ids(tenant: str, key_id: str) -> list[tuple[Scope, str]]:
    levels: list[tuple[Scope, str]] = [("tenant", keyspace.tenant_level(tenant))]
    if key_id:
        levels.append(("key", keyspace.key_level(key_id)))
    return levels


def _level(scope: Scope, root: _Root, level_id: str, calendar: Calendar, shadow: frozenset[str], now_ms: int) -> Level:
    figures = root.figures[level_id]
    spent = figures.spent
    return Level(
        scope=scope,
        limits=root.limits[level_id],
        shadow=shadow,
        windows={
            "minute": figures.minute.at(now_ms),
            "day": Span(Totals(input=spent[calendar.today.isoformat()]), calendar.day_ends_ms),
            "month": Span(Totals(input=spent[calendar.month]), calendar.month_ends_ms),
            "live": Span(Totals(requests=figures.live.requests), None),
        },
        held=Totals(input=figures.live.input, output=figures.live.output),
    )


def _calendar(root: _Root, tenant: str, now_ms: int) -> Calendar:
    known = root.tenants.get(tenant)
    return calendar_at(now_ms, "UTC" if known is None else known.timezone)


def _check_access(root: _Root, ask: Ask, now_ms: int) -> None:
    tenant = root.tenants.get(ask.tenant)
    if tenant is None or tenant.barred is not None:
        raise AccessDenied("deleted" if tenant is None or tenant.barred is None else tenant.barred)
    if not ask.key_id:
        return
    key = root.keys.get(ask.key_id)
    if key is None or key.revoked or key.tenant != ask.tenant:
        raise AccessDenied("revoked")
    if key.expires_ms is not None and key.expires_ms <= now_ms:
        raise AccessDenied("expired")


def _lapsed(root: str, ask: Ask) -> Lapsed:
    return Lapsed(
        root=root,
        flight_id=ask.flight_id,
        tenant=ask.tenant,
        model=ask.model,
        lane=ask.lane,
        prompts=len(ask.prompts),
    )
