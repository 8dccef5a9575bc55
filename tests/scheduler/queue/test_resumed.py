"""Jobs that continue an earlier run of their request: taken in the order of fresh work."""

import pytest

from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.types import JobState, Published
from tests.support.scheduler.queues import (
    LEASE_MS,
    PLENTY,
    Clock,
    Queue,
    job,
    progress,
    room,
    stay_alive,
    take_one,
    taken,
)

pytestmark = pytest.mark.anyio


async def test_its_gateway_must_be_asked_before_it_starts(queue: Queue) -> None:
    await queue.put(job("a", n=3), generated=4)
    await queue.put(job("b"))

    started = {lease.job.job_id: lease.started for lease in await queue.take("w1", PLENTY)}

    assert started == {"a": True, "b": False}


async def test_its_tokens_count_from_the_start(queue: Queue) -> None:
    await queue.put(job("a"), generated=4)
    lease = await take_one(queue)
    before = await queue.record("a")
    await queue.report("w1", [progress(lease, 5)])
    after = await queue.record("a")

    assert before is not None
    assert after is not None
    assert (before.generated, after.generated) == (4, 5)


async def test_it_does_not_go_before_what_is_due_sooner(queue: Queue) -> None:
    await queue.put(job("again", ttft_ms=900.0), generated=2)
    await queue.put(job("fresh", ttft_ms=300.0))
    await queue.put(job("others", "blue", ttft_ms=300.0))

    assert await taken(queue, room(latency=2)) == ["fresh", "others"]
    assert await taken(queue, room(latency=2)) == ["again"]


async def test_room_is_asked_for_its_tokens_too(queue: Queue) -> None:
    await queue.put(job("a"), generated=50)

    assert await taken(queue, room(latency=1, kv_tokens=60)) == []
    assert await taken(queue, room(latency=1, kv_tokens=61)) == ["a"]


async def test_it_has_its_first_token_in_time(queue: Queue, clock: Clock) -> None:
    for job_id, generated in (("begun", 1), ("fresh", 0)):
        await queue.put(job(job_id, hard_ttft_ms=2_000.0), generated=generated)
    await stay_alive(queue, clock, LEASE_MS, "w1")

    begun, fresh = await queue.record("begun"), await queue.record("fresh")
    assert begun is not None
    assert fresh is not None
    assert begun.state is JobState.QUEUED
    assert fresh.outcome is Outcome.EXPIRED


async def test_the_output_of_an_ended_job_can_be_read_until_it_is_forgotten(queue: Queue) -> None:
    await queue.put(job("a", prompt_print="of its prompt"))
    lease = await take_one(queue)
    await queue.report("w1", [progress(lease, 2, ends=Outcome.FAILED, token_ids=((5, 6),))])

    assert await queue.published("a") == Published("of its prompt", ((5, 6),))
    await queue.forget(["a"])
    assert await queue.published("a") is None
