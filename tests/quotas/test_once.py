"""Runs of one request under one idempotency key: together they pay for the one that came furthest."""

import pytest
import redis.asyncio

from quotas.ledger import Ledger
from quotas.limits import Limits
from quotas.store import Need
from tests.quotas.house import START_MS, House, RedisHouse, ask, charge

pytestmark = pytest.mark.anyio

ONCE = "k1:order:print"
DAY_MS = 86_400_000


async def used(house: House) -> int:
    """Tokens that the month has been charged."""
    return next(each.used for each in await house.store.statuses("acme", "acme") if each.name == "tokens_per_month")


async def run(house: House, flight_id: str, output: int, once: str = ONCE) -> None:
    """One whole run with a prompt of ten tokens."""
    await house.store.reserve(ask(flight_id, prompts=(10,), max_output_tokens=50, once=once))
    await house.store.settle("acme", flight_id, charge(prompt_tokens=10, output_tokens=output))


@pytest.fixture
async def acme(house: House) -> House:
    await house.tenant(Limits(tokens_per_month=10_000))
    return house


async def test_a_later_run_pays_only_for_what_is_new(acme: House) -> None:
    for flight_id, output, together in (("f1", 5, 15), ("f2", 3, 15), ("f3", 9, 19)):
        await run(acme, flight_id, output)

        assert await used(acme) == together


async def test_runs_of_other_requests_pay_for_themselves(acme: House) -> None:
    await run(acme, "f1", 5)
    await run(acme, "f2", 5, once="k1:order:other")
    await run(acme, "f3", 5, once="")

    assert await used(acme) == 45


async def test_the_run_of_a_dead_gateway_may_be_settled_after_its_retry(acme: House) -> None:
    await acme.store.reserve(ask("f1", prompts=(10,), max_output_tokens=50, once=ONCE))
    await run(acme, "f2", 9)
    await acme.store.settle("acme", "f1", charge(prompt_tokens=10, output_tokens=5))

    assert await used(acme) == 19


async def test_what_is_charged_while_it_runs_is_credited_too(acme: House) -> None:
    for flight_id in ("f1", "f2"):
        await acme.store.reserve(ask(flight_id, prompts=(10,), max_output_tokens=50, quantum=8, once=ONCE))
        for published in (4, 8):
            need = Need(published=published, prompt_tokens=10, known=8, most=50, quantum=8)
            await acme.store.extend("acme", flight_id, need)
    assert await used(acme) == 18

    await acme.store.settle("acme", "f1", charge(prompt_tokens=10, output_tokens=8))
    await acme.store.settle("acme", "f2", charge(prompt_tokens=10, output_tokens=12))

    assert await used(acme) == 22


async def test_after_a_day_it_pays_anew(acme: House) -> None:
    await run(acme, "f1", 5)
    await acme.set_clock(START_MS + DAY_MS)
    await run(acme, "f2", 5)

    assert await used(acme) == 30


async def test_the_ledger_has_of_each_run_what_it_paid(store: redis.asyncio.Redis) -> None:
    house = RedisHouse(store)
    await house.set_clock(START_MS)
    await house.tenant(Limits(tokens_per_month=10_000))
    await run(house, "f1", 5)
    await run(house, "f2", 9)

    entries = await Ledger(store).entries("acme", "acme")

    assert [(each.prompt_tokens, each.output_tokens) for each in entries] == [(10, 5), (0, 4)]


async def test_a_flight_of_an_older_gateway_is_settled_as_it_was(store: redis.asyncio.Redis) -> None:
    """Its record ends before what runs under a key share."""
    house = RedisHouse(store)
    await house.set_clock(START_MS)
    await house.tenant(Limits(tokens_per_month=10_000))
    await house.store.reserve(ask("f1", prompts=(10,), max_output_tokens=50))
    key = "fl:quota:{acme}:flight:f1"
    record = await store.execute_command("GET", key, NEVER_DECODE=True)  # type: ignore[no-untyped-call]
    await store.set(key, record[:-17])

    await house.store.settle("acme", "f1", charge(prompt_tokens=10, output_tokens=5))

    assert await used(house) == 15
