"""Transfers in memory: the oracle of `lua/escrow.lua`."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor

from fairlane.quotas import limits
from fairlane.quotas.escrow.transfers import (
    FEWEST,
    LEAST_FREE,
    Ending,
    Progress,
    Rights,
    Transfer,
    Transferred,
    reservation_id,
)
from fairlane.quotas.limits import RULES, Demand, Level
from fairlane.quotas.memory_levels import HeldReservation, LevelId, MemoryOrganisation
from fairlane.quotas.store import AccessDenied, Ask, Charge
from fairlane.quotas.windows import Totals

NOTHING = Rights()


@dataclass(slots=True, kw_only=True)
class MemoryPool:
    """The rights of one gateway."""

    # The call that made it: its tenant, key, model and lane.
    made: Transfer
    levels: Sequence[LevelId]
    state: str = "open"
    call: int = 0
    first: int = 0
    rights: Rights = NOTHING
    # The slice of the minute that counts its requests.
    slice: int = 0
    # Until when its rights may be spent.
    until_ms: int = 0

    def named(self) -> list[str]:
        """Return the names of all reservations that its gateway may have made since its last call."""
        return [reservation_id(self.made.pool, self.first + number) for number in range(self.rights.requests)]

    def ask(self, name: str) -> Ask:
        made = self.made
        return Ask(
            reservation_id=name,
            root=made.root,
            tenant=made.account,
            key_id=made.key_id,
            model=made.model,
            lane=made.lane,
            prompts=(0,),
            max_output_tokens=1,
        )


def transfer(
    org: MemoryOrganisation,
    pools: dict[str, MemoryPool],
    order: Transfer,
    now_ms: int,
    *,
    valid_ms: int,
    charge: Callable[[HeldReservation, int, int], None],
    finish: Callable[[HeldReservation, Charge], None],
) -> Transferred:
    """Make a transfer. `charge` charges a reservation's progress, and `finish` its end."""
    pool = pools.get(order.pool)
    last = 0 if pool is None else pool.call
    if pool is not None and order.call == last and pool.state != "reaped":
        return Transferred(rights=pool.rights, call=last, statuses=_statuses(org, pool, now_ms))
    if order.call != last + 1 or (pool is not None and pool.state != "open"):
        return Transferred(rights=None, call=last)
    ids = org.level_ids(order.account, order.key_id, order.model, order.lane)
    if pool is None:
        pool = pools[order.pool] = MemoryPool(made=order, levels=ids)
    _slide(org, pool, now_ms)
    count(org, pool, -1, now_ms)
    for entry in order.entries:
        _apply(org, pool, entry, now_ms, charge, finish)
    pool.call, pool.first = order.call, order.first
    is_open = list(pool.levels) == ids and _may_use(org, pool, now_ms)
    pool.rights = _granted(org, pool, order, now_ms) if is_open else NOTHING
    count(org, pool, 1, now_ms)
    pool.until_ms = now_ms + valid_ms
    if not pool.rights.requests:
        pool.state = "closed"
    return Transferred(rights=pool.rights, call=order.call, statuses=_statuses(org, pool, now_ms))


def reap(org: MemoryOrganisation, pool: MemoryPool, now_ms: int) -> list[str]:
    """Recover a dead gateway's rights, as `escrow_reap` does. Return the reservations that it records."""
    named = pool.named()
    if pool.state == "open":
        pool.state, pool.until_ms = "reaped", now_ms
        _slide(org, pool, now_ms)
        made = [name for name in named if name not in org.reservations and org.settled.get(name, 0) <= now_ms]
        for name in made:
            enter(org, pool, pool.ask(name), now_ms)
        return made
    if any(name in org.reservations for name in named):
        pool.until_ms = now_ms
        return []
    _slide(org, pool, now_ms)
    count(org, pool, -1, now_ms)
    pool.rights = NOTHING
    return []


def _slide(org: MemoryOrganisation, pool: MemoryPool, now_ms: int) -> None:
    for level in pool.levels:
        org.turn(level, now_ms)


def count(org: MemoryOrganisation, pool: MemoryPool, sign: int, now_ms: int) -> None:
    """Count a pool's rights as used at each level, or with -1 take them back."""
    rights = pool.rights
    if not rights.requests:
        return
    for level in pool.levels:
        figures = org.figures[level.id]
        figures.live.add(Totals(sign, sign * rights.input, sign * rights.output))
        if sign > 0:
            pool.slice = figures.minute.add(now_ms, Totals(requests=rights.requests))
        else:
            figures.minute.uncount(now_ms, pool.slice, rights.requests)


def enter(org: MemoryOrganisation, pool: MemoryPool, ask: Ask, now_ms: int) -> HeldReservation:
    """Record a reservation that holds nothing, counting its request."""
    nothing = Demand(0, 0, 0, ask.choices)
    reservation = HeldReservation(ask, nothing, pool.levels, 0, (), 0, 0, ask.prices)
    org.hold(reservation, now_ms)
    return reservation


def _apply(
    org: MemoryOrganisation,
    pool: MemoryPool,
    entry: Progress | Ending,
    now_ms: int,
    charge: Callable[[HeldReservation, int, int], None],
    finish: Callable[[HeldReservation, Charge], None],
) -> None:
    name = entry.ask.reservation_id
    if org.settled.get(name, 0) > now_ms:
        return  # another gateway settled it
    reservation = org.reservations.get(name)
    if isinstance(entry, Ending):
        if reservation is None and entry.charge.is_refund:
            return
        reservation = reservation or enter(org, pool, entry.ask, now_ms)
        del org.reservations[name]
        finish(reservation, entry.charge)
        return
    reservation = reservation or enter(org, pool, entry.ask, now_ms)
    before = reservation.held
    reservation.input = max(reservation.input, entry.input)
    reservation.output = max(reservation.output, entry.output)
    after = reservation.held
    added = Totals(0, after.input - before.input, after.output - before.output, after.spend - before.spend)
    for level in reservation.levels:
        org.figures[level.id].live.add(added)
    demand = reservation.demand
    reservation.demand = dataclasses.replace(
        demand, choice=max(demand.choice, entry.choice), ceiling=max(demand.ceiling, entry.ceiling)
    )
    input_tokens = max(0, entry.charged_input - reservation.charged_input)
    output_tokens = max(0, entry.charged_output - reservation.charged_output)
    if input_tokens or output_tokens:
        charge(reservation, input_tokens, output_tokens)


def _may_use(org: MemoryOrganisation, pool: MemoryPool, now_ms: int) -> bool:
    try:
        org.check_access(pool.ask(pool.made.pool), pool.levels, now_ms)
    except AccessDenied:
        return False
    return True


def _granted(org: MemoryOrganisation, pool: MemoryPool, order: Transfer, now_ms: int) -> Rights:
    wanted = order.wanted
    part = part_of(org.applicable_levels(pool.ask(order.pool), pool.levels, now_ms), wanted, order.share)
    requests = floor(wanted.requests * part)
    if requests < FEWEST:
        return NOTHING
    return Rights(requests, floor(wanted.input * part), floor(wanted.output * part))


def part_of(levels: Sequence[Level], wanted: Rights, share: int) -> float:
    """Return the part of the wanted rights that every level can spare, from 0 to 1: at most 1/share of what is free.

    Limits of money and concurrency, limits in shadow, and levels with paused reservations spare nothing: there, the
    store decides each request."""
    part = 1.0
    totals = Totals(wanted.requests, wanted.input, wanted.output)
    for level in levels:
        if level.paused or any(rule.name in level.shadow for rule in RULES):
            return 0.0
        for rule, figure in level.rules():
            free = figure - level.used(rule) - level.reserved(rule)
            is_direct = rule.window == "live" or rule.is_spend
            if is_direct or (rule.window != "request" and free * LEAST_FREE < figure):
                return 0.0
            amount = totals.count(rule.counts)
            if amount:
                part = min(part, free / (share * amount))
    return part


def _statuses(org: MemoryOrganisation, pool: MemoryPool, now_ms: int) -> tuple[limits.LimitStatus, ...]:
    return limits.statuses(org.levels(pool.levels, now_ms), now_ms)
