"""A hot tenant through the whole gateway, within rights that it holds: charged, refused and revoked like any other."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

import httpx
import pytest

from fairlane.gateway.pipeline.pools import Pools
from fairlane.gateway.runtime import accounts
from fairlane.quotas import redis_store
from fairlane.quotas.escrow.transfers import VALID_MS
from tests.support.gateway.served import COMPLETIONS, Served, error_of, serving, settings, until
from tests.support.quotas.virtual_gateway import VirtualTime

pytestmark = pytest.mark.anyio

COST = 21
BODY = {"model": "tiny", "prompt": [5], "ignore_eos": True, "max_tokens": COST - 1}
PERIOD_S = 0.1


@dataclass
class HotTenant:
    """A tenant whose requests come PERIOD_S apart, on a clock that the test moves."""

    served: Served
    time: VirtualTime

    @property
    def pools(self) -> Pools:
        return self.served.resources.accounts.pools

    async def request(self) -> httpx.Response:
        answer = await self.served.post(COMPLETIONS, BODY)
        self.time.move(PERIOD_S)
        await asyncio.sleep(0)  # exchanges of rights that are due begin
        await until(lambda: not any(each.lock.locked() for each in self.pools._served.values()))
        return answer

    async def warm(self) -> int:
        """Send requests until the gateway holds rights. Return how many that took."""
        for made in range(1, 100):
            assert (await self.request()).status_code == 200
            if self.pools.count:
                return made
        raise AssertionError("the tenant is never hot")


@pytest.fixture
async def hot(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HotTenant]:
    moved = VirtualTime()
    monkeypatch.setattr(accounts, "Pools", partial(Pools, clock=lambda: moved.now_s, pause=moved.pause))
    monkeypatch.setattr(redis_store, "VALID_MS", 60_000)  # the store's clock runs on however slow the machine is
    async with serving(settings(valkey_url, section={"quantum_tokens": 8})) as served:
        yield HotTenant(served, moved)


async def test_all_requests_are_charged_once_with_their_own_figures(hot: HotTenant) -> None:
    served = hot.served
    await served.tenant(limits={"tokens_per_day": 100_000, "requests_per_minute": 1_000})
    made = await hot.warm()

    answers = [await hot.request() for _ in range(10)]

    assert len({seen.job.job_id[:16] for seen in served.worker.seen[-10:]}) == 1  # named after the rights
    assert [answer.json()["usage"]["total_tokens"] for answer in answers] == [COST] * 10
    left = [int(answer.headers["x-ratelimit-remaining-requests"]) for answer in answers]
    assert left == [1_000 - made - number for number in range(1, 11)]
    await hot.pools.report(served.id_of())
    assert [tokens for _, *tokens in await served.ledger()] == [[1, COST - 1]] * (made + 10)
    status = (await served.limits())["tokens_per_day"]
    assert (status.used, status.reserved) == ((made + 10) * COST, 0)


async def test_a_spent_budget_serves_exactly_its_tokens(hot: HotTenant) -> None:
    served = hot.served
    await served.tenant(limits={"tokens_per_day": 2_000 * COST})
    made = await hot.warm()
    left = 12
    tenants = served.resources.accounts.tenants
    await hot.pools.report(served.id_of())  # the new limit does not wait for rights, and the next request gets new ones
    await tenants.update(served.id_of(), {"limits": {"tokens_per_day": (made + left) * COST}})

    async def ask_until_refused() -> list[int]:
        got = []
        while (answer := await hot.request()).status_code == 200:
            got.append(answer.json()["usage"]["total_tokens"])
        assert error_of(answer) == (429, "insufficient_quota")
        return got

    delivered = sum(map(sum, await asyncio.gather(*[ask_until_refused() for _ in range(4)])))

    assert 0.98 * left * COST <= delivered <= left * COST
    await served.landed()
    await hot.pools.report(served.id_of())
    status = (await served.limits())["tokens_per_day"]
    assert (status.used, status.reserved) == (made * COST + delivered, 0)
    assert hot.pools.ended > 1  # some of it was spent within rights


async def test_a_suspended_tenant_is_refused_once_that_is_acknowledged(
    hot: HotTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "VALID_MS", 50)  # the acknowledgement waits for as long
    served = hot.served
    await served.tenant(limits={"tokens_per_day": 100_000})
    await hot.warm()
    parts = served.resources.accounts

    await parts.tenants.suspend(served.id_of())
    parts.authenticator.forget()
    hot.time.move(VALID_MS / 1e3)

    assert error_of(await served.post(COMPLETIONS, BODY))[0] == 403
