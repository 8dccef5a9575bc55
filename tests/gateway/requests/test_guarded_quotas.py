"""Budgets while their store is away: admitted by mode and share, and charged there exactly once when it is back."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlane.gateway.pipeline import guarded_quotas
from fairlane.gateway.pipeline.guarded_quotas import LOOK_EVERY_S, TRUSTED_S, GuardedQuotas, Modes, RememberedKeys
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.delegated_keys import DelegatedKeys, Delegation
from fairlane.quotas.store import AlreadySettled, Charge, Denied, Need
from fairlane.quotas.tenants import Tenant, TenantStore
from fairlane.quotas.upkeep import GatewayPresence
from fairlane.store.connections import server
from fairlane.store.errors import StoreUnavailable
from tests.support.gateway.outage_bench import DONE, SHARE, Bench, ask
from tests.support.store import topology

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(store_url: str) -> AsyncIterator[Bench]:
    store = server(topology.one_master(store_url), timeout_s=20.0, limit=4)
    yield Bench(store)
    await store.aclose()


async def test_a_closed_limit_refuses_and_the_others_do_not_help(bench: Bench) -> None:
    modes = Modes("local_share", {"tokens_per_day": "fail_closed"})
    gateway = await bench.knowing(modes, tokens_per_day=1_000, tokens_per_minute=1_000)
    bench.leave()

    with pytest.raises(StoreUnavailable):
        await gateway.reserve(ask("a"))

    assert gateway.unreported == 0


async def test_who_is_not_known_is_refused(bench: Bench) -> None:
    gateway = await bench.knowing(SHARE, tokens_per_day=1_000)
    bench.leave()

    for unknown in (ask("a", tenant="other"), ask("a", key_id="other")):
        with pytest.raises(StoreUnavailable):
            await gateway.reserve(unknown)


@pytest.mark.parametrize("limit", ["tokens_per_minute", "tokens_per_day"])
async def test_a_share_is_the_limit_by_the_gateways_and_all_of_it_is_charged_once(bench: Bench, limit: str) -> None:
    gateway = await bench.knowing(SHARE, "gw2", "gw3", "gw4", **{limit: 100})
    bench.leave()

    reserved = await gateway.reserve(ask("a", output=15))
    assert reserved.granted_tokens == 15
    with pytest.raises(Denied) as denied:
        await gateway.reserve(ask("b", output=15))
    assert denied.value.status.limit == 25
    assert not denied.value.may_be_stored
    await gateway.settle("acme", "a", DONE)
    bench.come_back()
    for _ in range(3):
        await gateway.keep()

    assert await bench.figures() == {limit: (15, 0)}
    assert await bench.charged() == [("a", 10, 5)]
    assert gateway.unreported == 0


async def test_what_was_left_of_a_day_is_shared_not_the_whole_limit(bench: Bench) -> None:
    gateway = await bench.knowing(SHARE, tokens_per_day=100)
    await gateway.reserve(ask("used", output=50))
    await gateway.settle("acme", "used", Charge(prompt_tokens=10, output_tokens=50, outcome="finished"))
    bench.now_s += LOOK_EVERY_S
    await gateway.keep()
    bench.leave()

    with pytest.raises(Denied):
        await gateway.reserve(ask("much", output=31))
    await gateway.reserve(ask("fits", output=30))


async def test_a_store_that_flaps_gives_no_second_share(bench: Bench) -> None:
    gateway = await bench.knowing(SHARE, tokens_per_day=100)
    for number in range(4):
        bench.leave()
        admitted = await _admitted(gateway, f"flap-{number}")
        assert admitted == (number < 2)  # 40 tokens each
        bench.come_back()
        await gateway.keep()

    assert (await bench.figures())["tokens_per_day"] == (80, 0)


async def _admitted(gateway: GuardedQuotas, job_id: str) -> bool:
    try:
        await gateway.reserve(ask(job_id, output=30))
    except Denied:
        return False
    await gateway.settle("acme", job_id, Charge(prompt_tokens=10, output_tokens=30, outcome="finished"))
    return True


async def test_open_limits_admit_all_and_count_it(bench: Bench) -> None:
    gateway = await bench.knowing(Modes("fail_open"), tokens_per_minute=20, max_output_tokens=15)
    bench.leave()

    for number in range(5):
        await gateway.reserve(ask(str(number)))
        await gateway.settle("acme", str(number), DONE)
    with pytest.raises(Denied):  # a limit of a single request needs no store
        await gateway.reserve(ask("long", output=16))
    bench.come_back()
    await gateway.keep()

    assert (await bench.figures())["tokens_per_minute"] == (75, 0)
    assert len(await bench.charged()) == 5


async def test_a_reservation_whose_answer_was_lost_is_charged_once(bench: Bench) -> None:
    gateway = await bench.knowing(SHARE, tokens_per_day=100, concurrent_requests=9)
    bench.quotas.loses = "reserve"

    await gateway.reserve(ask("a"))
    assert (await bench.figures())["tokens_per_day"] == (0, 20)
    await gateway.settle("acme", "a", DONE)
    bench.quotas.loses = "settle"
    with pytest.raises(StoreUnavailable):
        await gateway.keep()
    await gateway.keep()

    assert await bench.figures() == {"tokens_per_day": (15, 0), "concurrent_requests": (0, 0)}
    assert await bench.charged() == [("a", 10, 5)]


async def test_a_root_that_cannot_be_charged_keeps_no_other_waiting(bench: Bench) -> None:
    gateway = await bench.knowing(SHARE, tokens_per_day=100)
    await TenantStore(bench.store.patient).create({"id": "beta", "limits": {"tokens_per_day": 100}})
    await gateway.reserve(ask("first", root="beta", tenant="beta"))
    await gateway.settle("beta", "first", Charge.refund())
    await gateway.keep()
    bench.leave()
    for root in ("acme", "beta"):
        for number in range(2):
            await gateway.reserve(ask(f"{root}-{number}", root=root, tenant=root))
            await gateway.settle(root, f"{root}-{number}", DONE)
    bench.come_back()
    bench.quotas.away_roots = {"acme"}

    with pytest.raises(StoreUnavailable):
        await gateway.keep()
    assert gateway.unreported == 2
    bench.quotas.away_roots = set()
    await gateway.keep()

    assert gateway.unreported == 0
    assert sorted(await bench.charged()) == [("acme-0", 10, 5), ("acme-1", 10, 5)]
    assert len(await bench.charged("beta")) == 2


async def test_a_job_goes_on_here_while_the_store_is_back_already(bench: Bench) -> None:
    gateway = await bench.knowing(SHARE, tokens_per_day=100)
    bench.leave()
    held = await gateway.reserve(ask("a", output=40, quantum=8))
    bench.come_back()
    await gateway.keep()

    need = Need(published=8, prompt_tokens=5, known=held.granted_tokens, most=40, quantum=8)
    assert (await gateway.extend("acme", "a", need)).granted_tokens == 16
    assert await gateway.renew("acme", ["a"]) == set()
    await gateway.settle("acme", "a", DONE)
    await gateway.keep()

    assert (await bench.figures())["tokens_per_day"] == (15, 0)
    with pytest.raises(AlreadySettled):
        await gateway.reserve(ask("a"))


async def test_a_tenant_that_went_meanwhile_is_charged_nothing(bench: Bench) -> None:
    gateway = await bench.knowing(SHARE, tokens_per_day=100)
    bench.leave()
    await gateway.reserve(ask("a"))
    await gateway.settle("acme", "a", DONE)
    bench.come_back()
    await TenantStore(bench.store.patient).delete("acme")

    await gateway.keep()

    assert gateway.unreported == 0
    assert await bench.figures() == {}


async def test_a_key_is_remembered_for_a_while_and_a_revoked_one_never(bench: Bench) -> None:
    tenant = await TenantStore(bench.store.patient).create({"id": "acme"})
    keys = KeyStore(bench.store.patient)
    made, ended = [await keys.create(tenant, {"name": name}) for name in ("made", "ended")]
    remembered = RememberedKeys(keys, clock=lambda: bench.now_s)
    for key in (made, ended):
        assert await remembered.lookup(key.secret) is not None
    await keys.revoke(tenant, ended.key.id)
    assert await remembered.lookup(ended.secret) is None
    bench.leave()

    found = await remembered.lookup(made.secret)
    assert found is not None
    assert found.key.id == made.key.id
    with pytest.raises(StoreUnavailable):
        await remembered.lookup(ended.secret)
    bench.now_s += TRUSTED_S + 1
    with pytest.raises(StoreUnavailable):
        await remembered.lookup(made.secret)


async def test_who_comes_through_others_is_remembered_as_keys_are(bench: Bench) -> None:
    tenant = await TenantStore(bench.store.patient).create({"id": "acme"})
    keys, delegated = KeyStore(bench.store.patient), DelegatedKeys(bench.store.patient)
    remembered = RememberedKeys(keys, delegated, clock=lambda: bench.now_s)
    ways = [Delegation(via=f"issuer:{name}", tenant="acme") for name in ("login", "ended", "never")]
    for way in ways[:2]:
        assert await remembered.identity(way) is not None
    await keys.revoke(tenant, ways[1].key_id)
    assert await remembered.identity(ways[1]) is None
    bench.leave()

    found = await remembered.identity(ways[0])
    assert found is not None
    assert found.key.via == "issuer:login"
    for way in ways[1:]:
        with pytest.raises(StoreUnavailable):
            await remembered.identity(way)


async def test_the_heartbeat_waits_for_no_look_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_quotas, "UPKEEP_EVERY_S", 0.0)
    await bench.knowing(SHARE)
    looking, beaten, beats = asyncio.Event(), asyncio.Event(), 0

    async def never_answers(tenant_id: str) -> Tenant | None:
        looking.set()
        await asyncio.Event().wait()
        return None

    class Counting(GatewayPresence):
        async def beat(self) -> tuple[int, int]:
            nonlocal beats
            beats += looking.is_set()
            if beats == 3:
                beaten.set()
            return await super().beat()

    presence = Counting(bench.store.patient, "gw")
    gateway = GuardedQuotas(bench.quotas, presence, never_answers, KeyStore(bench.store.patient).get, SHARE)
    await gateway.reserve(ask("a"))
    running = asyncio.create_task(gateway.run())
    async with asyncio.timeout(10):
        await beaten.wait()
    running.cancel()
    await asyncio.wait({running})


async def test_who_sends_nothing_for_long_is_looked_up_no_more(bench: Bench) -> None:
    """Its key would not be trusted without the store either."""
    looked_up, find = list[str](), TenantStore(bench.store.patient).get

    async def count(tenant_id: str) -> Tenant | None:
        looked_up.append(tenant_id)
        return await find(tenant_id)

    await bench.knowing(SHARE, tokens_per_day=1_000)
    presence, keys = GatewayPresence(bench.store.patient, "gw"), KeyStore(bench.store.patient)
    gateway = GuardedQuotas(bench.quotas, presence, count, keys.get, SHARE, clock=lambda: bench.now_s)
    await gateway.reserve(ask("a"))
    for _ in range(3):
        await gateway.keep()
        bench.now_s += TRUSTED_S / 2
    assert (looked_up, gateway.knows("acme")) == (["acme"] * 3, True)

    bench.now_s += 1
    for _ in range(3):
        await gateway.keep()
        bench.now_s += LOOK_EVERY_S

    assert (looked_up, gateway.knows("acme")) == (["acme"] * 3, False)


async def test_an_organisation_is_forgotten_with_the_last_tenant_below_it(bench: Bench) -> None:
    gateway, tenants = await bench.knowing(SHARE), TenantStore(bench.store.patient)
    await tenants.create({"id": "org"})
    await tenants.create({"id": "team", "parent": "org"})
    await gateway.reserve(ask("a", tenant="team", root="org"))
    await gateway.keep()
    assert (gateway.knows("team"), gateway.knows("org")) == (True, True)

    bench.now_s += TRUSTED_S + 1
    await gateway.keep()

    assert (gateway.knows("team"), gateway.knows("org")) == (False, False)


async def test_a_tenant_is_forgotten_with_the_last_of_its_keys(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_quotas, "REMEMBERED", 2)
    gateway, tenants, keys = await bench.knowing(SHARE), TenantStore(bench.store.patient), KeyStore(bench.store.patient)
    acme = await tenants.get("acme")
    assert acme is not None
    asks = [ask("keyed", key_id=(await keys.create(acme, {})).key.id)]
    for name in ("other", "third"):
        await tenants.create({"id": name})
        asks.append(ask(name, tenant=name, root=name))

    known = list[bool]()
    for each in asks:
        await gateway.reserve(each)
        await gateway.keep()
        known.append(gateway.knows("acme"))

    assert known == [True, True, False]
