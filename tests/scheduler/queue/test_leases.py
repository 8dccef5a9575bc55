"""Leases, epochs, and what becomes of a job whose worker dies, hangs, drains or loses an answer."""

import pytest

from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Finished, Outcome
from fairlane.scheduler.queue.types import MAX_LOSSES, SUSPECT_LOSSES, JobState
from tests.support.scheduler.queues import LEASE_MS, Clock, Queue, job, progress, room, stay_alive, take_one, taken

pytestmark = pytest.mark.anyio


async def kill(queue: Queue, clock: Clock, *alive: str) -> int:
    """Let the leases of all workers but these lapse."""
    return await stay_alive(queue, clock, LEASE_MS + 1_000, *alive)


async def test_every_taking_has_a_higher_epoch(queue: Queue) -> None:
    await queue.put(job("a"))

    epochs = []
    for worker in ("w1", "w2", "w3"):
        lease = await take_one(queue, worker)
        epochs.append(lease.epoch)
        await queue.release(worker, ["a"])

    assert epochs == sorted(set(epochs))


async def test_a_dead_workers_jobs_go_on_elsewhere_with_what_they_have(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a", n=2))
    [lease] = await queue.take("w1", room(latency=2))
    await queue.report("w1", [progress(lease, 3)])

    assert await kill(queue, clock, "w2") == 1

    [taken_up] = await queue.take("w2", room(latency=2))
    assert taken_up.job == lease.job
    assert (lease.started, taken_up.started) == (False, True)  # its gateway has the tokens
    assert taken_up.epoch > lease.epoch


async def test_arrival_is_counted_from_the_first_put(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a"))
    await take_one(queue)
    await kill(queue, clock)

    assert (await take_one(queue, "w2")).arrived_ms_ago == LEASE_MS + 1_000


async def test_a_renewed_lease_is_kept(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a"))
    await take_one(queue)

    assert await stay_alive(queue, clock, 5 * LEASE_MS, "w1") == 0

    assert await taken(queue, worker_id="w2") == []


async def test_renew_says_once_that_the_jobs_are_gone(queue: Queue, clock: Clock) -> None:
    assert await queue.renew("w1")
    await queue.put(job("a"))
    await take_one(queue)
    await kill(queue, clock)

    assert not await queue.renew("w1")
    assert await queue.renew("w1")


async def test_a_worker_that_does_not_know_of_its_loss_gets_nothing_more(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a"))
    await take_one(queue)
    await kill(queue, clock)

    assert await taken(queue) == []
    await queue.renew("w1")
    assert await taken(queue) == ["a"]


async def test_a_worker_that_lost_nothing_is_not_told_so(queue: Queue, clock: Clock) -> None:
    await queue.renew("w1")
    await kill(queue, clock)

    assert await queue.renew("w1")


async def test_returned_jobs_stand_at_the_head_of_their_lane(queue: Queue, clock: Clock) -> None:
    for job_id in ("a", "b"):
        await queue.put(job(job_id))
    await queue.put(job("batch", lane=LaneName.THROUGHPUT))
    await taken(queue)
    await queue.put(job("pressed", "blue", ttft_ms=1.0, guaranteed=True))
    await queue.put(job("mine", ttft_ms=1.0))

    await queue.release("w1", ["b", "a", "batch"])

    assert [await queue.position(job_id) for job_id in ("a", "b", "mine")] == [1, 2, 3]
    assert await taken(queue) == ["a", "b", "pressed", "mine", "batch"]


async def test_releasing_does_not_count_as_a_loss(queue: Queue) -> None:
    await queue.put(job("a"))

    for _ in range(2 * MAX_LOSSES):
        await take_one(queue)
        await queue.release("w1", ["a"])

    assert await queue.position("a") == 1


async def test_only_the_holder_can_release(queue: Queue) -> None:
    await queue.put(job("a"))
    await take_one(queue)
    await queue.put(job("b"))

    await queue.release("w2", ["a", "b", "ghost"])

    record = await queue.record("a")
    assert record is not None
    assert (record.state, record.worker_id) == (JobState.LEASED, "w1")


async def test_a_cancelled_job_of_a_lost_worker_ends_as_cancelled(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a"))
    lease = await take_one(queue)
    await queue.cancel("a")

    await kill(queue, clock)

    assert await queue.events("gw") == [Finished(job_id="a", epoch=lease.epoch, outcome=Outcome.CANCELLED)]
    assert await taken(queue, worker_id="w2") == []


async def test_a_cancelled_job_that_is_released_ends_as_cancelled(queue: Queue) -> None:
    await queue.put(job("a"))
    await take_one(queue)
    await queue.cancel("a")

    await queue.release("w1", ["a"])

    record = await queue.record("a")
    assert record is not None
    assert record.outcome is Outcome.CANCELLED


async def test_a_poisoned_job_fails_after_bounded_retries(queue: Queue, clock: Clock) -> None:
    await queue.put(job("poison", deadline_ms=1e6))

    for loss in range(MAX_LOSSES):
        assert await taken(queue, worker_id=f"w{loss}") == ["poison"]
        await kill(queue, clock)

    [finished] = await queue.events("gw")
    assert isinstance(finished, Finished)
    assert finished.outcome is Outcome.FAILED
    assert "died 5 times" in finished.error
    assert await taken(queue, worker_id="last") == []


async def test_the_poisoned_one_fails_alone(queue: Queue, clock: Clock) -> None:
    """A worker dies whenever it holds the poison; the jobs that were beside it all finish."""
    job_ids = ["poison", *(f"fine{index}" for index in range(6))]
    for job_id in job_ids:
        await queue.put(job(job_id, deadline_ms=1e7))

    outcomes: dict[str, Outcome | None] = {}
    for life in range(40):
        worker = f"w{life}"
        leases = await queue.take(worker, room(latency=8))
        if any(lease.job.job_id == "poison" for lease in leases):
            await kill(queue, clock)
        else:
            await queue.report(worker, [progress(lease, ends=Outcome.FINISHED) for lease in leases])
    for job_id in job_ids:
        record = await queue.record(job_id)
        outcomes[job_id] = record.outcome if record else None

    assert outcomes.pop("poison") is Outcome.FAILED
    assert set(outcomes.values()) == {Outcome.FINISHED}


async def test_one_suspect_at_a_time_and_the_others_beside_it(queue: Queue, clock: Clock) -> None:
    for job_id in ("a", "b"):
        await queue.put(job(job_id, deadline_ms=1e7))
    for loss in range(SUSPECT_LOSSES):
        await taken(queue, worker_id=f"dead{loss}")
        await kill(queue, clock)
    await queue.put(job("c"))

    assert await taken(queue) == ["a", "c"]
    assert await taken(queue) == []
    assert await taken(queue, worker_id="w2") == ["b"]


async def test_a_job_whose_take_was_never_answered_is_given_back(queue: Queue, clock: Clock) -> None:
    await queue.put(job("known"))
    await take_one(queue)
    await queue.put(job("unheard"))
    await take_one(queue)

    await queue.renew("w1", holding=["known"])
    assert await queue.position("unheard") is None  # the answer may be on its way

    await stay_alive(queue, clock, LEASE_MS, "w1")
    assert await queue.renew("w1", holding=["known"])

    assert await queue.position("unheard") == 1
    assert await taken(queue, worker_id="w2") == ["unheard"]


async def test_after_a_pause_of_the_store_holders_renew_first(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a"))
    await queue.put(job("orphan", "blue", gateway_id="gone"))
    await take_one(queue)
    await queue.reclaim()

    clock.advance(60 * LEASE_MS)  # nobody could reach the store
    assert await queue.reclaim() == 0
    assert await stay_alive(queue, clock, LEASE_MS, "w1") == 0

    record = await queue.record("a")
    assert record is not None
    assert (record.state, record.worker_id) == (JobState.LEASED, "w1")


async def test_after_the_grace_the_dead_are_dead(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a", lane=LaneName.THROUGHPUT))
    await take_one(queue, lane=LaneName.THROUGHPUT)
    await queue.reclaim()
    clock.advance(60 * LEASE_MS)

    assert await stay_alive(queue, clock, LEASE_MS + 1_000) == 1

    assert await queue.position("a") == 1


async def test_a_clock_that_steps_ahead_and_back_lets_the_dead_be_dead(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a", lane=LaneName.THROUGHPUT))
    await take_one(queue, lane=LaneName.THROUGHPUT)
    await queue.reclaim()
    clock.advance(600 * LEASE_MS)
    await queue.reclaim()
    clock.advance(-600 * LEASE_MS)

    assert await stay_alive(queue, clock, LEASE_MS + 1_000) == 1


async def test_a_heartbeat_after_the_pause_begins_the_grace_too(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a", lane=LaneName.THROUGHPUT))
    await queue.renew("w1")
    await take_one(queue, lane=LaneName.THROUGHPUT)
    clock.advance(60 * LEASE_MS)

    await queue.renew("w2")

    assert await queue.reclaim() == 0
    assert await queue.position("a") is None


HOUR_MS = 3_600_000


async def test_a_worker_that_dies_as_the_clock_steps_back_has_one_lease_and_not_an_hour(
    queue: Queue, clock: Clock
) -> None:
    await queue.put(job("a"))
    await take_one(queue)
    await queue.renew("w1")

    clock.advance(-HOUR_MS)

    assert await stay_alive(queue, clock, LEASE_MS, "w2") == 0
    assert await stay_alive(queue, clock, 2_000, "w2") == 1
    assert (await take_one(queue, "w2")).job.job_id == "a"


async def test_a_gateway_that_dies_as_the_clock_steps_back_is_missed_after_its_leases(
    queue: Queue, clock: Clock
) -> None:
    await queue.gateway_alive("gw")
    await queue.put(job("a"))

    clock.advance(-HOUR_MS)
    await stay_alive(queue, clock, 4 * LEASE_MS, "w2", gateways=())

    record = await queue.record("a")
    assert record is not None
    assert record.outcome is Outcome.CANCELLED


async def test_who_lives_keeps_its_jobs_when_the_clock_steps_back(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a"))
    lease = await take_one(queue)

    clock.advance(-HOUR_MS)

    assert await stay_alive(queue, clock, 5 * LEASE_MS, "w1") == 0
    assert await queue.report("w1", [progress(lease, 1)]) == set()
