"""Defects found in other gateways' budgets, each kept out by name (research notes, appendix A)."""

import anyio
import pytest

from fairlane.quotas.limits import Limits
from fairlane.quotas.store import Charge, Denied, Need
from tests.support.quotas.house import START_MS, House, ask, charge, one, refused

pytestmark = pytest.mark.anyio


def need(published: int, known: int, *, stuck: bool = False) -> Need:
    """More for a job of one choice, 64 tokens at a time."""
    return Need(published=published, prompt_tokens=1_000, known=known, most=1_000, quantum=64, stuck=stuck)


async def test_a1_usage_beyond_the_reservation_is_charged_though_the_budget_can_not_hold_it(house: House) -> None:
    """Elsewhere the overage was consumed all-or-nothing: over the balance, nothing was charged."""
    await house.tenant(Limits(tokens_per_day=35))
    await house.store.reserve(ask())

    assert (await house.store.settle("acme", "f1", charge(output_tokens=500))).first

    status = await one(house, "tokens_per_day")
    assert (status.used, status.reserved, status.remaining) == (510, 0, 0)


async def test_a1_what_was_published_beyond_an_extension_is_charged_too(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=100))
    await house.store.reserve(ask(max_output_tokens=1_000, quantum=64, explicit_max=False))
    await house.store.extend("acme", "f1", need(60, 64))  # holds all that is left: 90

    await house.store.settle("acme", "f1", charge(output_tokens=500))

    status = await one(house, "tokens_per_day")
    assert (status.used, status.reserved, status.remaining) == (510, 0, 0)


async def test_a2_a_refund_does_not_land_in_another_window_than_its_reservation(house: House) -> None:
    """Elsewhere it was credited to whatever window was current: extra admissions."""
    await house.tenant(Limits(requests_per_minute=2, tokens_per_minute=60))
    await house.store.reserve(ask("old"))
    await house.set_clock(START_MS + 90_000)
    await house.store.reserve(ask("f1"))

    await house.store.settle("acme", "old", Charge.refund())

    assert (await one(house, "requests_per_minute")).used == 1
    assert (await one(house, "tokens_per_minute")).reserved == 30
    await house.store.reserve(ask("f2"))
    assert (await refused(house)).status.used == 2


async def test_a2_what_an_extension_held_and_nobody_used_lands_in_no_window(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=1_000))
    await house.store.reserve(ask("old", max_output_tokens=1_000, quantum=64, explicit_max=False))
    await house.store.extend("acme", "old", need(40, 64))
    await house.set_clock(START_MS + 90_000)
    await house.store.reserve(ask("f1"))

    await house.store.settle("acme", "old", charge(output_tokens=45))

    status = await one(house, "tokens_per_minute")
    assert (status.used, status.reserved) == (5, 30)


async def test_a3_output_over_the_limit_weighs_on_the_next_request(house: House) -> None:
    """Elsewhere the output bucket could not go negative, and long answers were free."""
    await house.tenant(Limits(output_tokens_per_minute=100))
    await house.store.reserve(ask())
    await house.store.settle("acme", "f1", charge(output_tokens=150))

    await house.set_clock(START_MS + 30_000)
    denied = await refused(house)

    assert (denied.status.used, denied.retry_after_s) == (150, 30.25)


async def test_a3_output_over_the_limit_weighs_on_the_extensions_of_others(house: House) -> None:
    await house.tenant(Limits(output_tokens_per_minute=100))
    for reservation_id in ("long", "other"):
        await house.store.reserve(ask(reservation_id, max_output_tokens=1_000, quantum=64, explicit_max=False))
    await house.store.settle("acme", "long", charge(output_tokens=150))

    found = await house.store.extend("acme", "other", need(12, 12, stuck=True))

    assert (found.granted_tokens, found.limited_by, found.paused) == (12, "output_tokens_per_minute", True)
    status = await one(house, "output_tokens_per_minute")
    assert (status.used, status.reserved) == (162, 0)


async def test_a4_concurrent_requests_never_pass_a_limit_together(house: House) -> None:
    """Elsewhere requests were counted by read, compare, then increment: two callers both passed."""
    await house.tenant(Limits(requests_per_minute=5))
    granted: list[str] = []

    async def attempt(reservation_id: str) -> None:
        try:
            await house.store.reserve(ask(reservation_id))
        except Denied:
            return
        granted.append(reservation_id)

    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(attempt, f"f{number}")

    assert len(granted) == 5
    assert (await one(house, "requests_per_minute")).used == 5


async def test_a4_concurrent_extensions_never_pass_a_limit_together(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=400))
    reservations = [f"f{number}" for number in range(5)]
    for reservation_id in reservations:
        await house.store.reserve(ask(reservation_id, max_output_tokens=1_000, quantum=64, explicit_max=False))
    held = dict.fromkeys(reservations, 64)

    async def extend(reservation_id: str) -> None:
        found = await house.store.extend("acme", reservation_id, need(held[reservation_id], held[reservation_id]))
        held[reservation_id] = found.granted_tokens

    for _ in range(3):
        async with anyio.create_task_group() as group:
            for reservation_id in reservations:
                group.start_soon(extend, reservation_id)

    status = await one(house, "tokens_per_day")
    assert sum(held.values()) + 5 * 10 == 400 == status.used + status.reserved


async def test_a4_leaving_a_name_out_does_not_leave_the_limit_out(house: House) -> None:
    """Elsewhere the tenant was what the caller wrote in `user`; without it there was no limit."""
    await house.tenant(Limits(requests_per_minute=1))
    await house.store.reserve(ask("f1", key_id=""))

    assert (await refused(house, key_id="")).status.scope == "tenant"
    with pytest.raises(ValueError, match="not empty"):
        ask("f2", tenant="")


async def test_a6_tokens_are_taken_when_they_are_promised_not_when_they_were_used(house: House) -> None:
    """Elsewhere `max_tokens` was compared with the balance and consumed only after the answer."""
    await house.tenant(Limits(tokens_per_minute=59))
    await house.store.reserve(ask("f1"))

    assert (await refused(house)).status.remaining == 29


async def test_a6_what_an_extension_promised_is_nobody_elses(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=200))
    await house.store.reserve(ask("f1", max_output_tokens=1_000, quantum=64, explicit_max=False))
    await house.store.extend("acme", "f1", need(40, 64))

    assert (await refused(house, max_output_tokens=53)).status.remaining == 62
    await house.store.reserve(ask("f2", max_output_tokens=52))


async def test_a7_a_sliding_minute_slides(house: House) -> None:
    """Elsewhere it was a fixed window: twice the limit around each edge."""
    await house.tenant(Limits(requests_per_minute=10))
    served: list[int] = []

    for now_ms in range(START_MS + 50_000, START_MS + 190_000, 1_000):
        await house.set_clock(now_ms)
        try:
            await house.store.reserve(ask(f"at-{now_ms}"))
            served.append(now_ms)
        except Denied:
            continue

    assert len(served) == 30
    assert max(sum(start <= at < start + 60_000 for at in served) for start in served) == 10


async def test_a11_a_stream_longer_than_the_window_is_charged_to_the_window_of_its_end(house: House) -> None:
    """Elsewhere a settle whose window had moved on was skipped: long streams were in no window at all."""
    await house.tenant(Limits(tokens_per_minute=100, tokens_per_day=100))
    await house.store.reserve(ask())

    await house.set_clock(START_MS + 600_000)
    during = await one(house, "tokens_per_minute")
    await house.store.settle("acme", "f1", charge())
    after = await one(house, "tokens_per_minute")

    assert (during.used, during.reserved) == (0, 30)
    assert (after.used, after.reserved) == (30, 0)
    assert (await one(house, "tokens_per_day")).used == 30


async def test_a11_a_stream_is_charged_in_each_window_what_came_in_it(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=1_000, tokens_per_day=1_000))
    await house.store.reserve(ask(max_output_tokens=1_000, quantum=64, explicit_max=False))
    used: list[int] = []

    for minute, published in enumerate((50, 100, 120), start=1):
        await house.set_clock(START_MS + minute * 90_000)
        await house.store.extend("acme", "f1", need(published, 64 * minute))
        used.append((await one(house, "tokens_per_minute")).used)
    await house.set_clock(START_MS + 4 * 90_000)
    await house.store.settle("acme", "f1", charge(output_tokens=130))
    used.append((await one(house, "tokens_per_minute")).used)

    assert used == [60, 50, 20, 10]
    assert (await one(house, "tokens_per_day")).used == 140


async def test_a12_a_request_refused_by_one_limit_counts_against_no_other(house: House) -> None:
    """Elsewhere a request that concurrency refused still used up a request per minute."""
    await house.tenant(Limits(requests_per_minute=10, concurrent_requests=1))
    await house.store.reserve(ask("f1"))

    for number in range(8):
        await refused(house, f"extra-{number}")

    assert (await one(house, "requests_per_minute")).used == 1


async def test_a12_a_request_that_the_queue_refuses_is_not_counted(house: House) -> None:
    await house.tenant(Limits(requests_per_minute=10))
    await house.store.reserve(ask("f1"))

    await house.store.settle("acme", "f1", Charge.refund())

    assert (await one(house, "requests_per_minute")).used == 0


async def test_a13_output_is_held_before_it_is_made(house: House) -> None:
    """Elsewhere input alone was reserved: long answers passed the limit together."""
    await house.tenant(Limits(output_tokens_per_minute=39))
    await house.store.reserve(ask("f1", prompts=(1,)))

    status = (await refused(house, prompts=(1,))).status

    assert (status.used, status.reserved, status.remaining) == (0, 20, 19)
