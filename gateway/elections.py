"""Which gateway does the upkeep of each store: one for the queues, one for the budgets, the same if they share one."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from fairlane.scheduler.queue.registry import UPKEEP
from fairlane.store.connections import Connections
from fairlane.store.election import Election
from fairlane.store.errors import STORE_ERRORS

LONGEST_LEASE_S = 3.0
PER_LEASE = 4
"""Of the leases that the upkeep watches: who looks less often than each half cannot tell who could have renewed."""


class Elections:
    """One gateway's part in both."""

    def __init__(
        self,
        queues: Connections,
        budgets: Connections,
        gateway_id: str,
        watched_lease_s: float,
        is_fit: Callable[[], bool],
    ) -> None:
        """`watched_lease_s`: the shortest lease of workers and reservations. `is_fit`: as of Election."""
        lease_s = min(LONGEST_LEASE_S, watched_lease_s / PER_LEASE)

        def opened(store: Connections) -> Election:
            return Election(store.patient, UPKEEP, gateway_id, lease_s=lease_s, is_fit=is_fit)

        self._queues = opened(queues)
        self._budgets = self._queues if budgets is queues else opened(budgets)
        self._all = {self._queues, self._budgets}

    def for_queues(self) -> bool:
        """Whether this gateway does the upkeep of the queues."""
        return self._queues.is_elected

    def for_budgets(self) -> bool:
        """Whether this gateway does the upkeep of the budgets."""
        return self._budgets.is_elected

    async def run(self) -> None:
        """Stand until cancelled."""
        await asyncio.gather(*(election.run() for election in self._all))

    async def stand(self) -> None:
        """Stand once. Raises STORE_ERRORS."""
        for election in self._all:
            await election.stand()

    async def leave(self) -> None:
        """Let others be elected at once, if the stores take it."""
        for election in self._all:
            with suppress(*STORE_ERRORS):
                await election.leave()
