"""`publish` is the one way for tokens: fenced by epochs, without gap or repeat."""

import pytest

from fairlane.scheduler.protocol.messages import Finished, Lease, Outcome, Paused, TokenDelta
from fairlane.scheduler.queue.types import MAX_LOSSES, Publication
from tests.support.scheduler.queues import LEASE_MS, PLENTY, Clock, Queue, job, stay_alive, take_one, tokens

pytestmark = pytest.mark.anyio


async def leased(queue: Queue, job_id: str = "a", worker_id: str = "w1") -> Lease:
    await queue.put(job(job_id))
    return await take_one(queue, worker_id)


async def generated(queue: Queue, job_id: str = "a") -> tuple[int, ...]:
    record = await queue.record(job_id)
    assert record is not None
    return record.generated


async def test_what_is_published_reaches_the_gateway_and_the_record(queue: Queue) -> None:
    lease = await leased(queue)

    assert await queue.publish("gw", "w1", [tokens(lease, 5, 6)]) == set()
    assert await queue.publish("gw", "w1", [tokens(lease, 7, first=2, ends=Outcome.FINISHED)]) == set()

    assert await queue.events("gw") == [
        TokenDelta(job_id="a", epoch=1, choice=0, first_index=0, token_ids=(5, 6)),
        TokenDelta(job_id="a", epoch=1, choice=0, first_index=2, token_ids=(7,)),
        Finished(job_id="a", epoch=1, outcome=Outcome.FINISHED),
    ]
    assert await generated(queue) == (3,)


async def test_one_step_of_many_jobs_comes_in_order(queue: Queue) -> None:
    for job_id in "abc":
        await queue.put(job(job_id, n=2))
    leases = await queue.take("w1", PLENTY)

    await queue.publish("gw", "w1", [tokens(lease, 9, choice=1) for lease in leases])

    assert [event.job_id for event in await queue.events("gw")] == ["a", "b", "c"]
    assert await generated(queue, "c") == (0, 1)


async def test_token_ids_of_any_size_are_kept(queue: Queue) -> None:
    lease = await leased(queue)
    ids = (0, 255, 256, 65_535, 2**31, 2**32 - 1)
    await queue.publish("gw", "w1", [tokens(lease, *ids)])

    await queue.release("w1", ["a"])

    assert (await take_one(queue)).generated == (ids,)


async def test_each_gateway_hears_of_its_own_jobs(queue: Queue) -> None:
    await queue.put(job("a"))
    await queue.put(job("b", gateway_id="gw2"))
    mine, other = await queue.take("w1", PLENTY)

    assert await queue.publish("gw", "w1", [tokens(mine, 5), tokens(other, 6)]) == {"b"}

    assert await queue.events("gw2") == []
    assert await generated(queue, "b") == (0,)


async def test_a_stale_epoch_is_refused_after_reclaim(queue: Queue, clock: Clock) -> None:
    """A worker that was only slow cannot double a token: not while the job waits, nor once it runs elsewhere."""
    slow = await leased(queue)
    await queue.publish("gw", "w1", [tokens(slow, 5)])
    await stay_alive(queue, clock, LEASE_MS + 1_000)
    late = tokens(slow, 6, first=1)

    assert await queue.publish("gw", "w1", [late]) == {"a"}
    retaken = await take_one(queue, "w2")
    assert await queue.publish("gw", "w1", [late]) == {"a"}
    assert await queue.publish("gw", "w2", [tokens(retaken, 6, first=1)]) == set()
    assert await queue.publish("gw", "w1", [late, tokens(slow, ends=Outcome.FINISHED)]) == {"a"}

    assert [event.epoch for event in await queue.events("gw") if isinstance(event, TokenDelta)] == [
        slow.epoch,
        retaken.epoch,
    ]
    assert await generated(queue) == (2,)


async def test_the_same_worker_cannot_publish_under_its_own_old_epoch(queue: Queue) -> None:
    old = await leased(queue)
    await queue.release("w1", ["a"])
    await take_one(queue)

    assert await queue.publish("gw", "w1", [tokens(old, 5)]) == {"a"}


async def test_only_the_refused_are_left_out(queue: Queue) -> None:
    mine = await leased(queue)
    ghost = Publication("ghost", 1)

    assert await queue.publish("gw", "w1", [ghost, tokens(mine, 5)]) == {"ghost"}

    assert len(await queue.events("gw")) == 1


async def test_a_gap_is_refused(queue: Queue) -> None:
    lease = await leased(queue)

    assert await queue.publish("gw", "w1", [tokens(lease, 6, first=1)]) == {"a"}

    assert await generated(queue) == (0,)
    assert await queue.events("gw") == []


async def test_after_a_gap_the_job_goes_on_from_its_record_at_once(queue: Queue) -> None:
    """So it does where a crash of the store has taken tokens back that its worker had published."""
    lease = await leased(queue)
    await queue.publish("gw", "w1", [tokens(lease, 5)])

    assert await queue.publish("gw", "w1", [tokens(lease, 7, first=2)]) == {"a"}
    again = await take_one(queue, "w2")
    assert await queue.publish("gw", "w1", [tokens(lease, 6, first=1)]) == {"a"}
    assert await queue.publish("gw", "w2", [tokens(again, 6, first=1)]) == set()

    assert again.generated == ((5,),)
    assert await generated(queue) == (2,)


async def test_an_end_after_a_gap_is_none(queue: Queue) -> None:
    lease = await leased(queue)

    assert await queue.publish("gw", "w1", [tokens(lease, 6, first=1, ends=Outcome.FINISHED)]) == {"a"}

    assert (await take_one(queue)).generated == ((),)


async def test_a_cancelled_job_ends_at_a_gap(queue: Queue) -> None:
    lease = await leased(queue)
    await queue.cancel("a")

    assert await queue.publish("gw", "w1", [tokens(lease, 6, first=1)]) == {"a"}

    (end,) = await queue.events("gw")
    assert isinstance(end, Finished)
    assert end.outcome is Outcome.CANCELLED


async def test_a_job_is_not_lost_for_ever(queue: Queue) -> None:
    await queue.put(job("a"))

    for _ in range(MAX_LOSSES):
        lease = await take_one(queue)
        assert await queue.publish("gw", "w1", [tokens(lease, 6, first=1)]) == {"a"}

    (end,) = await queue.events("gw")
    assert isinstance(end, Finished)
    assert end.outcome is Outcome.FAILED
    assert f"lost it or died {MAX_LOSSES} times" in end.error


async def test_tokens_on_record_are_not_recorded_again(queue: Queue) -> None:
    lease = await leased(queue)
    step = [tokens(lease, 5, 6)]
    await queue.publish("gw", "w1", step)

    assert await queue.publish("gw", "w1", step) == set()

    assert await generated(queue) == (2,)
    assert len(await queue.events("gw")) == 1


async def test_tokens_that_only_partly_are_on_record_are_refused(queue: Queue) -> None:
    lease = await leased(queue)
    await queue.publish("gw", "w1", [tokens(lease, 5, 6)])

    assert await queue.publish("gw", "w1", [tokens(lease, 6, 7, first=1)]) == {"a"}

    assert await generated(queue) == (2,)


async def test_a_repeated_call_doubles_not_even_an_event_without_tokens(queue: Queue) -> None:
    lease = await leased(queue)
    paused = Publication("a", lease.epoch, (Paused(job_id="a", choice=0),), cost=9.0)

    for _ in range(3):
        assert await queue.publish("gw", "w1", [paused], serial="17") == set()
    assert await queue.publish("gw", "w1", [paused], serial="18") == set()

    assert len(await queue.events("gw")) == 2


async def test_the_end_is_recorded_once_and_is_for_good(queue: Queue) -> None:
    lease = await leased(queue)
    end = [tokens(lease, 5, ends=Outcome.FINISHED)]

    assert await queue.publish("gw", "w1", end, serial="1") == set()
    assert await queue.publish("gw", "w1", end, serial="1") == set()
    assert await queue.publish("gw", "w1", end, serial="2") == {"a"}
    assert await queue.publish("gw", "w1", [tokens(lease, 6, first=1)], serial="3") == {"a"}

    assert len(await queue.events("gw")) == 2


async def test_serials_of_different_workers_and_gateways_do_not_meet(queue: Queue) -> None:
    await queue.put(job("a"))
    await queue.put(job("b", gateway_id="gw2"))
    first, second = await queue.take("w1", PLENTY)
    third = await leased(queue, "c", "w2")

    await queue.publish("gw", "w1", [tokens(first, 1)], serial="1")
    await queue.publish("gw2", "w1", [tokens(second, 1)], serial="1")
    await queue.publish("gw", "w2", [tokens(third, 1)], serial="1")

    assert [await generated(queue, job_id) for job_id in "abc"] == [(1,), (1,), (1,)]


async def test_an_end_without_tokens_or_events_is_enough(queue: Queue) -> None:
    lease = await leased(queue)

    assert await queue.publish("gw", "w1", [Publication("a", lease.epoch, ends=Outcome.FAILED)]) == set()

    record = await queue.record("a")
    assert record is not None
    assert record.outcome is Outcome.FAILED


async def test_a_choice_that_the_job_does_not_have_is_refused(queue: Queue) -> None:
    lease = await leased(queue)

    assert await queue.publish("gw", "w1", [tokens(lease, 5, choice=1)]) == {"a"}
