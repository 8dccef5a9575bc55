"""What the queue books of a gateway's promises, as callers see it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Job
from fairlane.scheduler.queue.redis_queue import RedisQueue
from tests.support.gateway.served import ASKED, CHAT, Served, error_of, serving, settings, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as opened:
        await opened.tenant()
        opened.worker.step_weights = (1.0, 0.01, 50.0, 0.0, 0.0)
        [model] = opened.resources.fleet.cache.models
        await until(lambda: bool(opened.resources.fleet.cache.models[model].workers[0].step_weights))
        yield opened


async def test_a_promise_that_other_doors_leave_no_time_for_is_best_effort(served: Served) -> None:
    promised = await served.post(CHAT, ASKED, x_fairlane_ttft_ms="9000")
    served.worker.taking = False
    await another_door_promises(served, 7_000.0)
    answered = asyncio.create_task(served.post(CHAT, {**ASKED, "max_tokens": 5}, x_fairlane_ttft_ms="7000"))
    await until(lambda: bool(served.resources.fleet.dispatcher.jobs))
    served.worker.taking = True
    demoted = await answered

    assert promised.headers["x-fairlane-class"] == "guaranteed"
    assert served.worker.seen[0].job.guaranteed
    assert demoted.headers["x-fairlane-class"] == "best-effort"
    assert not served.worker.seen[-1].job.guaranteed


async def test_a_deadline_that_not_even_best_effort_would_keep_beside_what_other_doors_promised_is_refused(
    served: Served,
) -> None:
    served.worker.taking = False
    await another_door_promises(served, 7_700.0)
    before = await served.limits()

    refused = await served.post(CHAT, {**ASKED, "max_tokens": 5}, x_fairlane_ttft_ms="5200")

    assert error_of(refused) == (429, "deadline_unattainable")
    assert int(refused.headers["retry-after"]) >= 1
    assert "x-should-retry" not in refused.headers
    await served.landed()
    assert await served.limits() == before
    assert not served.worker.seen


async def another_door_promises(served: Served, claim_ms: float) -> None:
    [model] = served.resources.fleet.cache.models.values()
    queue = RedisQueue(served.worker.redis, model.queue, DEFAULT_LANES)
    taken = Job(
        job_id="other",
        tenant="other",
        gateway_id="other",
        lane=LaneName.LATENCY,
        prompt=(1,),
        max_tokens=1,
        granted_until=1,
        ttft_ms=1e6,
        tpot_ms=1.0,
        hard_ttft_ms=8_000.0,
        guaranteed=True,
        claim_ms=claim_ms,
    )
    assert (await queue.put(taken)).guaranteed
