"""Prefix affinity: which worker is preferred, and that the order of jobs does not depend on it."""

from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Job, Outcome
from fairlane.scheduler.queue import prefix_affinity
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.queue.prefix_affinity import (
    AFFINITY_DELAY_MS,
    AFFINITY_GENERATION_MS,
    DIGEST_BYTES,
    LENGTHS,
    prefix_keys,
)
from fairlane.scheduler.queue.types import QueueError
from tests.scheduler.conftest import MakeQueue
from tests.support.scheduler.queues import LEASE_MS, Clock, Queue, job, lanes, progress, room, stay_alive, taken

pytestmark = pytest.mark.anyio


def turn(job_id: str, length: int, tenant: str = "acme", **fields: Any) -> Job:
    """Of one conversation, so many tokens of it."""
    return job(job_id, tenant, prompt=tuple(range(length)), **fields)


async def preferred_for(queue: Queue, sent: Job) -> str:
    """Who is named for this job, which then waits no more."""
    put = await queue.put(sent, prefixes=prefix_keys(sent))
    await queue.cancel(sent.job_id)
    return put.preferred


async def computed(queue: Queue, worker: str, sent: Job) -> None:
    """This worker takes the job, and ends it."""
    await queue.put(sent, prefixes=prefix_keys(sent))
    [lease] = await queue.take(worker, room(latency=1))
    await queue.report(worker, [progress(lease, 1, ends=Outcome.FINISHED)])


def test_a_later_turn_has_the_keys_of_those_before() -> None:
    first, later, short = (prefix_keys(turn("a", length)) for length in (700, 1_100, 255))

    assert later.startswith(first)
    assert len(first) == DIGEST_BYTES * sum(length <= 700 for length in LENGTHS)
    assert short == b""


def test_keys_are_alike_among_those_who_share_cached_prompts_and_for_nobody_else() -> None:
    acme, other = (turn("a", 300, tenant) for tenant in ("acme", "other"))
    grouped = [turn("a", 300, tenant, share_group="group") for tenant in ("acme", "other")]

    assert prefix_keys(acme) != prefix_keys(other)
    assert prefix_keys(grouped[0]) == prefix_keys(grouped[1]) != prefix_keys(acme)


async def test_the_worker_that_took_the_longest_beginning_last_is_named(queue: Queue) -> None:
    await computed(queue, "w1", turn("a", 300))
    assert await preferred_for(queue, turn("b", 1_000)) == "w1"

    await computed(queue, "w2", turn("c", 600))
    await computed(queue, "w1", turn("d", 310))

    assert await preferred_for(queue, turn("e", 1_000)) == "w2"
    assert await preferred_for(queue, turn("f", 511)) == "w1"
    assert await preferred_for(queue, turn("g", 1_000, "other")) == ""
    assert await preferred_for(queue, job("h", prompt=tuple(range(1, 1_000)))) == ""


async def test_who_is_gone_is_named_no_more(queue: Queue, clock: Clock) -> None:
    await computed(queue, "w1", turn("a", 300))
    clock.advance(LEASE_MS)
    assert await preferred_for(queue, turn("b", 300)) == ""

    await stay_alive(queue, clock, LEASE_MS, "w2")

    assert await preferred_for(queue, turn("c", 300)) == ""


async def test_who_holds_more_than_its_peers_is_named_no_more(queue: Queue) -> None:
    await computed(queue, "w2", job("other"))
    await computed(queue, "w1", turn("a", 300))
    for number in range(4):
        await queue.put(job(f"more-{number}"))

    assert len(await taken(queue, room(latency=2), "w1")) == 2
    assert await preferred_for(queue, turn("b", 300)) == "w1"
    assert len(await taken(queue, room(latency=1), "w1")) == 1
    assert await preferred_for(queue, turn("c", 300)) == ""
    assert len(await taken(queue, room(latency=1), "w2")) == 1
    assert await preferred_for(queue, turn("d", 300)) == "w1"


async def test_where_workers_are_full_nobody_is_named(queue: Queue, clock: Clock) -> None:
    """Somebody waits whom no worker has taken in the time that a home is given."""
    await computed(queue, "w1", turn("a", 300))
    await queue.put(job("waits"))

    clock.advance(AFFINITY_DELAY_MS)
    assert await preferred_for(queue, turn("b", 300)) == "w1"
    clock.advance(1)
    assert await preferred_for(queue, turn("c", 300)) == ""


async def test_what_is_promised_its_deadline_waits_for_no_home(queue: Queue) -> None:
    await computed(queue, "w1", turn("a", 300))
    promised = turn("b", 300, guaranteed=True, claim_ms=1.0)

    put = await queue.put(promised, prefixes=prefix_keys(promised))

    assert (put.guaranteed, put.preferred) == (True, "")


async def test_a_home_is_forgotten_in_time(queue: Queue, clock: Clock) -> None:
    clock.advance(AFFINITY_GENERATION_MS - clock.ms % AFFINITY_GENERATION_MS)
    await computed(queue, "w1", turn("a", 300))
    for expected in ("w1", ""):
        clock.advance(AFFINITY_GENERATION_MS)
        await queue.renew("w1")
        assert await preferred_for(queue, turn(f"{clock.ms}", 300)) == expected


async def test_only_so_many_homes_are_known(make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_affinity, "MAX_AFFINITIES", 2)
    queue = make_queue()
    for tenant in ("red", "green", "blue"):
        await computed(queue, "w1", turn(tenant, 300, tenant))
    await computed(queue, "w2", turn("again", 300, "red"))

    found = [await preferred_for(queue, turn(f"{tenant} later", 300, tenant)) for tenant in ("red", "green", "blue")]

    assert found == ["w2", "w1", ""]


def put(queue: LaneQueue, now_ms: int, number: int, draws: Random, *, has_affinity: bool) -> object:
    sent = job(
        f"f{number}",
        draws.choice(["red", "green", "blue"]),
        draws.choice(list(LaneName)),
        prompt=tuple(range(draws.choice([10, 300, 700]))),
        guaranteed=draws.random() < 0.3,
        claim_ms=draws.choice([0.5, 300.0]),
        ttft_ms=draws.choice([1.0, 300.0, 5_000.0]),
        hard_ttft_ms=draws.choice([None, None, 2_000.0]),
    )
    try:
        return queue.put(now_ms, sent, prefixes=prefix_keys(sent) if has_affinity else b"")[:2]
    except QueueError as error:
        return type(error), vars(error)


def take(queue: LaneQueue, now_ms: int, draws: Random) -> object:
    worker = draws.choice(["w1", "w2"])
    sequences: dict[str, int] = {lane: draws.choice([0, 1, 3]) for lane in LaneName}
    kv_tokens: dict[str, int] = {lane: draws.choice([300, 2_000]) for lane in LaneName}
    leases = queue.take(now_ms, worker, Capacity(sequences, kv_tokens, 0.3, max_sequences=8, pool_tokens=2_000))
    for lease in leases[: draws.randint(0, 3)]:
        queue.report(worker, [progress(lease, 1, cost=300.0, ends=Outcome.FINISHED)])
    return leases


@given(st.integers(0, 2**32 - 1))
def test_the_order_of_jobs_and_all_promises_are_the_same_without_homes(seed: int) -> None:
    def played(*, has_affinity: bool) -> list[object]:
        queue, draws, now_ms, answers = LaneQueue(lanes(), window=300.0), Random(seed), 1_000_000, list[object]()
        for number in range(60):
            now_ms += draws.choice([0, 1, 40, 700])
            if draws.random() < 0.6:
                answers.append(put(queue, now_ms, number, draws, has_affinity=has_affinity))
            else:
                answers.append(take(queue, now_ms, draws))
        return answers

    assert played(has_affinity=True) == played(has_affinity=False)
