"""Rights moved to a gateway and back, in every store: how many, what they count as, and that each call counts once."""

from typing import Any

import pytest

from fairlane.quotas.escrow.transfers import (
    VALID_MS,
    Ending,
    EscrowStore,
    Progress,
    Rights,
    Transfer,
    Transferred,
    reservation_id,
)
from fairlane.quotas.ledger import Ledger
from fairlane.quotas.limits import Limits
from fairlane.quotas.store import AlreadySettled, Charge, Need
from tests.support.quotas.house import LEASE_MS, START_MS, House, ask, charge, one, refused

pytestmark = pytest.mark.anyio

POOL = "0123456789abcdef"
WANTED = Rights(10, 100, 200)
NOTHING = Rights()


def order(call: int, wanted: Rights = WANTED, *entries: Ending | Progress, first: int = 0, **changes: Any) -> Transfer:
    fields = {"pool": POOL, "root": "acme", "account": "acme", "key_id": "", "model": "smol", "lane": "latency"}
    return Transfer(call=call, first=first, wanted=wanted, entries=entries, **(fields | changes))


async def transfer(house: House, *args: Any, **changes: Any) -> Transferred:
    store: EscrowStore = house.store  # type: ignore[assignment]  # each of them moves rights
    return await store.transfer(order(*args, **changes))


def named(number: int, **changes: Any) -> Any:
    return ask(reservation_id(POOL, number), **changes)


def ended(number: int, output_tokens: int = 20) -> Ending:
    return Ending(ask=named(number), charge=charge(output_tokens))


def open_at(number: int, **figures: int) -> Progress:
    return Progress(ask=named(number), **({"input": 10, "output": 20, "choice": 20, "ceiling": 20} | figures))


async def used_and_reserved(house: House, name: str, key_id: str | None = None) -> tuple[int, int]:
    status = await one(house, name, key_id)
    return status.used, status.reserved


async def test_rights_count_as_used_at_every_level(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=10_000))
    await house.tenant(Limits(tokens_per_minute=5_000), tenant="web", root="acme", parents=("acme",))
    await house.key("k1", Limits(requests_per_minute=100), tenant="web", root="acme")

    granted = await transfer(house, 1, account="web", key_id="k1")

    assert granted.rights == WANTED
    assert await used_and_reserved(house, "tokens_per_day") == (0, 300)
    found = {status.name: status for status in await house.store.statuses("acme", "web", "k1")}
    assert found["tokens_per_minute"].reserved == 300
    assert found["requests_per_minute"].used == 10
    assert {status.name: (status.used, status.reserved) for status in granted.statuses} == {
        name: (status.used, status.reserved) for name, status in found.items()
    }


@pytest.mark.parametrize(
    ("limits", "gateways", "granted"),
    [
        (Limits(), 1, WANTED),
        (Limits(tokens_per_minute=600), 1, WANTED),
        (Limits(tokens_per_minute=480), 1, Rights(8, 80, 160)),
        (Limits(tokens_per_minute=480), 2, Rights(4, 40, 80)),
        (Limits(tokens_per_minute=480), 3, NOTHING),
        (Limits(requests_per_minute=10), 1, Rights(5, 50, 100)),
        (Limits(output_tokens_per_minute=200, tokens_per_month=10_000), 1, Rights(5, 50, 100)),
        (Limits(concurrent_requests=1_000), 1, NOTHING),
        (Limits(spend_per_day=10**12), 1, NOTHING),
    ],
)
async def test_a_pool_gets_at_most_half_of_its_gateways_part_of_what_is_free(
    house: House, limits: Limits, gateways: int, granted: Rights
) -> None:
    await house.tenant(limits)

    assert (await transfer(house, 1, gateways=gateways)).rights == granted


async def test_nothing_is_granted_of_the_last_tenth_of_a_limit(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=10_000))
    await house.store.reserve(ask(prompts=(9_001,), max_output_tokens=1))

    assert (await transfer(house, 1)).rights == NOTHING


@pytest.mark.parametrize("change", ["revoked", "suspended", "shadow", "new model limits"])
async def test_a_change_ends_a_pool_at_its_next_exchange(house: House, change: str) -> None:
    await house.tenant(Limits(tokens_per_day=10_000))
    await house.key("k1", Limits())
    assert (await transfer(house, 1, key_id="k1")).rights == WANTED

    if change == "revoked":
        await house.key("k1", Limits(), revoked=True)
    else:
        await house.tenant(
            Limits(tokens_per_day=10_000),
            barred="suspended" if change == "suspended" else None,
            shadow=("tokens_per_day",) if change == "shadow" else (),
            limits_by={("smol", ""): Limits(tokens_per_day=10)} if change == "new model limits" else None,
        )
    answer = await transfer(house, 2, key_id="k1")

    assert answer.rights == NOTHING
    assert await used_and_reserved(house, "tokens_per_day") == (0, 0)


async def test_what_was_done_with_rights_is_recorded_and_the_rest_returned(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=10_000, requests_per_minute=100))
    await transfer(house, 1)
    refund = Ending(ask=named(2), charge=Charge.refund())

    await transfer(house, 2, NOTHING, ended(0), open_at(1), refund, first=3)

    assert await used_and_reserved(house, "tokens_per_day") == (30, 30)
    assert await used_and_reserved(house, "requests_per_minute") == (2, 0)
    assert await house.store.renew("acme", [named(number).reservation_id for number in range(3)]) == {
        named(0).reservation_id,
        named(2).reservation_id,
    }
    settled = await house.store.settle("acme", named(1).reservation_id, charge(5))
    assert settled.first
    assert await used_and_reserved(house, "tokens_per_day") == (45, 0)


async def test_a_recorded_request_goes_on_by_either_way(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=10_000))
    await transfer(house, 1)
    await transfer(house, 2, WANTED, open_at(0), first=1)
    need = Need(published=20, prompt_tokens=10, known=20, most=100, quantum=10)
    extension = await house.store.extend("acme", named(0).reservation_id, need)
    assert extension.granted_tokens == 30

    grown = open_at(0, output=50, charged_input=10, charged_output=25)
    await transfer(house, 3, NOTHING, grown, first=1)

    assert await used_and_reserved(house, "tokens_per_day") == (35, 25)
    await house.store.settle("acme", named(0).reservation_id, charge(40))
    assert await used_and_reserved(house, "tokens_per_day") == (50, 0)


async def test_a_repeat_gets_the_same_answer_and_a_gap_changes_nothing(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=10_000))
    await transfer(house, 1)
    done = await transfer(house, 2, WANTED, ended(0), first=1)

    repeated = await transfer(house, 2, WANTED, ended(0), first=1)
    ahead = await transfer(house, 4, NOTHING, ended(1), first=2)

    assert repeated == done
    assert (ahead.rights, ahead.call) == (None, 2)
    assert await used_and_reserved(house, "tokens_per_day") == (30, 300)


async def test_a_closed_pool_answers_a_repeat_and_stays_closed(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=10_000))
    await transfer(house, 1)
    closed = await transfer(house, 2, NOTHING, ended(0), first=1)

    assert await transfer(house, 2, NOTHING, ended(0), first=1) == closed
    assert (await transfer(house, 3, WANTED, first=1)).rights is None
    assert await used_and_reserved(house, "tokens_per_day") == (30, 0)


async def lapsed(house: House) -> list[str]:
    return sorted(found.reservation_id for found in await house.store.expired(100))


async def test_a_dead_gateways_rights_count_until_each_request_it_may_have_made_is_settled(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=10_000, requests_per_minute=100))
    await lapsed(house)
    await transfer(house, 1)
    await transfer(house, 2, Rights(4, 40, 80), ended(0), first=1)
    now_ms = START_MS
    for _ in range(4):  # the search goes on all the time: after a gap it would wait for a lease
        now_ms += (VALID_MS + LEASE_MS) // 4
        await house.set_clock(now_ms)
        assert await lapsed(house) == []
    names = [reservation_id(POOL, number) for number in range(1, 5)]

    assert await lapsed(house) == names
    assert (await used_and_reserved(house, "tokens_per_day")) == (30, 120)
    await house.store.settle("acme", names[0], charge(20))
    for name in names[1:]:
        await house.store.settle("acme", name, Charge.refund())
    with pytest.raises(AlreadySettled):
        await house.store.reserve(ask(names[1]))
    late = await transfer(house, 3, WANTED, ended(1), ended(2), first=5)
    assert (late.rights, late.call) == (None, 2)
    for _ in range(4):
        now_ms += LEASE_MS // 3
        await house.set_clock(now_ms)
        assert await lapsed(house) == []

    assert await used_and_reserved(house, "tokens_per_day") == (60, 0)
    assert (await one(house, "requests_per_minute")).used == 1


async def test_requests_within_rights_count_from_their_report_on(house: House) -> None:
    """A minute after they were granted they still count: they may have been made at the end of their time."""
    await house.tenant(Limits(requests_per_minute=20))
    await transfer(house, 1)
    await house.set_clock(START_MS + 900)
    await transfer(house, 2, NOTHING, *[ended(number) for number in range(10)], first=10)
    for number in range(10):
        await house.store.reserve(ask(str(number)))

    await house.set_clock(START_MS + 60_700)

    assert (await refused(house)).status.used == 20


async def test_what_a_pool_charges_is_in_the_ledger(house: House) -> None:
    await house.tenant(Limits())
    await transfer(house, 1)

    await transfer(house, 2, NOTHING, ended(0, 20), ended(1, 7), first=2)
    await transfer(house, 2, NOTHING, ended(0, 20), ended(1, 7), first=2)

    twin = getattr(house, "twin", None)
    if twin is not None:
        assert [(asked.reservation_id[-1], final.output_tokens) for asked, final in twin.ledger] == [
            ("0", 20),
            ("1", 7),
        ]
        return

    entries = await Ledger(house.client).entries("acme", "acme")  # type: ignore[attr-defined]
    assert sorted((entry.reservation_id[-1], entry.output_tokens) for entry in entries) == [("0", 20), ("1", 7)]
