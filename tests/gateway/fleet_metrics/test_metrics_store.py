"""The metrics of several gateways in a real store: merged once, however often that is done, and bounded."""

import random
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from fairlane.gateway.insight.fleet_metrics import metrics_store
from fairlane.gateway.insight.fleet_metrics.metrics_store import (
    LATE_SLOTS,
    MERGER_MS,
    PREFIX,
    RINGS,
    FleetMetricsStore,
    ReportedState,
    Ring,
)
from fairlane.gateway.insight.fleet_metrics.sums import MOST_TENANTS, Sums, observe

pytestmark = pytest.mark.anyio
SMALL = (Ring(10, 12), Ring(40, 6), Ring(80, 4))
LATENCY = "latency"


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> tuple[Ring, ...]:
    """Rings that are soon full."""
    monkeypatch.setattr(metrics_store, "RINGS", SMALL)
    return SMALL


def counted(requests: int, *, samples: int = 2, tenant: str = "acme") -> Sums:
    """What a gateway counts of so many requests."""
    sums = Sums(samples=samples)
    lane = sums.lane(LATENCY)
    lane.requests = requests
    lane.running = float(samples * 3)
    for _ in range(requests):
        observe(lane.ttft, 20.0)
    sums.tenant(tenant).requests = requests
    return sums


async def report(metrics: FleetMetricsStore, slot: int, gateway: str, requests: int, **options: Any) -> bool:
    return (await metrics.report(slot, gateway, ReportedState(slot * 10_000, counted(requests, **options))))[1]


async def requests(metrics: FleetMetricsStore, ring: Ring, first: int, last: int) -> dict[int, int]:
    """By step, as the ring has them."""
    return {step.number: step.sums.lane(LATENCY).requests for step in await metrics.read(ring, first, last)}


async def test_a_closed_slot_is_the_sum_of_all_reports(store: Redis) -> None:
    metrics = FleetMetricsStore(store)
    await report(metrics, 100, "a", 1)
    await report(metrics, 100, "a", 2)
    await report(metrics, 100, "b", 5)
    await report(metrics, 101, "a", 7)

    await metrics.merge(100 + LATE_SLOTS)

    (step,) = await metrics.read(RINGS[0], 90, 110)
    lane = step.sums.lane(LATENCY)
    assert (step.number, lane.requests, sum(lane.ttft.values())) == (100, 7, 7)
    assert lane.running / step.sums.samples == 3.0, "both see the whole fleet"
    assert step.sums.tenants["acme"].requests == 7


@pytest.mark.parametrize("seed", range(4))
async def test_history_is_the_same_however_often_and_by_whom_it_is_merged(
    store: Redis, rings: tuple[Ring, ...], seed: int
) -> None:
    """Each ring holds the sums of its steps, and no more steps than it has places."""
    draw, reported = random.Random(seed), dict[int, int]()
    one, other = FleetMetricsStore(store), FleetMetricsStore(store)
    for slot in range(1_000, 1_060):
        for gateway in "abc":
            if draw.random() < 0.7:
                count = draw.randrange(9)
                reported[slot] = reported.get(slot, 0) + count
                await report(one, slot, gateway, count, tenant=f"t{draw.randrange(40)}")
        for metrics in draw.choices((one, other), k=draw.randrange(3)):
            await metrics.merge(slot)
    for metrics in (one, other, one):
        await metrics.merge(1_060)

    merged_s = (1_060 - LATE_SLOTS + 1) * 10
    for ring in rings:
        last = merged_s // ring.step_s - 1
        found = await requests(one, ring, 0, last)
        ratio = ring.step_s // 10
        expected = {
            step: sum(reported.get(step * ratio + number, 0) for number in range(ratio))
            for step in range(last - min(ring.steps, last - 1_000 // ratio) + 1, last + 1)
        }
        assert {step: count for step, count in found.items() if step in expected} == {
            step: count
            for step, count in expected.items()
            if any(step * ratio + number in reported for number in range(ratio))
        }
        assert await store.hlen(ring.key) <= ring.steps
    for step in await one.read(rings[-1], 0, 10_000):
        assert len(step.sums.tenants) <= MOST_TENANTS + 1


async def test_one_merges_and_another_after_it_died(store: Redis) -> None:
    metrics = FleetMetricsStore(store)
    assert await report(metrics, 100, "a", 1)
    assert not await report(metrics, 100, "b", 1)
    assert await report(metrics, 100, "a", 1), "as long as it goes on"

    assert 0 < await store.pttl(f"{PREFIX}merger") <= MERGER_MS
    await store.delete(f"{PREFIX}merger")
    assert await report(metrics, 101, "b", 1)


async def test_what_nobody_merged_for_minutes_is_merged_then(store: Redis, rings: tuple[Ring, ...]) -> None:
    metrics = FleetMetricsStore(store)
    await report(metrics, 1_000, "a", 1)
    await metrics.merge(1_002)
    for slot in range(1_001, 1_010):
        await report(metrics, slot, "a", slot - 1_000)

    await metrics.merge(1_011)

    assert await requests(metrics, rings[0], 1_001, 1_009) == {slot: slot - 1_000 for slot in range(1_001, 1_010)}


async def test_a_place_that_was_not_written_again_is_not_taken_for_now(store: Redis, rings: tuple[Ring, ...]) -> None:
    metrics = FleetMetricsStore(store)
    await report(metrics, 1_000, "a", 4)
    await metrics.merge(1_000 + LATE_SLOTS)

    assert await requests(metrics, rings[0], 1_000, 1_000) == {1_000: 4}
    assert await requests(metrics, rings[0], 1_001, 1_012) == {}


async def test_a_report_of_a_slot_expires(store: Redis) -> None:
    metrics = FleetMetricsStore(store)
    await report(metrics, 100, "a", 1)

    assert 0 < await store.pttl(f"{PREFIX}slot:100") <= 600_000


async def test_names_are_kept_as_they_are(store: Redis) -> None:
    name = '<script>alert("1")</script>\u202e' + "x" * 10_000
    metrics = FleetMetricsStore(store)
    await report(metrics, 100, name, 1, tenant=name)
    (latest,) = await metrics.recent([100])

    assert (latest.gateway, list(latest.state.sums.tenants)) == (name, [name])
    assert msgspec.msgpack.encode(latest.state)
