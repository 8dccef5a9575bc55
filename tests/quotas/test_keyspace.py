"""The keys that are written, the scripts that write them, and the values that are let near them."""

import re

import msgspec
import pytest
import redis.asyncio

from fairlane.quotas import keyspace
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.audit import Audit, Note
from fairlane.quotas.erasure import DeletedTenant, TenantErasure
from fairlane.quotas.limits import BATCH_LIMIT, LIMIT_NAMES, RULES, Limits
from fairlane.quotas.packing import FIGURES
from fairlane.quotas.scripts import FUNCTIONS, LIBRARY, LUA, PARTS, Database
from fairlane.quotas.store import Charge
from fairlane.quotas.tenants import TenantStore
from tests.support.quotas.house import START_MS, RedisHouse, ask, charge


@pytest.fixture
async def house(store: redis.asyncio.Redis) -> RedisHouse:
    """The real store only, Valkey and Redis."""
    house = RedisHouse(store)
    await house.set_clock(START_MS)
    return house


@pytest.mark.anyio
async def test_a_day_that_is_over_is_kept_for_a_time(house: RedisHouse) -> None:
    await house.tenant(Limits())
    await house.store.reserve(ask())
    await house.store.settle("acme", "f1", charge())
    await house.set_clock(START_MS + 86_400_000)
    await house.store.reserve(ask("f2"))

    spent = f"{keyspace.of_root('acme')}spent:tenant:acme:2026-11"
    assert await house.client.hgetall(spent) == {b"21": b"30", b"month": b"30"}
    assert 31 * 86_400_000 < await house.client.pttl(spent) <= 70 * 86_400_000


@pytest.mark.anyio
async def test_a_minute_never_holds_more_than_its_slices(house: RedisHouse) -> None:
    await house.tenant(Limits())
    for number in range(600):
        await house.set_clock(START_MS + number * 250)
        await house.store.reserve(ask(f"f{number}"))
        await house.store.settle("acme", f"f{number}", charge())

    root = keyspace.of_root("acme")
    beside = (await house.client.strlen(f"{root}figures:tenant:acme") - FIGURES.size) // 32
    in_hash = await house.client.hlen(f"{root}minute:tenant:acme")

    assert beside <= 8
    assert beside + in_hash + 1 == 241
    assert 0 < await house.client.pttl(f"{root}minute:tenant:acme") <= 120_000


@pytest.mark.anyio
async def test_what_is_no_more_leaves_no_figures_for_ever(house: RedisHouse) -> None:
    tenants, keys = TenantStore(house.client), KeyStore(house.client)
    by = [{"lane": "latency", "limits": {"tokens_per_day": 100}}]
    tenant = await tenants.create({"id": "acme", "limits_by": by})
    key = (await keys.create(tenant, {"name": "k"})).key.id
    for name in ("f1", "f2"):
        await house.store.reserve(ask(name, key_id=key))
    levels = ("tenant:acme", f"key:{key}", "by:acme:latency:")
    names = [f"{keyspace.of_root('acme')}figures:{level}" for level in levels]
    alive = [await house.client.pttl(name) for name in names]

    await tenants.delete("acme")
    await house.store.settle("acme", "f1", charge())
    await TenantErasure(house.client).erase_keys(DeletedTenant(root="acme", account="acme"))
    gone = [await house.client.pttl(name) for name in names]
    await house.store.settle("acme", "f2", charge())
    settled = [await house.client.pttl(name) for name in names]

    assert alive == [-1, -1, -1]
    assert all(expires_ms > 0 for expires_ms in gone + settled)


@pytest.mark.anyio
async def test_all_keys_of_a_root_carry_its_hash_tag_and_stand_in_the_legend(house: RedisHouse) -> None:
    await TenantStore(house.client).create({"id": "other"})
    await house.tenant(Limits(tokens_per_day=1000))
    await house.key("k1", Limits(tokens_per_day=1000))
    await house.store.reserve(ask("f1", key_id="k1"))
    await house.store.reserve(ask("f2", key_id="k1"))
    await house.store.settle("acme", "f1", charge())
    await house.store.expired(10)
    await Audit(house.client).append(Note(actor="admin", action="worker.drain", target="w1", changes={}))

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


@pytest.mark.parametrize(("name", "text"), sorted(LUA.items()), ids=sorted(LUA))
def test_each_script_is_short_and_opens_with_its_contract(name: str, text: str) -> None:
    whole = PARTS.keys() | FUNCTIONS.keys()

    assert len(text.splitlines()) <= 200
    assert text.startswith("-- ")
    assert "KEYS[2]" not in text
    assert ("-- Precedes" in text) == (name not in whole)


def test_every_script_is_used_and_no_script_asks_for_the_time_but_the_clock() -> None:
    used = {part for parts in PARTS.values() for part in parts} | {*LIBRARY, *FUNCTIONS}

    assert used == LUA.keys()
    assert [name for name, text in LUA.items() if "'TIME'" in text] == ["clock"]


def test_the_scripts_have_the_rules_of_limits_py() -> None:
    text = LUA["records"]
    pattern = r"\{name = '(\w+)', window = '(\w+)', counts = \{(.*?)\}, kind = '(\w+)'\}"
    found = [(name, window, counts.replace("'", ""), kind) for name, window, counts, kind in re.findall(pattern, text)]

    assert found == [(rule.name, rule.window, ", ".join(rule.counts), rule.kind) for rule in RULES]
    assert {*LIMIT_NAMES} - {name for name, *_ in found} == {BATCH_LIMIT}  # which no request but a new batch meets


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
        ("reservation_id", ""),
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
