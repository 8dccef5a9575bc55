"""The host pool's promises: exact work is never computed again, and paused work keeps to its tenant's share."""

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlane.scheduler.planner.sequence import State
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import Job, Preempted
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job
from tests.support.scheduler.victim_shop import LATENCY_RANK, Shop, modes, names, recompute_is_cheap, swap_is_cheap

TENANTS = ("acme", "globex", "initech")

asked = st.tuples(
    st.sampled_from([LATENCY, THROUGHPUT]),
    st.integers(1, 24),  # prompt
    st.integers(2, 16),  # output
    st.sampled_from(TENANTS),
    st.integers(1, 2),  # choices
    st.sampled_from([1, 2, 3, 16]),  # granted at first
    st.integers(0, 6),  # steps until the next comes
)
Asked = tuple[str, int, int, str, int, int, int]
PREEMPTION = {"acme": True, "globex": False, "initech": False}
"""By tenant, as it is set: is it exact?"""
CROWDED: list[Asked] = [
    *[(LATENCY, 1, 2, "acme", 1, 2, 0)] * 5,
    *[(LATENCY, prompt, 2, "globex", 1, 1, 0) for prompt in (4, 13, 23)],
    (LATENCY, 1, 2, "acme", 1, 1, 0),
    *[(LATENCY, prompt, 2, "globex", 1, 1, 0) for prompt in (1, 1, 17)],
    (THROUGHPUT, 9, 4, "acme", 2, 1, 0),
    (THROUGHPUT, 23, 4, "globex", 2, 3, 0),
]
"""Victims that give less than was gathered first, and so fill slots that others were to have."""


def to_job(number: int, one: Asked, *, exact: bool) -> Job:
    lane, prompt, output, tenant, n, granted, _ = one
    return job(
        f"r{number:02}",
        LATENCY if lane == LATENCY else THROUGHPUT,
        prompt=prompt,
        max_tokens=output,
        tenant=tenant,
        n=n,
        granted_until=min(granted, output),
        exact=exact,
    )


def step(world: World, jobs: list[Job]) -> None:
    """One step, and what must hold in each."""
    plan, _ = world.step()
    exact = {one.job_id for one in jobs if one.exact}
    again = [one for one in plan.yields if one.seq.job_id in exact and one.mode == "recompute"]
    assert all(one.first >= one.end for one in again), "exact work is to be computed again"
    held = Counter[str]()
    for group in world.planner._groups.values():
        for seq in group.live:
            if not (seq.is_runnable or seq.job.exact):
                held[seq.job.tenant] += len(seq.slots)
    here = {group.job.tenant: group.job.weight for group in world.planner._groups.values()}
    for tenant, slots in held.items():
        assert slots <= world.host_slots * here[tenant] / sum(here.values()), "paused work holds more than its share"


@settings(deadline=None, max_examples=60)
@given(
    crowd=st.lists(asked, min_size=2, max_size=14),
    blocks=st.integers(10, 24),
    host_slots=st.sampled_from([0, 3, 12, 40]),
    swaps=st.booleans(),
    prefix_share=st.sampled_from([None, 0.5]),
)
@example(crowd=CROWDED, blocks=21, host_slots=3, swaps=True, prefix_share=None)
def test_whatever_comes_both_promises_hold_and_nothing_leaks(
    crowd: list[Asked], blocks: int, host_slots: int, swaps: bool, prefix_share: float | None
) -> None:
    world = World(
        blocks=blocks,
        host_slots=host_slots,
        max_step_tokens=24,
        window=8.0,
        prefix_share=prefix_share,
        costs=swap_is_cheap() if swaps else recompute_is_cheap(),
    )
    jobs = [to_job(number, one, exact=PREEMPTION[one[3]]) for number, one in enumerate(crowd)]
    for one, (*_, gap) in zip(jobs, crowd, strict=True):
        world.add(one)
        for _ in range(gap):
            step(world, jobs)
    for _ in range(10):  # paused work has not gone away
        step(world, jobs)
    for one in jobs:
        world.planner.grant(one.job_id, one.max_tokens)
    for _ in range(2_000):
        if not world.planner.has_work:
            break
        step(world, jobs)

    world.check_outputs(*jobs)
    assert (world.planner.blocks_free, world.planner.host_slots_free) == (blocks, host_slots)
    assert world.planner._claims.outstanding == 0


def state_of(world: World, job_id: str) -> State:
    return world.planner._groups[job_id].choices[0].state


def pause_all(world: World, *jobs: Job) -> None:
    """Run each to its grant, and then let a chat take all blocks."""
    for one in jobs:
        world.add(one)
    for _ in range(12):
        world.step()
    world.add(job("chat", LATENCY, prompt=4 * world.blocks - 8, max_tokens=6, tenant="chats"))
    for _ in range(3):
        world.step()


def test_a_tenants_paused_work_is_dropped_beyond_its_share() -> None:
    world = World(blocks=16, host_slots=8, max_step_tokens=64, costs=swap_is_cheap())
    paused = [job(f"p{number}", prompt=12, max_tokens=8, granted_until=2) for number in range(3)]

    pause_all(world, *paused)

    # 3 x 4 blocks of acme's, whose share beside the other tenant is 4 slots
    states = Counter(state_of(world, one.job_id) for one in paused)
    assert states == {State.SWAPPED: 1, State.DROPPED: 2}
    assert sum(len(plan.swap_out) for plan in world.plans) <= 4, "copied, and then dropped"


def test_a_tenant_alone_keeps_all_and_gives_back_when_another_comes() -> None:
    world = World(blocks=16, host_slots=12, max_step_tokens=64, costs=swap_is_cheap())
    first, second = (job(name, prompt=12, max_tokens=8, granted_until=2) for name in ("first", "second"))
    for one in (first, second):
        world.add(one)
        for _ in range(3):
            world.step()
        world.planner.preempt(SeqId(one.job_id, 0), "swap")
        world.step()
    assert {state_of(world, "first"), state_of(world, "second")} == {State.SWAPPED}

    world.add(job("other", prompt=4, max_tokens=2, tenant="globex"))
    world.step()

    assert (state_of(world, "first"), state_of(world, "second")) == (State.SWAPPED, State.DROPPED)
    for one in (first, second):
        world.planner.grant(one.job_id, one.max_tokens)
    world.finish()
    world.check_outputs(first, second)


def test_a_heavier_tenant_has_the_larger_share() -> None:
    world = World(blocks=16, host_slots=12)
    world.planner._claims.came(job("a", tenant="acme"))
    world.planner._claims.came(job("b", tenant="globex"))

    assert world.planner._claims.share("acme") == 6
    world.planner._claims.left(job("b", tenant="globex"))
    assert world.planner._claims.share("acme") == 12


def test_exact_work_begins_only_as_far_as_the_host_could_take_it() -> None:
    world = World(blocks=16, host_slots=8, max_step_tokens=64)
    jobs = [job(f"e{number}", prompt=8, max_tokens=8, exact=True) for number in range(3)]
    for one in jobs:
        world.add(one)

    world.step()

    assert world.rows() == ["e0", "e1"]  # 4 slots each at their longest
    assert world.plans[-1].waits == {"host": 1}
    world.finish()
    world.check_outputs(*jobs)


def test_paused_exact_work_yields_its_blocks_to_whoever_runs() -> None:
    world = World(blocks=16, host_slots=16, max_step_tokens=64, costs=recompute_is_cheap())
    paused = [job(f"p{number}", prompt=12, max_tokens=4, granted_until=2, exact=True) for number in range(3)]

    pause_all(world, *paused)

    assert "chat" in world.rows()
    assert {event.mode for event in world.events(Preempted)} <= {"swap"}
    assert all(state_of(world, one.job_id) in (State.SWAPPED, State.PAUSED) for one in paused)


def test_what_is_not_exact_leaves_the_host_for_exact_work_that_stands_above_it() -> None:
    world = World(blocks=16, host_slots=8, max_step_tokens=64, costs=swap_is_cheap())
    fast = job("fast", prompt=24, max_tokens=8, granted_until=2)
    world.add(fast)
    for _ in range(3):
        world.step()
    world.planner.preempt(SeqId("fast", 0), "swap")
    world.step()
    assert world.planner.host_slots_free == 1

    world.add(job("exact", LATENCY, prompt=12, max_tokens=8, exact=True))
    world.step()

    assert world.rows() == ["exact"]
    assert state_of(world, "fast") is State.DROPPED


def test_a_newcomers_exact_work_begins_beside_a_flood_of_exact_work() -> None:
    world = World(blocks=32, host_slots=8, max_step_tokens=64, max_sequences=8)
    for number in range(6):
        world.add(job(f"flood{number}", prompt=8, max_tokens=8, exact=True))
    world.step()

    world.add(job("newcomer", prompt=8, max_tokens=8, tenant="globex", exact=True))
    world.step()

    assert "newcomer" in world.rows()


def test_what_others_give_less_of_takes_no_room_from_exact_work_whose_slots_were_not_counted() -> None:
    shop = Shop(host_slots=2)
    forked = shop.stand("forked", blocks=3)  # 3 blocks fit no host of 2; the one that is its own does
    shop.pool.share(forked.seq.table, 2, [])
    staying = shop.stand("staying", exact=True)
    assert shop.claims.stays(staying.seq)

    victims = shop.choose(3, shop.stand("chat", LATENCY_RANK, state=State.WAITING))

    assert dict(zip(names(victims), modes(victims), strict=True)) == {"forked": "recompute", "staying": "swap"}


def test_a_newcomers_exact_work_begins_beside_a_flood_that_the_host_never_holds() -> None:
    world = World(blocks=32, host_slots=0, max_step_tokens=64, max_sequences=8)
    flood = [job(f"flood{number}", prompt=8, max_tokens=24, exact=True) for number in range(6)]
    for one in flood:
        world.add(one)
    world.step()
    newcomer = job("newcomer", prompt=4, max_tokens=4, tenant="globex", exact=True)
    world.add(newcomer)

    world.step()

    assert "newcomer" in world.rows()
    world.finish()
    world.check_outputs(*flood, newcomer)
