"""Jobs that the store has lost, or whose end was lost: they run on, or their clients get an error and pay for what
came."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline.recovery import MOST_UNREACHED
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.types import Progress
from tests.support.gateway.served import ASKED, CHAT, Served, error_of, serving, settings, until
from tests.support.scheduler.queues import PLENTY

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000})
        yield opened


async def begun(served: Served) -> "tuple[asyncio.Task[httpx.Response], str]":
    """A request that has two tokens and waits for the next; and its job."""
    served.worker.limit = 2
    running = asyncio.create_task(served.post(CHAT, ASKED))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])
    (live,) = served.resources.fleet.dispatcher.jobs.values()
    await until(lambda: live.choices[0].published == 2)
    return running, live.id


async def look(served: Served, times: int) -> None:
    for _ in range(times):
        await served.resources.requests.lost_jobs.look()


async def lost_record(served: Served, job_id: str) -> None:
    """What a store that failed over no longer knows."""
    lost = [key async for key in served.store.scan_iter(f"*{job_id}*") if not key.startswith(b"fl:quota:")]
    await served.store.delete(*lost)


async def test_a_job_that_the_queue_lost_runs_on_over_its_link(served: Served) -> None:
    running, job_id = await begun(served)

    await lost_record(served, job_id)
    await look(served, times=3)
    served.worker.limit = None
    answer, undisturbed = await running, await served.post(CHAT, ASKED)
    await served.landed()

    assert answer.json()["choices"] == undisturbed.json()["choices"]
    charged, expected = await served.ledger()
    assert charged == expected


async def test_a_job_that_queue_and_worker_lost_ends_with_an_error_and_what_came_is_charged(served: Served) -> None:
    running, job_id = await begun(served)

    served.worker.taking = False
    await served.worker.outlet.aclose()
    await lost_record(served, job_id)
    await look(served, times=3)
    answer = await running
    await served.landed()

    assert error_of(answer) == (500, "internal_error")
    assert [output for _, _, output in await served.ledger()] == [2]


async def test_a_job_whose_end_was_lost_ends_with_an_error_and_what_came_is_charged(served: Served) -> None:
    running, job_id = await begun(served)
    lease = served.worker.leases.pop(job_id)

    await served.worker.outlet.aclose()
    ended = Progress(job_id, lease.epoch, 5, ends=Outcome.FINISHED)
    assert await served.worker.queue.report("hand", [ended]) == set()
    await look(served, times=3)
    answer = await running
    await served.landed()

    assert error_of(answer) == (500, "internal_error")
    assert [output for _, _, output in await served.ledger()] == [2]


async def test_an_engine_that_draws_anew_goes_on_from_the_tokens_that_the_client_has(served: Served) -> None:
    """A remote engine at temperature > 0, to which the job comes back."""
    running, job_id = await begun(served)
    sent = served.worker.script[:2]

    served.worker.say("Madrid is where Spain is ruled from.")
    served.worker.limit = None
    served.worker.leases.pop(job_id)
    served.worker.outlet.give_back([job_id])
    answer = await running
    await served.landed()

    told = TextModel(served.worker.card).decode([*sent, *served.worker.script[2:-1]])
    assert answer.json()["choices"][0]["message"]["content"] == told
    assert served.worker.seen[-1].generated == (tuple(sent),)
    [(_, _, output)] = await served.ledger()
    assert output == len(served.worker.script)


async def test_a_request_that_waits_or_speaks_is_left_alone(served: Served) -> None:
    running, _ = await begun(served)
    served.worker.taking = False
    waiting = asyncio.create_task(served.post(CHAT, ASKED))
    await until(lambda: len(served.resources.fleet.dispatcher.jobs) == 2)

    await look(served, times=6)
    served.worker.limit, served.worker.taking = None, True

    assert [(await each).status_code for each in (running, waiting)] == [200, 200]


async def test_a_job_whose_gateway_no_worker_reaches_ends_with_an_error_and_what_came_is_charged(
    served: Served,
) -> None:
    running, job_id = await begun(served)
    worker, queue = served.worker, served.worker.queue

    worker.taking = False
    await worker.outlet.aclose()
    worker.leases.clear()
    await queue.release("hand", [job_id])
    for _ in range(MOST_UNREACHED + 1):
        [lease] = await queue.take("far", PLENTY)
        await look(served, times=2)
        assert not running.done()
        await queue.release("far", [lease.job.job_id])
    await look(served, times=2)
    answer = await running
    await served.landed()

    assert error_of(answer) == (503, "unavailable")
    assert [output for _, _, output in await served.ledger()] == [2]
