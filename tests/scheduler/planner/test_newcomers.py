"""A full worker asks for newcomers, and begins them in the next steps: no tenant keeps another from a worker."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from fairlane.scheduler.planner.capacity import MAX_NEWCOMERS
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.simulate import SimulatedStep
from fairlane.scheduler.simulation.workload import Arrival
from tests.support.scheduler.fleet import Watcher, asks, play
from tests.support.scheduler.planner_world import World, job
from tests.support.scheduler.queues import Queue
from tests.support.scheduler.queues import job as queued

LATENCY, THROUGHPUT = LaneName.LATENCY, LaneName.THROUGHPUT
pytestmark = pytest.mark.anyio

LONGEST_STEP_MS = 2.0 * DEFAULT_LANES[LATENCY].tpot_ms
"""See scheduler/planner/step_budget.py."""


def held_up_by_a_long_prompt(lane: LaneName, *, longer: int) -> World:
    """A worker that has begun a prompt of 400 tokens, and holds so many newcomers with longer ones."""
    world = World(blocks=4_000, max_sequences=8, max_step_tokens=16, window=10_000.0)
    world.add(job("long", lane, tenant="long", prompt=400, max_tokens=4))
    world.step()
    for number in range(longer):
        world.add(job(f"longer-{number}", lane, tenant=f"t{number}", prompt=500, max_tokens=4))
    return world


async def test_a_short_newcomer_goes_ahead_of_a_prompt_in_progress_past_longer_newcomers(queue: Queue) -> None:
    """The prompt in progress goes on before the longer ones, so they keep their places for as long as it takes."""
    world = held_up_by_a_long_prompt(LATENCY, longer=MAX_NEWCOMERS)
    await queue.put(queued("new-500", "as long", prompt=tuple(range(500))))
    await queue.put(queued("new", "new", max_tokens=4))

    leases = await queue.take("w1", world.planner.capacity())
    for lease in leases:
        world.add(lease.job)
    world.step()

    assert [lease.job.job_id for lease in leases] == ["new"]
    assert world.outputs[SeqId("new", 0)]


@pytest.mark.parametrize("lane", [LATENCY, THROUGHPUT])
def test_places_for_short_newcomers_are_few_too(lane: LaneName) -> None:
    world = held_up_by_a_long_prompt(lane, longer=MAX_NEWCOMERS - 1)
    own = world.planner.capacity().yielding[lane]
    assert (own.jobs, own.shorter_than) == (1, 0), "of any length"

    left = []
    for number in range(MAX_NEWCOMERS + 2):
        world.add(job(f"short-{number}", lane, tenant=f"s{number}", prompt=100, max_tokens=4))
        own = world.planner.capacity().yielding[lane]
        left.append((own.jobs, own.shorter_than))

    begun = world.planner.capacity().yielding[lane].begun
    assert begun == ("long",)
    assert left == [(jobs, 384) for jobs in (8, 7, 6, 5, 4, 3, 2, 1, 0, 0)]


@pytest.mark.parametrize("lane", [LATENCY, THROUGHPUT])
def test_no_short_newcomer_is_asked_for_where_no_prompt_is_in_progress(lane: LaneName) -> None:
    """Each step begins one of those that wait; the tenant that decodes has a token."""
    world = World(blocks=400, max_sequences=4, max_step_tokens=16, window=10_000.0)
    world.add(job("stream", lane, tenant="stream", max_tokens=200))
    world.step()
    for number in range(MAX_NEWCOMERS):
        world.add(job(f"new-{number}", lane, tenant=f"n{number}", prompt=100))

    assert world.planner.capacity().yielding[lane].jobs == 0


def test_a_full_worker_says_what_its_work_would_yield() -> None:
    world = World(blocks=64, max_sequences=4, max_step_tokens=64)
    for number in range(6):
        world.add(job(f"crowd-{number}", tenant="crowd", max_tokens=30))
    world.step()

    capacity = world.planner.capacity()
    own = capacity.yielding[THROUGHPUT]

    assert capacity.sequences[THROUGHPUT] == 0
    assert (own.begun, own.waiting, own.sequences) == (("crowd",), ("crowd",), 4)
    assert own.jobs > 0
    assert own.kv_tokens == 64 * 4


def test_whose_next_requests_wait_takes_no_newcomers_place() -> None:
    world = World(blocks=400, max_sequences=10, max_step_tokens=256)
    for number in range(20):
        world.add(job(f"crowd-{number}", tenant=f"t{number % 10}", max_tokens=30))
    world.step()

    own = world.planner.capacity().yielding[THROUGHPUT]

    assert len(own.begun) == len(own.waiting) == 10
    assert own.jobs > 0


def test_a_lane_offers_the_rows_of_its_share_floor_under_a_flood_of_the_first() -> None:
    world = World(blocks=400, max_sequences=4, max_step_tokens=64)
    for number in range(8):
        world.add(job(f"chat-{number}", LATENCY, max_tokens=30))
    world.step()

    assert world.planner.capacity().sequences[THROUGHPUT] == 1


def test_a_share_floor_of_less_than_a_row_is_a_row_in_some_steps() -> None:
    world = World(blocks=400, max_sequences=4, max_step_tokens=64)
    for number in range(40):
        world.add(job(f"chat-{number:02}", LATENCY, max_tokens=30))
    world.add(job("batch", THROUGHPUT, max_tokens=4))

    for _ in range(140):
        world.step()

    assert "batch" in world.ended
    assert "chat-39" not in world.ended


@pytest.mark.parametrize("lane", [LATENCY, THROUGHPUT])
def test_a_newcomer_takes_the_only_row_of_whoever_was_served_most(lane: LaneName) -> None:
    world = World(blocks=400, max_sequences=4, max_step_tokens=64, window=10_000.0)
    for number in range(4):
        world.add(job(f"one-{number}", lane, tenant=f"t{number}", max_tokens=100))
    for _ in range(8):
        world.step()
    world.add(job("new", lane, tenant="new", max_tokens=4))

    world.step()

    assert "new" in world.rows()
    assert len(world.rows()) == 4


def test_who_has_less_than_a_quarter_of_anothers_rows_takes_one_within_the_window() -> None:
    world = World(blocks=400, max_sequences=8, max_step_tokens=64, window=10_000.0)
    world.add(job("person-1", LATENCY, tenant="person", max_tokens=200))
    for number in range(9):
        world.add(job(f"crowd-{number}", LATENCY, tenant="crowd", max_tokens=200))
    for _ in range(8):
        world.step()
    assert sum(job_id.startswith("crowd") for job_id in world.rows()) >= 5
    own = world.planner.capacity().yielding[LATENCY]
    assert (own.begun, own.jobs) == (("crowd",), 8), "the person is asked for as who has nothing is"
    for number in range(2, 8):
        world.add(job(f"person-{number}", LATENCY, tenant="person", max_tokens=200))

    world.step()

    assert "person-2" in world.rows()
    for _ in range(8):
        world.step()
    assert sum(job_id.startswith("person") for job_id in world.rows()) < 4, "who has a quarter takes no more"


def test_who_has_little_is_evened_out_within_the_window_where_no_deadline_presses() -> None:
    """It is asked for, and has its next row once the other is ahead by Θ, not before: else tenants with few and with
    many rows take them from each other without end."""
    world = World(blocks=400, max_sequences=8, max_step_tokens=64, window=200.0)
    world.add(job("person-1", tenant="person", max_tokens=200))
    for number in range(9):
        world.add(job(f"crowd-{number}", tenant="crowd", max_tokens=200))
    for _ in range(8):
        world.step()
    own = world.planner.capacity().yielding[THROUGHPUT]
    assert (own.begun, own.jobs) == (("crowd",), 8)
    world.add(job("person-2", tenant="person", max_tokens=200))

    steps = 0
    while "person-2" not in world.rows():
        world.step()
        steps += 1

    assert 200.0 / (2 * 7) < steps < 2 * 200.0 / (2 * 7)


@pytest.mark.parametrize("lane", [LATENCY, THROUGHPUT])
@pytest.mark.parametrize("tenants", [1, 3, 6])
def test_a_newcomer_has_a_row_in_each_step_until_its_first_token(lane: LaneName, tenants: int) -> None:
    """Its prompt takes several steps: what it has computed of it makes it nobody who waits behind all decodes."""
    world = World(blocks=400, max_sequences=4, max_step_tokens=16, window=10_000.0)
    for number in range(6):
        world.add(job(f"crowd-{number}", lane, tenant=f"t{number % tenants}", max_tokens=200))
    for _ in range(20):
        world.step()
    world.add(job("new", lane, tenant="new", prompt=60, max_tokens=4))

    steps = 0
    while not world.outputs[SeqId("new", 0)]:
        world.step()
        steps += 1
        assert "new" in world.rows()
        assert len(world.rows()) == 4, "it takes one row"

    assert steps <= 60 // (16 - 4) + 1


@pytest.mark.parametrize("lane", [LATENCY, THROUGHPUT])
def test_a_short_newcomer_does_not_wait_behind_long_prompts_that_have_begun(lane: LaneName) -> None:
    """Those of other tenants have no token either: to go before who has one is not enough."""
    world = World(blocks=400, max_sequences=8, max_step_tokens=16, window=10_000.0)
    for number in range(6):
        world.add(job(f"long-{number}", lane, tenant=f"t{number}", prompt=200, max_tokens=4))
    for _ in range(6):
        world.step()
    assert not any(world.outputs.values()), "their prompts are on the way"
    world.add(job("new", lane, tenant="new", prompt=8, max_tokens=4))

    world.step()

    assert world.outputs[SeqId("new", 0)]


@pytest.mark.parametrize("lane", [LATENCY, THROUGHPUT])
def test_many_tenants_with_a_row_each_do_not_stand_in_for_newcomers_that_are_asked_for(lane: LaneName) -> None:
    """Beside a prompt in progress each of them has little; but few newcomers are asked for at a time."""
    world = World(blocks=400, max_sequences=9, max_step_tokens=16, window=10_000.0)
    for number in range(8):
        world.add(job(f"crowd-{number}", lane, tenant=f"t{number}", max_tokens=200))
    for _ in range(8):
        world.step()
    world.add(job("long", lane, tenant="long", prompt=200, max_tokens=4))
    world.step()
    for number in range(8):
        world.add(job(f"next-{number}", lane, tenant=f"t{number}", max_tokens=200))

    own = world.planner.capacity().yielding[lane]

    assert set(own.begun) == {"long", *(f"t{number}" for number in range(8))}
    assert own.jobs == 8


def test_many_newcomers_prompts_leave_each_stream_its_token_in_every_step() -> None:
    """Each leaves the decodes what they need, not a part of what is left: that was nothing after a few of them."""
    world = World(blocks=400, max_sequences=16, max_step_tokens=32, window=10_000.0)
    for number in range(2):
        world.add(job(f"stream-{number}", LATENCY, tenant="person", max_tokens=200))
    for _ in range(4):
        world.step()
    for number in range(8):
        world.add(job(f"new-{number}", LATENCY, tenant=f"new-{number}", prompt=100, max_tokens=2))

    for _ in range(20):
        world.step()

        assert {"stream-0", "stream-1"} <= set(world.rows())


def test_ever_new_tenants_do_not_keep_an_earlier_one_from_its_first_token() -> None:
    """Each of them stands before all that runs, and is one of those that run a few steps later."""
    world = World(blocks=400, max_sequences=4, max_step_tokens=16, window=10_000.0)
    for number in range(6):
        world.add(job(f"crowd-{number}", LATENCY, tenant=f"t{number}", max_tokens=40))
    for _ in range(20):
        world.step()
    world.add(job("long", LATENCY, tenant="long", prompt=60, max_tokens=4))
    for number in range(20):
        world.add(job(f"next-{number}", LATENCY, tenant=f"u{number}", prompt=10, max_tokens=10))
        world.step()
        world.step()

    assert world.outputs[SeqId("long", 0)]


def test_a_long_prompt_that_waits_leaves_room_for_who_asks_for_less() -> None:
    """It may have to wait for long; short newcomers and guaranteed work are asked for meanwhile."""
    world = World(blocks=64, host_slots=0, max_sequences=8, max_step_tokens=64)
    for number in range(8):
        world.add(job(f"crowd-{number}", prompt=24, tenant="crowd", max_tokens=8, exact=True))
    world.step()
    world.add(job("long", prompt=248, tenant="long", max_tokens=8, exact=True))
    world.step()

    own = world.planner.capacity().yielding[THROUGHPUT]

    assert own.waiting[-1:] == ("long",)
    assert own.kv_tokens == 64 * 4
    world.add(job("promised", prompt=40, tenant="dated", guaranteed=True, deadline_ms=1e6))
    assert world.planner.capacity().yielding[THROUGHPUT].kv_tokens == 64 * 4 - 41


def test_nobody_is_in_credit_for_having_asked_for_less() -> None:
    world = World(blocks=400, max_sequences=8, max_step_tokens=256, window=50.0)
    for number in range(8):
        world.add(job(f"gone-{number}", LATENCY, tenant="gone", prompt=64, max_tokens=30))
    world.step()
    for _ in range(20):
        world.step()
    world.finish()
    for number in range(8):
        world.add(job(f"quiet-{number}", LATENCY, tenant="quiet", prompt=4, max_tokens=200))
    world.step()
    world.add(job("burst", LATENCY, tenant="burst", prompt=200, max_tokens=1))
    for _ in range(6):
        world.step()
    world.add(job("new", LATENCY, tenant="new", prompt=4, max_tokens=2))

    world.step()
    world.step()

    assert "new" in world.rows() or "new" in world.ended


@dataclass
class FirstTokens(Watcher):
    """By job, how long after its arrival its first token came."""

    waits_ms: dict[str, float] = field(default_factory=dict)
    _arrived: dict[str, float] = field(default_factory=dict)

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        self._arrived[arrival.job_id] = now_ms

    def stepped(self, step: SimulatedStep) -> None:
        for one in step.outcome.produced:
            job_id = one.seq.job_id
            if job_id not in self.waits_ms:
                self.waits_ms[job_id] = step.ended_ms - self._arrived[job_id]


def first_tokens(arrivals: Iterable[Arrival], *, workers: int, blocks: int) -> FirstTokens:
    seen = FirstTokens()
    play(arrivals, LaneQueue(DEFAULT_LANES), seen, workers=workers, blocks=blocks, until_ms=7_000.0)
    return seen


@pytest.mark.parametrize("lane", [LATENCY, THROUGHPUT])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("prompt", "blocks"), [(16, 4_000), (800, 800)], ids=["slots", "blocks"])
def test_one_tenant_cannot_keep_anothers_request_from_its_lane(
    lane: LaneName, workers: int, prompt: int, blocks: int
) -> None:
    flood = [asks(float(n) / 10, f"crowd-{n}", "crowd", lane, prompt, 2_000) for n in range(60 * workers)]
    people = [asks(2_000.0 + 470.0 * n, f"new-{n}", f"person-{n}", lane, 20, 2) for n in range(10)]

    waits_ms = first_tokens(flood + people, workers=workers, blocks=blocks).waits_ms

    assert max(waits_ms[f"new-{n}"] for n in range(10)) <= 2 * LONGEST_STEP_MS + 30.0


@pytest.mark.parametrize("lane", [LATENCY, THROUGHPUT])
def test_a_stream_of_its_own_does_not_put_a_tenants_next_request_behind_anothers_flood(lane: LaneName) -> None:
    stream = asks(0.0, "long", "person", lane, 16, 4_000)
    flood = [asks(100.0 + n / 10, f"crowd-{n}", "crowd", lane, 16, 2_000) for n in range(60)]
    people = [asks(2_000.0 + 470.0 * n, f"next-{n}", "person", lane, 20, 2) for n in range(10)]

    waits_ms = first_tokens([stream, *flood, *people], workers=1, blocks=4_000).waits_ms

    assert max(waits_ms[f"next-{n}"] for n in range(10)) <= 2 * LONGEST_STEP_MS + 30.0


@pytest.mark.parametrize("tenants", [1, 8])
def test_a_stream_of_its_own_does_not_put_a_tenants_next_request_behind_long_prompts(tenants: int) -> None:
    """Prompts are computed one or few at a time, and tenants that have no token yet are newcomers themselves."""
    stream = asks(0.0, "long", "person", LATENCY, 16, 4_000)
    flood = [asks(100.0 + 10.0 * n, f"crowd-{n}", f"crowd-{n % tenants}", LATENCY, 4_000, 4) for n in range(60)]
    people = [asks(1_000.0 + 470.0 * n, f"next-{n}", "person", LATENCY, 20, 2) for n in range(6)]

    waits_ms = first_tokens([stream, *flood, *people], workers=1, blocks=20_000).waits_ms

    assert max(waits_ms[f"next-{n}"] for n in range(6)) <= 2 * LONGEST_STEP_MS + 30.0
