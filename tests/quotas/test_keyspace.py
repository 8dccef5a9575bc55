"""The keys that are written, the scripts that write them, and the values that are let near them."""

import re
from pathlib import Path

import msgspec
import pytest
import redis.asyncio

from quotas import keyspace
from quotas.audit import Audit
from quotas.database import LUA, PARTS, Database
from quotas.limits import LIMIT_NAMES, RULES, Limits
from quotas.store import Charge
from quotas.tenants import TenantStore
from tests.quotas.house import START_MS, RedisHouse, ask, charge

SCRIPTS = sorted(LUA.glob("*.lua"))


@pytest.fixture
async def house(store: redis.asyncio.Redis) -> RedisHouse:
    """The real store only, Valkey and Redis."""
    house = RedisHouse(store)
    await house.set_clock(START_MS)
    return house


@pytest.mark.anyio
async def test_windows_expire_by_themselves(house: RedisHouse) -> None:
    await house.tenant(Limits())
    await house.store.reserve(ask())
    await house.store.settle("acme", "f1", charge())

    root = keyspace.of_root("acme")
    assert 0 < await house.client.pttl(f"{root}minute:tenant:acme") <= 120_000
    assert 0 < await house.client.pttl(f"{root}spent:tenant:acme:2026-11") <= 70 * 86_400_000


@pytest.mark.anyio
async def test_a_minute_never_holds_more_than_its_slices(house: RedisHouse) -> None:
    await house.tenant(Limits())
    for number in range(300):
        await house.set_clock(START_MS + number * 250)
        await house.store.reserve(ask(f"f{number}"))

    fields = await house.client.hlen(f"{keyspace.of_root('acme')}minute:tenant:acme")

    assert fields == 241 + 5


@pytest.mark.anyio
async def test_all_keys_of_a_root_carry_its_hash_tag_and_stand_in_the_legend(house: RedisHouse) -> None:
    await TenantStore(house.client).create({"id": "other"})
    await house.tenant(Limits(tokens_per_day=1000))
    await house.key("k1", Limits(tokens_per_day=1000))
    await house.store.reserve(ask("f1", key_id="k1"))
    await house.store.reserve(ask("f2", key_id="k1"))
    await house.store.settle("acme", "f1", charge())
    await house.store.expired(10)
    await Audit(house.client).append("admin", "tenant.create", "acme")

    kinds = set()
    for key in await Database(house.client).call("KEYS", "fl:*"):
        if key.startswith("fl:quota:"):
            found = re.fullmatch(r"fl:quota:\{(acme|other)\}:([a-z]+)(:.*)?", key)
            assert found is not None, key
            kinds.add(found[2])
        else:
            assert key in (keyspace.__doc__ or "")
    legend = set(re.findall(r"^        ([a-z]+)", keyspace.__doc__ or "", re.MULTILINE))
    assert kinds <= legend


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_each_script_is_short_and_opens_with_its_contract(path: Path) -> None:
    text = path.read_text()
    whole = {parts[-1] for parts in PARTS.values()}

    assert len(text.splitlines()) <= 60
    assert text.startswith("-- ")
    if path.stem in whole:
        assert all(word in text for word in ("-- KEYS[1]", "-- ARGV", "-- Returns", "Called by"))
        assert "KEYS[2]" not in text
    else:
        assert "Stands before" in text


def test_every_script_is_used_and_no_script_asks_for_the_time_but_the_clock() -> None:
    used = {part for parts in PARTS.values() for part in parts}

    assert used == {path.stem for path in SCRIPTS}
    assert [path.stem for path in SCRIPTS if "'TIME'" in path.read_text()] == ["clock"]


def test_the_scripts_have_the_rules_of_limits_py() -> None:
    text = (LUA / "rules.lua").read_text()
    pattern = r"\{name = '(\w+)', window = '(\w+)', counts = \{(.*?)\}, kind = '(\w+)'\}"
    found = [(name, window, counts.replace("'", ""), kind) for name, window, counts, kind in re.findall(pattern, text)]

    assert found == [(rule.name, rule.window, ", ".join(rule.counts), rule.kind) for rule in RULES]
    assert len(found) == len(LIMIT_NAMES)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompts", ()),
        ("prompts", (5, -1)),
        ("prompts", (10**9, 1)),
        ("max_output_tokens", 0),
        ("n", 0),
        ("n", 10_001),
        ("prompts", (1,) * 10_001),
        ("flight_id", ""),
        ("model", "a\tb"),
        ("lane", "la\nne"),
        ("tenant", ""),
    ],
)
def test_an_ask_that_can_not_be_one_is_an_error(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        msgspec.structs.replace(ask(), **{field: value})


@pytest.mark.parametrize("field", ["prompt_tokens", "cached_tokens", "output_tokens", "preemptions"])
def test_a_charge_that_can_not_be_one_is_an_error(field: str) -> None:
    fields = {"prompt_tokens": 1, "output_tokens": 1, field: -1}
    with pytest.raises(ValueError, match="must be from 0"):
        Charge(outcome="finished", **fields)
