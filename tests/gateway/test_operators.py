"""The operators' key, and those who guess at it."""

import asyncio

import pytest
import redis.asyncio

from fairlane.gateway.control.operators.admin_key import (
    FREE_GUESSES,
    GUESS_EVERY_S,
    LONGEST_HOLD_S,
    MOST_HELD,
    AdminKeys,
    Guesses,
)
from fairlane.gateway.control.operators.admin_tokens import AdminTokens
from fairlane.gateway.control.operators.operators import Operators
from fairlane.gateway.control.operators.sessions import Sessions
from fairlane.gateway.errors import ApiError

pytestmark = pytest.mark.anyio

KEY = "from-the-settings-0123456789abcdef"
SOON_S = 0.05
"""A held answer takes much longer, one that is not held much less."""


def operators(store: "redis.asyncio.Redis", keys: AdminKeys, guesses: Guesses | None = None) -> Operators:
    tokens = AdminTokens(store)
    return Operators(keys, tokens, Sessions(store, keys, tokens), guesses)


async def said(known: Operators, key: str, address: str = "10.0.0.7") -> str:
    """`ok`, or the code of the refusal."""
    try:
        await known.showing({"headers": [(b"authorization", f"Bearer {key}".encode())]}, address)
    except ApiError as error:
        return error.code
    return "ok"


async def passes(keys: AdminKeys, key: str) -> bool:
    return await keys.works(key)


async def is_held(guesses: Guesses, address: str) -> bool:
    try:
        async with asyncio.timeout(SOON_S):
            await guesses.slow(address)
    except TimeoutError:
        return True
    return False


async def test_the_admin_key_of_the_settings_is_the_only_one(store: "redis.asyncio.Redis") -> None:
    made = await AdminKeys(store, None).ensure()
    keys = AdminKeys(store, KEY)

    assert await keys.ensure() is None
    assert await passes(keys, KEY)
    assert made is not None
    assert not await passes(keys, made)


async def test_without_one_an_admin_key_is_made_once_and_kept_as_a_hash(store: "redis.asyncio.Redis") -> None:
    keys = AdminKeys(store, None)
    assert not await passes(keys, "anything")
    made = await keys.ensure()

    assert made is not None
    assert len(made) >= 32
    assert await AdminKeys(store, None).ensure() is None
    assert await passes(AdminKeys(store, None), made)
    assert not await passes(keys, made + "x")
    assert made.encode() not in (await store.get(AdminKeys.STORED_AT) or b"")


async def test_wrong_keys_of_an_address_wait_for_their_turn_and_are_refused_where_it_is_far_off() -> None:
    guesses = Guesses(clock=lambda: 0.0)
    for _ in range(FREE_GUESSES):
        await guesses.slow("10.0.0.7")

    held = [asyncio.create_task(guesses.slow("10.0.0.7")) for _ in range(int(LONGEST_HOLD_S / GUESS_EVERY_S))]
    await asyncio.wait(held, timeout=SOON_S)
    assert not any(task.done() for task in held)
    with pytest.raises(ApiError) as refused:
        await guesses.slow("10.0.0.7")
    assert refused.value.code == "rate_limit_exceeded"
    assert refused.value.retry_after_s == LONGEST_HOLD_S + GUESS_EVERY_S
    for task in held:
        task.cancel()


async def test_a_right_key_waits_for_nobody_s_guesses(store: "redis.asyncio.Redis") -> None:
    keys = operators(store, AdminKeys(store, KEY), Guesses(clock=lambda: 0.0))
    wrong = [asyncio.create_task(said(keys, "wrong")) for _ in range(100)]
    answered, held = await asyncio.wait(wrong, timeout=SOON_S)
    assert len(held) == LONGEST_HOLD_S / GUESS_EVERY_S
    assert sorted(task.result() for task in answered).count("invalid_api_key") == FREE_GUESSES

    for address in ("10.0.0.7", "10.0.0.8"):
        async with asyncio.timeout(SOON_S * 10):
            assert await said(keys, KEY, address) == "ok"
            if address != "10.0.0.7":
                assert await said(keys, "wrong", address) == "invalid_api_key"
    for task in wrong:
        task.cancel()


async def test_an_address_gets_its_free_guesses_back() -> None:
    now = 0.0
    guesses = Guesses(clock=lambda: now)
    for _ in range(FREE_GUESSES):
        await guesses.slow("10.0.0.7")
    assert await is_held(guesses, "10.0.0.7")

    now = 2 * FREE_GUESSES * GUESS_EVERY_S
    for _ in range(FREE_GUESSES):
        assert not await is_held(guesses, "10.0.0.7")


@pytest.mark.parametrize(
    ("other", "is_one"), [("2001:db8::ffff", True), ("2001:db8:0:1::1", False), ("::ffff:10.0.0.7", False)]
)
async def test_who_has_a_network_of_ipv6_has_one_bucket(other: str, is_one: bool) -> None:
    guesses = Guesses(clock=lambda: 0.0)
    for _ in range(FREE_GUESSES):
        await guesses.slow("2001:db8::1")

    assert await is_held(guesses, other) == is_one


async def test_held_answers_are_bounded_over_all_addresses() -> None:
    guesses = Guesses(free=0, clock=lambda: 0.0)
    held = [asyncio.create_task(guesses.slow(f"10.0.1.{number}")) for number in range(MOST_HELD)]
    await asyncio.sleep(0)

    with pytest.raises(ApiError):
        await guesses.slow("10.0.2.1")
    for task in held:
        task.cancel()
