"""Money under thousands of requests, lost calls and deaths, and under fifty streams at once."""

import asyncio
import random
from collections import Counter
from datetime import UTC, date, datetime

import pytest
import redis.asyncio

from fairlane.quotas.ledger import Ledger
from fairlane.quotas.limits import LARGEST, Limits, Prices
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import AlreadySettled, Ask, Charge, Denied, Need, QuotaStore
from fairlane.store.errors import StoreUnavailable
from tests.support.quotas.house import START_MS, RedisHouse, ask, charge, one
from tests.support.store import topology

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class Failing:
    """A store of which some calls get lost, before or after they were carried out."""

    def __init__(self, store: QuotaStore, random: random.Random) -> None:
        self._store = store
        self._random = random

    async def call(self, name: str, *args: object) -> object:
        """The call's answer. Raises StoreUnavailable where it got lost, and then nobody knows how far it came."""
        fate = self._random.random()
        if fate < 0.03:
            raise StoreUnavailable("lost on the way there")
        answer: object = await getattr(self._store, name)(*args)
        if fate < 0.06:
            raise StoreUnavailable("lost on the way back")
        return answer


LANES, MODELS = ("latency", "throughput"), ("smol", "other", "third")


async def run_one(failing: Failing, chance: random.Random, asked: Ask) -> None:
    """One request's life, whatever becomes of it: finished, cancelled, given up, or its gateway killed half-way."""
    try:
        await failing.call("reserve", asked)
        published = 0
        while chance.random() < 0.6:
            published = min(published + chance.randint(0, 9), 20)
            need = Need(published=published, prompt_tokens=asked.prompt_tokens, known=published, most=20, quantum=8)
            await failing.call("extend", asked.root, asked.reservation_id, need)
        if chance.random() < 0.1:
            return  # killed: its lease runs out
        cached = chance.randint(0, asked.prompt_tokens)
        figures = {"prompt_tokens": asked.prompt_tokens, "cached_tokens": cached}
        outcome = chance.choice(("finished", "cancelled", "rejected"))
        end = Charge(**figures, output_tokens=min(20, published + chance.randint(0, 3)), outcome=outcome)
        while True:
            try:
                await failing.call("settle", asked.root, asked.reservation_id, end)
            except StoreUnavailable:
                continue
            return
    except (StoreUnavailable, Denied, AlreadySettled):
        return  # its gateway would settle it for nothing; here a reaper does


@pytest.mark.parametrize("requests", [2_000, pytest.param(10_000, marks=pytest.mark.thorough)])
async def test_random_requests_cost_their_tokens_at_their_prices(client: redis.asyncio.Redis, requests: int) -> None:
    house, chance = RedisHouse(client), random.Random(24)
    await house.set_clock(START_MS)
    await house.tenant(Limits(spend_per_month=LARGEST))
    failing, now_ms = Failing(house.store, chance), START_MS
    lists = [
        {
            (model, lane): Prices(input=price, cached=chance.randint(0, price), output=chance.randint(0, 10**6))
            for model in MODELS
            for lane in LANES
            for price in [chance.randint(0, 10**6)]
        }
        for _ in range(5)
    ]
    paid_for: dict[str, Prices] = {}
    for number in range(requests):
        model, lane = chance.choice(MODELS), chance.choice(LANES)
        prices = lists[5 * number // requests][model, lane]  # the list changes while requests run
        name = f"r{number}"
        paid_for[name] = prices
        await run_one(
            failing,
            chance,
            ask(name, model=model, lane=lane, prompts=(chance.randint(0, 50),), prices=prices, quantum=8),
        )
        now_ms += 20
        if number % 500 == 499:
            await house.set_clock(now_ms)
    for _ in range(4):  # the killed ones: whoever looks settles them, knowing less
        now_ms += 25_000
        await house.set_clock(now_ms)
        while found := await house.store.expired(10_000):
            for lapsed in found:
                await house.store.settle(lapsed.root, lapsed.reservation_id, charge(output_tokens=3, prompt_tokens=10))

    ledger, total, by_group = Ledger(client), 0, Counter[tuple[str, str]]()
    entries = [entry async for page in ledger.pages("acme", "acme", 0, 10**14) for entry in page]
    for entry in entries:
        assert entry.prices == paid_for[entry.reservation_id]
        assert entry.spend == entry.prices.spend(entry.prompt_tokens, entry.cached_tokens, entry.output_tokens)
        total += entry.spend
        by_group[entry.model, entry.lane] += entry.spend
    status = await one(house, "spend_per_month")
    day = house_day()
    report = await ledger.usage("acme", "acme", day, day, ("model", "lane"))

    assert len(entries) > requests // 2
    assert (status.used, status.reserved) == (total, 0)
    assert report.total.spend == total
    assert {(row.group["model"], row.group["lane"]): row.usage.spend for row in report.rows} == by_group


def house_day() -> date:
    """The day on which the clock of these tests starts."""
    return datetime.fromtimestamp(START_MS / 1e3, UTC).date()


async def test_fifty_concurrent_streams_never_overshoot_a_budget(valkey_url: str) -> None:
    client = topology.client(valkey_url)
    budget, over = 500_000, asyncio.Event()
    await RedisHouse(client).tenant(Limits(spend_per_day=budget))
    store, worst = RedisQuotaStore(client), 0

    async def watch() -> None:
        nonlocal worst
        while not over.is_set():
            for status in await store.statuses("acme", "acme"):
                worst = max(worst, status.used + status.reserved)

    async def stream(number: int) -> int:
        """What a stream with its own price has come to: it publishes what is granted, and no more."""
        prices, name = Prices(input=90 + number, cached=number, output=300 + 7 * number), f"s{number}"
        try:
            reservation = await store.reserve(
                ask(name, prices=prices, quantum=4, max_output_tokens=10_000, explicit_max=False)
            )
        except Denied:
            return 0
        published = reservation.granted_tokens
        for _ in range(200):
            need = Need(published=published, prompt_tokens=10, known=published, most=10_000, quantum=4)
            extension = await store.extend("acme", name, need)
            published = extension.granted_tokens
            if extension.spent:
                break
        await store.settle("acme", name, charge(output_tokens=published))
        return prices.spend(10, 0, published)

    watching = asyncio.create_task(watch())
    costs = await asyncio.gather(*(stream(number) for number in range(50)))
    over.set()
    await watching
    (status,) = await store.statuses("acme", "acme")
    await client.aclose()

    assert status.used == sum(costs)
    assert worst <= budget
    assert budget - 1_000 < status.used <= budget
