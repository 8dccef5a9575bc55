"""The map of blocks says of each what the pool and its choices say, however much there is."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.scheduler.planner.kv.block_map import block_map, held_by_tenant
from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.sequence import Sequence
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol import messages
from fairlane.scheduler.protocol.block_map import MAX_CELLS, MAX_TENANTS, STATES, BlockMap
from fairlane.scheduler.protocol.lanes import LaneName
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT, World, job
from tests.support.scheduler.victim_shop import recompute_is_cheap, swap_is_cheap

TENANTS = ("acme", "globex", "<script>alert(1)</script>")
asked = st.tuples(
    st.sampled_from([LATENCY, THROUGHPUT]),
    st.integers(1, 24),
    st.integers(2, 16),
    st.sampled_from(TENANTS),
    st.integers(1, 2),
    st.integers(0, 4),
)


def states(found: BlockMap, *, host: bool = False) -> Counter[str]:
    """Blocks by state."""
    counted = Counter[str]()
    for count, _, _, state in found.host_runs if host else found.runs:
        counted[found.states[state]] += count
    return counted


def held(found: BlockMap) -> Counter[str]:
    """Device blocks that choices hold, by tenant."""
    counted = Counter[str]()
    for count, tenant, lane, _ in found.runs:
        if lane >= 0:
            counted[found.tenants[tenant]] += count
    return counted


@settings(deadline=None, max_examples=40)
@given(
    crowd=st.lists(asked, min_size=2, max_size=12),
    blocks=st.integers(10, 24),
    host_slots=st.sampled_from([0, 3, 12, 40]),
    swaps=st.booleans(),
    prefix_share=st.sampled_from([None, 0.5]),
)
def test_at_every_step_each_block_is_told_once(
    crowd: list[tuple[LaneName, int, int, str, int, int]],
    blocks: int,
    host_slots: int,
    swaps: bool,
    prefix_share: float | None,
) -> None:
    world = World(
        blocks=blocks,
        host_slots=host_slots,
        max_step_tokens=24,
        prefix_share=prefix_share,
        costs=swap_is_cheap() if swaps else recompute_is_cheap(),
    )
    for number, (lane, prompt, output, tenant, n, gap) in enumerate(crowd):
        world.add(job(f"r{number}", lane, prompt=prompt, max_tokens=output, tenant=tenant, n=n))
        for _ in range(gap):
            world.step()
            check(world)


def check(world: World) -> None:
    planner = world.planner
    found = planner.block_map()
    device, host = states(found), states(found, host=True)
    choices = list(planner._live())
    table = {block: choice for choice in choices for block in choice.table}
    slots = Counter(choice.job.tenant for choice in choices for _ in choice.slots)

    assert (device.total(), host.total()) == (found.blocks, found.host_blocks)
    assert device["free"] + device["cached"] == planner.blocks_free
    assert device["cached"] == planner._pool.cache.idle
    assert held(found).keys() == {choice.job.tenant for choice in table.values()}
    assert held(found).total() == len(table)
    assert set(found.tenants) <= set(TENANTS), "what is cached is told by its tenant"
    assert device["clean"] == len(planner._pool.slots.copies) == host["copy"]
    assert host["swapped"] == slots.total()
    assert all(first[1:] != second[1:] for first, second in zip(found.runs, found.runs[1:], strict=False))
    assert planner.held_by_tenant() == Counter({choice.job.tenant: 0 for choice in choices if choice.table}) + Counter(
        choice.job.tenant for choice in choices for _ in choice.table
    )


def choice(number: int, tenant: str, table: list[int]) -> Sequence:
    found = Sequence(
        id=SeqId(f"r{number}", 0),
        job=job(f"r{number}", LATENCY, tenant=tenant),
        epoch=1,
        arrived_ms=0.0,
        first_due_ms=0.0,
        promoted_ms=0.0,
        granted_until=1,
    )
    found.table = table
    return found


def test_a_pool_of_any_size_takes_so_many_runs() -> None:
    pool = BlockPool(blocks=50_001, block_size=16, host_slots=0)
    found = block_map(pool, [choice(number, f"t{number % 2}", [*range(number, 50_001, 7)]) for number in range(7)])

    assert len(found.runs) <= MAX_CELLS
    assert sum(count for count, *_ in found.runs) == 50_001
    assert len(messages.encode(found)) < 64 * 1024


def test_so_many_tenants_are_named_and_the_others_together() -> None:
    pool = BlockPool(blocks=400, block_size=16, host_slots=0)
    choices = [choice(number, f"t{number:03}", [number]) for number in range(200)]
    choices.append(choice(200, "most", [*range(200, 300)]))
    found = block_map(pool, choices)

    assert len(found.tenants) == MAX_TENANTS + 1
    assert (found.tenants[0], found.tenants[-1]) == ("most", "")
    assert held(found)["most"] == 100
    assert held(found).total() == 300
    assert len(held_by_tenant(choices)) == MAX_TENANTS


def test_nothing_is_free() -> None:
    pool = BlockPool(blocks=8, block_size=16, host_slots=4)
    found = block_map(pool, [])

    assert found.runs == ((8, -1, -1, STATES.index("free")),)
    assert found.host_runs == ((4, -1, -1, STATES.index("free")),)
    assert found.tenants == ()
