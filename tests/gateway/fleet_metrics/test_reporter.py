"""Reports of one gateway: every count is reported once, even if the store fails meanwhile."""

from dataclasses import dataclass, field

import pytest
import redis.exceptions
from redis.asyncio import Redis

from fairlane.gateway.insight.fleet_metrics.metrics_store import FleetMetricsStore, ReportedState
from fairlane.gateway.insight.fleet_metrics.recorder import Ended, Recorder
from fairlane.gateway.insight.fleet_metrics.reporter import MetricsReporter
from fairlane.gateway.insight.fleet_metrics.sums import OTHERS
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from tests.support.gateway.admin_app import HandFleet, HandPicture, worker

pytestmark = pytest.mark.anyio


class Flaky(FleetMetricsStore):
    """Away as often as it is reported."""

    failures = 0
    is_received = False
    """What it does not confirm, it has taken."""

    async def report(self, slot: int, gateway: str, state: ReportedState) -> tuple[int, bool]:
        if self.failures:
            self.failures -= 1
            if self.is_received:
                await super().report(slot, gateway, state)
            raise redis.exceptions.ConnectionError
        return await super().report(slot, gateway, state)


@dataclass
class Bench:
    """One gateway's metrics, and a clock of its own."""

    store: Redis
    now_s: float = 0.0
    jobs: list[tuple[str, bool, int]] = field(default_factory=list)

    async def open(self) -> "Bench":
        seconds, _ = await self.store.time()
        self.now_s = seconds // 10 * 10 + 5.0
        self.metrics, self.recorder = Flaky(self.store), Recorder()
        self.fleet = HandFleet()
        self.reporter = MetricsReporter(
            self.metrics,
            self.recorder,
            HandPicture(self.fleet),
            DEFAULT_LANES,
            "a",
            lambda: self.jobs,
            lambda: self.now_s,
        )
        return self

    def ends(self, count: int = 1, code: str = "ok", tenant: str = "acme", ttft_s: float | None = 0.1) -> None:
        for _ in range(count):
            self.recorder.ended(Ended(tenant, "latency", code, ttft_s, 0.02, 0.01))

    async def reported(self) -> list[tuple[int, int]]:
        """Requests by slot, as the store has them, the slots counted from the first."""
        first = int(self.now_s // 10) - 20
        found = await self.metrics.recent(range(first, first + 40))
        return [(one.slot, one.state.sums.lane("latency").requests) for one in found]


@pytest.fixture
async def bench(store: Redis) -> Bench:
    return await Bench(store).open()


async def test_what_ends_in_a_slot_is_reported_of_that_slot_alone(bench: Bench) -> None:
    slot = bench.reporter._slot
    bench.ends(2)
    await bench.reporter.report()
    bench.ends(1)
    bench.now_s = (slot + 1) * 10 + 0.001
    bench.reporter._ahead_s = 0.0
    await bench.reporter.report()
    bench.ends(4)
    bench.reporter._ahead_s = 0.0
    await bench.reporter.report()

    assert await bench.reported() == [(slot, 3), (slot + 1, 4)]


@pytest.mark.parametrize("is_received", [False, True])
async def test_what_the_store_did_not_confirm_is_reported_again_and_counts_once(
    bench: Bench, is_received: bool
) -> None:
    slot = bench.reporter._slot
    bench.ends(3)
    bench.metrics.failures, bench.metrics.is_received = 1, is_received
    bench.now_s += 10
    with pytest.raises(redis.exceptions.ConnectionError):
        await bench.reporter.report()
    bench.ends(2)
    await bench.reporter.report()

    assert await bench.reported() == [(slot, 3), (slot + 1, 2)]


async def test_what_workers_have_not_begun_waits_in_its_lane(bench: Bench) -> None:
    bench.fleet.statuses = [worker("w1", waiting={"throughput": 5}), worker("w2", waiting={"throughput": 1})]
    await bench.reporter.report()

    (found,) = await bench.metrics.recent([bench.reporter._slot])
    assert found.state.sums.lane("throughput").queued == 4.0, "without two that are preempted"


async def test_slots_are_by_the_stores_clock(bench: Bench) -> None:
    bench.now_s -= 100_000
    await bench.reporter.report()
    seconds, _ = await bench.store.time()

    assert abs(bench.reporter.now_s - seconds) < 60


async def test_tokens_are_counted_as_they_come_and_once(bench: Bench) -> None:
    bench.jobs = [("acme", True, 30), ("acme", False, 0)]
    await bench.reporter.report()
    assert bench.recorder.sums.tenants["acme"].output_tokens == 30
    bench.jobs = [("acme", False, 0)]
    bench.recorder.charged("acme", 50)
    await bench.reporter.report()
    await bench.reporter.report()

    assert bench.recorder.sums.tenants["acme"].output_tokens == 50
    (latest,) = await bench.metrics.recent([bench.reporter._slot])
    assert latest.state.now == {"acme": (0, 1)}


async def test_goodput_is_what_met_the_lanes_targets_of_what_should_have(bench: Bench) -> None:
    await bench.reporter.report()
    bench.ends(3)
    bench.ends(1, ttft_s=1.5)
    bench.ends(1, code="overloaded", ttft_s=None)
    bench.ends(7, code="rate_limit_exceeded", ttft_s=None)
    bench.ends(2, code="invalid_request_error", ttft_s=None)
    lane = bench.recorder.sums.lane("latency")

    assert (lane.requests, lane.refused, lane.judged, lane.met) == (14, 8, 5, 3)
    assert bench.recorder.sums.refusals == {"overloaded": 1, "rate_limit_exceeded": 7}


async def test_any_number_of_tenants_takes_so_much_room(bench: Bench) -> None:
    for number in range(2_000):
        bench.ends(tenant=f"t{number}")

    assert len(bench.recorder.sums.tenants) <= 257
    assert sum(one.requests for one in bench.recorder.sums.tenants.values()) == 2_000
    assert bench.recorder.sums.tenants[OTHERS].requests > 1_000
