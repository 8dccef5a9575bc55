"""Output held quantum by quantum, pauses at a full minute, and a budget that is spent: on every store."""

import pytest

from fairlane.quotas.limits import Limits
from fairlane.quotas.store import AlreadySettled, Need
from tests.support.quotas.house import START_MS, House, ask, charge, one, refused

pytestmark = pytest.mark.anyio


def need(
    published: int, known: int, *, most: int = 1_000, stuck: bool = False, unit: int = 1, prompt: int = 70
) -> Need:
    return Need(published=published, prompt_tokens=prompt, known=known, most=most, unit=unit, quantum=64, stuck=stuck)


async def reserve(house: House, reservation_id: str = "f1", **changes: object) -> int:
    """Output tokens that a progressive request holds at first."""
    fields = {"max_output_tokens": 1_000, "quantum": 64, "explicit_max": False} | changes
    return (await house.store.reserve(ask(reservation_id, **fields))).granted_tokens


async def test_a_request_holds_a_quantum_whatever_it_may_come_to(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=10_000))

    reservation = await house.store.reserve(ask("f1", max_output_tokens=5_000, quantum=64))

    assert (reservation.granted_tokens, reservation.most_tokens) == (64, 5_000)
    assert (await one(house, "tokens_per_day")).reserved == 74


async def test_without_a_limit_on_output_all_is_granted_at_once(house: House) -> None:
    await house.tenant(Limits(requests_per_minute=5, input_tokens_per_minute=100))

    assert await reserve(house) == 1_000


async def test_a_quantum_is_at_most_an_eighth_of_the_minute(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=100, tokens_per_day=10**6))

    assert await reserve(house, prompts=(1,)) == 12
    assert await reserve(house, "f2", prompts=(1,), n=3) == 4


async def test_extending_charges_what_came_and_holds_the_next_quantum(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=10_000))
    await reserve(house)

    extension = await house.store.extend("acme", "f1", need(40, 64))
    again = await house.store.extend("acme", "f1", need(40, 64))

    status = await one(house, "tokens_per_day")
    assert extension == again
    assert (extension.granted_tokens, extension.limited_by, extension.paused) == (128, "", False)
    assert (status.used, status.reserved) == (50, 88)


async def test_settling_charges_only_what_was_not_charged_yet(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=10_000, tokens_per_minute=10_000))
    await reserve(house)
    await house.store.extend("acme", "f1", need(40, 64))

    await house.store.settle("acme", "f1", charge(70))

    for name in ("tokens_per_day", "tokens_per_minute"):
        status = await one(house, name)
        assert (status.used, status.reserved) == (80, 0)


async def test_tokens_count_in_the_minute_in_which_they_came(house: House) -> None:
    await house.tenant(Limits(output_tokens_per_minute=1_000))
    await reserve(house)
    await house.store.extend("acme", "f1", need(40, 64))

    await house.set_clock(START_MS + 60_250)
    await house.store.settle("acme", "f1", charge(50))

    assert (await one(house, "output_tokens_per_minute")).used == 10


async def test_a_full_minute_pauses_and_says_when_to_ask_again(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=16))
    assert await reserve(house, prompts=(10,)) == 2
    await house.store.extend("acme", "f1", need(2, 2))
    await house.store.extend("acme", "f1", need(4, 4))

    stuck = await house.store.extend("acme", "f1", need(6, 6, stuck=True))
    await house.set_clock(START_MS + round(stuck.retry_after_s * 1000))
    freed = await house.store.extend("acme", "f1", need(6, 6, stuck=True))

    assert (stuck.paused, stuck.granted_tokens, stuck.retry_after_s) == (True, 6, 60.25)
    assert (freed.paused, freed.granted_tokens) == (False, 8)


async def test_while_a_reservation_is_paused_new_requests_are_refused(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=80))
    await reserve(house, "old", prompts=(70,))
    await house.store.extend("acme", "old", need(10, 10, stuck=True))
    await house.set_clock(START_MS + 60_249)

    denied = await refused(house, prompts=(1,), max_output_tokens=1, quantum=64)

    assert (denied.kind, denied.status.name) == ("rate", "tokens_per_minute")


async def test_who_comes_later_is_told_when_there_is_room_for_the_earlier_too(house: House) -> None:
    await house.tenant(Limits(output_tokens_per_minute=4))
    for reservation_id in ("a", "b"):
        await reserve(house, reservation_id, prompts=(1,))  # a token each
    asked = []
    for number, (reservation_id, known) in enumerate((("a", 1), ("b", 1), ("a", 2), ("b", 2))):
        await house.set_clock(START_MS + 250 * number)
        stuck = known == 2
        asked.append(await house.store.extend("acme", reservation_id, need(known, known, stuck=stuck)))
    *_, first, second = asked

    assert (first.paused, second.paused) == (True, True)
    assert (first.retry_after_s, second.retry_after_s) == (60.25 - 0.5, 60.5 - 0.75)


async def test_who_comes_later_asks_soon_where_the_earlier_has_left_its_room(house: House) -> None:
    await house.tenant(Limits(output_tokens_per_minute=4))
    for reservation_id in ("a", "b"):
        await reserve(house, reservation_id, prompts=(1,))
        await house.store.extend("acme", reservation_id, need(1, 1))
    for reservation_id in ("a", "b"):
        await house.store.extend("acme", reservation_id, need(2, 2, stuck=True))
    for later_ms in range(4_000, 60_250, 4_000):  # both are heard of
        await house.set_clock(START_MS + later_ms)
        for reservation_id in ("a", "b"):
            await house.store.extend("acme", reservation_id, need(2, 2, stuck=True))
    await house.set_clock(START_MS + 60_250)

    behind = await house.store.extend("acme", "b", need(2, 2, stuck=True))

    assert (behind.paused, behind.granted_tokens, behind.retry_after_s) == (True, 2, 0.5)


async def test_room_goes_to_the_oldest_paused_reservation_first(house: House) -> None:
    await house.tenant(Limits(output_tokens_per_minute=20))
    for reservation_id in ("a", "b"):
        await reserve(house, reservation_id, prompts=(1,))  # two tokens each
    for reservation_id, until in (("a", 10), ("b", 10)):
        for known in range(2, until, 2):
            await house.store.extend("acme", reservation_id, need(known, known))
    await house.set_clock(START_MS + 250)
    assert (await house.store.extend("acme", "b", need(10, 10, stuck=True))).paused
    await house.set_clock(START_MS + 500)
    assert (await house.store.extend("acme", "a", need(10, 10, stuck=True))).paused

    await house.set_clock(START_MS + 59_900)
    for reservation_id in ("a", "b"):
        await house.store.extend("acme", reservation_id, need(10, 10, stuck=True))
    await house.set_clock(START_MS + 60_250)
    younger = await house.store.extend("acme", "a", need(10, 10, stuck=True))
    older = await house.store.extend("acme", "b", need(10, 10, stuck=True))
    then = await house.store.extend("acme", "a", need(10, 10, stuck=True))

    assert (younger.paused, younger.granted_tokens) == (True, 10)
    assert (older.paused, older.granted_tokens) == (False, 12)
    assert (then.paused, then.granted_tokens) == (False, 12)


async def test_a_paused_reservation_that_nobody_asks_for_gives_up_its_place(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=80))
    await reserve(house, "dead", prompts=(70,))
    await house.store.extend("acme", "dead", need(10, 10, stuck=True))

    await house.set_clock(START_MS + 60_250)

    assert await reserve(house, "new", prompts=(1,)) == 10


async def test_a_spent_day_says_so_and_pauses_nothing(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=30, tokens_per_minute=10_000))
    assert await reserve(house) == 20

    extension = await house.store.extend("acme", "f1", need(20, 20, stuck=True))

    assert (extension.limited_by, extension.spent, extension.paused) == ("tokens_per_day", True, False)
    assert extension.granted_tokens == 20


async def test_a_day_that_others_hold_is_not_spent_yet(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=100))
    await reserve(house, "f1")
    await reserve(house, "f2", max_output_tokens=16)

    waits = await house.store.extend("acme", "f1", need(64, 64, stuck=True))
    await house.store.settle("acme", "f2", charge(1))
    gets = await house.store.extend("acme", "f1", need(64, 64, stuck=True))

    assert (waits.spent, waits.granted_tokens, waits.retry_after_s) == (False, 64, 0.5)
    assert gets.granted_tokens == 79


async def test_a_limit_lowered_below_what_is_in_use_holds_at_once(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=10_000))
    await reserve(house)
    await house.tenant(Limits(tokens_per_day=50))

    extension = await house.store.extend("acme", "f1", need(64, 64, stuck=True))

    assert (extension.limited_by, extension.spent, extension.granted_tokens) == ("tokens_per_day", True, 64)


async def test_a_choice_gets_what_its_lowered_most_leaves(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=10_000, max_output_tokens=1_000))
    await reserve(house)
    await house.tenant(Limits(tokens_per_day=10_000, max_output_tokens=70))

    last = await house.store.extend("acme", "f1", need(60, 64))
    over = await house.store.extend("acme", "f1", need(70, 70, stuck=True))

    assert (last.granted_tokens, last.spent) == (70, False)
    assert (over.granted_tokens, over.limited_by, over.spent) == (70, "max_output_tokens", True)
    assert (await one(house, "tokens_per_day")).reserved == 0


@pytest.mark.parametrize(("ended", "granted"), [(36, 128), (50, 140)])
async def test_the_most_of_a_choice_is_not_shared_with_those_that_ended(house: House, ended: int, granted: int) -> None:
    await house.tenant(Limits(tokens_per_day=10_000, max_output_tokens=90))
    await reserve(house, n=2)

    going = Need(published=ended + 60, prompt_tokens=10, known=128, most=ended + 1_000, unit=1, ended=ended, quantum=64)

    assert (await house.store.extend("acme", "f1", going)).granted_tokens == granted


async def test_what_is_given_is_the_same_for_each_choice(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=100))
    assert await reserve(house, n=3, prompts=(1,)) == 33

    extension = await house.store.extend("acme", "f1", need(10, 99, unit=2))

    assert extension.granted_tokens == 99


async def test_a_settled_reservation_gets_nothing(house: House) -> None:
    await house.tenant(Limits())
    await reserve(house)
    await house.store.settle("acme", "f1", charge())

    for reservation_id in ("f1", "never-was"):
        with pytest.raises(AlreadySettled):
            await house.store.extend("acme", reservation_id, need(0, 0))


async def test_only_prompts_that_have_brought_tokens_are_charged_before_the_end(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=10_000))
    await reserve(house, prompts=(10, 30))

    await house.store.extend("acme", "f1", need(5, 128, prompt=10))
    first = await one(house, "tokens_per_day")
    await house.store.extend("acme", "f1", need(9, 128, prompt=40))
    both = await one(house, "tokens_per_day")
    await house.store.settle("acme", "f1", charge(9, 40))

    assert (first.used, both.used) == (15, 49)
    assert (await one(house, "tokens_per_day")).used == 49
