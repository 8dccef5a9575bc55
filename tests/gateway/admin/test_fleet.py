"""Workers and lanes through the admin API."""

import msgspec
import pytest

from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.queue.types import LaneDepth
from fairlane.store.errors import StoreUnavailable
from tests.support.gateway.admin_app import AdminBench, worker
from tests.support.quotas.auditing import failing

pytestmark = pytest.mark.anyio


async def test_each_worker_says_how_full_it_is(bench: AdminBench) -> None:
    (only,) = (await bench.done("GET", "/workers"))["data"]

    assert only["id"] == "w1"
    assert only["model"] == "tiny"
    assert (only["blocks_total"], only["blocks_free"]) == (100, 50)
    assert only["started_at"] == 1_700_000_000
    assert only["running"] == {"latency": 1, "throughput": 2}


async def test_a_worker_says_what_its_steps_take_up_to_what_it_has_room_for(bench: AdminBench) -> None:
    weights = (10.0, 2.0, 0.5, 0.25, 0.125)
    bench.fleet.statuses = [
        worker("w1", step_weights=weights, block_size=2, blocks_total=3, max_sequences=4),
        worker("w2", step_weights=()),
    ]

    known, unknown = (await bench.done("GET", "/workers"))["data"]

    assert known["costs"] == {
        "base_ms": 10.0,
        "row_ms": 2.0,
        "prefill_token_ms": 0.5,
        "context_token_ms": 0.25,
        "attention_pair_ms": 0.125,
        "prefill": [[1, 12.625], [2, 13.5], [4, 16.0], [6, 19.5]],
        "decode": [[1, 140.0], [2, 270.0], [4, 530.0]],
    }
    assert unknown["costs"] is None


async def test_workers_come_in_pages_by_id(bench: AdminBench) -> None:
    bench.fleet.statuses = [worker(name) for name in ("w3", "w1", "w2")]

    first = await bench.done("GET", "/workers?limit=2")
    rest = await bench.done("GET", f"/workers?limit=2&after={first['last_id']}")

    assert [each["id"] for each in [*first["data"], *rest["data"]]] == ["w1", "w2", "w3"]
    assert (first["has_more"], rest["has_more"]) == (True, False)


async def test_each_drain_of_a_worker_is_told_and_noted(bench: AdminBench) -> None:
    answer = await bench.done("POST", "/workers/w1/drain")
    bench.fleet.statuses = [worker("w1", draining=True)]
    await bench.done("POST", "/workers/w1/drain")

    assert answer["draining"] is True
    assert bench.fleet.drained == ["w1", "w1"]
    assert [(entry["action"], entry["target"]) for entry in await bench.audit()] == [("worker.drain", "w1")] * 2


async def test_an_undrain_before_the_next_heartbeat_is_noted_too(bench: AdminBench) -> None:
    await bench.done("POST", "/workers/w1/drain")
    answer = await bench.done("POST", "/workers/w1/undrain")  # the last heartbeat said that it serves

    assert answer["draining"] is False
    assert (bench.fleet.drained, bench.fleet.undrained) == (["w1"], ["w1"])
    assert [(entry["action"], entry["changes"]["after"]) for entry in await bench.audit()] == [
        ("worker.drain", {"draining": True}),
        ("worker.undrain", {"draining": False}),
    ]


async def test_a_drain_that_could_not_be_noted_is_in_the_log(
    bench: AdminBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing(monkeypatch, StoreUnavailable("away"), only="audit_write")

    refused = await bench.refused("POST", "/workers/w1/drain")

    assert refused[:2] == (503, "quota_store_unavailable")
    assert bench.fleet.drained == ["w1"]
    assert "action=worker.drain target=w1 address=127.0.0.1" in caplog.text


async def test_a_worker_that_is_not_there_is_404_and_told_nothing(bench: AdminBench) -> None:
    assert await bench.refused("POST", "/workers/w9/drain") == (404, "not_found", None)
    assert await bench.refused("POST", "/workers/w9/undrain") == (404, "not_found", None)
    assert bench.fleet.drained == []
    assert await bench.audit() == []


async def test_a_lane_adds_up_over_workers(bench: AdminBench) -> None:
    bench.fleet.statuses = [worker("w1"), worker("w2", waiting={"latency": 2, "throughput": 4})]
    bench.fleet.depth = {LaneName.THROUGHPUT: LaneDepth(7, 1500, 40_000)}

    latency, throughput = (await bench.done("GET", "/lanes"))["data"]

    assert latency == {
        "lane": "latency",
        "queued": 2,
        "queued_tokens": 0,
        "oldest_wait_ms": 0,
        "running": 2,
        "preempted": 0,
        "tokens_per_s": 20.0,
        "ttft_target_ms": 1_000.0,
        "tpot_target_ms": 100.0,
    }
    assert throughput == {
        "lane": "throughput",
        "queued": 10,
        "queued_tokens": 40_000,
        "oldest_wait_ms": 1500,
        "running": 4,
        "preempted": 2,
        "tokens_per_s": 61.0,
        "ttft_target_ms": 600_000.0,
        "tpot_target_ms": 1_000.0,
    }


async def test_lanes_are_there_without_any_worker(bench: AdminBench) -> None:
    bench.fleet.statuses = []

    lanes = (await bench.done("GET", "/lanes"))["data"]

    assert [(lane["lane"], lane["running"]) for lane in lanes] == [("latency", 0), ("throughput", 0)]
    assert (await bench.done("GET", "/workers"))["data"] == []


async def test_a_lane_tells_the_target_that_its_slowest_worker_sets(bench: AdminBench) -> None:
    bench.fleet.statuses = [worker("w1", single_stream_ms=12.0), worker("w2", single_stream_ms=16.0)]

    latency, throughput = (await bench.done("GET", "/lanes"))["data"]
    told = [one["single_stream_ms"] for one in (await bench.done("GET", "/workers"))["data"]]

    assert (latency["tpot_target_ms"], throughput["tpot_target_ms"]) == (48.0, 1_000.0)
    assert told == [12.0, 16.0]


async def test_a_lane_of_one_model_leaves_the_others_out(bench: AdminBench) -> None:
    bench.fleet.statuses = [worker("w1"), msgspec.structs.replace(worker("w2"), model="other")]
    bench.fleet.depth = {LaneName.LATENCY: LaneDepth(3, 900, 1_200)}

    latency, _ = (await bench.done("GET", "/lanes?model=tiny"))["data"]

    assert (latency["queued_tokens"], latency["running"]) == (1_200, 1)
    assert await bench.refused("GET", "/lanes?model=nobody") == (404, "not_found", None)
