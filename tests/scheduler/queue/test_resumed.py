"""Jobs that are put with tokens of an earlier run: leased with them, in the order of fresh work."""

import pytest

from fairlane.scheduler.protocol.messages import Outcome, TokenDelta
from fairlane.scheduler.queue.types import JobState, Published
from tests.support.scheduler.queues import (
    LEASE_MS,
    PLENTY,
    Clock,
    Queue,
    job,
    room,
    stay_alive,
    take_one,
    taken,
    tokens,
)

pytestmark = pytest.mark.anyio

GENERATED = ((7, 8, 9), (7,), ())


async def test_a_worker_gets_the_tokens_and_goes_on_behind_them(queue: Queue) -> None:
    await queue.put(job("a", n=3), generated=GENERATED)

    [lease] = await queue.take("w1", PLENTY)
    early = await queue.publish("gw", "w1", [tokens(lease, 8, first=0, choice=1)])
    fresh = await queue.publish("gw", "w1", [tokens(lease, 5, first=1, choice=1)])

    assert (lease.epoch, lease.generated) == (1, GENERATED)
    assert (early, fresh) == (set(), set())  # the first is on record, and said to nobody
    assert await queue.published("a") == Published("", ((7, 8, 9), (7, 5), ()))
    said = [event for event in await queue.events("gw") if isinstance(event, TokenDelta)]
    assert [(event.choice, event.first_index, event.token_ids) for event in said] == [(1, 1, (5,))]


async def test_another_worker_goes_on_from_all_of_it(queue: Queue) -> None:
    await queue.put(job("a"), generated=((7, 8),))
    lease = await take_one(queue)
    await queue.publish("gw", "w1", [tokens(lease, 9, first=2)])
    await queue.release("w1", ["a"])

    assert (await take_one(queue, "w2")).generated == ((7, 8, 9),)


async def test_it_does_not_go_before_what_is_due_sooner(queue: Queue) -> None:
    await queue.put(job("again", ttft_ms=900.0), generated=((7, 8),))
    await queue.put(job("fresh", ttft_ms=300.0))
    await queue.put(job("others", "blue", ttft_ms=300.0))

    assert await taken(queue, room(latency=2)) == ["fresh", "others"]
    assert await taken(queue, room(latency=2)) == ["again"]


async def test_room_is_asked_for_its_tokens_too(queue: Queue) -> None:
    await queue.put(job("a"), generated=(tuple(range(50)),))

    assert await taken(queue, room(latency=1, kv_tokens=60)) == []
    assert await taken(queue, room(latency=1, kv_tokens=61)) == ["a"]


async def test_it_has_its_first_token_in_time(queue: Queue, clock: Clock) -> None:
    for job_id, generated in (("begun", ((7,),)), ("fresh", ())):
        await queue.put(job(job_id, hard_ttft_ms=2_000.0), generated=generated)
    await stay_alive(queue, clock, LEASE_MS, "w1")

    begun, fresh = await queue.record("begun"), await queue.record("fresh")
    assert begun is not None
    assert fresh is not None
    assert begun.state is JobState.QUEUED
    assert fresh.outcome is Outcome.EXPIRED


async def test_what_was_published_of_one_that_ended_can_be_read_until_it_is_forgotten(queue: Queue) -> None:
    await queue.put(job("a", prompt_print="of its prompt"))
    lease = await take_one(queue)
    await queue.publish("gw", "w1", [tokens(lease, 5, 6, ends=Outcome.FAILED)])

    assert await queue.published("a") == Published("of its prompt", ((5, 6),))
    await queue.forget(["a"])
    assert await queue.published("a") is None


async def test_an_amended_job_goes_on_from_the_tokens_that_its_client_has(queue: Queue) -> None:
    await queue.put(job("a"))
    lease = await take_one(queue)
    await queue.publish("gw", "w1", [tokens(lease, 5, 6)])

    assert await queue.amend("a", lease.epoch, [(7, 8, 9)])

    stale = await queue.publish("gw", "w1", [tokens(lease, 6, first=2)])
    again = await take_one(queue, "w2")
    assert stale == {"a"}
    assert again.generated == ((7, 8, 9),)
    assert await queue.amend("a", lease.epoch, [(1,)])  # a repeat
    assert await queue.published("a") == Published("", ((7, 8, 9),))


async def test_a_job_that_has_ended_or_is_unknown_cannot_be_amended(queue: Queue) -> None:
    await queue.put(job("a"))
    lease = await take_one(queue)
    await queue.publish("gw", "w1", [tokens(lease, 5, ends=Outcome.FINISHED)])

    assert not await queue.amend("a", lease.epoch, [(7, 8)])
    assert not await queue.amend("ghost", 1, [(7, 8)])
    assert await queue.published("a") == Published("", ((5,),))
