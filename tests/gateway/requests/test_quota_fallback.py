"""What gateways admit without the budgets' store, added up over all of them, and how far it goes past a limit."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from fairlane.gateway.pipeline.guarded_quotas import LOOK_EVERY_S, GuardedQuotas, Modes
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Charge, Denied
from fairlane.quotas.tenants import TenantStore
from fairlane.quotas.upkeep import GatewayPresence
from fairlane.store.connections import ServerConnections, server
from tests.support.gateway.outage_bench import DONE, SHARE, Bench, ask
from tests.support.quotas.house import CLOCK_KEY, CLOCK_LUA, START_MS
from tests.support.store import topology

pytestmark = pytest.mark.anyio


@pytest.fixture
async def connected(valkey_url: str) -> AsyncIterator[ServerConnections]:
    store = server(topology.one_master(valkey_url), timeout_s=20.0, limit=4)
    yield store
    await store.aclose()


@pytest.fixture
def bench(connected: ServerConnections) -> Bench:
    return Bench(connected)


async def test_a_spent_day_of_one_model_stays_spent(bench: Bench) -> None:
    by = [
        {"model": "tiny", "limits": {"tokens_per_day": 20}},
        {"model": "tiny", "lane": "latency", "limits": {"tokens_per_day": 500, "tokens_per_minute": 900}},
        {"lane": "latency", "limits": {"tokens_per_day": 400}},
    ]
    bench.fields = {"limits_by": by}
    gateway = await bench.knowing(SHARE, tokens_per_day=1_000)
    await gateway.reserve(ask("used"))
    await gateway.settle("acme", "used", Charge(prompt_tokens=10, output_tokens=5, outcome="finished"))
    bench.now_s += LOOK_EVERY_S
    await gateway.beat()
    await gateway.keep()
    bench.leave()

    with pytest.raises(Denied) as denied:
        await gateway.reserve(ask("much"))
    assert (denied.value.status.scope, denied.value.status.limit) == ("model_lane", 5)
    await gateway.reserve(ask("other", model="large", output=300))


async def test_a_limit_in_shadow_refuses_nobody(bench: Bench) -> None:
    modes = Modes("fail_open", {"tokens_per_day": "fail_closed"})
    bench.fields = {"shadow": ["tokens_per_day"]}
    gateway = await bench.knowing(modes, tokens_per_day=10)
    bench.leave()

    assert (await gateway.reserve(ask("a"))).granted_tokens == 10


async def test_a_request_that_goes_on_here_keeps_nobody_from_looking(bench: Bench) -> None:
    gateway = await bench.knowing(SHARE, tokens_per_day=100)
    bench.leave()
    await gateway.reserve(ask("long"))
    bench.come_back()
    await gateway.reserve(ask("used", output=50))
    await gateway.settle("acme", "used", Charge(prompt_tokens=10, output_tokens=50, outcome="finished"))
    bench.now_s += LOOK_EVERY_S
    await gateway.beat()
    await gateway.keep()
    bench.leave()

    with pytest.raises(Denied):
        await gateway.reserve(ask("much", output=20))  # 40 are left, and 20 of them held
    await gateway.reserve(ask("fits"))
    await gateway.settle("acme", "long", DONE)


class VirtualPresence(GatewayPresence):
    """Tells the clock of the test."""

    def __init__(self, fleet: "Fleet", name: str) -> None:
        super().__init__(fleet.store.patient, name)
        self._fleet = fleet

    async def beat(self) -> tuple[int, int]:
        gateways, _ = await super().beat()
        return gateways, self._fleet.now_ms


@dataclass
class Fleet:
    """Three gateways of one tenant, which wants more than it may have from each of them, all the time."""

    store: ServerConnections
    limit: str
    figure: int
    output: int
    now_ms: int = START_MS
    gateways: list[GuardedQuotas] = field(default_factory=list)
    spent: list[tuple[int, int]] = field(default_factory=list)
    """When, and how many tokens."""
    _asked: int = 0

    async def begin(self) -> None:
        tenants, keys = TenantStore(self.store.patient), KeyStore(self.store.patient)
        await tenants.create({"id": "acme", "limits": {self.limit: self.figure}})
        quotas = RedisQuotaStore(self.store.short, clock=CLOCK_LUA)
        for name in ("one", "two", "three"):
            presence = VirtualPresence(self, name)
            await presence.beat()
            self.gateways.append(
                GuardedQuotas(quotas, presence, tenants.get, keys.get, SHARE, clock=lambda: self.now_ms / 1e3)
            )

    async def run(self, seconds: int, *, away: bool) -> None:
        """So much of the time, second by second."""
        for _ in range(seconds):
            self.now_ms += 1_000
            self.store.breaker.is_away = False
            await self.store.patient.set(CLOCK_KEY, self.now_ms)
            self.store.breaker.is_away = away
            for gateway in self.gateways:
                if not away:
                    await gateway.beat()
                    await gateway.keep()
                await self._want(gateway)

    async def _want(self, gateway: GuardedQuotas) -> None:
        self._asked += 1
        job_id = f"f{self._asked}"
        try:
            await gateway.reserve(ask(job_id, prompts=(1,), output=self.output))
        except Denied as denied:
            if denied.may_be_stored:
                await gateway.settle("acme", job_id, Charge.refund())
            return
        await gateway.settle("acme", job_id, Charge(prompt_tokens=1, output_tokens=self.output, outcome="finished"))
        self.spent.append((self.now_ms, 1 + self.output))

    def in_window(self, end_ms: int, length_ms: int = 60_000) -> int:
        return sum(tokens for at_ms, tokens in self.spent if end_ms - length_ms < at_ms <= end_ms)


async def test_three_gateways_keep_a_minute_but_where_the_store_goes_and_comes(connected: ServerConnections) -> None:
    fleet = Fleet(connected, "tokens_per_minute", 90, output=4)
    await fleet.begin()
    outages = []
    for seconds, away in ((70, False), (130, True), (70, False), (20, True), (65, False)):
        began_ms = fleet.now_ms
        await fleet.run(seconds, away=away)
        if away:
            outages.append((began_ms, fleet.now_ms))

    crosses = [change for outage in outages for change in outage]
    for end_ms, _ in fleet.spent:
        bound = 180 if any(end_ms - 60_000 < change <= end_ms for change in crosses) else 90
        assert fleet.in_window(end_ms) <= bound
    assert max(fleet.in_window(end_ms) for end_ms, _ in fleet.spent) > 90  # the bound is not stated for nothing
    assert fleet.in_window(outages[0][1]) == 90  # all of it, a third by each


async def test_three_gateways_exceed_a_day_by_what_came_since_they_looked(connected: ServerConnections) -> None:
    fleet = Fleet(connected, "tokens_per_day", 600, output=1)
    await fleet.begin()
    await fleet.run(40, away=False)
    unseen = fleet.in_window(fleet.now_ms, int(LOOK_EVERY_S * 1e3))
    await fleet.run(300, away=True)
    for _ in range(3):
        await fleet.run(30, away=False)
        await fleet.run(10, away=True)
    await fleet.run(1, away=False)

    total = sum(tokens for _, tokens in fleet.spent)
    assert 600 - 6 < total <= 600 + unseen
    statuses = await RedisQuotaStore(connected.short, clock=CLOCK_LUA).statuses("acme", "acme")
    assert [status.used for status in statuses] == [total]
