"""Rounds of erasure: the gateway that holds the lease makes a pass over every deleted tenant that is due."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from fairlane.gateway.control.erasure.steps import ErasurePass, ErasureSteps
from fairlane.quotas import keyspace
from fairlane.quotas.erasure import SETTLED_S, DeletedTenant, ErasureList
from fairlane.store.election import Election
from fairlane.store.errors import is_rewriting
from fairlane.store.retry import every

log = logging.getLogger(__name__)

LOOK_EVERY_S = 30.0
AGAIN_S = 30.0
LEASE_S = 120.0


@dataclass(frozen=True, slots=True)
class Erased:
    """The result of a pass over some tenants."""

    counts: Counter[str]
    # False: later passes, which need no further call, erase the rest.
    is_complete: bool


class Erasure:
    """The rounds of one gateway: `run` makes them, `wake` starts the next one now."""

    def __init__(self, client: Redis, gateway_id: str, steps: ErasureSteps, *, is_store_embedded: bool) -> None:
        self._client = client
        self._listed = ErasureList(client)
        self._steps = steps
        # Concurrent passes by two gateways are harmless.
        self._election = Election(client, keyspace.ERASER, gateway_id, lease_s=LEASE_S)
        self._is_store_embedded = is_store_embedded
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        await every(LOOK_EVERY_S, "erasing deleted tenants", self.round, woken=self._woken)

    async def round(self) -> None:
        roots, passed = await self._listed.roots(), list[ErasurePass]()
        for root in roots:
            if not await self._election.stand():
                break
            passed += await self._pass_over(await self._listed.due(root, await self._listed.now_ms()))
        if passed:
            await self._list_next(passed)
        for root in roots:
            await self._listed.unlist_if_empty(root)

    async def erase_ledgers(self, root: str, accounts: Sequence[str]) -> Erased:
        """Erase the remaining data of deleted tenants, including their ledgers. Raise STORE_ERRORS."""
        now_ms = await self._listed.now_ms()
        for account in accounts:
            await self._listed.add(root, account, now_ms)
        return await self.erase([await self._listed.get(root, account) for account in accounts])

    async def erase(self, due: Sequence[DeletedTenant]) -> Erased:
        return await self._list_next(await self._pass_over(due))

    async def _pass_over(self, due: Sequence[DeletedTenant]) -> list[ErasurePass]:
        now_ms = await self._listed.now_ms()
        return [await self._steps.run(gone, now_ms) for gone in due]

    async def _list_next(self, passed: Sequence[ErasurePass]) -> Erased:
        """Schedule the next passes after one rewrite for all tenants; a store runs one rewrite at a time.

        If the rewrite could not start, all passes are repeated."""
        counts, is_complete, is_rewritten = Counter[str](), True, await self._rewrite()
        for each in passed:
            counts.update(each.erased)
            _log(each)
            is_last = each.is_whole and is_rewritten and each.is_settled
            is_complete = is_complete and is_last
            if not (each.is_whole and is_rewritten):
                await self._listed.postpone(each.gone, each.began_ms + round(AGAIN_S * 1e3))
            elif is_last:
                await self._listed.remove(each.gone)
            else:
                await self._listed.postpone(each.gone, each.gone.deleted_ms + round(SETTLED_S * 1e3))
        return Erased(counts, is_complete)

    async def _rewrite(self) -> bool:
        """Rewrite the embedded store's append-only file, so that erased data is also removed from disk.

        Return False if an earlier rewrite still runs, which may contain data erased since. Operators must rewrite the
        files of other stores."""
        if not self._is_store_embedded:
            return True
        try:
            await self._client.execute_command("BGREWRITEAOF")  # type: ignore[no-untyped-call]
        except ResponseError as error:
            if is_rewriting(error):
                return False
            raise
        return True


def _log(done: ErasurePass) -> None:
    counted = " ".join(f"{name}={count}" for name, count in done.erased.items() if count)
    counts = done.open_batches, done.failures, counted or "nothing"
    log.info("erased tenant=%s open_batches=%d failures=%d %s", done.gone.id, *counts)
