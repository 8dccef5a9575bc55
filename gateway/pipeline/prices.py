"""The price list as this gateway knows it: looked at twice a second, so that no request asks the store for it."""

import logging

from fairlane.quotas.limits import Prices
from fairlane.quotas.prices import PriceList, PriceStore
from fairlane.store.retry import every

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5


class KnownPrices:
    """`run` has to run beside it. Until the store has answered once, who asks waits for it."""

    def __init__(self, store: PriceStore) -> None:
        self._store = store
        self._known: PriceList | None = None

    async def of(self, model: str, lane: str) -> Prices:
        """What a request's tokens cost from now on. Raises StoreUnavailable where that was never known."""
        known = self._known
        if known is None:
            known = await self._read()
        return known.of(model, lane)

    async def run(self) -> None:
        """Until cancelled."""
        await every(LOOK_EVERY_S, "reading the prices", self.look)

    async def look(self) -> None:
        """One look: the list is read where another version is stored. Raises StoreUnavailable."""
        if self._known is None or await self._store.version() != self._known.version:
            await self._read()

    async def _read(self) -> PriceList:
        before, self._known = self._known, await self._store.get()
        if before is not None:
            log.info("prices of version %d hold now", self._known.version)
        return self._known
