"""Checks that the stores are configured safely: at startup, and every CHECK_EVERY_S while the gateway runs; every
RETRY_S while a store does not answer."""

import asyncio
import logging
from collections.abc import Mapping

from fairlane.common.settings_error import SettingsError
from fairlane.store import checks
from fairlane.store.checks import GATEWAY_COMMANDS, Fault, FaultKind
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import every

log = logging.getLogger(__name__)

CHECK_EVERY_S = 60.0
RETRY_S = 1.0
START_TIMEOUT_S = 2.0


def check_start(stores: Mapping[str, str]) -> None:
    """Check the stores, given as URLs by name. Raises SettingsError for an unusable one.

    A store that does not respond is not an error: it is used as soon as it responds."""
    asyncio.run(_check_start(stores))


async def _check_start(stores: Mapping[str, str]) -> None:
    for name, url in stores.items():
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                found = await checks.faults(url, GATEWAY_COMMANDS, timeout_s=START_TIMEOUT_S)
        except STORE_ERRORS as error:
            log.debug("the %s is not checked (%s)", name, type(error).__name__)
            continue
        for fault in found:
            if fault.kind in checks.REFUSED:
                raise SettingsError(f"the {name} cannot be used, {fault}")


class StoreChecks:
    """The faults of a gateway's stores, as of the last check."""

    def __init__(self, stores: Mapping[str, str], *, timeout_s: float) -> None:
        self._stores = stores
        self._timeout_s = timeout_s
        self._faults: dict[str, list[Fault]] = {name: [] for name in stores}

    @property
    def refusal(self) -> str:
        """The reason why the gateway is not ready, in one sentence; empty if it is."""
        serious = [(name, fault) for name, found in self._faults.items() for fault in found if fault.is_serious]
        return f"The {serious[0][0]} cannot be relied on, {serious[0][1]}." if serious else ""

    def has(self, kind: FaultKind) -> bool:
        return any(fault.kind is kind for found in self._faults.values() for fault in found)

    async def run(self) -> None:
        due = asyncio.Event()

        async def check() -> None:
            try:
                await self.check()
            except STORE_ERRORS:  # check it as soon as it is back: it may be another store by then
                asyncio.get_running_loop().call_later(RETRY_S, due.set)
                raise

        await every(CHECK_EVERY_S, "the check of the stores", check, woken=due)

    async def check(self) -> None:
        for name, url in self._stores.items():
            found = await checks.faults(url, GATEWAY_COMMANDS, timeout_s=self._timeout_s)
            known, self._faults[name] = self._faults[name], found
            for fault in found:
                if fault not in known:
                    level = logging.ERROR if fault.is_serious else logging.WARNING
                    log.log(level, "the %s has a fault: %s", name, fault)
            for fault in known:
                if fault not in found:
                    log.info("the %s no longer has this fault: %s", name, fault.found)
