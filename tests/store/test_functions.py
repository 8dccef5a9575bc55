"""Libraries of functions: loaded by the first call, and dropped by a newer release."""

import pytest
import redis.asyncio

from fairlane.store.functions import Library
from tests.support.store.acl import administering, user_url

pytestmark = pytest.mark.anyio


def library(number: int) -> Library:
    return Library("fairlane_numbers", f"local NUMBER = {number}", {"number": "return NUMBER\n"}, {})


async def loaded(store: redis.asyncio.Redis) -> int:
    return len(await store.execute_command("FUNCTION LIST", "LIBRARYNAME", "fairlane_numbers_*"))  # type: ignore[no-untyped-call]


async def test_old_libraries_are_dropped_and_loaded_again_by_processes_that_use_them(
    store: redis.asyncio.Redis,
) -> None:
    old, new = library(1), library(2)
    assert [await each.call(store, "number", "key") for each in (old, new)] == [1, 2]

    await new.drop_others(store)

    assert await loaded(store) == 1
    assert [await each.call(store, "number", "key") for each in (new, old)] == [2, 1]
    assert await loaded(store) == 2


async def test_a_library_that_another_process_has_just_loaded_is_used(store: redis.asyncio.Redis) -> None:
    assert [await library(3)._load(store) for _ in range(2)] == [True, True]


async def test_a_store_that_forbids_functions_has_none_to_drop(valkey_url: str) -> None:
    with administering(valkey_url) as admin:
        async with redis.asyncio.from_url(user_url(admin, valkey_url, "+@all", "~*", "-function", "-fcall")) as user:
            await library(4).drop_others(user)
            assert await library(4).call(user, "number", "key") == 4
