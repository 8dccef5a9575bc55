"""The overview: one call, the whole fleet, whichever gateway is asked."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.gateway.admin_app import AdminBench, worker
from tests.support.gateway.served import ASKED, CHAT, OPERATOR, Served, gateway, serving, settings, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as opened:
        await opened.tenant()
        yield opened


async def overview(served: Served) -> dict[str, Any]:
    """As this gateway tells it."""
    async with served.http as client:
        answer = await client.get("/admin/v1/overview", headers=OPERATOR)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_fleet_that_has_done_nothing_has_no_distributions(bench: AdminBench) -> None:
    found = await bench.done("GET", "/overview")

    latency, throughput = found["lanes"]
    assert (latency["lane"], throughput["lane"]) == ("latency", "throughput")
    assert (latency["running"], latency["ttft_target_ms"]) == (1, 1_000.0)
    assert [latency[name] for name in ("ttft_ms", "tpot_ms", "queue_wait_ms", "goodput")] == [None] * 4
    assert (latency["requests"], latency["refused"]) == (0, 0)
    assert found["refusals"] == {}
    assert found["workers"][0]["kv"] == {"blocks": 100, "free": 50, "host_blocks": 20, "host_free": 20}


async def test_blocks_of_a_tenant_add_up_over_workers(bench: AdminBench) -> None:
    bench.fleet.statuses = [worker("w1", kv_blocks={"acme": 5, "zoo": 1}), worker("w2", kv_blocks={"acme": 7})]

    tenants = (await bench.done("GET", "/overview"))["tenants"]

    assert {one["tenant"]: one["kv_blocks"] for one in tenants} == {"acme": 12, "zoo": 1}


async def test_any_gateway_tells_what_all_have_counted(served: Served, valkey_url: str) -> None:
    async with gateway(settings(valkey_url)) as other:
        await until(lambda: bool(other.resources.fleet.cache.models))
        assert (await served.post(CHAT, ASKED)).status_code == 200
        other.keys.update(served.keys)
        assert (await other.post(CHAT, ASKED)).status_code == 200
        for each in (served, other):
            await each.landed()
            await each.resources.insight.reporter.report()
        told = [await overview(each) for each in (served, other)]

    for found in told:
        (latency, throughput) = found["lanes"]
        assert (latency["requests"], latency["refused"], throughput["requests"]) == (2, 0, 0)
        assert latency["ttft_ms"]["p50"] <= latency["ttft_ms"]["p95"] <= latency["ttft_ms"]["p99"]
        assert 0.0 <= latency["goodput"] <= 1.0
        assert found["models"][0]["model"] == "tiny"
        (acme,) = found["tenants"]
        assert acme["tenant"] == "acme"
        assert acme["tokens_per_s"] > 0


async def test_a_model_tells_what_it_is_and_its_load_by_lane(served: Served) -> None:
    (model,) = (await overview(served))["models"]

    assert (model["model"], model["workers"], model["draining"]) == ("tiny", 1, 0)
    assert [lane["lane"] for lane in model["lanes"]] == ["latency", "throughput"]
    assert (model["lanes"][0]["running"], model["lanes"][0]["queued"]) == (0, 0)
    assert (model["output"], model["media"]) == ("text", [])
    assert len(model["card_sha256"]) == 1
    assert model["blocks_free"] <= model["blocks_total"]


async def test_refusals_are_counted_by_code_and_lane(served: Served) -> None:
    await served.tenant("small", limits={"requests_per_minute": 1})
    codes = [(await served.post(CHAT, ASKED, tenant="small")).status_code for _ in range(3)]
    await served.resources.insight.reporter.report()

    found = await overview(served)

    assert codes == [200, 429, 429]
    assert found["refusals"] == {"rate_limit_exceeded": 2}
    assert (found["lanes"][0]["requests"], found["lanes"][0]["refused"]) == (3, 2)
    assert found["lanes"][0]["goodput"] in (0.0, 1.0), "a tenant's own limit is no miss of the lane's target"


async def test_what_runs_and_waits_is_told_by_tenant(served: Served) -> None:
    served.worker.limit = 1
    async with served.http as client:
        headers = {"authorization": f"Bearer {served.keys['acme']}"}
        async with client.stream("POST", CHAT, json={**ASKED, "stream": True}, headers=headers) as stream:
            assert stream.status_code == 200
            await until(lambda: any(job.begun for job in served.resources.fleet.dispatcher.jobs.values()))
            await served.resources.insight.reporter.report()
            (acme,) = (await overview(served))["tenants"]
            served.worker.limit = None
            await stream.aread()

    assert (acme["tenant"], acme["running"], acme["queued"]) == ("acme", 1, 0)
