"""Connections to the stores: the main one, and that of tenants, keys and budgets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fairlane.gateway.api.store_checks import StoreChecks
from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.gateway.pipeline.guarded_quotas import Modes
from fairlane.gateway.runtime.setup import background
from fairlane.store.checks import FaultKind
from fairlane.store.circuit_breaker import RequiredStores
from fairlane.store.connections import Connections, connections


class Stores:
    """The connections, and whether the stores behind them are available."""

    def __init__(self, settings: GatewaySettings, modes: Modes, telemetry: Telemetry) -> None:
        section = settings.gateway
        timeout_s, limit = section.store_timeout_s, section.store_connections
        self.main: Connections = connections(settings.store_url, timeout_s=timeout_s, limit=limit)
        # The same store unless the settings name another.
        self.budgets: Connections = self.main
        if settings.quota_store_url != settings.store_url:
            self.budgets = connections(settings.quota_store_url, timeout_s=timeout_s, limit=limit, name="quota store")
        needed = {self.main.breaker, self.budgets.breaker} if modes.are_closed else {self.main.breaker}
        self.availability = RequiredStores(tuple(needed))
        self.checks = StoreChecks(settings.stores, timeout_s=timeout_s)
        main, budgets = self.main.breaker, self.budgets.breaker
        telemetry.store_up.set_function(lambda: main.is_whole)
        telemetry.quota_store_up.set_function(lambda: budgets.is_whole)
        telemetry.store_openings.read = lambda: sum(each.openings for each in {main, budgets})
        for kind in FaultKind:
            telemetry.store_fault.labels(kind.value).set_function(partial(self.checks.has, kind))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with background(store_checks=self.checks.run()):
                yield
        finally:
            if self.budgets is not self.main:
                await self.budgets.aclose()
            await self.main.aclose()
