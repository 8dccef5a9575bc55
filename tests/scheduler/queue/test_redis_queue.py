"""What only the queue in Redis has: many clients at once, lost answers, the server's clock, keys."""

import asyncio
from collections import Counter
from typing import Any

import pytest
import redis.asyncio
from redis.exceptions import ConnectionError as StoreGoneError

from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.types import KEPT_MS, JobState, Progress, Published
from tests.support.scheduler.queues import (
    LEASE_MS,
    PLENTY,
    Clock,
    StoredQueue,
    TakingQueue,
    job,
    progress,
    room,
    stay_alive,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def queue(store: redis.asyncio.Redis) -> TakingQueue:
    return TakingQueue(store, "model@1", DEFAULT_LANES)


async def test_two_takers_never_get_the_same_job(store: redis.asyncio.Redis) -> None:
    queues = [TakingQueue(store, "model@1", DEFAULT_LANES) for _ in range(8)]
    job_ids = [f"f{index:03}" for index in range(120)]
    for index, job_id in enumerate(job_ids):
        await queues[0].put(job(job_id, f"t{index % 7}"))

    async def drain(number: int) -> list[str]:
        mine: list[str] = []
        while leases := await queues[number].take(f"w{number}", room(latency=3)):
            mine += [lease.job.job_id for lease in leases]
        return mine

    taken = Counter(job_id for mine in await asyncio.gather(*map(drain, range(8))) for job_id in mine)

    assert taken == Counter(job_ids)


async def test_racing_puts_of_one_job_queue_it_once(queue: TakingQueue) -> None:
    answers = await asyncio.gather(*(queue.put(job("a")) for _ in range(20)))

    assert {answer.position for answer in answers} == {1}
    assert len(await queue.take("w1", PLENTY)) == 1


async def test_cancel_and_take_at_once_have_one_winner(queue: TakingQueue) -> None:
    for index in range(30):
        await queue.put(job(f"f{index}"))

    taking = asyncio.create_task(queue.take("w1", room(latency=15)))
    await asyncio.gather(*(queue.cancel(f"f{index}") for index in range(30)))

    leased = {lease.job.job_id for lease in await taking}
    for index in range(30):
        record = await queue.record(f"f{index}")
        assert record is not None
        expected = JobState.LEASED if f"f{index}" in leased else JobState.ENDED
        assert (record.state, record.cancelled) == (expected, expected is JobState.LEASED)


class _Deaf:
    """A client of the store whose next answer is lost, though the store has done what it was asked."""

    def __init__(self, store: redis.asyncio.Redis) -> None:
        self._store = store
        self.loses_next = False

    async def execute_command(self, *call: Any, **options: Any) -> object:
        return self._heard(await self._store.execute_command(*call, **options))  # type: ignore[no-untyped-call]

    def _heard(self, answer: object) -> object:
        if self.loses_next:
            self.loses_next = False
            raise StoreGoneError("connection lost")
        return answer

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


async def test_a_report_sent_again_after_a_lost_answer_is_charged_once(store: redis.asyncio.Redis) -> None:
    deaf = _Deaf(store)
    queue = TakingQueue(deaf, "model@1", DEFAULT_LANES)  # type: ignore[arg-type]
    await queue.put(job("a"))
    [lease] = await queue.take("w1", PLENTY)
    step = [progress(lease, 2, cost=9_000.0, ends=Outcome.FINISHED), Progress("ghost", 1)]

    deaf.loses_next = True
    with pytest.raises(StoreGoneError):
        await queue.report("w1", step, serial="7")
    assert await queue.report("w1", step, serial="7") == {"ghost"}

    assert await store.zscore("fl:{model@1}:counters:latency", "acme") == 9_000.0


async def test_a_take_whose_answer_was_lost_comes_back(store: redis.asyncio.Redis) -> None:
    deaf = _Deaf(store)
    queue = TakingQueue(deaf, "model@1", DEFAULT_LANES, lease_ms=50)  # type: ignore[arg-type]
    await queue.put(job("a"))

    deaf.loses_next = True
    with pytest.raises(StoreGoneError):
        await queue.take("w1", PLENTY)
    assert await queue.take("w1", PLENTY) == []
    while await queue.position("a") is None:
        assert await queue.renew("w1", holding=[])

    assert [lease.job.job_id for lease in await queue.take("w1", PLENTY)] == ["a"]


async def test_a_take_tried_again_after_a_lost_answer_gives_the_same_leases(store: redis.asyncio.Redis) -> None:
    deaf = _Deaf(store)
    queue = TakingQueue(deaf, "model@1", DEFAULT_LANES)  # type: ignore[arg-type]
    await queue.put(job("a"))
    serial = queue.new_serial()

    deaf.loses_next = True
    with pytest.raises(StoreGoneError):
        await queue.take("w1", PLENTY, serial=serial)

    assert [lease.job.job_id for lease in await queue.take("w1", PLENTY, serial=serial)] == ["a"]


async def test_serials_of_two_lives_of_a_worker_do_not_meet(store: redis.asyncio.Redis) -> None:
    before, after = (TakingQueue(store, "model@1", DEFAULT_LANES) for _ in range(2))
    await before.put(job("a"))
    [lease] = await before.take("w1", PLENTY)

    await before.report("w1", [progress(lease, 1)], serial=before.new_serial())
    await after.report("w1", [progress(lease, 2)], serial=after.new_serial())

    record = await after.record("a")
    assert record is not None
    assert record.generated == 2


async def test_scripts_are_loaded_again_when_the_store_has_forgotten_them(
    queue: TakingQueue, store: redis.asyncio.Redis
) -> None:
    await queue.put(job("a"))

    await store.script_flush()

    assert (await queue.put(job("b"))).position == 2


async def test_leases_run_on_the_servers_clock(store: redis.asyncio.Redis) -> None:
    queue = TakingQueue(store, "model@1", DEFAULT_LANES, lease_ms=300)
    await queue.put(job("a"))
    [lease] = await queue.take("w1", PLENTY)
    assert 0 <= lease.arrived_ms_ago < 5_000

    while not await queue.reclaim():
        await queue.gateway_alive("gw")

    assert [lease.job.job_id for lease in await queue.take("w2", PLENTY)] == ["a"]
    assert not await queue.renew("w1")


async def test_queues_of_different_models_do_not_meet(store: redis.asyncio.Redis) -> None:
    ours, theirs = (TakingQueue(store, name, DEFAULT_LANES) for name in ("model@1", "model@2"))
    await ours.put(job("a"))

    assert await theirs.take("w1", PLENTY) == []
    assert await theirs.record("a") is None


async def test_every_key_has_the_queues_hash_tag(queue: TakingQueue, store: redis.asyncio.Redis) -> None:
    for job_id in "abc":
        await queue.put(job(job_id))
    leases = await queue.take("w1", room(latency=2))
    await queue.report("w1", [progress(leases[0], 1)])
    await queue.release("w1", ["b"])
    await queue.reclaim()

    keys: list[Any] = await store.keys()
    assert {key.decode().split(":")[1] for key in keys} == {"{model@1}"}


async def test_nothing_is_left_of_jobs_that_were_forgotten(queue: TakingQueue, store: redis.asyncio.Redis) -> None:
    for job_id in "abc":
        await queue.put(job(job_id, n=2))
    for lease in await queue.take("w1", PLENTY):
        await queue.report("w1", [progress(lease, 1, ends=Outcome.FINISHED, token_ids=((5,), ()))])

    records = [key async for key in store.scan_iter("fl:*:job:*")]
    assert all([0 < await store.pttl(key) <= KEPT_MS for key in records])
    assert not await store.hget("fl:{model@1}:job:a", "body")
    await queue.forget("abc")

    keys: list[Any] = await store.keys()
    assert {key.decode().split(":", 2)[2] for key in keys} == {
        "asked:latency",
        "counters:latency",
        "gateways",
        "level",
        "reported:w1",
        "turned:w1",
        "workers",
    }


async def test_a_record_is_kept_no_longer_than_it_is_told_to_be(store: redis.asyncio.Redis, clock: Clock) -> None:
    queue = StoredQueue(store, DEFAULT_LANES, lease_ms=LEASE_MS, window=4096.0, clock=clock)
    for job_id in ("ended", "running"):
        await queue.put(job(job_id, n=2))
    leases = {lease.job.job_id: lease for lease in await queue.take("w1", PLENTY)}
    ids = ((5,), ())
    ended = progress(leases["ended"], 1, ends=Outcome.FAILED, token_ids=ids)
    await queue.report("w1", [ended, progress(leases["running"], 1, token_ids=ids)])

    for ms in (60_000, 90_000):  # the second is longer, and changes nothing
        await queue.keep(dict.fromkeys(("ended", "running", "unknown"), clock() + ms))

    prefix = "fl:{model@1}:"
    assert 0 < await store.pttl(f"{prefix}job:ended") <= 60_000
    assert 0 < await store.pttl(f"{prefix}ids:ended:0") <= 60_000
    assert await store.pttl(f"{prefix}job:running") == -1
    assert await store.pttl(f"{prefix}ids:running:0") > 90_000
    assert await queue.published("ended") == Published("", ids)


async def test_a_record_that_the_store_dropped_does_not_stop_the_clearing_up(
    store: redis.asyncio.Redis, clock: Clock
) -> None:
    queue = StoredQueue(store, DEFAULT_LANES, lease_ms=LEASE_MS, window=4096.0, clock=clock)
    for job_id in ("gone", "here"):
        await queue.put(job(job_id, lane=LaneName.THROUGHPUT))
    await queue.take("w1", PLENTY)
    for job_id in ("waiting", "evicted"):
        await queue.put(job(job_id, tenant=job_id))
    await store.delete("fl:{model@1}:job:gone", "fl:{model@1}:job:evicted")

    assert await stay_alive(queue, clock, LEASE_MS + 1_000) == 2
    assert await queue.position("here") == 1
    assert [lease.job.job_id for lease in await queue.take("w2", PLENTY)] == ["waiting", "here"]
    await stay_alive(queue, clock, 60_000, gateways=[])  # expiry and the gateway's end pass over it, too


async def test_reclaiming_reports_when_the_next_lease_of_a_worker_expires(store: redis.asyncio.Redis) -> None:
    clock = Clock()
    queue = TakingQueue(store, "model@1", DEFAULT_LANES, lease_ms=LEASE_MS, clock=clock)
    await queue.reclaim()
    assert queue.lapse_ms == 0
    await queue.renew("w1")
    clock.ms += LEASE_MS // 4
    await queue.renew("w2")
    clock.ms += LEASE_MS // 4
    await queue.reclaim()
    assert queue.lapse_ms == LEASE_MS // 2
    await queue.renew("w1")
    await queue.reclaim()
    assert queue.lapse_ms == LEASE_MS * 3 // 4
