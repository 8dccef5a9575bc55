"""Hot tenants by rights that the gateway holds: fewer commands of the store, the same figures, the same refusals."""

from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from fairlane.gateway.pipeline import pools
from fairlane.quotas.escrow.transfers import Transfer, Transferred
from fairlane.quotas.ledger import Ledger
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Denied, Reservation
from fairlane.quotas.tenants import TenantStore
from fairlane.store.errors import StoreUnavailable
from tests.support.quotas.house import ask, charge
from tests.support.quotas.virtual_gateway import VirtualGateway, VirtualTime, commands
from tests.support.store import topology

pytestmark = pytest.mark.anyio


class Losing(RedisQuotaStore):
    """Loses the replies to transfers, while it is told to."""

    loses = False

    async def transfer(self, order: Transfer) -> Transferred:
        answer = await super().transfer(order)
        if self.loses:
            raise StoreUnavailable("transfer")
        return answer


@pytest.fixture
async def client(valkey_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    found = topology.client(valkey_url)
    yield found
    await found.aclose()


@pytest.fixture
def store(client: redis.asyncio.Redis) -> Losing:
    return Losing(client)


async def tenant(client: redis.asyncio.Redis, name: str = "acme", **limits: int) -> None:
    await TenantStore(client).create({"id": name, "limits": limits})


async def figures(store: RedisQuotaStore, name: str = "tokens_per_day") -> tuple[int, int]:
    found = {status.name: status for status in await store.statuses("acme", "acme")}
    return found[name].used, found[name].reserved


async def charged(client: redis.asyncio.Redis) -> dict[str, int]:
    """The ledger's entries by name, each of them once."""
    entries = await Ledger(client).entries("acme", "acme")
    found = {entry.reservation_id: entry.output_tokens for entry in entries}
    assert len(found) == len(entries)
    return found


@pytest.mark.parametrize(
    ("tenants", "output"), [(3, 48), (3, 256), pytest.param(1_000, 48, marks=pytest.mark.thorough)]
)
async def test_a_hot_tenant_costs_the_store_half_the_commands_a_request(
    client: redis.asyncio.Redis, store: Losing, valkey_url: str, tenants: int, output: int
) -> None:
    topology.one_master(valkey_url)  # the others count what they do for each other, too
    cost = []
    for number in range(tenants):
        await tenant(client, f"t{number}", tokens_per_minute=10**6)
    for gateway in (VirtualGateway.with_rights(store), VirtualGateway(store, VirtualTime())):
        await gateway.load(tenants, seconds=3.0 + output * 0.025, rate=5.0, output=output, token_s=0.025)
        before = await commands(client)
        requests = await gateway.load(tenants, seconds=6.0, rate=5.0, output=output, token_s=0.025)
        cost.append((await commands(client) - before) / requests)

    assert cost[0] <= 0.5 * cost[1]


async def test_everything_is_charged_once_and_nothing_stays_reserved(
    client: redis.asyncio.Redis, store: Losing
) -> None:
    await tenant(client, tokens_per_day=10**6)
    gateway = VirtualGateway.with_rights(store)
    await gateway.warm("acme")
    open_one, _ = await gateway.reserve("acme")
    assert gateway.escrowed.pools.unreported > 0

    statuses = await gateway.quotas.statuses("acme", "acme")

    assert [(status.used, status.reserved) for status in statuses] == [(900, 30)]
    await gateway.settle(open_one, 7)
    assert await figures(store) == (917, 0)
    assert len(await charged(client)) == 31


async def test_headers_count_down_by_what_was_held_and_charged(client: redis.asyncio.Redis, store: Losing) -> None:
    await tenant(client, tokens_per_day=10**6, requests_per_minute=1_000)
    gateway = VirtualGateway.with_rights(store)
    await gateway.warm("acme")

    asked, reservation = await gateway.reserve("acme")
    settled = await gateway.quotas.settle("acme", asked.reservation_id, charge(5))

    assert gateway.escrowed.pools.unreported > 0
    assert {status.name: status.remaining for status in reservation.statuses} == {
        "tokens_per_day": 10**6 - 930,
        "requests_per_minute": 1_000 - 31,
    }
    assert {status.name: status.remaining for status in settled.statuses or ()} == {
        "tokens_per_day": 10**6 - 915,
        "requests_per_minute": 1_000 - 31,
    }


async def test_a_request_is_not_refused_for_rights_of_its_own_gateway(
    client: redis.asyncio.Redis, store: Losing
) -> None:
    await tenant(client, tokens_per_day=3_000)
    gateway = VirtualGateway.with_rights(store)
    await gateway.warm("acme")
    assert (await figures(store))[1] > 0

    left = 3_000 - 900
    asked, _ = await gateway.reserve("acme", prompt=left - 20, output=20)

    assert await figures(store) == (900, left)
    with pytest.raises(Denied):
        await gateway.reserve("acme")
    await gateway.settle(asked, 20)
    assert await figures(store) == (3_000, 0)


async def test_a_gateway_taken_for_dead_charges_each_request_once(client: redis.asyncio.Redis, store: Losing) -> None:
    await tenant(client, tokens_per_day=10**6)
    gateway = VirtualGateway.with_rights(store)
    await gateway.warm("acme")
    before = await charged(client)
    ended, _ = await gateway.reserve("acme")
    going, _ = await gateway.reserve("acme")
    await gateway.settle(ended, 5)
    await client.delete(*await client.keys("fl:quota:{acme}:escrow:*"))  # as after a failover that lost it

    await gateway.sleep(0.6)
    await gateway.settle(going, 7)
    await gateway.escrowed.pools.aclose(timeout_s=5.0)

    after = await charged(client)
    assert {name: after[name] for name in after.keys() - before.keys()} == {
        **dict.fromkeys(after.keys() - before.keys() - {ended.reservation_id, going.reservation_id}, 20),
        ended.reservation_id: 5,
        going.reservation_id: 7,
    }
    assert len(after) == 32


async def test_a_lost_reply_is_asked_for_again(client: redis.asyncio.Redis, store: Losing) -> None:
    await tenant(client, tokens_per_day=10**6)
    gateway = VirtualGateway.with_rights(store)
    await gateway.warm("acme")
    store.loses = True
    for _ in range(3):
        asked, _ = await gateway.reserve("acme")
        await gateway.settle(asked, 20)
        await gateway.sleep(0.6)
    store.loses = False

    await gateway.escrowed.pools.aclose(timeout_s=5.0)

    assert await figures(store) == (33 * 30, 0)
    assert len(await charged(client)) == 33


async def test_rights_return_within_a_second_of_the_last_request(client: redis.asyncio.Redis, store: Losing) -> None:
    await tenant(client, tokens_per_day=10**6)
    gateway = VirtualGateway.with_rights(store)
    await gateway.warm("acme")

    for _ in range(4):
        await gateway.sleep(0.25)

    assert await figures(store) == (900, 0)
    assert gateway.escrowed.pools.count == 0


async def test_of_two_entries_of_a_pair_only_the_present_one_gets_a_pool(
    store: Losing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "MOST_PAIRS", 1)
    gateway = VirtualGateway.with_rights(store)
    reservation = Reservation(granted_tokens=20, most_tokens=20, statuses=())
    held = gateway.escrowed.pools
    removed, asked = held.of(ask("one")), ask("one")
    held.of(ask("other", model="other"))
    for _ in range(30):
        held.reserved(removed, asked, reservation)
        gateway.time.move(0.1)

    assert held.of(asked) is not removed
    assert held.count == 0


async def test_a_change_is_acknowledged_when_older_rights_are_over(client: redis.asyncio.Redis, store: Losing) -> None:
    await tenant(client, tokens_per_day=10**6)
    escrows, seconds = "fl:quota:{acme}:escrows", await client.time()
    until_ms = seconds[0] * 1_000 + seconds[1] // 1_000 + 60
    await client.zadd(escrows, {"0123456789abcdef": until_ms})

    await TenantStore(client).update("acme", {"limits": {"tokens_per_day": 10}})

    seconds = await client.time()
    assert seconds[0] * 1_000 + seconds[1] // 1_000 >= until_ms
