"""What the ledger says of the requests that were settled."""

from datetime import date, timedelta

import pytest
import redis.asyncio

from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.ledger import Ledger, UsageSums
from fairlane.quotas.limits import Limits, Prices
from fairlane.quotas.store import Charge, Need, Once
from tests.support.quotas.house import START_MS, RedisHouse, ask, charge

pytestmark = pytest.mark.anyio
DAY = date(2026, 11, 21)


@pytest.fixture
async def house(store: redis.asyncio.Redis) -> RedisHouse:
    house = RedisHouse(store)
    await house.set_clock(START_MS)
    await house.tenant(Limits())
    for key_id in ("k1", "k2"):
        await house.key(key_id, Limits())
    return house


@pytest.fixture
def ledger(store: redis.asyncio.Redis) -> Ledger:
    return Ledger(store)


async def serve(
    house: RedisHouse, reservation_id: str, output_tokens: int, *, at_ms: int = START_MS, **asked: str
) -> None:
    await house.set_clock(at_ms)
    await house.store.reserve(ask(reservation_id, **asked))
    await house.store.settle(
        "acme",
        reservation_id,
        Charge(prompt_tokens=10, cached_tokens=4, output_tokens=output_tokens, outcome="finished", preemptions=2),
    )


async def serve_a_few(house: RedisHouse) -> None:
    await serve(house, "f1", 1, key_id="k1", model="smol", lane="latency")
    await serve(house, "f2", 2, key_id="k1", model="smol", lane="throughput")
    await serve(house, "f3", 4, key_id="k2", model="big", lane="throughput")
    await serve(house, "f4", 8, key_id="k2", model="smol", lane="throughput", at_ms=START_MS + 86_400_000)


async def test_usage_sums_all_that_was_settled(house: RedisHouse, ledger: Ledger) -> None:
    await serve_a_few(house)

    report = await ledger.usage("acme", "acme", DAY, DAY + timedelta(days=1))

    assert report.total == UsageSums(requests=4, prompt_tokens=40, cached_tokens=16, output_tokens=15)
    assert [(row.group, row.usage) for row in report.rows] == [({}, report.total)]


async def test_runs_of_one_request_are_entries_of_their_own_and_count_as_one(house: RedisHouse, ledger: Ledger) -> None:
    once = Once("k1:order:print", START_MS + 86_400_000)
    for reservation_id in ("f1", "f2", "f3"):
        await house.store.reserve(ask(reservation_id, once=once))
    await house.store.settle("acme", "f1", Charge.refund())
    await house.store.settle("acme", "f2", charge(2, outcome="cancelled"))
    await house.store.settle("acme", "f3", charge(5))
    await serve(house, "f4", 1)

    report = await ledger.usage("acme", "acme", DAY, DAY)

    assert report.total == UsageSums(requests=2, prompt_tokens=20, cached_tokens=4, output_tokens=6)
    entries = await ledger.entries("acme", "acme")
    assert [entry.reservation_id for entry in entries] == ["f2", "f3", "f4"]


async def test_a_request_that_runs_over_midnight_is_split_as_its_quotas_split_it(
    house: RedisHouse, ledger: Ledger
) -> None:
    await house.tenant(Limits(tokens_per_day=10_000, spend_per_day=10**9), timezone="Asia/Tokyo")
    prices, hour_ms = Prices(input=5, cached=2, output=7), 3_600_000
    midnight_ms = (START_MS // 86_400_000) * 86_400_000 + 15 * hour_ms  # of Tokyo
    used: list[tuple[int, int]] = []

    async def note_used() -> None:
        limits = {status.name: status.used for status in await house.store.statuses("acme", "acme")}
        used.append((limits["tokens_per_day"], limits["spend_per_day"]))

    await house.set_clock(midnight_ms - hour_ms)
    asked = ask("f1", max_output_tokens=1_000, quantum=64, explicit_max=False, prompts=(70,), prices=prices)
    await house.store.reserve(asked)
    for at_ms, published in ((midnight_ms - hour_ms, 40), (midnight_ms - 1, 50)):
        await house.set_clock(at_ms)
        await house.store.extend("acme", "f1", _need(published))
    await note_used()
    await house.set_clock(midnight_ms + hour_ms)
    await house.store.extend("acme", "f1", _need(75))
    await house.set_clock(midnight_ms + 25 * hour_ms)
    await house.store.extend("acme", "f1", _need(75))
    final = Charge(prompt_tokens=70, cached_tokens=30, output_tokens=80, outcome="finished")
    await house.store.settle("acme", "f1", final)
    await note_used()

    first = date.fromtimestamp(midnight_ms / 1e3 - 1)
    report = await ledger.usage("acme", "acme", first, first + timedelta(days=2), ["day"])
    days = [(row.usage.prompt_tokens, row.usage.output_tokens, row.usage.requests) for row in report.rows]
    assert days == [(70, 50, 0), (0, 25, 0), (0, 5, 1)]
    assert used == [(120, report.rows[0].usage.spend), (5, report.rows[2].usage.spend)]
    assert report.total == UsageSums(
        requests=1, prompt_tokens=70, cached_tokens=30, output_tokens=80, spend=40 * 5 + 30 * 2 + 80 * 7
    )
    (entry,) = await ledger.entries("acme", "acme")
    assert (entry.prompt_tokens, entry.output_tokens, entry.spend) == (70, 80, report.total.spend)


def _need(published: int) -> Need:
    return Need(published=published, prompt_tokens=70, known=200, most=1_000, unit=1, quantum=64, stuck=False)


@pytest.mark.parametrize("final", [Charge.refund(), charge(0, 0, "cancelled"), charge(30), charge(40)])
async def test_what_was_charged_as_it_ran_stands_in_the_ledger_whatever_is_said_at_the_end(
    house: RedisHouse, ledger: Ledger, final: Charge
) -> None:
    await house.tenant(Limits(tokens_per_day=1_000))
    await house.store.reserve(ask(max_output_tokens=500, quantum=64))
    await house.store.extend("acme", "f1", Need(published=40, prompt_tokens=10, known=64, most=500, quantum=64))

    await house.store.settle("acme", "f1", final)

    [entry] = await ledger.entries("acme", "acme")
    usage = (await ledger.usage("acme", "acme", DAY, DAY)).total
    [status] = await house.store.statuses("acme", "acme")
    assert (entry.prompt_tokens, entry.output_tokens) == (usage.prompt_tokens, usage.output_tokens) == (10, 40)
    assert status.used == 50


@pytest.mark.parametrize(
    ("group_by", "expected"),
    [
        (["lane"], [({"lane": "latency"}, 1), ({"lane": "throughput"}, 14)]),
        (["model"], [({"model": "big"}, 4), ({"model": "smol"}, 11)]),
        (["key"], [({"key": "k1"}, 3), ({"key": "k2"}, 12)]),
        (["day"], [({"day": "2026-11-21"}, 7), ({"day": "2026-11-22"}, 8)]),
        (
            ["key", "lane"],
            [
                ({"key": "k1", "lane": "latency"}, 1),
                ({"key": "k1", "lane": "throughput"}, 2),
                ({"key": "k2", "lane": "throughput"}, 12),
            ],
        ),
        (
            ["lane", "model", "key", "day"],
            [
                ({"lane": "latency", "model": "smol", "key": "k1", "day": "2026-11-21"}, 1),
                ({"lane": "throughput", "model": "big", "key": "k2", "day": "2026-11-21"}, 4),
                ({"lane": "throughput", "model": "smol", "key": "k1", "day": "2026-11-21"}, 2),
                ({"lane": "throughput", "model": "smol", "key": "k2", "day": "2026-11-22"}, 8),
            ],
        ),
    ],
)
async def test_usage_groups_by_what_is_asked_for(
    house: RedisHouse, ledger: Ledger, group_by: list[str], expected: list[tuple[dict[str, str], int]]
) -> None:
    await serve_a_few(house)

    report = await ledger.usage("acme", "acme", DAY, DAY + timedelta(days=1), group_by)

    assert [(row.group, row.usage.output_tokens) for row in report.rows] == expected
    assert sum(row.usage.requests for row in report.rows) == report.total.requests == 4


async def test_both_days_of_a_span_are_included_and_no_other(house: RedisHouse, ledger: Ledger) -> None:
    for number in range(5):
        await serve(house, f"f{number}", 2**number, at_ms=START_MS + number * 86_400_000)

    report = await ledger.usage("acme", "acme", DAY + timedelta(days=1), DAY + timedelta(days=3))

    assert report.total.output_tokens == 2 + 4 + 8


async def test_a_span_over_many_months_is_summed_whole(house: RedisHouse, ledger: Ledger) -> None:
    for number in range(0, 390, 30):
        await serve(house, f"f{number}", 1, at_ms=START_MS + number * 86_400_000)

    report = await ledger.usage("acme", "acme", DAY, DAY + timedelta(days=399), ["day"])

    assert (report.total.requests, len(report.rows)) == (13, 13)


async def test_days_are_those_of_the_tenants_zone(house: RedisHouse, ledger: Ledger) -> None:
    await house.tenant(Limits(), timezone="Pacific/Auckland")  # 13 hours ahead
    await serve(house, "f1", 1, at_ms=START_MS + 3_600_000)

    report = await ledger.usage("acme", "acme", DAY, DAY + timedelta(days=1), ["day"])

    assert [row.group for row in report.rows] == [{"day": "2026-11-22"}]


async def test_nothing_used_is_an_empty_report(house: RedisHouse, ledger: Ledger) -> None:
    report = await ledger.usage("acme", "acme", DAY, DAY, ["lane"])

    assert (report.rows, report.total) == ([], UsageSums())


@pytest.mark.parametrize("group_by", [["colour"], ["lane", ""], ["LANE"]])
async def test_an_unknown_group_is_refused(ledger: Ledger, group_by: list[str]) -> None:
    with pytest.raises(FieldError, match="group_by"):
        await ledger.usage("acme", "acme", DAY, DAY, group_by)


@pytest.mark.parametrize("days", [-1, 400, 10**5])
async def test_a_span_that_is_backwards_or_too_long_is_refused(ledger: Ledger, days: int) -> None:
    with pytest.raises(FieldError, match="to:"):
        await ledger.usage("acme", "acme", DAY, DAY + timedelta(days=days))


async def test_each_settled_request_is_one_entry(house: RedisHouse, ledger: Ledger) -> None:
    await serve_a_few(house)
    await house.store.settle("acme", "f1", charge())  # again: no second entry

    entries = await ledger.entries("acme", "acme")

    assert [entry.reservation_id for entry in entries] == ["f1", "f2", "f3", "f4"]
    first = entries[0]
    assert (first.at, first.key, first.model, first.lane) == (START_MS / 1000, "k1", "smol", "latency")
    assert (first.prompt_tokens, first.cached_tokens, first.output_tokens) == (10, 4, 1)
    assert (first.preemptions, first.outcome) == (2, "finished")


async def test_entries_are_read_page_by_page(house: RedisHouse, ledger: Ledger) -> None:
    await serve_a_few(house)

    first = await ledger.entries("acme", "acme", limit=3)
    second = await ledger.entries("acme", "acme", limit=3, after=first[-1].id)

    assert [entry.reservation_id for entry in second] == ["f4"]
    assert await ledger.entries("acme", "acme", after=second[-1].id) == []


async def test_a_refund_is_in_no_ledger(house: RedisHouse, ledger: Ledger) -> None:
    await house.store.reserve(ask())
    await house.store.settle("acme", "f1", Charge.refund())

    assert await ledger.entries("acme", "acme") == []
    assert (await ledger.usage("acme", "acme", DAY, DAY)).total == UsageSums()


async def test_a_cancelled_request_is_in_the_ledger_with_what_was_published(house: RedisHouse, ledger: Ledger) -> None:
    await house.store.reserve(ask())
    await house.store.settle("acme", "f1", charge(3, outcome="cancelled"))

    (entry,) = await ledger.entries("acme", "acme")
    assert (entry.outcome, entry.prompt_tokens, entry.output_tokens) == ("cancelled", 10, 3)
    assert (await ledger.usage("acme", "acme", DAY, DAY)).total.requests == 1


async def test_the_ledger_adds_up_to_the_budgets(house: RedisHouse, ledger: Ledger) -> None:
    await house.tenant(Limits(tokens_per_month=10**6))
    await serve_a_few(house)

    total = (await ledger.usage("acme", "acme", DAY, DAY + timedelta(days=5))).total
    (month,) = await house.store.statuses("acme", "acme")

    assert month.used == total.prompt_tokens + total.output_tokens


async def test_a_model_name_of_any_shape_keeps_its_group(house: RedisHouse, ledger: Ledger) -> None:
    await serve(house, "f1", 1, model="org/Model-1.5B: v2|x")

    report = await ledger.usage("acme", "acme", DAY, DAY, ["model", "key"])

    assert [row.group for row in report.rows] == [{"model": "org/Model-1.5B: v2|x", "key": ""}]
