"""A hot tenant through the whole gateway, within rights that it holds: charged, refused and revoked as ever."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.gateway.served import COMPLETIONS, Served, error_of, serving, settings

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

COST = 21
BODY = {"model": "tiny", "prompt": [5], "ignore_eos": True, "max_tokens": COST - 1}


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url, section={"quantum_tokens": 8})) as found:
        yield found


async def warm(served: Served) -> int:
    """Make the tenant hot; how many requests that took."""
    escrow = served.resources.accounts.escrow
    for made in range(100):
        assert (await served.post(COMPLETIONS, BODY)).status_code == 200
        if escrow.pools:
            return made + 1
        await asyncio.sleep(0.05)
    raise AssertionError("the tenant is never hot")


async def test_all_requests_are_charged_once_with_their_own_figures(served: Served) -> None:
    await served.tenant(limits={"tokens_per_day": 100_000, "requests_per_minute": 1_000})
    made = await warm(served)
    escrow = served.resources.accounts.escrow
    before = served.worker.seen[-1].job.job_id

    answers = [await served.post(COMPLETIONS, BODY) for _ in range(10)]

    names = {seen.job.job_id[:16] for seen in served.worker.seen[-10:]}
    assert before[:16] not in names
    assert len(names) < 10  # most of them were made within rights, and are named after these
    assert [answer.json()["usage"]["total_tokens"] for answer in answers] == [COST] * 10
    left = [int(answer.headers["x-ratelimit-remaining-requests"]) for answer in answers]
    assert left == [1_000 - made - number for number in range(1, 11)]
    await escrow.report(served.id_of())
    assert [tokens for _, *tokens in await served.ledger()] == [[1, COST - 1]] * (made + 10)
    status = (await served.limits())["tokens_per_day"]
    assert (status.used, status.reserved) == ((made + 10) * COST, 0)


async def test_a_spent_budget_serves_exactly_its_tokens(served: Served) -> None:
    await served.tenant(limits={"tokens_per_day": 2_000 * COST})
    made = await warm(served)
    left = 30
    accounts = served.resources.accounts
    tenant = await accounts.tenants.get(served.id_of())
    assert tenant is not None
    await accounts.tenants.update(tenant.id, {"limits": {"tokens_per_day": (made + left) * COST}})

    async def ask_until_refused() -> list[int]:
        got = []
        while (answer := await served.post(COMPLETIONS, BODY)).status_code == 200:
            got.append(answer.json()["usage"]["total_tokens"])
        assert error_of(answer) == (429, "insufficient_quota")
        return got

    delivered = sum(map(sum, await asyncio.gather(*[ask_until_refused() for _ in range(4)])))

    assert 0.98 * left * COST <= delivered <= left * COST
    await served.landed()
    await served.resources.accounts.escrow.report(served.id_of())
    status = (await served.limits())["tokens_per_day"]
    assert (status.used, status.reserved) == (made * COST + delivered, 0)


async def test_a_suspended_tenant_is_refused_once_that_is_acknowledged(served: Served) -> None:
    await served.tenant(limits={"tokens_per_day": 100_000})
    await warm(served)
    accounts = served.resources.accounts

    await accounts.tenants.suspend(served.id_of())
    accounts.authenticator.forget()

    assert error_of(await served.post(COMPLETIONS, BODY))[0] == 403
