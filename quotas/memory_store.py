"""Budgets in memory with an injected clock: for gateways that cannot reach Redis, and the Redis store's oracle.

It knows tenants and keys only as far as `reserve` needs them: see `put_tenant` and `put_key`. It has no leases."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping

import msgspec

from fairlane.quotas import keyspace, limits, sizing
from fairlane.quotas.escrow import memory as escrow
from fairlane.quotas.escrow.memory import MemoryPool
from fairlane.quotas.escrow.transfers import VALID_MS, Transfer, Transferred
from fairlane.quotas.limits import Demand, Limits, LimitStatus
from fairlane.quotas.memory_levels import HeldReservation, MemoryKey, MemoryOrganisation, MemoryTenant
from fairlane.quotas.store import (
    TOMBSTONE_MS,
    AlreadySettled,
    Ask,
    Charge,
    Denied,
    Extension,
    Need,
    Reservation,
    Settled,
)
from fairlane.quotas.windows import Totals

# Retry interval while a tenant is barred; its gateway is about to be notified.
BARRED_MS = 1_000


class MemoryQuotaStore:
    """The part of a QuotaStore that requests use. `now_ms` returns epoch milliseconds, and may step back."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._organisations: dict[str, MemoryOrganisation] = defaultdict(MemoryOrganisation)
        # Rights of gateways, by root and name.
        self._pools: dict[str, dict[str, MemoryPool]] = defaultdict(dict)
        self.ledger: list[tuple[Ask, Charge]] = []

    def put_tenant(
        self,
        root: str,
        tenant_id: str,
        limits: Limits,
        tenant: MemoryTenant | None = None,
        limits_by: Mapping[tuple[str, str], Limits] | None = None,
    ) -> None:
        org, by = self._organisations[root], limits_by or {}
        before = org.tenants.get(tenant_id)
        for model, lane in before.limits_by if before is not None else ():
            org.limits.pop(keyspace.model_lane_level(tenant_id, model, lane), None)
        org.tenants[tenant_id] = dataclasses.replace(tenant or MemoryTenant(), limits_by=tuple(by))
        org.limits[keyspace.tenant_level(tenant_id)] = limits
        for (model, lane), those in by.items():
            org.limits[keyspace.model_lane_level(tenant_id, model, lane)] = those

    def put_key(self, root: str, key_id: str, limits: Limits, key: MemoryKey) -> None:
        self._organisations[root].keys[key_id] = key
        self._organisations[root].limits[keyspace.key_level(key_id)] = limits

    async def reserve(self, ask: Ask) -> Reservation:
        org, now_ms = self._organisations[ask.root], self._now_ms()
        if org.settled.get(ask.reservation_id, 0) > now_ms:
            raise AlreadySettled(ask.reservation_id)
        known = org.reservations.get(ask.reservation_id)
        if known is not None:
            return _reservation(org, known, now_ms)
        ids = org.level_ids(ask.tenant, ask.key_id, ask.model, ask.lane)
        org.check_access(ask, ids, now_ms)
        levels = org.applicable_levels(ask, ids, now_ms)
        most = ask.max_output_tokens
        paid, start, prices = org.paid_ahead(ask, now_ms), ask.start, org.prices_for(ask, now_ms)
        demand = Demand(
            ask.prompt_tokens - paid.input,
            most,
            most,
            start.going,
            longest=max(ask.prompts),
            stated=ask.explicit_max,
            start=start.longest,
            extra=start.lag + start.published - paid.output,
            prices=prices,
        )
        demand = sizing.sized(levels, demand, ask.quantum)
        found = limits.refusals(levels, demand, now_ms)
        refusal = limits.most_severe(found)
        if refusal is not None:
            raise Denied(refusal.status, refusal.requested, refusal.retry_after_s, refusal.kind)
        shadowed = tuple(refused.status.name for refused in found)
        held = paid.input + demand.input, paid.output + demand.output
        reservation = HeldReservation(ask, demand, ids, 0, shadowed, *held, prices)
        reservation.charged_input, reservation.charged_output = paid.input, paid.output
        reservation.credited.add(paid)
        org.hold(reservation, now_ms)
        return _reservation(org, reservation, now_ms)

    async def extend(self, root: str, reservation_id: str, need: Need) -> Extension:
        org, now_ms = self._organisations[root], self._now_ms()
        reservation = org.reservations.get(reservation_id)
        if reservation is None or org.settled.get(reservation_id, 0) > now_ms:
            raise AlreadySettled(reservation_id)
        held = reservation.held
        output = min(held.output, max(0, need.published - reservation.charged_output))
        _charge(
            org, reservation, min(held.input, max(0, need.prompt_tokens - reservation.charged_input)), output, now_ms
        )
        levels = org.applicable_levels(reservation.ask, reservation.levels, now_ms)
        whole = sizing.portion(levels, need.quantum, need.unit) * need.unit
        most = sizing.largest(levels, need.most, choices=need.unit, ended=need.ended)
        is_barred = org.barred_tenant(reservation.levels) is not None
        is_repeat = reservation.output > need.known
        wanted = 0 if is_barred or is_repeat else min(need.known + whole, most) - reservation.output
        is_at_ceiling = not is_repeat and most < need.most and most - reservation.output < need.unit
        limited_by = "max_output_tokens" if is_at_ceiling else ""
        found = sizing.Grant(0, limited_by, spent=is_at_ceiling, retry_after_ms=BARRED_MS if is_barred else 0)
        if wanted >= need.unit:
            asked = wanted - wanted % need.unit
            own, prices, place = reservation.held, reservation.prices, reservation.place
            found = sizing.grant(levels, asked, need.unit, own, prices, place, now_ms)
        reservation.output += found.tokens
        reservation.served += found.tokens
        is_stuck = need.stuck and not found.tokens and not found.spent and bool(found.binding)
        is_over = not (is_stuck or is_repeat) and (found.spent or reservation.served >= whole or wanted < need.unit)
        if is_stuck and reservation.since_ms is None:
            reservation.since_ms, reservation.served = now_ms, 0
        for level_id, level in zip(reservation.levels, levels, strict=True):
            figures = org.figures[level_id.id]
            figures.held_by(reservation.ask).add(Totals(0, 0, found.tokens, reservation.prices.output * found.tokens))
            if is_stuck and any(level is each for each in found.binding) and reservation.since_ms is not None:
                figures.paused[reservation_id] = reservation.since_ms
            elif is_stuck or is_over:
                figures.paused.pop(reservation_id, None)
        if is_over:
            reservation.since_ms = None
        reservation.asked_ms = now_ms
        return Extension(
            granted_tokens=reservation.output,
            limited_by=found.limited_by,
            spent=found.spent,
            retry_after_s=found.retry_after_ms / 1e3,
            paused=is_stuck,
        )

    async def settle(self, root: str, reservation_id: str, charge: Charge) -> Settled:
        org, now_ms = self._organisations[root], self._now_ms()
        if org.settled.get(reservation_id, 0) > now_ms:
            return Settled(first=False)
        _forget(org.settled, now_ms)
        org.settled[reservation_id] = now_ms + TOMBSTONE_MS
        reservation = org.reservations.pop(reservation_id, None)
        if reservation is None:
            return Settled(first=False)
        self._finish(org, reservation, charge, now_ms)
        return Settled(first=True, statuses=limits.statuses(org.levels(reservation.levels, now_ms), now_ms))

    async def transfer(self, order: Transfer) -> Transferred:
        org, now_ms = self._organisations[order.root], self._now_ms()
        return escrow.transfer(
            org,
            self._pools[order.root],
            order,
            now_ms,
            valid_ms=VALID_MS,
            charge=lambda reservation, input_tokens, output_tokens: _charge(
                org, reservation, input_tokens, output_tokens, now_ms
            ),
            finish=lambda reservation, charge: self._finish(org, reservation, charge, now_ms),
        )

    def _finish(self, org: MemoryOrganisation, reservation: HeldReservation, charge: Charge, now_ms: int) -> None:
        held = reservation.held
        credited = reservation.credited
        charged = reservation.charged_input - credited.input + reservation.charged_output - credited.output
        is_refund = charge.is_refund and not charged
        for level in reservation.levels:
            figures = org.turn(level, now_ms)
            figures.held_by(reservation.ask).add(Totals(-1, -held.input, -held.output, -held.spend))
            figures.paused.pop(reservation.ask.reservation_id, None)
            if is_refund and not reservation.ask.is_batch:
                figures.minute.uncount(now_ms, reservation.slice)
        if not is_refund:
            prompt = max(charge.prompt_tokens, reservation.charged_input)
            output = max(charge.output_tokens, reservation.charged_output)
            due = org.unpaid(
                reservation, prompt - reservation.charged_input, output - reservation.charged_output, now_ms
            )
            prompt, output = prompt - credited.input, output - credited.output
            cached, prices = min(charge.cached_tokens, prompt), reservation.prices
            due.spend = prices.spend(due.input, due.input, due.output) + (prompt - cached) * (
                prices.input - prices.cached
            )
            _book(org, reservation, due, now_ms)
            final = msgspec.structs.replace(charge, prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)
            asked = msgspec.structs.replace(reservation.ask, prices=prices)
            self.ledger.append((asked, final))

    async def statuses(
        self, root: str, account: str, key_id: str | None = None, *, model: str = "", lane: str = ""
    ) -> list[LimitStatus]:
        org, now_ms = self._organisations[root], self._now_ms()
        return list(limits.statuses(org.levels(org.level_ids(account, key_id or "", model, lane), now_ms), now_ms))


def _forget(settled: dict[str, int], now_ms: int) -> None:
    while settled and settled[oldest := next(iter(settled))] <= now_ms:
        del settled[oldest]


def _charge(
    org: MemoryOrganisation, reservation: HeldReservation, input_tokens: int, output_tokens: int, now_ms: int
) -> None:
    before, prices = reservation.held, reservation.prices
    due = org.unpaid(reservation, input_tokens, output_tokens, now_ms)
    due.spend = prices.spend(due.input, due.input, due.output)
    reservation.charged_input += input_tokens
    reservation.charged_output += output_tokens
    released = Totals(0, -input_tokens, -output_tokens, reservation.held.spend - before.spend)
    for level in reservation.levels:
        org.figures[level.id].held_by(reservation.ask).add(released)
    _book(org, reservation, due, now_ms)


def _book(org: MemoryOrganisation, reservation: HeldReservation, tokens: Totals, now_ms: int) -> None:
    for level in reservation.levels:
        figures, calendar = org.turn(level, now_ms), org.calendar(level, now_ms)
        if not reservation.ask.is_batch:
            figures.minute.add(now_ms, tokens)
        for name in (calendar.today.isoformat(), calendar.month):
            figures.spent[name].add(Totals(0, tokens.input + tokens.output, 0, tokens.spend))


def _reservation(org: MemoryOrganisation, reservation: HeldReservation, now_ms: int) -> Reservation:
    return Reservation(
        granted_tokens=reservation.demand.start + reservation.demand.choice,
        most_tokens=reservation.demand.ceiling,
        statuses=limits.statuses(org.levels(reservation.levels, now_ms), now_ms),
        shadowed=reservation.shadowed,
    )
