"""A cache of the price list, refreshed twice a second, so that no request reads it from the store."""

import logging
from dataclasses import dataclass, field

from fairlane.quotas.limits import Prices
from fairlane.quotas.prices import PriceList, PriceStore
from fairlane.store.retry import every

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5


@dataclass(eq=False)
class KnownPrices:
    """The cached price list. `run` must run alongside it; until its first read, callers wait for the store."""

    store: PriceStore
    _known: PriceList | None = field(default=None, init=False)

    async def of(self, model: str, lane: str) -> Prices:
        known = self._known
        if known is None:
            known = await self._read()
        return known.of(model, lane)

    async def run(self) -> None:
        await every(LOOK_EVERY_S, "reading the prices", self.look)

    async def look(self) -> None:
        if self._known is None or await self.store.version() != self._known.version:
            await self._read()

    async def _read(self) -> PriceList:
        before, self._known = self._known, await self.store.get()
        if before is not None:
            log.info("using prices of version %d", self._known.version)
        return self._known
