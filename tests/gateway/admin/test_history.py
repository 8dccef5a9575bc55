"""History through the admin API: the reports, merged, in a bounded number of points."""

import time

import pytest

from fairlane.gateway.insight.fleet_metrics.metrics_store import RINGS, FleetMetricsStore, ReportedState
from fairlane.gateway.insight.fleet_metrics.sums import Sums, observe
from tests.support.gateway.admin_app import AdminBench

pytestmark = pytest.mark.anyio


def sums(requests: int, tenant: str = "acme") -> Sums:
    """A slot's."""
    found = Sums(samples=2, kv_used=1.0, refusals={"overloaded": 1})
    lane = found.lane("latency")
    lane.requests, lane.judged, lane.met, lane.queued = requests, requests, requests - 1, 8.0
    observe(lane.ttft, 100.0)
    found.lane("throughput").requests = 1
    found.tenant(tenant).output_tokens = 50
    return found


async def test_the_last_quarter_of_an_hour_has_what_is_not_merged_yet(bench: AdminBench) -> None:
    metrics, slot = FleetMetricsStore(bench.redis), int(time.time() // 10)
    for back in (1, 2, 3, 4):
        await metrics.report(slot - back, "a", ReportedState(0, sums(10 * back)))
    await metrics.merge(slot)

    found = await bench.done("GET", "/history?tenant=acme")

    assert found["step_s"] == 10
    by_slot = {point["at"] / 10: point for point in found["points"]}
    assert {slot - 1, slot - 2} <= by_slot.keys(), "the last two are not in the ring yet, or just were"
    point = by_slot[slot - 2]
    assert point["lanes"]["latency"]["requests"] == 20
    assert point["lanes"]["latency"]["queued"] == 4.0
    assert point["lanes"]["latency"]["goodput"] == 0.95
    assert point["lanes"]["latency"]["ttft_ms"]["p50"] == pytest.approx(100, rel=0.1)
    assert (point["kv_used"], point["refusals"]) == (0.5, {"overloaded": 1})
    assert point["tenant"]["tokens_per_s"] == 5.0


async def test_a_lane_alone_and_no_tenant(bench: AdminBench) -> None:
    await FleetMetricsStore(bench.redis).report(int(time.time() // 10) - 1, "a", ReportedState(0, sums(3)))

    (point,) = (await bench.done("GET", "/history?lane=throughput"))["points"]

    assert point["lanes"].keys() == {"throughput"}
    assert point["tenant"] is None


@pytest.mark.parametrize(("span", "step_s", "most"), [("15m", 10, 92), ("day", 300, 288), ("month", 7200, 360)])
async def test_points_are_bounded(bench: AdminBench, span: str, step_s: int, most: int) -> None:
    metrics, (ring,) = FleetMetricsStore(bench.redis), [ring for ring in RINGS if ring.step_s == step_s]
    now = int(time.time() // step_s)
    await metrics._write(ring, [(number, [sums(2)]) for number in range(now - ring.steps, now)], now)

    found = await bench.done("GET", f"/history?span={span}")

    assert found["step_s"] == step_s
    assert most - 3 <= len(found["points"]) <= most
    at = [point["at"] for point in found["points"]]
    assert at == sorted(set(at))
    earlier = await bench.done("GET", f"/history?span={span}&until={(now - 100) * step_s}")
    assert earlier["points"][-1]["at"] == (now - 101) * step_s


@pytest.mark.parametrize(
    ("long_s", "ago_s", "step_s"),
    [
        (600, 0, 10),
        (3_600, 3_600, 10),
        (6 * 3_600, 0, 300),
        (3_600, 2 * 86_400, 300),
        (7 * 86_400, 0, 7_200),
        (31 * 86_400, 0, 7_200),
        (3_600, 40 * 86_400, 7_200),
    ],
)
async def test_any_period_has_the_finest_steps_that_are_kept(
    bench: AdminBench, long_s: int, ago_s: int, step_s: int
) -> None:
    until = time.time() - ago_s

    found = await bench.done("GET", "/history", params={"from": until - long_s, "until": until})

    assert found == {"step_s": step_s, "points": []}


async def test_a_period_has_its_own_steps_alone(bench: AdminBench) -> None:
    metrics, now = FleetMetricsStore(bench.redis), int(time.time() // 10)
    await metrics._write(RINGS[0], [(now - back, [sums(2)]) for back in range(100)], now)
    first = (now - 60) * 10.0

    points = (await bench.done("GET", "/history", params={"from": first, "until": first + 200}))["points"]

    assert [point["at"] for point in points] == [first + 10 * step for step in range(20)]


async def test_a_longer_period_is_refused(bench: AdminBench) -> None:
    params = {"from": 1_000_000.0, "until": 1_000_000.0 + 32 * 86_400}
    assert await bench.refused("GET", "/history", params=params) == (400, "invalid_request_error", "from")


@pytest.mark.parametrize(
    "query", ["span=year", "span=", "lane=fast", "until=nan", "until=-1", "until=1e99", "limit=1", "from=nan", "from=x"]
)
async def test_other_questions_are_refused(bench: AdminBench, query: str) -> None:
    status, code, _ = await bench.refused("GET", f"/history?{query}")

    assert (status, code) == (400, "invalid_request_error")


async def test_a_tenant_that_is_not_there_has_done_nothing(bench: AdminBench) -> None:
    await FleetMetricsStore(bench.redis).report(int(time.time() // 10) - 1, "a", ReportedState(0, sums(3)))

    (point,) = (await bench.done("GET", "/history", params={"tenant": "<script>" * 20}))["points"]

    assert set(point["tenant"].values()) == {0}
