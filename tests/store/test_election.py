"""One of the processes that share a store is elected, and a dead one is replaced when its lease ends."""

import asyncio

import pytest
import redis.asyncio

from fairlane.store.election import Election

pytestmark = pytest.mark.anyio

KEY = "fl:{test}:upkeep"


async def test_one_of_all_is_elected_and_stays_so(store: redis.asyncio.Redis) -> None:
    ones = [Election(store, KEY, name, lease_s=60.0) for name in ("a", "b", "c")]
    for one in [*ones, *ones]:
        await one.stand()

    assert [one.is_elected for one in ones] == [True, False, False]


async def test_who_leaves_is_followed_at_once(store: redis.asyncio.Redis) -> None:
    first, second = (Election(store, KEY, name, lease_s=60.0) for name in ("a", "b"))
    await first.stand()
    await first.leave()
    await second.stand()
    await first.leave()  # of what is another's now

    await second.stand()
    assert (first.is_elected, second.is_elected) == (False, True)


async def test_who_dies_is_followed_within_its_lease(store: redis.asyncio.Redis) -> None:
    dead, other = (Election(store, KEY, name, lease_s=0.2) for name in ("a", "b"))
    await dead.stand()
    assert 0 < await store.pttl(KEY) <= 200

    async with asyncio.timeout(5):
        while not other.is_elected:
            await other.stand()


async def test_who_is_not_fit_does_not_stand(store: redis.asyncio.Redis) -> None:
    unfit = Election(store, KEY, "a", lease_s=60.0, is_fit=lambda: False)
    await unfit.stand()

    assert not unfit.is_elected


async def test_who_does_not_reach_the_store_is_elected_no_longer_than_its_lease(store: redis.asyncio.Redis) -> None:
    now_s = 100.0
    one = Election(store, KEY, "a", lease_s=3.0, clock=lambda: now_s)
    await one.stand()
    now_s += 3.0

    assert not one.is_elected
