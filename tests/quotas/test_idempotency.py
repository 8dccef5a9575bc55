"""Records of requests with an idempotency key: one owner at a time, one end, 24 hours, bounded."""

import zlib

import pytest
import redis.asyncio

from fairlane.common.seal import Seal
from fairlane.quotas import keyspace
from fairlane.quotas.idempotency import Begun, EndedRun, IdempotencyRecords, LineCharge, Name, OwnedRun
from fairlane.quotas.limits import Limits
from fairlane.quotas.scripts import Database
from fairlane.quotas.store import Charge, Once
from tests.support.quotas.house import LEASE_MS, START_MS, RedisHouse, ask, clock_lua, set_clock

pytestmark = pytest.mark.anyio

NAME = Name("acme", "k1", "d1")
HOUR_MS = 3_600_000
MOST_RUNS = 8
SAID = b"data: the same again and again\n\n" * 50
SEAL = Seal("fl-k1-secret")
ENDED = EndedRun(status=200, headers=(("content-type", "text/event-stream"),), body=SAID)


@pytest.fixture
async def client(store: "redis.asyncio.Redis") -> "redis.asyncio.Redis":
    await set_clock(store, START_MS)
    return store


class Records(IdempotencyRecords):
    """Of a caller with an API key."""

    async def begin(self, name: Name, owner: str, fingerprint: str, seal: Seal | None = SEAL) -> Begun:
        return await super().begin(name, owner, fingerprint, seal)

    async def finish(self, name: Name, owner: str, ended: EndedRun, seal: Seal | None = SEAL) -> bool:
        return await super().finish(name, owner, ended, seal)


def records_of(client: "redis.asyncio.Redis", *, most_bytes: int = 10**6, most: int = 1000) -> Records:
    database = Database(client, clock=clock_lua(client))
    return Records(client, lease_ms=LEASE_MS, most_bytes=most_bytes, most_records=most, database=database)


@pytest.fixture
def records(client: "redis.asyncio.Redis") -> Records:
    return records_of(client)


async def ended(records: Records, name: Name, body: bytes = SAID) -> None:
    """Begin a request and end it."""
    assert isinstance(await records.begin(name, "owner", "print"), OwnedRun)
    assert await records.finish(name, "owner", EndedRun(status=200, headers=(), body=body))


async def answer_of(records: Records, name: Name) -> bytes | None:
    """The answer of a request that has ended."""
    found = await records.begin(name, "asking", "print")
    assert isinstance(found, EndedRun)
    return found.body


async def test_the_first_owns_it_and_the_second_learns_that_it_runs(records: Records) -> None:
    assert isinstance(await records.begin(NAME, "a", "print"), OwnedRun)
    assert isinstance(await records.begin(NAME, "a", "print"), OwnedRun)  # the same call, sent twice

    assert await records.begin(NAME, "b", "print") == "running"


async def test_only_who_has_the_api_key_reads_what_was_answered(client: "redis.asyncio.Redis") -> None:
    records = records_of(client)
    await records.begin(NAME, "a", "print")
    await records.finish(NAME, "a", ENDED)

    kept = await Database(client).read_bytes(keyspace.idempotency("acme", "k1", "d1"), "body")
    assert kept is not None
    assert zlib.compress(SAID, 1) not in kept
    assert await records.begin(NAME, "b", "print") == ENDED
    other = await records.begin(NAME, "b", "print", Seal("fl-k1-another"))
    assert isinstance(other, EndedRun)
    assert other.body is None


async def test_of_a_caller_without_an_api_key_no_content_is_kept(records: Records) -> None:
    await records.begin(NAME, "a", "print", None)
    assert await records.finish(NAME, "a", ENDED, None)

    assert await records.begin(NAME, "b", "print", None) == EndedRun(status=200, headers=ENDED.headers, body=None)


async def test_an_answer_that_was_put_elsewhere_or_changed_is_none(client: "redis.asyncio.Redis") -> None:
    records, elsewhere = records_of(client), Name("acme", "k1", "d2")
    for name in (NAME, elsewhere):
        await ended(records, name, SAID + name.digest.encode())
    places = [keyspace.idempotency("acme", "k1", name.digest) for name in (NAME, elsewhere)]
    kept = await Database(client).read_bytes(places[0], "body")
    assert kept is not None
    await client.hset(places[1], "body", kept)
    await client.hset(places[0], "body", kept[:-40] + bytes([kept[-40] ^ 1]) + kept[-39:])

    assert await answer_of(records, NAME) is None
    assert await answer_of(records, elsewhere) is None


async def test_what_has_ended_is_told_to_all_who_ask_again(records: Records) -> None:
    await records.begin(NAME, "a", "print")

    assert await records.finish(NAME, "a", ENDED)
    assert await records.finish(
        NAME, "a", EndedRun(status=200, headers=(), body=b"other")
    )  # sent twice: the first holds

    assert await records.begin(NAME, "b", "print") == ENDED
    assert "same again" not in repr(ENDED)


async def test_another_request_conflicts_while_it_runs_and_after(records: Records) -> None:
    await records.begin(NAME, "a", "print")
    assert await records.begin(NAME, "b", "another") == "conflict"

    await records.finish(NAME, "a", ENDED)

    assert await records.begin(NAME, "b", "another") == "conflict"


async def test_a_name_is_the_api_keys_own(records: Records) -> None:
    await records.begin(NAME, "a", "print")

    assert isinstance(await records.begin(Name("acme", "k2", "d1"), "b", "another"), OwnedRun)
    assert isinstance(await records.begin(Name("other", "k1", "d1"), "b", "another"), OwnedRun)


async def test_what_was_released_begins_anew_as_any_request(records: Records) -> None:
    await records.begin(NAME, "a", "print")

    assert await records.release(NAME, "a")

    assert await records.release(NAME, "a")  # its reply was lost
    assert isinstance(await records.begin(NAME, "b", "another"), OwnedRun)


async def test_an_end_is_not_released(records: Records) -> None:
    await ended(records, NAME)

    assert not await records.release(NAME, "owner")
    assert await answer_of(records, NAME) == SAID


async def test_a_renewed_lease_holds_and_a_lapsed_one_goes_to_the_next(
    client: "redis.asyncio.Redis", records: Records
) -> None:
    await records.begin(NAME, "a", "print")
    await set_clock(client, START_MS + LEASE_MS - 1)
    assert await records.renew(NAME, "a")
    await set_clock(client, START_MS + LEASE_MS + 1)
    assert await records.begin(NAME, "b", "print") == "running"

    await set_clock(client, START_MS + 2 * LEASE_MS)
    assert await records.begin(NAME, "b", "another") == "conflict"
    assert isinstance(await records.begin(NAME, "b", "print"), OwnedRun)

    assert not await records.renew(NAME, "a")
    assert not await records.finish(NAME, "a", ENDED)
    assert not await records.release(NAME, "a")
    assert await records.begin(NAME, "c", "print") == "running"


async def test_an_owner_that_is_late_but_was_not_replaced_still_ends_it(
    client: "redis.asyncio.Redis", records: Records
) -> None:
    await records.begin(NAME, "a", "print")
    await set_clock(client, START_MS + 5 * LEASE_MS)

    assert await records.finish(NAME, "a", ENDED)

    assert await records.begin(NAME, "b", "print") == ENDED


async def test_a_record_is_gone_24_hours_after_it_began(client: "redis.asyncio.Redis", records: Records) -> None:
    await ended(records, NAME)
    key = keyspace.idempotency("acme", "k1", "d1")
    assert 23 * HOUR_MS < await client.pttl(key) <= 24 * HOUR_MS
    await set_clock(client, START_MS + 24 * HOUR_MS - 1)
    assert await answer_of(records, NAME) == SAID

    await set_clock(client, START_MS + 24 * HOUR_MS)

    assert isinstance(await records.begin(NAME, "b", "another"), OwnedRun)


async def test_what_is_gone_counts_no_more(client: "redis.asyncio.Redis", records: Records) -> None:
    await ended(records, NAME)
    await ended(records, Name("acme", "k1", "d2"))
    root = keyspace.of_root("acme")
    assert int(await client.hget(f"{root}kept:k1", "total") or 0) > 0

    await set_clock(client, START_MS + 24 * HOUR_MS)
    await records.begin(Name("acme", "k1", "d3"), "a", "print")

    assert await client.zcard(f"{root}idems:k1") == 1
    assert await client.zcard(f"{root}answers:k1") == 0
    assert await client.hgetall(f"{root}kept:k1") == {b"total": b"0"}


async def test_beyond_the_bytes_the_oldest_answers_are_forgotten_and_their_ends_known(
    client: "redis.asyncio.Redis",
) -> None:
    records, names = records_of(client, most_bytes=150), [Name("acme", "k1", f"d{number}") for number in range(5)]
    for number, name in enumerate(names):
        await set_clock(client, START_MS + number)
        await ended(records, name)

    found = [await answer_of(records, name) for name in names]

    assert found[0] is None
    assert found[-1] == SAID
    assert int(await client.hget(f"{keyspace.of_root('acme')}kept:k1", "total") or 0) <= 150


async def test_an_answer_over_the_bytes_is_not_kept_and_costs_no_other(client: "redis.asyncio.Redis") -> None:
    records, other = records_of(client, most_bytes=150), Name("acme", "k1", "d2")
    await ended(records, NAME)

    await ended(records, other, bytes(index * index % 251 for index in range(1000)))

    assert await answer_of(records, other) is None
    assert await answer_of(records, NAME) == SAID


async def test_beyond_the_most_records_the_oldest_is_forgotten(client: "redis.asyncio.Redis") -> None:
    records = records_of(client, most=3)
    for number in range(5):
        await set_clock(client, START_MS + number)
        await ended(records, Name("acme", "k1", f"d{number}"))

    assert await client.zcard(f"{keyspace.of_root('acme')}idems:k1") == 3
    assert await answer_of(records, Name("acme", "k1", "d4")) == SAID
    assert isinstance(await records.begin(Name("acme", "k1", "d0"), "b", "another"), OwnedRun)


async def test_the_charges_of_a_batch_line_are_those_of_all_its_runs(
    client: "redis.asyncio.Redis", records: Records
) -> None:
    house, once = RedisHouse(client), Once("batch_1:7", START_MS + 24 * HOUR_MS)
    await house.tenant(Limits())
    for run in ("f1", "f2"):
        await house.store.reserve(ask(run, once=once, is_batch=True))
    await house.store.settle(
        "acme", "f1", Charge(outcome="cancelled", prompt_tokens=10, cached_tokens=4, output_tokens=5)
    )
    before = await records.charges("acme", ["batch_1:6", once.name])
    await house.store.settle("acme", "f2", Charge(outcome="cancelled", prompt_tokens=10, output_tokens=8))

    [after] = await records.charges("acme", [once.name])

    assert before == [LineCharge(0, 0, 0, is_open=False), LineCharge(10, 4, 5, is_open=True)]
    assert after == LineCharge(10, 4, 8, is_open=False)


async def test_who_runs_it_again_learns_of_the_runs_that_came_to_something(
    client: "redis.asyncio.Redis", records: Records
) -> None:
    house = RedisHouse(client)
    await house.tenant(Limits())
    first = await records.begin(NAME, "a", "print")
    assert isinstance(first, OwnedRun)
    assert (first.once.until_ms, first.runs) == (START_MS + 24 * HOUR_MS, ())

    for number in range(MOST_RUNS + 3):
        await set_clock(client, START_MS + number)
        await house.store.reserve(ask(f"f{number:02}", once=first.once))
    await house.store.settle("acme", "f10", Charge.refund())
    await records.release(NAME, "a")
    again, other = await records.begin(NAME, "b", "print"), await records.begin(Name("acme", "k2", "d1"), "b", "print")

    assert isinstance(again, OwnedRun)
    assert again.once.name == first.once.name
    assert again.runs == tuple(f"f{number:02}" for number in range(9, 2, -1))
    assert isinstance(other, OwnedRun)
    assert not other.runs


async def test_runs_are_known_no_longer_than_their_answer_is_missing(
    client: "redis.asyncio.Redis", records: Records
) -> None:
    house = RedisHouse(client)
    await house.tenant(Limits())
    mine = await records.begin(NAME, "a", "print")
    assert isinstance(mine, OwnedRun)
    await house.store.reserve(ask("f1", once=mine.once))
    (runs,) = [key async for key in client.scan_iter("*:runs:*")]
    assert 0 < await client.pttl(runs) <= 24 * HOUR_MS

    await records.finish(NAME, "a", ENDED)

    assert not await client.exists(runs)
