"""The record of a request, from a gateway with a worker that speaks from a script: what it says while and after."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from fairlane.scheduler.protocol.messages import Cause, Paused, Preempted, Resumed
from tests.support.gateway.served import ASKED, CHAT, OPERATOR, WAIT_S, Served, gateway, serving, settings, until

pytestmark = pytest.mark.anyio
SECRET = "the prompt that nobody may read"
CAUSE = Cause(resource="blocks", lane="latency", tenant="globex", job_id="0" * 24 + "-001")


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as opened:
        await opened.tenant()
        await opened.tenant("globex")
        yield opened


async def record(served: Served, name: str) -> dict[str, Any]:
    """As operators see it."""
    async with served.http as client:
        answer = await client.get(f"/admin/v1/requests/{name}", headers=OPERATOR)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def listed(served: Served, **query: object) -> list[dict[str, Any]]:
    async with served.http as client:
        answer = await client.get("/admin/v1/requests", params={k: str(v) for k, v in query.items()}, headers=OPERATOR)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def in_state(served: Served, state: str) -> dict[str, Any]:
    """The only request that runs, once it is so."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await listed(served, state=state)
            if found:
                return found[0]
            await asyncio.sleep(0.01)


async def test_a_request_that_went_well_says_who_asked_and_what_it_came_to(served: Served) -> None:
    answer = await served.post(CHAT, ASKED, x_request_id="mine-1", x_fairlane_lane="latency")

    found = await record(served, "mine-1")

    assert (found["tenant"], found["lane"], found["model"], found["endpoint"]) == ("acme", "latency", "tiny", CHAT)
    assert found["key"] in served.keys["acme"]
    assert (found["state"], found["outcome"], found["code"]) == ("ended", "finished", None)
    assert found["class"] == answer.headers["x-fairlane-class"]
    usage = answer.json()["usage"]
    assert found["charges"] == {
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": 0,
        "output_tokens": usage["completion_tokens"],
        "cost": 0,
        "gpu_seconds": 0.0,
        "kv_block_seconds": 0.0,
    }
    assert found["output_tokens"] == usage["completion_tokens"]
    assert found["worker"] == "hand"
    kinds = [event["kind"] for event in found["events"]]
    assert "queued" not in kinds[1:], "it comes first, unless a worker had room at once"
    assert {"first_token", "ended"} <= set(kinds)
    assert 0 <= found["ttft_ms"] <= found["total_ms"]
    assert found["why"]


async def test_what_it_cost_is_at_the_prices_that_held_as_it_came(served: Served) -> None:
    prices = {"prices": [{"input": 3, "cached_input": 1, "output": 7}]}
    async with served.http as client:
        assert (await client.put("/admin/v1/prices", json=prices, headers=OPERATOR)).is_success
    await served.resources.accounts.known_prices.look()
    usage = (await served.post(CHAT, ASKED, x_request_id="priced")).json()["usage"]

    found = await record(served, "priced")

    assert found["charges"]["cost"] == 3 * usage["prompt_tokens"] + 7 * usage["completion_tokens"]


@pytest.mark.parametrize("path", ["/v1/completions", CHAT, "/v1/responses", "/v1/messages"])
async def test_it_is_found_by_its_answers_id_its_own_and_its_jobs(served: Served, path: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"model": "tiny", "prompt": "Hello", "max_tokens": 4},
        "/v1/responses": {"model": "tiny", "input": "Hello", "store": False},
        "/v1/messages": {**ASKED, "max_tokens": 4},
    }
    answer = await served.post(path, bodies.get(path, ASKED))

    own = (await served.get(f"/v1/requests/{answer.headers['x-request-id']}")).json()

    assert own["endpoint"] == path
    for name in (answer.json()["id"], own["id"], f"{own['id']}-001"):
        assert (await served.get(f"/v1/requests/{name}")).json()["id"] == own["id"]


async def test_a_request_id_with_a_slash_is_found(served: Served) -> None:
    await served.post(CHAT, ASKED, x_request_id="job/7:a+b")

    assert (await served.get("/v1/requests/job/7:a+b")).json()["request_id"] == "job/7:a+b"


async def test_anothers_request_is_none_by_whatever_name(served: Served) -> None:
    answer = await served.post(CHAT, ASKED, x_request_id="mine-1")
    own = (await served.get("/v1/requests/mine-1")).json()

    for name in ("mine-1", answer.json()["id"], own["id"], "nobody's"):
        refused = await served.get(f"/v1/requests/{name}", tenant="globex")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")


async def test_the_same_request_id_of_two_tenants_is_each_ones_own(served: Served) -> None:
    for tenant in ("acme", "globex"):
        await served.post(CHAT, ASKED, tenant=tenant, x_request_id="same")
    await served.resources.insight.recorder.flush()

    for tenant in ("acme", "globex"):
        assert (await served.get("/v1/requests/same", tenant=tenant)).json()["tenant"] == tenant


async def test_a_preemption_says_for_whom_and_what_it_cost_and_to_a_tenant_only_which_lane(served: Served) -> None:
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED, x_request_id="yields"))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    (job_id,) = served.worker.leases
    yielded = Preempted(job_id=job_id, choice=0, mode="swap", blocks=3, predicted_ms=5.0, bytes=3 * 4_096, cause=CAUSE)
    await served.worker.tell(yielded)

    while_away = await in_state(served, "preempted")
    await served.worker.tell(Resumed(job_id=job_id, choice=0, stalled_ms=80.0))
    served.worker.limit = None
    await running

    found = await record(served, "yields")
    [preemption] = found["preemptions"]
    assert while_away["request_id"] == "yields"
    assert (preemption["mode"], preemption["blocks"], preemption["bytes"]) == ("swap", 3, 12_288)
    assert (preemption["predicted_ms"], preemption["stall_ms"]) == (5.0, 80.0)
    assert preemption["cause"] == {
        "resource": "blocks",
        "lane": "latency",
        "tenant": "globex",
        "request": "0" * 24,
    }
    assert "globex" in found["why"]
    own = (await served.get("/v1/requests/yields")).json()
    assert "globex" not in str(own)
    assert own["preemptions"][0]["cause"] == {"resource": "blocks", "lane": "latency", "tenant": None, "request": None}
    assert "latency lane" in own["why"]


async def test_what_runs_names_its_worker(served: Served) -> None:
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED, x_request_id="runs"))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])

    assert (await in_state(served, "running"))["worker"] == served.worker.worker_id
    served.worker.limit = None
    await running


@pytest.mark.parametrize(("flags", "is_kept"), [("00", False), ("01", True), ("02", False), ("03", True)])
async def test_a_record_names_its_trace_where_somebody_keeps_that(served: Served, flags: str, is_kept: bool) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    await served.post(CHAT, ASKED, x_request_id="traced", traceparent=f"00-{trace_id}-b7ad6b7169203331-{flags}")

    assert (await record(served, "traced"))["trace_id"] == (trace_id if is_kept else None)


async def test_a_preemption_is_of_whom_it_left_for_whoever_took_more_of_it_while_it_was_away(served: Served) -> None:
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED, x_request_id="yields"))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    (job_id,) = served.worker.leases
    await served.worker.tell(
        Preempted(job_id=job_id, choice=0, mode="swap", blocks=3, predicted_ms=5.0, bytes=3 * 4_096, cause=CAUSE)
    )
    other = msgspec.structs.replace(CAUSE, lane="throughput", tenant="initech")
    await served.worker.tell(
        Resumed(job_id=job_id, choice=0, stalled_ms=80.0, mode="recompute", blocks=5, predicted_ms=9.0, cause=other)
    )
    served.worker.limit = None
    await running

    [preemption] = (await record(served, "yields"))["preemptions"]
    assert (preemption["mode"], preemption["blocks"], preemption["predicted_ms"]) == ("recompute", 5, 9.0)
    assert (preemption["cause"]["tenant"], preemption["cause"]["lane"]) == ("globex", "latency")


async def test_an_older_worker_that_gives_no_cause_is_shown_with_none(served: Served) -> None:
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED, x_request_id="yields"))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    (job_id,) = served.worker.leases
    await served.worker.tell(Preempted(job_id=job_id, choice=0, mode="keep", blocks=0, predicted_ms=0.0))
    await served.worker.tell(Resumed(job_id=job_id, choice=0, stalled_ms=20.0))
    served.worker.limit = None
    await running

    found = await record(served, "yields")

    assert found["preemptions"][0]["cause"] is None
    assert found["steps"] is None
    assert found["stalled_ms"] == 20.0


async def test_a_pause_counts_as_a_wait_for_its_own_limits(served: Served) -> None:
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED, x_request_id="pauses"))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    (job_id,) = served.worker.leases
    await served.worker.tell(Paused(job_id=job_id, choice=0))
    await in_state(served, "paused")
    await served.worker.tell(Resumed(job_id=job_id, choice=0, stalled_ms=1_500.0))
    served.worker.limit = None
    await running

    found = await record(served, "pauses")

    assert {"reason": "grant", "words": "for its own limits to allow more tokens", "ms": 1_500.0} in found["waits"]
    assert "own limits" in found["why"]


async def test_time_away_and_paused_are_parts_of_one_account(served: Served) -> None:
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED, x_request_id="slow"))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    (job_id,) = served.worker.leases
    await served.worker.tell(Preempted(job_id=job_id, choice=0, mode="keep", blocks=0, predicted_ms=0.0))
    await in_state(served, "preempted")
    await served.worker.tell(Resumed(job_id=job_id, choice=0, stalled_ms=2.0))
    await served.worker.tell(Paused(job_id=job_id, choice=0))
    await in_state(served, "paused")
    so_far = (await record(served, "slow"))["time"]
    served.worker.limit = None
    await running

    found = await record(served, "slow")
    for time in (so_far, found["time"]):
        total_ms, *parts = time.values()
        assert sum(parts) == pytest.approx(total_ms, abs=0.1)
        assert min(parts) >= 0.0
        assert time["preempted_ms"] == pytest.approx(2.0, abs=0.2)
        assert time["paused_ms"] > 0.0
    assert found["time"]["total_ms"] == found["total_ms"]
    assert found["queue_ms"] == found["time"]["queue_ms"]


async def test_events_of_a_request_that_yields_all_the_time_are_counted_and_not_all_kept(served: Served) -> None:
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED, x_request_id="yields"))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    (job_id,) = served.worker.leases
    for _ in range(100):
        await served.worker.tell(
            Preempted(job_id=job_id, choice=0, mode="swap", blocks=3, predicted_ms=5.0, cause=CAUSE)
        )
        await served.worker.tell(Resumed(job_id=job_id, choice=0, stalled_ms=1.0))
    served.worker.limit = None
    await running

    found = await record(served, "yields")

    assert found["preempted"] == 100
    assert found["stalled_ms"] == 100.0
    assert len(found["preemptions"]) + len(found["events"]) < 100
    assert found["left_out"] > 0


async def test_one_that_waits_says_where_it_stands(served: Served) -> None:
    served.worker.taking = False
    first = asyncio.create_task(served.post(CHAT, ASKED, x_request_id="first"))
    await in_state(served, "queued")
    second = asyncio.create_task(served.post(CHAT, ASKED, x_request_id="second"))
    async with asyncio.timeout(WAIT_S):
        while len(await listed(served, state="queued")) < 2:  # noqa: ASYNC110 - polled from outside
            await asyncio.sleep(0.01)

    waiting = await record(served, "second")
    served.worker.taking = True
    await asyncio.gather(first, second)

    assert waiting["events"][0]["position"] == 2
    assert "for a worker, at place 2 of its tenant's" in waiting["why"]


async def test_what_was_refused_for_a_limit_is_there_too(served: Served) -> None:
    await served.tenant("small", limits={"requests_per_minute": 1})
    await served.post(CHAT, ASKED, tenant="small")
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    told = {"x_request_id": "refused", "traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    refused = await served.post(CHAT, ASKED, tenant="small", **told)
    assert refused.status_code == 429

    found = (await served.get("/v1/requests/refused", tenant="small")).json()

    assert (found["state"], found["outcome"], found["code"]) == ("ended", "rejected", "rate_limit_exceeded")
    assert found["limit"] == "requests_per_minute"
    assert (found["model"], found["lane"]) == ("tiny", "latency")
    assert found["charges"] is None
    assert found["why"].startswith("It was refused (rate_limit_exceeded)")
    assert found["trace_id"] == trace_id


async def test_a_flood_of_refusals_is_kept_in_part(served: Served) -> None:
    await served.tenant("small", limits={"requests_per_minute": 1})
    answers = await asyncio.gather(*(served.post(CHAT, ASKED, tenant="small") for _ in range(40)))

    assert sum(answer.status_code == 429 for answer in answers) == 39
    found = await listed(served, tenant="small", outcome="rejected")
    assert 5 <= len(found) < 39
    assert served.resources.insight.recorder.dropped > 0


async def test_a_missed_deadline_is_told_as_such(served: Served) -> None:
    served.worker.taking = False
    refused = await served.post(CHAT, ASKED, x_request_id="late", x_fairlane_deadline_ms="200")
    assert refused.status_code == 504
    await served.landed()

    found = await record(served, "late")

    assert (found["outcome"], found["code"], found["deadline_ms"]) == ("expired", "deadline_exceeded", 200.0)
    assert "deadline_exceeded" in found["why"]


async def test_a_client_that_leaves_is_no_failure(served: Served) -> None:
    served.worker.limit = 2
    async with served.http as client:
        headers = {"authorization": f"Bearer {served.keys['acme']}", "x-request-id": "left"}
        async with client.stream("POST", CHAT, json={**ASKED, "stream": True}, headers=headers) as got:
            await anext(got.aiter_lines())
    await served.landed()
    async with asyncio.timeout(WAIT_S):
        while (await record(served, "left"))["state"] != "ended":  # noqa: ASYNC110 - polled from outside
            await asyncio.sleep(0.01)

    found = await record(served, "left")

    [(outcome, _, output)] = await served.ledger()
    assert (found["outcome"], found["code"]) == (outcome, "client_closed") == ("cancelled", "client_closed")
    assert found["charges"]["output_tokens"] == output > 0


async def test_nothing_of_a_prompt_or_an_answer_is_in_the_store(served: Served) -> None:
    body = {**ASKED, "messages": [{"role": "user", "content": SECRET}]}
    await served.post(CHAT, body, x_request_id="secret")
    await served.resources.insight.recorder.flush()

    stored = b""
    async for key in served.store.scan_iter("fl:records:*"):
        stored += await served.store.dump(key) or b""

    assert b"secret" in stored
    assert SECRET.encode() not in stored
    assert b"Paris" not in stored


async def test_switched_off_nothing_is_kept(valkey_url: str) -> None:
    async with serving(settings(valkey_url, section={"request_records": 0})) as served:
        await served.tenant()
        await served.post(CHAT, ASKED, x_request_id="mine-1")

        assert await listed(served) == []
        assert (await served.get("/v1/requests/mine-1")).status_code == 404
        assert not [key async for key in served.store.scan_iter("fl:records:*")]


async def test_another_gateway_tells_of_requests_that_run_and_that_ended(served: Served, valkey_url: str) -> None:
    await served.post(CHAT, ASKED, x_request_id="ended")
    served.worker.limit = 1
    running = asyncio.create_task(served.post(CHAT, ASKED, x_request_id="runs"))
    await until(lambda: [len(made) for made in served.worker.produced.values()][-1:] == [1])
    async with gateway(settings(valkey_url)) as other:
        other.keys = served.keys
        async with asyncio.timeout(WAIT_S):
            while len(await listed(other)) < 2:  # noqa: ASYNC110 - it is written within a second
                await asyncio.sleep(0.02)
        states = {each["request_id"]: each["state"] for each in await listed(other)}
        own = (await other.get("/v1/requests/runs")).json()
        await record(other, "ended")
        served.worker.limit = None
        await running
        async with asyncio.timeout(WAIT_S):
            while (await record(other, "runs"))["state"] != "ended":  # noqa: ASYNC110 - polled from outside
                await asyncio.sleep(0.02)

        assert states == {"ended": "ended", "runs": "running"}
        assert (own["state"], own["gateway"]) == ("running", served.resources.gateway_id)
        assert await listed(other, state="running") == []
