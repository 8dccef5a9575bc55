"""The in-memory store with leases: the oracle of the whole QuotaStore."""

from collections.abc import Callable, Iterable

from fairlane.quotas.escrow import memory as escrow
from fairlane.quotas.escrow.transfers import Progress, Transfer, Transferred
from fairlane.quotas.limits import Demand
from fairlane.quotas.memory_levels import HeldReservation, MemoryOrganisation
from fairlane.quotas.memory_store import MemoryQuotaStore
from fairlane.quotas.store import MAX_LEASE_MS, Ask, Lapsed, Reservation


class Oracle(MemoryQuotaStore):
    """A QuotaStore in memory."""

    def __init__(self, now_ms: Callable[[], int], *, lease_ms: int) -> None:
        super().__init__(now_ms)
        self._lease_ms = lease_ms
        self._lease_ends_ms: dict[str, int] = {}
        self._seen_ms: int | None = None
        self._grace_ms = 0

    async def reserve(self, ask: Ask) -> Reservation:
        is_known = ask.reservation_id in self._organisations[ask.root].reservations
        reservation = await super().reserve(ask)
        if not is_known:
            self._lease_ends_ms[ask.reservation_id] = self._now_ms() + self._lease_ms
        return reservation

    async def book(self, ask: Ask) -> bool:
        org, now_ms = self._organisations[ask.root], self._now_ms()
        if ask.reservation_id in org.reservations:
            return True
        tenant = org.tenants.get(ask.tenant)
        if org.settled.get(ask.reservation_id, 0) > now_ms or tenant is None or tenant.barred == "deleted":
            return False
        ids = org.level_ids(ask.tenant, ask.key_id, ask.model, ask.lane)
        nothing = Demand(0, 0, 0, ask.choices)
        org.hold(HeldReservation(ask, nothing, ids, 0, (), 0, 0, org.prices_for(ask, now_ms)), now_ms)
        self._lease_ends_ms[ask.reservation_id] = now_ms + self._lease_ms
        return True

    async def renew(self, root: str, reservation_ids: Iterable[str]) -> set[str]:
        lost = set()
        for reservation_id in reservation_ids:
            if reservation_id in self._organisations[root].reservations:
                self._lease_ends_ms[reservation_id] = self._now_ms() + self._lease_ms
            else:
                lost.add(reservation_id)
        return lost

    async def expired(self, limit: int) -> list[Lapsed]:
        now_ms = self._now_ms()
        if limit < 1 or not self._may_look(now_ms):
            return []
        found: list[Lapsed] = []
        for root, org in self._organisations.items():
            for reservation_id in org.reservations:
                if self._lease_ends_ms[reservation_id] > now_ms + MAX_LEASE_MS:
                    self._lease_ends_ms[reservation_id] = now_ms + self._lease_ms
            lapsed = [name for name in org.reservations if self._lease_ends_ms[name] <= now_ms]
            lapsed.sort(key=lambda name: (self._lease_ends_ms[name], name))
            found += [_lapsed(root, org.reservations[name].ask) for name in lapsed]
            self._reap(root, org, now_ms)
        return found[:limit]

    async def transfer(self, order: Transfer) -> Transferred:
        pools = self._pools[order.root]
        before = pools[order.pool].call if order.pool in pools else 0
        answer = await super().transfer(order)
        if answer.rights is not None and answer.call > before:
            for entry in order.entries:
                if isinstance(entry, Progress):
                    self._lease_ends_ms[entry.ask.reservation_id] = self._now_ms() + self._lease_ms
        return answer

    def _reap(self, root: str, org: MemoryOrganisation, now_ms: int) -> None:
        for pool in self._pools[root].values():
            if pool.state == "closed" or not pool.rights.requests:
                continue
            if pool.until_ms > now_ms + MAX_LEASE_MS:
                pool.until_ms = now_ms
            elif pool.until_ms <= now_ms - self._lease_ms:
                for name in escrow.reap(org, pool, now_ms):
                    self._lease_ends_ms[name] = now_ms

    def _may_look(self, now_ms: int) -> bool:
        seen_ms, self._seen_ms = self._seen_ms, now_ms
        if seen_ms is not None and now_ms - seen_ms > self._lease_ms / 2:
            self._grace_ms = now_ms + self._lease_ms
        self._grace_ms = min(self._grace_ms, now_ms + self._lease_ms)
        return now_ms >= self._grace_ms


def _lapsed(root: str, ask: Ask) -> Lapsed:
    return Lapsed(
        root=root,
        reservation_id=ask.reservation_id,
        tenant=ask.tenant,
        model=ask.model,
        lane=ask.lane,
        prompts=len(ask.prompts),
        once_until_ms=0 if ask.once is None else ask.once.until_ms,
    )
