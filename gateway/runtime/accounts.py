"""Tenants, keys, budgets and prices, and the authentication of callers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairlane.gateway.identity.auth import Authenticator
from fairlane.gateway.identity.credentials import CredentialReader
from fairlane.gateway.identity.tokens import Tokens
from fairlane.gateway.pipeline.escrow import EscrowedQuotas
from fairlane.gateway.pipeline.guarded_quotas import GuardedQuotas, Modes, RememberedKeys
from fairlane.gateway.pipeline.pools import Pools
from fairlane.gateway.pipeline.prices import KnownPrices
from fairlane.gateway.runtime.setup import Setup, background
from fairlane.gateway.runtime.stores import Stores
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.audit import Audit
from fairlane.quotas.delegated_keys import DelegatedKeys
from fairlane.quotas.ledger import Ledger, RollUp
from fairlane.quotas.prices import PriceStore
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.responses import TenantSeals
from fairlane.quotas.store import QuotaStore
from fairlane.quotas.tenants import TenantStore
from fairlane.quotas.upkeep import GatewayPresence
from fairlane.quotas.windows import Slicing
from fairlane.store.retry import every

ROLL_UP_EVERY_S = 3_600.0
# Time limit for remaining settlements after everything else has ended.
SETTLE_GRACE_S = 5.0


class Accounts:
    """Everything in the store of budgets, and the callers that it identifies."""

    def __init__(self, setup: Setup, stores: Stores, modes: Modes, slicing: Slicing) -> None:
        section, patient = setup.settings.gateway, stores.budgets.patient
        self.tenants, self.keys = TenantStore(patient), KeyStore(patient)
        self.ledger, self.audit = Ledger(patient), Audit(patient)
        self.prices = PriceStore(patient)
        self.known_prices = KnownPrices(self.prices)
        self.seals = TenantSeals(patient)
        self._roll_up = RollUp(
            patient,
            days=section.usage_days,
            months=section.usage_months,
            entry_days=section.ledger.days,
            exports=bool(section.ledger.export_url),
        )
        quotas = RedisQuotaStore(
            stores.budgets.short,
            lease_ms=round(section.reservation_lease_s * 1e3),
            ledger_bytes=int(section.ledger.tenant_bytes),
            slicing=slicing,
        )
        presence = GatewayPresence(patient, setup.gateway_id)
        self.pools = Pools(quotas, presence.count)
        escrowed = EscrowedQuotas(self.pools)
        # Admits requests during an outage of the budgets' store, if the settings allow it.
        self.guard: GuardedQuotas | None = None
        if not modes.are_closed:
            self.guard = GuardedQuotas(escrowed, presence, self.tenants.get, self.keys.get, modes)
        self.quotas: QuotaStore = self.guard or escrowed
        self._tokens = Tokens(section.issuers) if section.issuers else None
        keys, delegations = KeyStore(stores.budgets.short), DelegatedKeys(stores.budgets.short)
        remembered = RememberedKeys(keys, delegations)
        self.authenticator = Authenticator(
            remembered if self.guard else keys,
            remembered if self.guard else delegations,
            reader=CredentialReader(
                header=section.tenant_header,
                peers=section.tenant_header_peers,
                takes_tokens=self._tokens is not None,
            ),
            tokens=self._tokens,
        )
        setup.telemetry.unreported.set_function(lambda: self.unreported)

    @property
    def unreported(self) -> int:
        return self.guard.unreported if self.guard else 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        issuer_keys = self._tokens.upkeep() if self._tokens is not None else []
        try:
            async with background(
                roll_up=every(ROLL_UP_EVERY_S, "rolling up ledgers", self._roll_up.daily),
                prices=self.known_prices.run(),
                guard=None if self.guard is None else self.guard.run(),
                **{f"issuer_keys_{number}": run for number, run in enumerate(issuer_keys)},
            ):
                yield
        finally:
            await self.pools.aclose(SETTLE_GRACE_S)
            if self.guard is not None:
                await self.guard.aclose(SETTLE_GRACE_S)
