"""`report`: the progress of leased jobs, fenced by epochs and counted once."""

import pytest

from fairlane.scheduler.protocol.messages import Lease, Outcome
from fairlane.scheduler.queue.types import Progress, Published
from tests.support.scheduler.queues import LEASE_MS, PLENTY, Clock, Queue, job, progress, room, stay_alive, take_one

pytestmark = pytest.mark.anyio


async def leased(queue: Queue, job_id: str = "a", worker_id: str = "w1") -> Lease:
    await queue.put(job(job_id))
    return await take_one(queue, worker_id)


async def generated(queue: Queue, job_id: str = "a") -> int:
    record = await queue.record(job_id)
    assert record is not None
    return record.generated


async def test_a_report_reaches_the_record_and_sends_the_gateway_nothing(queue: Queue) -> None:
    """The worker sends tokens and ends to the gateway over their link."""
    lease = await leased(queue)

    assert await queue.report("w1", [progress(lease, 2)]) == set()
    assert await queue.report("w1", [progress(lease, 3, ends=Outcome.FINISHED)]) == set()

    assert await generated(queue) == 3
    assert await queue.events("gw") == []


async def test_one_report_covers_jobs_of_all_gateways(queue: Queue) -> None:
    for number, job_id in enumerate("abc"):
        await queue.put(job(job_id, n=2, gateway_id=f"gw{number}"))
    leases = await queue.take("w1", PLENTY)

    assert await queue.report("w1", [progress(lease, count) for count, lease in enumerate(leases, 4)]) == set()

    assert [await generated(queue, lease.job.job_id) for lease in leases] == [4, 5, 6]


async def test_the_number_of_tokens_never_falls(queue: Queue) -> None:
    """A worker may lose the end of an output that its gateway had already counted."""
    lease = await leased(queue)
    await queue.report("w1", [progress(lease, 5)])

    assert await queue.report("w1", [progress(lease, 3)]) == set()
    assert await generated(queue) == 5
    assert await queue.report("w1", [progress(lease, 4, ends=Outcome.CANCELLED)]) == set()
    assert await generated(queue) == 5


async def test_token_ids_of_any_size_are_kept_for_each_choice(queue: Queue) -> None:
    await queue.put(job("a", n=2, prompt_print="print"))
    [lease] = await queue.take("w1", PLENTY)
    ids = ((0, 255, 256, 65_535, 2**31, 2**32 - 1), ())

    await queue.report("w1", [progress(lease, 6, token_ids=ids)])
    await queue.release("w1", ["a"])

    assert await queue.published("a") == Published("print", ids)


async def test_a_refused_report_keeps_no_token_ids(queue: Queue) -> None:
    old = await leased(queue)
    await queue.release("w1", ["a"])
    new = await take_one(queue, "w2")
    await queue.report("w2", [progress(new, 2, token_ids=((7, 8),))])

    assert await queue.report("w1", [progress(old, 3, token_ids=((4, 5, 6),))]) == {"a"}

    assert await queue.published("a") == Published("", ((7, 8),))


async def test_a_stale_epoch_is_refused_after_reclaim(queue: Queue, clock: Clock) -> None:
    """A slow worker can neither count nor end a job that was taken from it: not while it waits, nor once it runs
    elsewhere."""
    slow = await leased(queue)
    await queue.report("w1", [progress(slow, 1)])
    await stay_alive(queue, clock, LEASE_MS + 1_000)
    late = progress(slow, 9)

    assert await queue.report("w1", [late]) == {"a"}
    retaken = await take_one(queue, "w2")
    assert await queue.report("w1", [late]) == {"a"}
    assert await queue.report("w2", [progress(retaken, 2)]) == set()
    assert await queue.report("w1", [late, progress(slow, ends=Outcome.FINISHED)]) == {"a"}

    record = await queue.record("a")
    assert record is not None
    assert (record.generated, record.outcome, record.worker_id) == (2, None, "w2")


async def test_a_worker_cannot_report_under_its_own_old_epoch(queue: Queue) -> None:
    old = await leased(queue)
    await queue.release("w1", ["a"])
    await take_one(queue)

    assert await queue.report("w1", [progress(old, 1)]) == {"a"}


async def test_a_worker_cannot_report_for_another(queue: Queue) -> None:
    lease = await leased(queue)

    assert await queue.report("w2", [progress(lease, 1, ends=Outcome.FINISHED)]) == {"a"}

    assert await generated(queue) == 0


async def test_the_refusal_of_one_job_leaves_the_others_alone(queue: Queue) -> None:
    mine = await leased(queue)

    assert await queue.report("w1", [Progress("ghost", 1), progress(mine, 1)]) == {"ghost"}

    assert await generated(queue) == 1


async def test_the_end_is_recorded_once_and_is_final(queue: Queue) -> None:
    lease = await leased(queue)
    end = [progress(lease, 1, ends=Outcome.FINISHED)]

    assert await queue.report("w1", end, serial="1") == set()
    assert await queue.report("w1", end, serial="1") == set()
    assert await queue.report("w1", end, serial="2") == {"a"}
    assert await queue.report("w1", [progress(lease, 2)], serial="3") == {"a"}

    assert await generated(queue) == 1


async def test_a_repeated_report_names_the_refused_jobs_again(queue: Queue) -> None:
    lease = await leased(queue)
    items = [Progress("ghost", 1), progress(lease, 1), Progress("another", 7)]

    assert await queue.report("w1", items, serial="1") == {"ghost", "another"}
    assert await queue.report("w1", items, serial="1") == {"ghost", "another"}


async def test_a_repeated_report_is_charged_once(queue: Queue) -> None:
    """The tenant red is charged 6,000 tokens, not 12,000, so that its next job precedes that of blue."""
    for tenant in ("red", "blue"):
        await queue.put(job(f"first of {tenant}", tenant, ttft_ms=100.0))
        await queue.put(job(f"next of {tenant}", tenant))
    leases = {lease.job.tenant: lease for lease in await queue.take("w1", room(latency=2))}

    for _ in range(3):
        await queue.report("w1", [progress(leases["red"], 1, cost=6_000.0)], serial="1")
    await queue.report("w1", [progress(leases["blue"], 1, cost=12_000.0)], serial="2")

    assert (await take_one(queue)).job.job_id == "next of red"


async def test_serials_of_different_workers_do_not_meet(queue: Queue) -> None:
    first, second = await leased(queue, "a"), await leased(queue, "b", "w2")

    await queue.report("w1", [progress(first, 1)], serial="1")
    await queue.report("w2", [progress(second, 1)], serial="1")

    assert [await generated(queue, job_id) for job_id in "ab"] == [1, 1]


async def test_an_end_without_tokens_is_enough(queue: Queue) -> None:
    await leased(queue)

    assert await queue.report("w1", [Progress("a", 1, ends=Outcome.FAILED)]) == set()

    record = await queue.record("a")
    assert record is not None
    assert record.outcome is Outcome.FAILED


async def test_what_a_turn_reports_is_charged_before_its_jobs_are_chosen(queue: Queue) -> None:
    lease = await leased(queue)
    await queue.put(job("again"))
    await queue.put(job("other", tenant="other"))

    turn = await queue.turn("w1", room(latency=1), [Progress("a", lease.epoch, 3_000, 100_000.0)])

    assert [other.job.job_id for other in turn.leases] == ["other"]
