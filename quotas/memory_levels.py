"""State of the in-memory store, and the levels built from it, as levels.lua builds them."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlane.quotas import keyspace
from fairlane.quotas.limits import FREE, Demand, Level, Limits, Place, Prices, Scope, is_paced
from fairlane.quotas.store import AccessDenied, Ask, Reason
from fairlane.quotas.windows import Calendar, FixedWindow, Minute, Totals, calendar_at

# Expired records are dropped after this time, so that a clock that steps back still finds them.
LONG_OVER_MS = 86_400_000
# A paused reservation is abandoned when its gateway has not asked for it for this long.
FORGOTTEN_MS = 5_000


@dataclass(slots=True, kw_only=True)
class MemoryTenant:
    """The fields of a tenant that budgets use."""

    timezone: str = "UTC"
    shadow: frozenset[str] = frozenset()
    barred: Reason | None = None
    # Accounts, nearest first.
    parents: tuple[str, ...] = ()
    # Pairs of model and lane that have their own limits; empty matches any.
    limits_by: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, kw_only=True)
class MemoryKey:
    """The fields of a key that budgets use."""

    tenant: str
    expires_ms: int | None = None
    revoked: bool = False


@dataclass(slots=True)
class Figures:
    """The usage and reservations of one level."""

    minute: Minute = field(default_factory=Minute)
    live: Totals = field(default_factory=Totals)
    batch: Totals = field(default_factory=Totals)

    def held_by(self, ask: Ask) -> Totals:
        return self.batch if ask.is_batch else self.live

    # The day of the last change; it lasts until its end, whatever the tenant's zone is by then.
    day: Calendar | None = None
    # Charged by day and month, under their ISO names; all tokens count as input.
    spent: dict[str, Totals] = field(default_factory=lambda: defaultdict(Totals))
    # Reservations waiting for room in the minute, with the time at which they were paused, ms.
    paused: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Paid:
    """The tokens that the runs under one idempotency key have paid for."""

    input: int = 0
    output: int = 0
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class LevelId:
    """The scope and id of a level, and the tenant whose zone defines its days."""

    scope: Scope
    id: str
    tenant: str


@dataclass(slots=True)
class HeldReservation:
    """An open reservation: what it holds and what it was charged."""

    ask: Ask
    demand: Demand
    levels: Sequence[LevelId]
    slice: int
    shadowed: tuple[str, ...]
    input: int
    # Tokens held since the start, charged ones included.
    output: int
    prices: Prices = FREE
    charged_input: int = 0
    charged_output: int = 0
    # The part of the charge that other runs under its idempotency key had paid for.
    credited: Totals = field(default_factory=Totals)
    # When it was paused; None if it is not.
    since_ms: int | None = None
    # Tokens granted since then.
    served: int = 0
    asked_ms: int | None = None

    @property
    def held(self) -> Totals:
        """Tokens and money held, with the price difference of charged prompt tokens to cached ones until the end."""
        held_input, held_output = max(0, self.input - self.charged_input), max(0, self.output - self.charged_output)
        undecided = (self.charged_input - self.credited.input) * (self.prices.input - self.prices.cached)
        return Totals(0, held_input, held_output, self.prices.spend(held_input, 0, held_output) + undecided)

    @property
    def place(self) -> Place | None:
        return None if self.since_ms is None else (self.since_ms, self.ask.reservation_id)


@dataclass(slots=True)
class MemoryOrganisation:
    """The state of one root organisation."""

    tenants: dict[str, MemoryTenant] = field(default_factory=dict)
    keys: dict[str, MemoryKey] = field(default_factory=dict)
    limits: dict[str, Limits] = field(default_factory=lambda: defaultdict(Limits))
    figures: dict[str, Figures] = field(default_factory=lambda: defaultdict(Figures))
    reservations: dict[str, HeldReservation] = field(default_factory=dict)
    # Finished reservations, with the time until which they are remembered.
    settled: dict[str, int] = field(default_factory=dict)
    # By the name of `Ask.once`.
    paid: dict[str, Paid] = field(default_factory=dict)
    # Prices of the first run, and when they expire.
    fixed: dict[str, tuple[Prices, int]] = field(default_factory=dict)

    def prices_for(self, ask: Ask, now_ms: int) -> Prices:
        prices, until_ms = (FREE, 0) if ask.once is None else self.fixed.get(ask.once.name, (FREE, 0))
        return prices if until_ms > now_ms else ask.prices

    def fix_prices(self, ask: Ask, now_ms: int) -> None:
        once = ask.once
        if once is None or once.until_ms <= now_ms or self.fixed.get(once.name, (FREE, 0))[1] > now_ms:
            return
        self.fixed = {name: each for name, each in self.fixed.items() if each[1] > now_ms - LONG_OVER_MS}
        self.fixed[once.name] = ask.prices, once.until_ms

    def paid_ahead(self, ask: Ask, now_ms: int) -> Totals:
        paid = None if ask.once is None else self.paid.get(ask.once.name)
        begun = ask.start.published
        if not begun or paid is None or paid.until_ms <= now_ms:
            return Totals()
        return Totals(0, min(ask.prompt_tokens, paid.input), min(begun, paid.output))

    def unpaid(self, reservation: HeldReservation, input_tokens: int, output_tokens: int, now_ms: int) -> Totals:
        """Return the part of newly charged tokens that no run of the request has paid for, and count it as paid."""
        once = reservation.ask.once
        if once is None:
            return Totals(0, input_tokens, output_tokens)
        self.paid = {name: paid for name, paid in self.paid.items() if paid.until_ms > now_ms - LONG_OVER_MS}
        paid = self.paid.get(once.name)
        if paid is None or paid.until_ms <= now_ms:
            paid = self.paid[once.name] = Paid()
        all_input, all_output = reservation.charged_input + input_tokens, reservation.charged_output + output_tokens
        due = Totals(
            0, max(0, min(input_tokens, all_input - paid.input)), max(0, min(output_tokens, all_output - paid.output))
        )
        paid.input, paid.output = max(paid.input, all_input), max(paid.output, all_output)
        paid.until_ms = max(paid.until_ms, once.until_ms)
        reservation.credited.add(Totals(0, input_tokens - due.input, output_tokens - due.output))
        return due

    def barred_tenant(self, ids: Sequence[LevelId]) -> Reason | None:
        for level in ids:
            tenant = self.tenants.get(level.tenant)
            if tenant is None:
                return "deleted"
            if tenant.barred is not None:
                return tenant.barred
        return None

    def check_access(self, ask: Ask, ids: Sequence[LevelId], now_ms: int) -> None:
        reason = self.barred_tenant(ids)
        if reason is not None:
            raise AccessDenied(reason)
        if not ask.key_id:
            return
        key = self.keys.get(ask.key_id)
        if key is None or key.revoked or key.tenant != ask.tenant:
            raise AccessDenied("revoked")
        if key.expires_ms is not None and key.expires_ms <= now_ms:
            raise AccessDenied("expired")

    def hold(self, reservation: HeldReservation, now_ms: int) -> None:
        for level in reservation.levels:
            figures = self.turn(level, now_ms)
            if not reservation.ask.is_batch:
                reservation.slice = figures.minute.add(now_ms, Totals(requests=1))
            demand = reservation.demand
            figures.held_by(reservation.ask).add(Totals(1, demand.input, demand.output, demand.spend))
        self.fix_prices(reservation.ask, now_ms)
        self.reservations[reservation.ask.reservation_id] = reservation

    def level_ids(self, tenant_id: str, key_id: str, model: str = "", lane: str = "") -> list[LevelId]:
        tenant = self.tenants.get(tenant_id, MemoryTenant())
        found = [LevelId("tenant", keyspace.tenant_level(tenant_id), tenant_id)]
        if key_id:
            found.append(LevelId("key", keyspace.key_level(key_id), tenant_id))
        for of_model, of_lane in tenant.limits_by:
            if of_model in ("", model) and of_lane in ("", lane):
                level_id = keyspace.model_lane_level(tenant_id, of_model, of_lane)
                found.append(LevelId("model_lane", level_id, tenant_id))
        return found + [LevelId("parent", keyspace.tenant_level(parent), parent) for parent in tenant.parents]

    def calendar(self, level: LevelId, now_ms: int) -> Calendar:
        day = self.figures[level.id].day
        if day is not None and day.day_begins_ms <= now_ms < day.day_ends_ms:
            return day
        return calendar_at(now_ms, self.tenants.get(level.tenant, MemoryTenant()).timezone)

    def turn(self, level: LevelId, now_ms: int) -> Figures:
        """Return the figures of a level, which are about to change, with its minute and day as of now."""
        figures = self.figures[level.id]
        figures.minute.slide(now_ms)
        figures.day = self.calendar(level, now_ms)
        return figures

    def levels(self, ids: Sequence[LevelId], now_ms: int) -> list[Level]:
        return [self._level(level, now_ms) for level in ids]

    def applicable_levels(self, ask: Ask, ids: Sequence[LevelId], now_ms: int) -> list[Level]:
        levels = [
            dataclasses.replace(level, paused=self._paused(level_id, now_ms))
            if any(is_paced(rule) for rule, _ in level.rules())
            else level
            for level_id, level in zip(ids, self.levels(ids, now_ms), strict=True)
        ]
        return [level.for_batch() for level in levels] if ask.is_batch else levels

    def _paused(self, level: LevelId, now_ms: int) -> Sequence[Place]:
        paused = self.figures[level.id].paused
        places = sorted((since_ms, reservation_id) for reservation_id, since_ms in paused.items())
        for number, (_, reservation_id) in enumerate(places):
            reservation = self.reservations.get(reservation_id)
            if (
                reservation is not None
                and reservation.asked_ms is not None
                and now_ms - reservation.asked_ms <= FORGOTTEN_MS
            ):
                return places[number:]
            del paused[reservation_id]
        return ()

    def _level(self, level: LevelId, now_ms: int) -> Level:
        figures, calendar = self.figures[level.id], self.calendar(level, now_ms)
        tenant = self.tenants.get(level.tenant, MemoryTenant())
        return Level(
            scope=level.scope,
            limits=self.limits[level.id],
            shadow=frozenset() if level.scope == "key" else tenant.shadow,
            windows={
                "minute": figures.minute.at(now_ms),
                "day": FixedWindow(figures.spent[calendar.today.isoformat()], calendar.day_ends_ms),
                "month": FixedWindow(figures.spent[calendar.month], calendar.month_ends_ms),
                "live": FixedWindow(Totals(requests=figures.live.requests), None),
            },
            held=dataclasses.replace(figures.live, requests=0),
            held_by_batches=dataclasses.replace(figures.batch, requests=0),
        )
