"""A full worker is given the jobs of tenants to whom what it runs would yield."""

from dataclasses import replace

import pytest

from fairlane.scheduler.planner.steps import Capacity, Yielding
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Lease, Outcome
from tests.support.scheduler.queues import Clock, Queue, job, progress, room

LATENCY, THROUGHPUT = LaneName.LATENCY, LaneName.THROUGHPUT
pytestmark = pytest.mark.anyio


def full(
    *begun: str,
    waiting: tuple[str, ...] = (),
    jobs: int = 8,
    sequences: int = 8,
    kv: int = 1_000,
    shorter_than: int = 0,
) -> Capacity:
    """A worker with no room left, whose latency lane holds these tenants."""
    own = Yielding(begun, waiting, jobs, sequences, kv, shorter_than)
    return replace(room(max_sequences=8), yielding={LATENCY: own})


async def held_by(queue: Queue, tenant: str, *, cost: float) -> list[Lease]:
    """A job of this tenant runs on w1, of which so much was computed; nothing waits."""
    await queue.put(job(f"{tenant}-held", tenant))
    leases = await queue.take("w1", room(latency=1))
    await queue.report("w1", [progress(leases[0], 1, cost=cost)])
    return leases


async def test_a_full_worker_asks_for_a_tenant_of_which_it_has_nothing(queue: Queue) -> None:
    await held_by(queue, "crowd", cost=500.0)
    for number in range(3):
        await queue.put(job(f"crowd-{number}", "crowd"))
    await queue.put(job("new-1", "new"))
    await queue.put(job("new-2", "new"))

    assert [lease.job.job_id for lease in await queue.take("w1", full("crowd"))] == ["new-1"]
    assert await queue.take("w1", full("crowd", waiting=("new",))) == [], "one of each tenant waits there for others"


async def test_nothing_is_yielded_to_who_was_served_more_than_all_there(queue: Queue) -> None:
    await queue.put(job("heavy-1", "heavy"))
    await queue.put(job("crowd-held", "crowd"))
    leases = await queue.take("w1", room(latency=2))
    costs = {"heavy": 5_000.0, "crowd": 200.0}
    await queue.put(job("third", "third"))  # somebody waits: the lane is not level
    await queue.report("w1", [progress(lease, 1, cost=costs[lease.job.tenant]) for lease in leases])
    await queue.put(job("heavy-2", "heavy"))

    assert [lease.job.job_id for lease in await queue.take("w2", full("crowd"))] == ["third"]
    assert await queue.take("w2", full("crowd")) == []


async def test_who_was_served_since_the_crowd_was_charged_is_within_the_window_still(queue: Queue) -> None:
    await held_by(queue, "crowd", cost=500.0)
    for number in range(3):
        await queue.put(job(f"crowd-{number}", "crowd"))
    for number in range(20):  # a person, one request after the other; the crowd computes one long prompt meanwhile
        await queue.put(job(f"new-{number}", "new"))
        (lease,) = await queue.take("w1", full("crowd"))
        assert lease.job.tenant == "new"
        await queue.report("w1", [progress(lease, 1, cost=50.0, ends=Outcome.FINISHED)])


async def test_who_asked_for_less_while_nobody_waited_is_in_no_credit_for_it(queue: Queue) -> None:
    await held_by(queue, "gone", cost=100_000.0)
    await queue.put(job("quiet-held", "quiet"))  # starts level with who has gone
    quiet = await queue.take("w1", room(latency=1))
    await queue.report("w1", [progress(quiet[0], 1, cost=200.0)])
    await queue.put(job("gone-2", "gone"))
    await queue.take("w2", room(latency=1))
    await queue.put(job("new-1", "new"))

    assert [lease.job.job_id for lease in await queue.take("w1", full("quiet"))] == ["new-1"]


async def test_who_is_behind_by_more_than_the_window_is_asked_for_one_at_a_time(queue: Queue) -> None:
    await held_by(queue, "crowd", cost=5_000.0)
    for number in range(2):
        await queue.put(job(f"crowd-{number}", "crowd"))
    await queue.put(job("late-held", "late"))
    await queue.take("w1", room(latency=1))
    for number in range(3):
        await queue.put(job(f"late-{number}", "late"))
    crowd = await queue.take("w3", room(latency=1))
    assert [lease.job.tenant for lease in crowd] == ["late"]
    await queue.put(job("third", "third"))

    taken = await queue.take("w1", full("crowd", "late", waiting=("late",), jobs=0))

    assert taken == [], "who waits there already is not asked for again"


async def test_jobs_of_who_was_served_most_that_wait_there_keep_nobody_from_being_asked_for(queue: Queue) -> None:
    await queue.put(job("crowd-held", "crowd"))
    await queue.put(job("late-held", "late"))
    await queue.put(job("later-held", "later"))
    leases = await queue.take("w1", room(latency=3))
    await queue.put(job("third", "third"))  # somebody waits: the lane is not level
    costs = {"crowd": 9_000.0, "late": 200.0, "later": 100.0}
    await queue.report("w1", [progress(lease, 1, cost=costs[lease.job.tenant]) for lease in leases])
    for tenant in ("late", "later"):
        await queue.put(job(f"{tenant}-1", tenant))

    asked = await queue.take("w1", full("crowd", "late", "later", waiting=("crowd",), jobs=0))

    assert [lease.job.job_id for lease in asked] == ["later-1"], "one at a time, the least served first"
    assert await queue.take("w1", full("crowd", "late", "later", waiting=("crowd", "later"), jobs=0)) == []
    asked = await queue.take("w1", full("crowd", "late", "later", waiting=("crowd",), jobs=0))
    assert [lease.job.job_id for lease in asked] == ["late-1"]


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (full("crowd", jobs=0), "enough newcomers wait there"),
        (full("crowd", sequences=0), "nothing would be yielded"),
        (full("crowd", kv=5), "its prompt needs more"),
        (room(), "nothing runs there"),
    ],
)
async def test_a_newcomer_is_asked_for_where_what_is_yielded_suffices(queue: Queue, own: Capacity, why: str) -> None:
    await held_by(queue, "crowd", cost=500.0)
    await queue.put(job("new-1", "new"))

    assert await queue.take("w1", own) == [], why


async def test_a_worker_that_asks_for_short_newcomers_gets_no_longer_one(queue: Queue) -> None:
    await held_by(queue, "crowd", cost=500.0)
    for tokens_, number in ((200, 0), (100, 1), (99, 2), (20, 3), (10, 4)):
        await queue.put(job(f"new-{tokens_}", f"new-{number}", prompt=tuple(range(tokens_))))

    asked = await queue.take("w1", full("crowd", jobs=1, shorter_than=100))
    assert [lease.job.job_id for lease in asked] == ["new-10"], "no more than it asks for"
    asked = await queue.take("w1", full("crowd", jobs=8, shorter_than=100))
    assert [lease.job.job_id for lease in asked] == ["new-20", "new-99"]


async def test_what_a_share_floor_is_behind_for_gathers_room_from_the_lanes_above(queue: Queue, clock: Clock) -> None:
    await queue.put(job("batch", "b", THROUGHPUT))
    for number in range(40):
        await queue.put(job(f"chat-{number}", "c", LATENCY))
        (lease,) = await queue.take("w1", room(latency=1, kv_tokens=120, pool_tokens=120))
        done = progress(lease, 1, cost=1_000.0, ends=Outcome.FINISHED)
        await queue.report("w1", [done])
    await queue.put(job("chat-last", "c", LATENCY))

    nearly = Capacity({LATENCY: 4, THROUGHPUT: 1}, {LATENCY: 8, THROUGHPUT: 8}, max_sequences=8, pool_tokens=1_000)
    assert await queue.take("w1", nearly) == [], "eight tokens more, and it fits"
    enough = replace(nearly, kv_tokens={LATENCY: 16, THROUGHPUT: 16})
    assert (await queue.take("w1", enough))[0].job.job_id == "batch"
