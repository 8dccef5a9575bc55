"""Responses that are kept: for their tenant alone, for a while, and bounded."""

import asyncio
import random
from collections import Counter

import pytest
import redis.asyncio

from fairlane.quotas.erasure import DeletedTenant, TenantErasure
from fairlane.quotas.responses import MOST_WAITING, KeptResponses
from fairlane.quotas.scripts import Database
from tests.support.quotas.house import START_MS, clock_lua, set_clock

pytestmark = pytest.mark.anyio

TTL_MS = 60_000
SAID = random.Random(1).randbytes(1000)
"""Nothing makes it shorter."""


class Shelf(KeptResponses):
    """With a clock of its own."""

    def __init__(self, client: "redis.asyncio.Redis", **bounds: int) -> None:
        self.client = client
        known = {"ttl_ms": TTL_MS, "most_bytes": 10**6, "most_response_bytes": 10**5, **bounds}
        super().__init__(client, database=Database(client, clock=clock_lua(client)), **known)

    async def put(self, *ids: str, tenant: str = "acme", content: bytes = SAID) -> list[bool]:
        return [await self.keep("root", tenant, response_id, content) for response_id in ids]

    async def found(self, *ids: str, tenant: str = "acme") -> list[str]:
        return [each for each in ids if await self.read("root", tenant, each) is not None]

    async def at(self, now_ms: int) -> None:
        await set_clock(self.client, now_ms)

    async def total(self, tenant: str = "acme") -> int:
        """Bytes that the store thinks are kept."""
        return int(await self.client.hget(f"fl:quota:{{root}}:responsebytes:{tenant}", "total") or 0)


@pytest.fixture
async def shelf(store: "redis.asyncio.Redis") -> Shelf:
    made = Shelf(store)
    await made.at(START_MS)
    return made


async def test_what_is_kept_is_read_by_its_tenant_alone(shelf: Shelf) -> None:
    assert await shelf.put("resp_1") == [True]

    assert await shelf.read("root", "acme", "resp_1") == SAID
    assert await shelf.read("root", "other", "resp_1") is None
    assert await shelf.read("elsewhere", "acme", "resp_1") is None
    assert await shelf.read("root", "acme", "resp_2") is None


async def test_what_is_forgotten_is_gone_once(shelf: Shelf) -> None:
    await shelf.put("resp_1", "resp_2")

    assert not await shelf.forget("root", "other", "resp_1")
    assert await shelf.forget("root", "acme", "resp_1")
    assert not await shelf.forget("root", "acme", "resp_1")
    assert await shelf.found("resp_1", "resp_2") == ["resp_2"]


async def test_every_key_goes_by_itself(shelf: Shelf) -> None:
    await shelf.put("resp_1")

    names = [key async for key in shelf.client.scan_iter("fl:quota:*response*")]
    assert len(names) == 3
    assert all([0 < await shelf.client.pttl(name) <= TTL_MS for name in names])


async def test_bytes_of_what_has_gone_by_itself_count_no_more(shelf: Shelf) -> None:
    await shelf.put("resp_1", "resp_2")
    before = await shelf.total()
    await shelf.at(START_MS + TTL_MS)

    await shelf.put("resp_3")

    assert await shelf.total() == before // 2


async def test_beyond_its_bytes_a_tenants_oldest_go(store: "redis.asyncio.Redis") -> None:
    shelf = Shelf(store, most_bytes=3 * len(SAID))
    for number, response_id in enumerate(("resp_1", "resp_2", "resp_3")):
        await shelf.at(START_MS + number)
        await shelf.put(response_id)
        await shelf.put("resp_1", tenant="other")

    assert await shelf.found("resp_1", "resp_2", "resp_3") == ["resp_2", "resp_3"]
    assert await shelf.total() <= 3 * len(SAID)
    assert await shelf.found("resp_1", tenant="other") == ["resp_1"]


async def test_beyond_its_number_a_tenants_oldest_go(store: "redis.asyncio.Redis") -> None:
    shelf = Shelf(store, most_responses=2)
    for number, response_id in enumerate(("resp_1", "resp_2", "resp_3")):
        await shelf.at(START_MS + number)
        await shelf.put(response_id)

    assert await shelf.found("resp_1", "resp_2", "resp_3") == ["resp_2", "resp_3"]


async def test_what_is_too_large_is_not_kept(store: "redis.asyncio.Redis") -> None:
    assert await Shelf(store, most_response_bytes=len(SAID) - 1).put("resp_1") == [False]
    assert await Shelf(store, most_bytes=10).put("resp_1") == [False]
    assert await Shelf(store, ttl_ms=0).put("resp_1") == [False]
    assert not [key async for key in store.scan_iter("*response*")]


async def test_keeping_twice_counts_once(shelf: Shelf) -> None:
    await shelf.put("resp_1")
    once = await shelf.total()

    await shelf.put("resp_1")

    assert await shelf.total() == once


async def test_what_was_changed_in_the_store_counts_as_not_kept(shelf: Shelf) -> None:
    await shelf.put("resp_1", "resp_2")
    one, two = sorted([key async for key in shelf.client.scan_iter("fl:quota:*response:*")])
    await shelf.client.hset(one, "body", await shelf.client.hget(two, "body"))

    assert len(await shelf.found("resp_1", "resp_2")) == 1


async def test_all_of_a_tenant_are_forgotten_together(shelf: Shelf) -> None:
    await shelf.put(*(f"resp_{number}" for number in range(5)))
    await shelf.put("resp_1", tenant="other")

    count = await TenantErasure(shelf.client).erase_responses(DeletedTenant(root="root", account="acme"))

    assert count == 5

    assert not [key async for key in shelf.client.scan_iter("*acme*")]
    assert await shelf.found("resp_1", tenant="other") == ["resp_1"]


async def test_a_store_that_evicted_the_index_keeps_responses_again(store: "redis.asyncio.Redis") -> None:
    shelf = Shelf(store, most_bytes=2 * len(SAID))
    await shelf.at(START_MS)
    await shelf.put("resp_1")
    await store.delete("fl:quota:{root}:responses:acme")

    assert await shelf.put("resp_2") == [True]
    assert await shelf.found("resp_2") == ["resp_2"]


async def test_changes_of_one_content_take_turns(shelf: Shelf) -> None:
    await shelf.put("conv_1", content=b"")
    made: list[bytes] = []

    async def add(letter: bytes) -> str:
        def change(content: bytes) -> bytes:
            made.append(letter)
            return content + letter

        return await shelf.change("root", "acme", "conv_1", change)

    outcomes = Counter(await asyncio.gather(*[add(b"%d" % (number % 10)) for number in range(MOST_WAITING + 5)]))

    assert outcomes == {"kept": MOST_WAITING, "contended": 5}
    assert await shelf.read("root", "acme", "conv_1") == b"".join(made)
    assert len(made) == MOST_WAITING  # none was made twice


async def test_a_change_is_made_again_where_another_gateway_was_faster(shelf: Shelf) -> None:
    await shelf.put("conv_1", content=b"")
    others = [Shelf(shelf.client) for _ in range(4)]

    async def add(at: Shelf, letter: bytes) -> str:
        return await at.change("root", "acme", "conv_1", lambda content: content + letter)

    assert {*await asyncio.gather(*[add(at, b"x") for at in others * 5])} == {"kept"}
    assert await shelf.read("root", "acme", "conv_1") == b"x" * 20
