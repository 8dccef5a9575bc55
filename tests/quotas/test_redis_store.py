"""What only the real store has: its keys, its scripts, its troubles."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fairlane.quotas import keyspace
from fairlane.quotas.audit import Audit
from fairlane.quotas.ledger import Ledger
from fairlane.quotas.limits import Limits
from fairlane.quotas.packing import FIGURES, HELD, key_card
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.scripts import Database
from fairlane.quotas.store import TOMBSTONE_MS, AccessDenied, Charge, Denied
from fairlane.quotas.tenants import TenantStore
from fairlane.store.errors import StoreUnavailable
from tests.support.quotas.house import LEASE_MS, START_MS, RedisHouse, ask, charge
from tests.support.store import topology

pytestmark = pytest.mark.anyio
NEVER = Retry(NoBackoff(), 0)


@pytest.fixture
async def house(store: redis.asyncio.Redis) -> RedisHouse:
    """The real store only, Valkey and Redis."""
    house = RedisHouse(store)
    await house.set_clock(START_MS)
    return house


async def everything(client: redis.asyncio.Redis) -> dict[bytes | str, bytes | None]:
    """The whole content of the server."""
    return {key: await client.dump(key) for key in await client.keys()}


async def test_a_refusal_writes_nothing(house: RedisHouse) -> None:
    await house.tenant(Limits(tokens_per_minute=70, requests_per_minute=3, tokens_per_day=1000))
    await house.key("k1", Limits(concurrent_requests=1))
    await house.key("gone", Limits(), revoked=True)
    await house.store.reserve(ask("f1", key_id="k1"))
    await house.set_clock(START_MS + 90_000)  # slices have left, which a grant would tidy up
    before = await everything(house.client)

    for refused in (
        ask("f2", key_id="k1"),
        ask("f2", prompts=(1000,)),
        ask("f2", prompts=(60,), explicit_max=False),
        ask("f2", key_id="gone"),
    ):
        with pytest.raises((Denied, AccessDenied)):
            await house.store.reserve(refused)

    assert await everything(house.client) == before


async def test_looking_writes_nothing(house: RedisHouse) -> None:
    await house.tenant(Limits(tokens_per_minute=70))
    await house.store.reserve(ask())
    await house.set_clock(START_MS - 90_000)
    before = await everything(house.client)

    await house.store.statuses("acme", "acme")
    await Ledger(house.client).entries("acme", "acme")

    assert await everything(house.client) == before


async def test_a_settled_reservation_leaves_only_its_mark_and_what_was_used(house: RedisHouse) -> None:
    await house.tenant(Limits())
    await house.store.reserve(ask())
    await house.store.settle("acme", "f1", charge())

    root = keyspace.of_root("acme")
    mark: Any = await house.client.get(f"{root}reservation:f1")
    assert mark.startswith(b"settled")
    assert len(mark) < 40
    assert 0 < await house.client.pttl(f"{root}reservation:f1") <= TOMBSTONE_MS
    assert not await house.client.exists(f"{root}leases")
    figures: Any = await house.client.get(f"{root}figures:tenant:acme")
    assert FIGURES.unpack_from(figures)[HELD : HELD + 3] == (0, 0, 0)


async def test_a_key_of_another_tenant_of_the_same_root_is_turned_away(house: RedisHouse) -> None:
    await house.tenant(Limits())
    await house.key("k1", Limits())
    card = key_card("active", None, Limits(), "child")
    await house.client.set(f"{keyspace.of_root('acme')}card:key:k1", card)

    with pytest.raises(AccessDenied, match="revoked"):
        await house.store.reserve(ask(key_id="k1"))


async def test_after_a_flush_scripts_and_functions_are_loaded_again(house: RedisHouse) -> None:
    await house.tenant(Limits(tokens_per_day=100))
    await house.store.reserve(ask())
    await house.client.script_flush()
    await house.client.function_flush()

    assert await house.store.renew("acme", ["f1"]) == set()
    assert (await house.store.settle("acme", "f1", charge())).first


@pytest.mark.parametrize("forbidden", [("-function", "-fcall"), ("-function",), ("-fcall",)])
async def test_where_functions_are_forbidden_scripts_serve(
    house: RedisHouse, store_url: str, forbidden: tuple[str, ...]
) -> None:
    await house.tenant(Limits(tokens_per_day=100))
    await house.client.function_flush()
    await house.client.acl_setuser("bounded", enabled=True, nopass=True, keys=["*"], categories=["+@all"])
    await house.client.execute_command("ACL", "SETUSER", "bounded", *forbidden)  # type: ignore[no-untyped-call]
    client = topology.client(store_url, username="bounded", password="any")
    store = RedisQuotaStore(client)

    reservation = await store.reserve(ask())
    settled = await store.settle("acme", "f1", charge())
    await client.aclose()
    await house.client.acl_deluser("bounded")

    assert reservation.statuses[0].reserved == 30
    assert settled.statuses is not None
    assert (settled.first, settled.statuses[0].used) == (True, 30)


async def test_a_client_that_decodes_replies_serves_as_well(store_url: str) -> None:
    client = topology.client(store_url, decode_responses=True)
    await TenantStore(client).create({"id": "acme", "limits": {"tokens_per_day": 100}})
    store = RedisQuotaStore(client)

    reservation = await store.reserve(ask())

    assert reservation.statuses[0].reserved == 30
    await client.aclose()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_both_protocols_of_redis_serve(store_url: str, protocol: int) -> None:
    client = topology.client(store_url, protocol=protocol)
    await TenantStore(client).create({"id": "acme", "limits": {"tokens_per_day": 100}})
    store = RedisQuotaStore(client)

    await store.reserve(ask())
    await store.settle("acme", "f1", charge())

    assert [tenant.id for tenant in await TenantStore(client).list()] == ["acme"]
    assert (await Ledger(client).entries("acme", "acme"))[0].output_tokens == 20
    assert await store.expired(10) == []
    await client.aclose()


async def test_the_servers_clock_decides_and_no_argument_carries_a_time(store: redis.asyncio.Redis) -> None:
    await TenantStore(store).create({"id": "acme", "limits": {"requests_per_minute": 5}})
    served = RedisQuotaStore(store)
    seconds, _ = await store.time()

    (status,) = (await served.reserve(ask())).statuses

    assert status.resets_at is not None
    assert 60 <= status.resets_at - int(seconds) <= 62


@pytest.fixture
async def nobody_there(tmp_path: Path) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis(unix_socket_path=str(tmp_path / "no.sock"), retry=NEVER)
    yield client
    await client.aclose()


async def test_a_store_that_is_away_is_unavailable_in_every_call(nobody_there: redis.asyncio.Redis) -> None:
    store = RedisQuotaStore(nobody_there)
    tenants = TenantStore(nobody_there)

    for call in (
        store.reserve(ask()),
        store.settle("acme", "f1", charge()),
        store.renew("acme", ["f1"]),
        store.expired(10),
        store.statuses("acme", "acme"),
        tenants.get("acme"),
        Audit(nobody_there).list(),
    ):
        with pytest.raises(StoreUnavailable):
            await call


async def test_a_store_that_does_not_answer_is_unavailable_after_the_clients_time_limit(tmp_path: Path) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    path = str(tmp_path / "mute.sock")
    async with await asyncio.start_unix_server(say_nothing, path):
        client = redis.asyncio.Redis(unix_socket_path=path, socket_timeout=0.05, retry=NEVER)
        with pytest.raises(StoreUnavailable, match="settle: "):
            await RedisQuotaStore(client).settle("acme", "f1", Charge.refund())
        await client.aclose()


async def test_a_store_that_refuses_to_write_is_unavailable(house: RedisHouse) -> None:
    await house.tenant(Limits())
    await house.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable):
            await house.store.reserve(ask())
    finally:
        await house.client.config_set("maxmemory", 0)

    assert await house.store.reserve(ask())


async def test_a_reservation_cut_off_by_a_time_limit_is_given_back_by_the_refund_that_follows(
    house: RedisHouse, store_url: str
) -> None:
    """The store is held up, so the caller gives up; the reservation then runs all the same."""
    await house.tenant(Limits(tokens_per_day=100, requests_per_minute=5))
    await house.store.statuses("acme", "acme")
    hasty = topology.client(store_url, socket_timeout=0.1, retry=NEVER)
    given_up = RedisHouse(hasty)
    await given_up.store.reserve(ask("warm"))
    await given_up.store.settle("acme", "warm", Charge.refund())

    await house.client.execute_command("CLIENT", "PAUSE", 400, "ALL")  # type: ignore[no-untyped-call]
    with pytest.raises(StoreUnavailable):
        await given_up.store.reserve(ask("f1"))
    await house.store.settle("acme", "f1", Charge.refund())

    statuses = await house.store.statuses("acme", "acme")
    assert [(status.used, status.reserved) for status in statuses] == [(0, 0), (0, 0)]
    await hasty.aclose()


@pytest.mark.parametrize("lease_ms", [0, -1, 600_001])
async def test_a_lease_must_be_one(store: redis.asyncio.Redis, lease_ms: int) -> None:
    with pytest.raises(ValueError, match="lease_ms"):
        RedisQuotaStore(store, lease_ms=lease_ms)


async def test_a_root_that_was_quiet_for_a_day_is_looked_at_no_more(house: RedisHouse) -> None:
    await house.tenant(Limits())
    await house.store.reserve(ask())
    long_ago = START_MS - 10 * 86_400_000
    await house.client.zadd(keyspace.ROOTS, {"acme": long_ago})

    await house.store.expired(10)
    in_the_air = await house.client.zscore(keyspace.ROOTS, "acme")
    await house.store.settle("acme", "f1", charge())
    await house.store.expired(10)

    assert in_the_air == long_ago
    assert await house.client.zscore(keyspace.ROOTS, "acme") is None


async def test_looking_for_lapsed_reservations_goes_round_all_roots(
    house: RedisHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.quotas.upkeep.ROOTS_PER_LOOK", 2)
    for number in range(5):
        await house.tenant(Limits(), tenant=f"t{number}")
        await house.store.reserve(ask(f"f{number}", root=f"t{number}", tenant=f"t{number}"))
    for now_ms in range(START_MS, START_MS + LEASE_MS, 10_000):
        await house.set_clock(now_ms)
        await house.store.expired(10)
    await house.set_clock(START_MS + LEASE_MS)

    found = set()
    for _ in range(4):
        found |= {lapsed.reservation_id for lapsed in await house.store.expired(10)}

    assert found == {"f0", "f1", "f2", "f3", "f4"}


async def test_a_lease_whose_reservation_the_store_has_lost_is_forgotten(house: RedisHouse) -> None:
    await house.tenant(Limits())
    await house.store.reserve(ask())
    await house.client.delete(f"{keyspace.of_root('acme')}reservation:f1")
    await house.client.zadd(f"{keyspace.of_root('acme')}leases", {"f1": START_MS - 1})

    assert await house.store.expired(10) == []
    assert not await house.client.exists(f"{keyspace.of_root('acme')}leases")


async def test_without_a_reservation_in_the_air_nothing_stays_reserved_whatever_was_lost(house: RedisHouse) -> None:
    await house.tenant(Limits(tokens_per_day=100))
    await house.store.reserve(ask())
    figures = f"{keyspace.of_root('acme')}figures:tenant:acme"
    await house.client.setrange(figures, 8 * (HELD + 2), struct.pack("<d", 70))

    await house.store.settle("acme", "f1", charge())

    (status,) = await house.store.statuses("acme", "acme")
    assert status.reserved == 0


async def test_a_plain_command_that_the_store_refuses_is_unavailable(store: redis.asyncio.Redis) -> None:
    await store.set("text", "x")
    with pytest.raises(StoreUnavailable, match="LPUSH: ResponseError"):
        await Database(store).call("LPUSH", "text", "y")
