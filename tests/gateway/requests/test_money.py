"""Prices and budgets of money on a request's way: fixed when it is reserved, whoever settles it."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlane.quotas.limits import FREE, Prices
from fairlane.quotas.prices import PriceList
from fairlane.quotas.store import Need
from tests.support.gateway.served import COMPLETIONS, OPERATOR, WAIT_S, Served, error_of, serving, settings, until
from tests.support.quotas.house import ask

pytestmark = pytest.mark.anyio

OLD, NEW = Prices(input=150, cached=75, output=600), Prices(input=7, cached=7, output=9)
ASKED = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 9, "ignore_eos": True}
"""Three tokens in, nine out."""
COST = 3 * 150 + 9 * 600


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url, section={"reservation_lease_s": 1.0, "quantum_tokens": 4})) as opened:
        await price(opened, OLD)
        yield opened


async def admin(served: Served, method: str, path: str, body: Any = None) -> Any:
    async with served.http as client:
        answer = await client.request(method, f"/admin/v1{path}", json=body, headers=OPERATOR)
    assert answer.is_success, answer.text
    return answer.json()


async def price(served: Served, prices: Prices) -> None:
    """Of the only model in all lanes, through the admin API."""
    row = {"model": "tiny", "input": prices.input, "cached_input": prices.cached, "output": prices.output}
    await admin(served, "PUT", "/prices", {"prices": [row]})


async def test_a_request_is_charged_at_its_price_and_the_next_at_the_new_one(served: Served) -> None:
    await served.tenant(limits={"spend_per_month": 10**9})
    served.worker.limit = 5
    running = asyncio.create_task(served.post(COMPLETIONS, ASKED))
    await until(lambda: any(len(tokens) >= 5 for tokens in served.worker.produced.values()))
    await price(served, NEW)
    served.worker.limit = None
    first, second = await running, await served.post(COMPLETIONS, ASKED)

    entries = await served.entries()
    assert (first.status_code, second.status_code) == (200, 200)
    assert [(entry.prices, entry.spend) for entry in entries] == [(OLD, COST), (NEW, 3 * 7 + 9 * 9)]
    limit = (await served.get("/v1/limits")).json()["limits"]["spend_per_month"]
    assert (limit["used"], limit["reserved"]) == (COST + 3 * 7 + 9 * 9, 0)


async def test_a_retry_under_an_idempotency_key_costs_nothing_and_a_new_run_what_the_first_would(
    served: Served,
) -> None:
    await served.tenant()
    first = await served.post(COMPLETIONS, ASKED, Idempotency_Key="order-1")
    await price(served, NEW)
    again = await served.post(COMPLETIONS, ASKED, Idempotency_Key="order-1")

    assert first.json()["id"] == again.json()["id"]
    assert [entry.spend for entry in await served.entries()] == [COST]


async def test_a_spent_month_of_money_is_told_and_ends_a_running_answer(served: Served) -> None:
    await served.tenant(limits={"spend_per_month": COST - 600})
    ask_less = {**ASKED, "max_tokens": None}
    cut = (await served.post(COMPLETIONS, ask_less)).json()
    refused = await served.post(COMPLETIONS, ask_less)

    assert cut["usage"]["completion_tokens"] == 8
    assert (cut["choices"][0]["finish_reason"], cut["fairlane"]) == ("length", {"limited_by": "spend_per_month"})
    assert error_of(refused) == (429, "insufficient_quota")
    assert refused.json()["error"]["limit"]["name"] == "spend_per_month"
    assert "billionths of the currency" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) > 1
    assert refused.headers["x-should-retry"] == "false"


async def test_explain_tells_the_limit_of_money_that_binds(served: Served) -> None:
    await served.tenant(limits={"spend_per_day": 3 * 150 + 600})
    sizes = {"prompt_tokens": 3, "lane": "latency"}
    fits = await admin(served, "POST", "/tenants/acme/explain", {**sizes, "max_output_tokens": 1})
    beyond = await admin(served, "POST", "/tenants/acme/explain", {**sizes, "max_output_tokens": 2})

    assert fits["admitted"]
    assert (beyond["code"], beyond["limit"]["name"]) == ("request_exceeds_limit", "spend_per_day")


async def test_a_killed_gateways_request_is_charged_the_price_that_it_was_reserved_at(served: Served) -> None:
    await served.tenant(limits={"spend_per_day": 10**9})
    name = secrets.token_hex(12)
    await served.resources.accounts.quotas.reserve(
        ask(name, model="tiny", prompts=(3,), max_output_tokens=9, prices=OLD)
    )
    await price(served, NEW)
    await served.resources.accounts.quotas.extend(
        "acme", name, Need(published=4, prompt_tokens=3, known=9, most=9, quantum=4)
    )
    await until(lambda: served.resources.requests.reaper.reaped > 0)

    entry = (await served.entries())[0]
    assert (entry.prices, entry.spend) == (OLD, 3 * 150 + 4 * 600)
    assert (await served.limits())["spend_per_day"].used == 3 * 150 + 4 * 600


async def test_another_gateway_has_new_prices_within_a_second_and_no_request_asks_for_them(
    served: Served, valkey_url: str
) -> None:
    async with serving(settings(valkey_url)) as other:
        known = other.resources.accounts.known_prices
        assert await known.of("tiny", "latency") == OLD
        await other.resources.accounts.prices.put(PriceList())
        async with asyncio.timeout(WAIT_S):
            while await known.of("tiny", "latency") != FREE:  # noqa: ASYNC110 - polled: a look has no event
                await asyncio.sleep(0.01)
