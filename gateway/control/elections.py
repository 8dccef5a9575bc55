"""Leader election for the upkeep of the stores: one for the queues and one for the budgets, or one leader for both if
they are in the same store."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from fairlane.scheduler.queue.registry import UPKEEP
from fairlane.store.connections import Connections
from fairlane.store.election import Election
from fairlane.store.errors import STORE_ERRORS

LONGEST_LEASE_S = 3.0
# The election's lease is at most this part of the shortest lease that the upkeep watches: an upkeep that runs less than
# twice per lease cannot distinguish dead holders from those without a chance to renew.
PER_LEASE = 4


class Elections:
    """One gateway's candidacy for the upkeep of both stores."""

    def __init__(
        self,
        queues: Connections,
        budgets: Connections,
        gateway_id: str,
        watched_lease_s: float,
        is_fit: Callable[[], bool],
    ) -> None:
        """`watched_lease_s`: the shortest lease of workers and reservations. `is_fit`: as for Election."""
        lease_s = min(LONGEST_LEASE_S, watched_lease_s / PER_LEASE)

        def opened(store: Connections) -> Election:
            return Election(store.patient, UPKEEP, gateway_id, lease_s=lease_s, is_fit=is_fit)

        self._queues = opened(queues)
        self._budgets = self._queues if budgets is queues else opened(budgets)
        self._all = {self._queues, self._budgets}

    def for_queues(self) -> bool:
        return self._queues.is_elected

    def for_budgets(self) -> bool:
        return self._budgets.is_elected

    async def run(self) -> None:
        await asyncio.gather(*(election.run() for election in self._all))

    async def leave(self) -> None:
        """Resign, so that another gateway is elected at once. Store errors are ignored."""
        for election in self._all:
            with suppress(*STORE_ERRORS):
                await election.leave()
