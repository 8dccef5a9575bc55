"""Records in a real store: the ring is bounded, found by every name, listed in pages."""

from typing import Any

import pytest
import redis.asyncio

from fairlane.gateway.insight.request_records.record import (
    MOST_BYTES,
    RecordedEvent,
    RecordedPreemption,
    RequestRecord,
    decode,
    encode,
)
from fairlane.gateway.insight.request_records.storage import LOST_MS, EndedRecord, RecordStore
from fairlane.store.bounds import PER_CALL, chunks
from tests.support.gateway.admin_app import AdminBench

pytestmark = pytest.mark.anyio
NOW_S = 1_700_000_000.0


def record(number: int, **fields: Any) -> RequestRecord:
    """One that ended a second after the one before it."""
    known: dict[str, Any] = {
        "id": f"{number:024x}",
        "request_id": f"req-{number}",
        "tenant": "acme",
        "key": "k",
        "arrived_s": NOW_S + number,
        "model": "tiny",
        "lane": "latency",
        "state": "ended",
        "outcome": "finished",
        "total_ms": 500.0,
        "ttft_ms": 100.0 + number,
    }
    return RequestRecord(**{**known, **fields})


def ended(*records: RequestRecord, special: bool = False) -> list[EndedRecord]:
    return [EndedRecord(each, is_special=special) for each in records]


@pytest.fixture
async def store(bench: AdminBench) -> RecordStore:
    """As a gateway of its own has it, which keeps eight."""
    return RecordStore(bench.redis, "gw", most=8)


async def ids(bench: AdminBench, query: str = "") -> list[str]:
    page = await bench.done("GET", f"/requests?{query}")
    return [each["request_id"] for each in page["data"]]


async def test_the_last_of_them_stay_the_newest_first(bench: AdminBench, store: RecordStore) -> None:
    await store.write(ended(*map(record, range(20))), ())

    assert await ids(bench) == [f"req-{number}" for number in range(19, 11, -1)]
    assert await store.find("R/req-19") is not None
    assert await store.find("R/req-3") is None
    assert await bench.redis.hlen("fl:records:{requests}:docs") == 8
    assert await bench.redis.hlen("fl:records:{requests}:names") == 16


async def test_requests_that_run_are_read_in_pages(bench: AdminBench, store: RecordStore) -> None:
    many = [record(number, state="running") for number in range(5 * PER_CALL)]
    for part in chunks(many):
        await store.write((), part)
    await bench.redis.config_resetstat()

    running = await store.running()

    assert sorted(each.id for each in running) == [each.id for each in many]
    calls: Any = await bench.redis.info("commandstats")
    assert calls["cmdstat_hscan"]["calls"] >= 5
    assert "cmdstat_hgetall" not in calls


async def test_plain_ones_make_room_first_and_then_the_oldest(bench: AdminBench, store: RecordStore) -> None:
    await store.write(ended(*map(record, range(3)), special=True), ())
    await store.write(ended(*map(record, range(3, 20))), ())
    assert {"req-0", "req-1", "req-2"} < set(await ids(bench))

    await store.write(ended(*map(record, range(20, 40)), special=True), ())
    assert await ids(bench) == [f"req-{number}" for number in range(39, 31, -1)]


async def test_a_record_that_is_written_again_stands_there_once(bench: AdminBench, store: RecordStore) -> None:
    await store.write(ended(record(1)), ())
    await store.write(ended(record(1, outcome="failed"), special=True), ())

    [only] = (await bench.done("GET", "/requests"))["data"]
    assert only["outcome"] == "failed"
    assert await bench.redis.zcard("fl:records:{requests}:plain") == 0


async def test_a_repeated_name_means_the_newest_and_is_not_lost_with_an_older_one(
    bench: AdminBench, store: RecordStore
) -> None:
    await store.write(ended(record(1, request_id="same"), record(2, request_id="same")), ())
    await store.write(ended(*map(record, range(3, 10))), ())  # which leave no room for the first

    found = await bench.done("GET", "/requests/same")

    assert found["id"] == f"{2:024x}"


async def test_pages_hold_each_once(bench: AdminBench, store: RecordStore) -> None:
    await store.write(ended(*(record(number, arrived_s=NOW_S) for number in range(5))), ())  # all at once
    await store.write((), [record(9, state="running", outcome=None, total_ms=None)])

    found, after = [], ""
    for _ in range(10):
        page = await bench.done("GET", f"/requests?limit=2{after}")
        found += [each["request_id"] for each in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"

    assert found == ["req-9", "req-4", "req-3", "req-2", "req-1", "req-0"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("tenant=globex", ["req-2"]),
        ("lane=throughput", ["req-3"]),
        ("outcome=failed", ["req-1"]),
        ("state=running", ["req-4"]),
        ("state=ended&tenant=acme&lane=latency&outcome=finished", ["req-0"]),
        ("tenant=nobody", []),
    ],
)
async def test_lists_hold_what_is_asked_for(
    bench: AdminBench, store: RecordStore, query: str, expected: list[str]
) -> None:
    others = record(1, outcome="failed"), record(2, tenant="globex"), record(3, lane="throughput")
    await store.write(ended(record(0), *others), [record(4, state="running", outcome=None, total_ms=None)])

    assert await ids(bench, query) == expected


@pytest.mark.parametrize("slowest", ["ttft", "total", "queue"])
async def test_the_slowest_come_first_in_pages_too(bench: AdminBench, store: RecordStore, slowest: str) -> None:
    times = [30.0, 10.0, 50.0, 20.0, 40.0]
    fields = [{f"{slowest}_ms": took_ms} for took_ms in times]
    await store.write(ended(*(record(number, **each) for number, each in enumerate(fields))), ())
    await store.write(ended(record(7, ttft_ms=None, queue_ms=None, total_ms=1.0)), ())

    first = await bench.done("GET", f"/requests?slowest={slowest}&limit=3")
    rest = await bench.done("GET", f"/requests?slowest={slowest}&limit=3&after={first['last_id']}")

    told = [each[f"{slowest}_ms"] for each in [*first["data"], *rest["data"]]]
    assert told == [50.0, 40.0, 30.0, 20.0, 10.0] + [1.0] * (slowest == "total")
    assert (first["has_more"], rest["has_more"]) == (True, False)


@pytest.mark.parametrize("limit", ["1000001", "0", "-1", "many"])
async def test_nobody_gets_a_million_rows(bench: AdminBench, limit: str) -> None:
    assert await bench.refused("GET", f"/requests?limit={limit}") == (400, "invalid_request_error", "limit")


@pytest.mark.parametrize("query", ["after=x", "state=asleep", "slowest=me", "lane=fast", "outcome=good", "since=1"])
async def test_a_wish_that_means_nothing_is_refused(bench: AdminBench, query: str) -> None:
    assert await bench.refused("GET", f"/requests?{query}") == (400, "invalid_request_error", query.split("=")[0])


async def test_a_ring_of_thousands_is_read_in_parts(bench: AdminBench) -> None:
    store = RecordStore(bench.redis, "gw", most=1_000)
    for first in range(0, 700, 100):
        await store.write(
            ended(*(record(number, ttft_ms=float(number % 97)) for number in range(first, first + 100))), ()
        )

    page = await bench.done("GET", "/requests?limit=650")
    slowest = await bench.done("GET", "/requests?slowest=ttft&limit=8")

    assert [each["request_id"] for each in page["data"]] == [f"req-{number}" for number in range(699, 49, -1)]
    assert page["has_more"]
    assert [each["ttft_ms"] for each in slowest["data"]] == [96.0] * 7 + [95.0]


async def test_a_record_is_bounded_in_bytes() -> None:
    long = record(1)
    long.events = [RecordedEvent(float(number), "position", float(number)) for number in range(400)]
    long.preemptions = [
        RecordedPreemption(at_ms=1.0, mode="swap", tenant="t" * 63, request="r" * 24, lane="latency", resource="blocks")
        for _ in range(100)
    ]

    stored = encode(long)

    assert len(stored) <= MOST_BYTES
    kept = decode(stored)
    assert kept is not None
    assert kept.left_out == 500 - len(long.events) - len(long.preemptions)


async def test_requests_of_a_gateway_that_has_gone_silent_are_lost_and_in_the_end_forgotten(
    bench: AdminBench, store: RecordStore
) -> None:
    await store.write((), [record(1, state="running", outcome=None, total_ms=None)])
    silent: redis.asyncio.Redis = bench.redis
    await silent.zincrby("fl:records:{requests}:gateways", -(LOST_MS + 1_000), "gw")

    found = await bench.done("GET", "/requests/req-1")

    assert found["state"] == "lost"
    assert "gone silent" in found["why"]
    assert await ids(bench, "state=running") == []
    assert await silent.pttl("fl:records:{requests}:live:gw") > 0


async def test_who_settles_for_a_lost_gateway_does_not_speak_for_it(bench: AdminBench, store: RecordStore) -> None:
    running = [record(number, state="running", outcome=None, total_ms=None) for number in (1, 2)]
    await store.write((), running)
    await bench.redis.zincrby("fl:records:{requests}:gateways", -(LOST_MS + 1_000), "gw")

    await RecordStore(bench.redis, "other", most=8).settle_lost("gw", record(1, outcome="cancelled"))

    states = {each["request_id"]: each["state"] for each in (await bench.done("GET", "/requests"))["data"]}
    assert states == {"req-1": "ended", "req-2": "lost"}


async def test_a_gateway_that_leaves_takes_along_what_it_ran(bench: AdminBench, store: RecordStore) -> None:
    await store.write(ended(record(1)), [record(2, state="running", outcome=None, total_ms=None)])

    await store.leave()

    assert await ids(bench) == ["req-1"]


async def test_what_a_later_release_wrote_and_cannot_be_read_is_passed_over(
    bench: AdminBench, store: RecordStore
) -> None:
    await store.write(ended(record(1), record(2)), ())
    await bench.redis.hset("fl:records:{requests}:docs", f"{2:024x}", b"0:\xc1")

    assert await ids(bench) == ["req-1"]
    assert await bench.refused("GET", "/requests/req-2") == (404, "not_found", None)
