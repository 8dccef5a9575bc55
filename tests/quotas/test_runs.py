"""Runs of one request under one idempotency key: together they pay for the one that came furthest."""

import pytest
import redis.asyncio

from fairlane.quotas.ledger import Ledger
from fairlane.quotas.limits import Limits
from fairlane.quotas.store import Ask, Charge, Denied, Need, Once, Resumption
from tests.support.quotas.house import START_MS, House, RedisHouse, ask, charge, one

pytestmark = pytest.mark.anyio

DAY_MS = 86_400_000
ONCE = Once("k1:order:print", START_MS + DAY_MS)


async def used(house: House) -> int:
    """Tokens that the month has been charged."""
    return next(each.used for each in await house.store.statuses("acme", "acme") if each.name == "tokens_per_month")


async def run(house: House, reservation_id: str, output: int, once: Once | None = ONCE) -> None:
    """One whole run with a prompt of ten tokens."""
    await house.store.reserve(ask(reservation_id, prompts=(10,), max_output_tokens=50, once=once))
    await house.store.settle("acme", reservation_id, charge(prompt_tokens=10, output_tokens=output))


@pytest.fixture
async def acme(house: House) -> House:
    await house.tenant(Limits(tokens_per_month=10_000))
    return house


async def test_a_later_run_pays_only_for_what_is_new(acme: House) -> None:
    for reservation_id, output, together in (("f1", 5, 15), ("f2", 3, 15), ("f3", 9, 19)):
        await run(acme, reservation_id, output)

        assert await used(acme) == together


async def test_runs_of_other_requests_pay_for_themselves(acme: House) -> None:
    await run(acme, "f1", 5)
    await run(acme, "f2", 5, once=Once("k1:order:other", START_MS + DAY_MS))
    await run(acme, "f3", 5, once=None)

    assert await used(acme) == 45


async def test_the_run_of_a_dead_gateway_may_be_settled_after_its_retry(acme: House) -> None:
    await acme.store.reserve(ask("f1", prompts=(10,), max_output_tokens=50, once=ONCE))
    await run(acme, "f2", 9)
    await acme.store.settle("acme", "f1", charge(prompt_tokens=10, output_tokens=5))

    assert await used(acme) == 19


async def test_what_is_charged_while_it_runs_is_credited_too(acme: House) -> None:
    for reservation_id in ("f1", "f2"):
        await acme.store.reserve(ask(reservation_id, prompts=(10,), max_output_tokens=50, quantum=8, once=ONCE))
        for published in (4, 8):
            need = Need(published=published, prompt_tokens=10, known=8, most=50, quantum=8)
            await acme.store.extend("acme", reservation_id, need)
    assert await used(acme) == 18

    await acme.store.settle("acme", "f1", charge(prompt_tokens=10, output_tokens=8))
    await acme.store.settle("acme", "f2", charge(prompt_tokens=10, output_tokens=12))

    assert await used(acme) == 22


async def test_what_is_begun_when_the_record_has_gone_pays_anew(acme: House) -> None:
    await run(acme, "f1", 5)
    await acme.set_clock(START_MS + DAY_MS)
    await run(acme, "f2", 5)

    assert await used(acme) == 30


async def test_what_it_was_charged_late_is_credited_no_longer_than_its_key_lasts(acme: House) -> None:
    """The key is free a day after it was sent, however long its run took: what is sent then is another request."""
    await acme.store.reserve(ask("f1", prompts=(10,), max_output_tokens=50, once=ONCE))
    await acme.set_clock(START_MS + DAY_MS - 1)
    await acme.store.settle("acme", "f1", charge(prompt_tokens=10, output_tokens=5))
    await acme.set_clock(START_MS + DAY_MS)
    await run(acme, "f2", 5, once=Once(ONCE.name, START_MS + 2 * DAY_MS))

    assert await used(acme) == 30


def resumed(reservation_id: str, *, published: int, **fields: object) -> Ask:
    """A run that goes on from so many tokens of its one choice."""
    start = Resumption(published=published, ended=0, going=1, longest=published)
    return ask(
        reservation_id, **({"prompts": (10,), "max_output_tokens": 50, "once": ONCE, "resumption": start} | fields)
    )


async def test_a_run_that_goes_on_holds_only_what_is_new(acme: House) -> None:
    await run(acme, "f1", 20)

    reservation = await acme.store.reserve(resumed("f2", published=20))

    assert (reservation.granted_tokens, reservation.most_tokens) == (50, 50)
    status = await one(acme, "tokens_per_month")
    assert (status.used, status.reserved) == (30, 30)
    await acme.store.settle("acme", "f2", charge(prompt_tokens=10, output_tokens=26))
    status = await one(acme, "tokens_per_month")
    assert (status.used, status.reserved) == (36, 0)


async def test_it_fits_where_only_the_rest_does(house: House) -> None:
    await house.tenant(Limits(tokens_per_month=36))
    await house.store.reserve(ask("f1", prompts=(10,), max_output_tokens=26, once=ONCE))
    await house.store.settle("acme", "f1", charge(prompt_tokens=10, output_tokens=20))

    with pytest.raises(Denied):
        await house.store.reserve(ask("anew", prompts=(10,), max_output_tokens=26, once=ONCE))
    assert (await house.store.reserve(resumed("f2", published=20, max_output_tokens=26))).granted_tokens == 26


async def test_what_nobody_has_paid_for_is_held_too(acme: House) -> None:
    await run(acme, "f1", 15)

    await acme.store.reserve(resumed("f2", published=20, quantum=4))

    assert (await one(acme, "tokens_per_month")).reserved == 9
    await acme.store.settle("acme", "f2", charge(prompt_tokens=10, output_tokens=20))
    assert await used(acme) == 30


async def test_choices_that_are_over_hold_nothing_and_others_come_together(acme: House) -> None:
    await run(acme, "f1", 36)
    start = Resumption(published=36, ended=21, going=2, longest=8)

    reservation = await acme.store.reserve(
        ask("f2", prompts=(10,), max_output_tokens=50, n=3, quantum=4, once=ONCE, resumption=start)
    )
    extension = await acme.store.extend(
        "acme", "f2", Need(published=36, prompt_tokens=10, known=45, most=121, unit=2, ended=21, quantum=4)
    )

    assert reservation.granted_tokens == 12
    assert start.reach(12) == 45
    assert extension.granted_tokens == 53
    assert (await one(acme, "tokens_per_month")).reserved == 53 - 36


async def test_a_run_with_nothing_left_to_do_needs_no_budget(house: House) -> None:
    await house.tenant(Limits(tokens_per_month=30, output_tokens_per_minute=20))
    await run_within(house, "f1")

    start = Resumption(published=20, ended=20, going=0, longest=0)
    await house.store.reserve(ask("f2", max_output_tokens=20, once=ONCE, resumption=start))
    await house.store.settle("acme", "f2", charge(prompt_tokens=10, output_tokens=20))

    assert await used(house) == 30


async def run_within(house: House, reservation_id: str) -> None:
    """A run that spends the limits whole."""
    await house.store.reserve(ask(reservation_id, max_output_tokens=20, once=ONCE))
    await house.store.settle("acme", reservation_id, charge(prompt_tokens=10, output_tokens=20))


async def test_a_run_that_goes_on_and_never_ran_is_given_back_whole(house: House) -> None:
    await house.tenant(Limits(tokens_per_month=10_000, requests_per_minute=100))
    await run(house, "f1", 20)

    await house.store.reserve(resumed("f2", published=20))
    settled = await house.store.settle("acme", "f2", Charge.refund())

    assert settled.first
    status = await one(house, "tokens_per_month")
    assert (status.used, status.reserved) == (30, 0)
    assert (await one(house, "requests_per_minute")).used == 1


@pytest.mark.parametrize(
    "figures",
    [
        {"published": -1, "ended": 0, "going": 1, "longest": 0},
        {"published": 5, "ended": 6, "going": 1, "longest": 0},
        {"published": 5, "ended": 0, "going": 1, "longest": 4},
        {"published": 0, "ended": 0, "going": 0, "longest": 4},
    ],
)
def test_a_resumption_that_can_not_be_is_an_error(figures: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="inconsistent"):
        Resumption(**figures)


async def test_the_ledger_has_of_each_run_what_it_paid(store: redis.asyncio.Redis) -> None:
    house = RedisHouse(store)
    await house.set_clock(START_MS)
    await house.tenant(Limits(tokens_per_month=10_000))
    await run(house, "f1", 5)
    await run(house, "f2", 9)

    entries = await Ledger(store).entries("acme", "acme")

    assert [(each.prompt_tokens, each.output_tokens) for each in entries] == [(10, 5), (0, 4)]


async def test_a_reservation_of_an_older_gateway_is_settled_as_it_was(store: redis.asyncio.Redis) -> None:
    """Its record ends before what runs under a key share."""
    house = RedisHouse(store)
    await house.set_clock(START_MS)
    await house.tenant(Limits(tokens_per_month=10_000))
    await house.store.reserve(ask("f1", prompts=(10,), max_output_tokens=50))
    key = "fl:quota:{acme}:reservation:f1"
    record = await store.execute_command("GET", key, NEVER_DECODE=True)  # type: ignore[no-untyped-call]
    await store.set(key, record[:-25])

    await house.store.settle("acme", "f1", charge(prompt_tokens=10, output_tokens=5))

    assert await used(house) == 15
