"""A store of budgets that comes and goes, and gateways that may admit requests without it."""

from collections.abc import Collection, Mapping
from typing import Any

from fairlane.gateway.pipeline.guarded_quotas import GuardedQuotas, Modes
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.ledger import Ledger
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Ask, Charge, Reservation, Settled
from fairlane.quotas.tenants import TenantStore
from fairlane.quotas.upkeep import GatewayPresence
from fairlane.store.connections import ServerConnections
from fairlane.store.errors import StoreUnavailable
from tests.support.quotas import house

SHARE = Modes("local_share")
DONE = Charge(prompt_tokens=10, output_tokens=5, outcome="finished")


class Losing(RedisQuotaStore):
    """Does what it is asked, and loses the next answer where it is told to."""

    loses: str = ""
    away_roots: Collection[str] = ()

    async def reserve(self, ask: Ask) -> Reservation:
        reservation = await super().reserve(ask)
        self._answer("reserve")
        return reservation

    async def settle(self, root: str, reservation_id: str, charge: Charge) -> Settled:
        if root in self.away_roots:
            raise StoreUnavailable(root)
        settled = await super().settle(root, reservation_id, charge)
        self._answer("settle")
        return settled

    def _answer(self, what: str) -> None:
        if self.loses == what:
            self.loses = ""
            raise StoreUnavailable(what)


class Bench:
    """Tenant `acme` of one store, and a gateway that asks it."""

    def __init__(self, store: ServerConnections) -> None:
        self.store = store
        self.quotas = Losing(store.short)
        self.now_s = 1_000.0
        self.fields: Mapping[str, object] = {}
        """Of the tenant, beside its limits."""

    def gateway(self, modes: Modes, name: str = "gw") -> GuardedQuotas:
        """One more gateway."""
        tenants, keys = TenantStore(self.store.patient), KeyStore(self.store.patient)
        presence = GatewayPresence(self.store.patient, name)
        return GuardedQuotas(self.quotas, presence, tenants.get, keys.get, modes, clock=lambda: self.now_s)

    async def knowing(self, modes: Modes, *names: str, **limits: int) -> GuardedQuotas:
        """A gateway that has served the tenant before, and other gateways of these names beside it."""
        await TenantStore(self.store.patient).create({"id": "acme", "limits": limits, **self.fields})
        for name in names:
            await GatewayPresence(self.store.patient, name).beat()
        gateway = self.gateway(modes)
        await gateway.reserve(ask("first"))
        await gateway.settle("acme", "first", Charge.refund())
        await gateway.beat()
        await gateway.keep()
        return gateway

    def leave(self) -> None:
        """The store goes away."""
        self.store.breaker.is_away = True

    def come_back(self) -> None:
        """And comes back."""
        self.store.breaker.is_away = False

    async def figures(self) -> dict[str, tuple[int, int]]:
        """Used and reserved of each limit."""
        found = await RedisQuotaStore(self.store.short).statuses("acme", "acme")
        return {status.name: (status.used, status.reserved) for status in found}

    async def charged(self, tenant: str = "acme") -> list[tuple[str, int, int]]:
        """The ledger."""
        entries = await Ledger(self.store.patient).entries(tenant, tenant)
        return [(entry.reservation_id, entry.prompt_tokens, entry.output_tokens) for entry in entries]


def ask(reservation_id: str, output: int = 10, **changes: Any) -> Ask:
    return house.ask(reservation_id, **{"model": "tiny", "max_output_tokens": output, **changes})
