"""Lines of batches: charged for days and months, and never in the way of people."""

import pytest

from fairlane.quotas.limits import Limits
from fairlane.quotas.store import Denied, Need
from tests.support.quotas.house import House, ask, charge

pytestmark = pytest.mark.anyio

PEOPLES = Limits(requests_per_minute=1, tokens_per_minute=30, output_tokens_per_minute=20, concurrent_requests=1)


async def test_lines_leave_the_minute_and_the_running_requests_to_people(house: House) -> None:
    await house.tenant(PEOPLES)

    for number in range(3):
        await house.store.reserve(ask(f"line-{number}", is_batch=True))
    await house.store.settle("acme", "line-0", charge())
    await house.store.reserve(ask("a-person"))

    with pytest.raises(Denied):
        await house.store.reserve(ask("another-person"))
    await house.store.reserve(ask("line-3", is_batch=True))


async def test_lines_count_for_the_day_with_all_they_hold(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=60))

    await house.store.reserve(ask("line-0", is_batch=True))
    await house.store.settle("acme", "line-0", charge(output_tokens=10))
    await house.store.reserve(ask("line-1", is_batch=True))

    (day,) = await house.store.statuses("acme", "acme")
    assert (day.used, day.reserved) == (20, 30)
    with pytest.raises(Denied):
        await house.store.reserve(ask("a-person"))
    with pytest.raises(Denied):
        await house.store.reserve(ask("line-2", is_batch=True))


async def test_what_one_request_may_be_holds_for_lines_too(house: House) -> None:
    await house.tenant(Limits(max_output_tokens=19))

    with pytest.raises(Denied):
        await house.store.reserve(ask("line", is_batch=True))


async def test_a_line_never_pauses_at_a_full_minute(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=30))
    await house.store.reserve(ask("a-person"))
    await house.store.reserve(ask("line", is_batch=True, quantum=8))

    need = Need(published=8, prompt_tokens=10, known=8, most=20, quantum=8, stuck=True)
    extension = await house.store.extend("acme", "line", need)

    assert (extension.paused, extension.limited_by) == (False, "")


async def test_nothing_is_left_of_lines_that_have_ended(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=1_000, tokens_per_minute=100))
    for number in range(3):
        await house.store.reserve(ask(f"line-{number}", is_batch=True))
        await house.store.settle("acme", f"line-{number}", charge())

    held = {status.name: (status.used, status.reserved) for status in await house.store.statuses("acme", "acme")}
    assert held == {"tokens_per_minute": (0, 0), "tokens_per_day": (90, 0)}
