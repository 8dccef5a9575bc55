"""The owner of each block, for display: the pools as a few runs of equal neighbours."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby

from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.kv.prefix_cache import Scope
from fairlane.scheduler.planner.sequence import Sequence as Choice
from fairlane.scheduler.protocol.block_map import (
    MAX_CELLS,
    MAX_TENANTS,
    NOBODY,
    OTHERS,
    STATES,
    BlockMap,
    BlockState,
    Run,
)
from fairlane.scheduler.protocol.lanes import LaneName

# Tenant, lane and state of a block; None: no owner.
Owner = tuple[str | None, str | None, BlockState]
FREE: Owner = (None, None, "free")
_LANES = tuple(lane.value for lane in LaneName)
LONGEST_GROUP = 40


def block_map(pool: BlockPool, choices: Iterable[Choice]) -> BlockMap:
    """Return the map of a pool whose blocks these choices hold."""
    begun = [choice for choice in choices if choice.table or choice.slots]
    device, host = _device(pool, begun), _host(pool, begun)
    device_cells, host_cells = _cells(device), _cells(host)
    tenants = _busiest(owner[0] for owner, _ in chain(device_cells, host_cells))
    places = {tenant: place for place, tenant in enumerate(tenants)}
    return BlockMap(
        blocks=pool.blocks,
        block_size=pool.block_size,
        host_blocks=pool.host_slots,
        tenants=tenants,
        lanes=_LANES,
        runs=tuple(_runs(device_cells, places)),
        host_runs=tuple(_runs(host_cells, places)),
    )


def held_by_tenant(choices: Iterable[Choice]) -> dict[str, int]:
    """Return the device blocks held, for the tenants with the most; shared blocks count for each."""
    held = Counter[str]()
    for choice in choices:
        if choice.table:
            held[choice.job.tenant] += len(choice.table)
    return dict(held.most_common(MAX_TENANTS))


def _device(pool: BlockPool, choices: Sequence[Choice]) -> list[Owner]:
    owners = [FREE] * pool.blocks
    for block, scope in pool.cache.idle_blocks():
        owners[block] = _name(scope), None, "cached"
    for choice in sorted(choices, key=lambda one: one.runs):
        tenant, lane = choice.job.tenant, choice.job.lane.value
        owner: Owner = tenant, lane, "running" if choice.runs else "waiting"
        for block in choice.table:
            owners[block] = owner
    for block in pool.slots.copies:
        tenant_of, lane_of, _ = owners[block]
        owners[block] = tenant_of, lane_of, "clean"
    return owners


def _host(pool: BlockPool, choices: Sequence[Choice]) -> list[Owner]:
    owners = [FREE] * pool.host_slots
    holders = {block: choice for choice in choices for block in choice.table}
    for block, slot in pool.slots.copies.items():
        holder = holders.get(block)
        owners[slot] = (holder.job.tenant, holder.job.lane.value, "copy") if holder else (None, None, "copy")
    for choice in choices:
        for slot in choice.slots:
            owners[slot] = choice.job.tenant, choice.job.lane.value, "swapped"
    return owners


def _name(scope: Scope) -> str:
    kind, name = scope
    return name.rpartition(" ")[0] if kind == "tenant" else f"{kind} {name[:LONGEST_GROUP]}"


def _cells(owners: Sequence[Owner]) -> list[tuple[Owner, int]]:
    size = -(-len(owners) // MAX_CELLS) or 1
    if size == 1:
        return [(owner, 1) for owner in owners]
    parts = (owners[first : first + size] for first in range(0, len(owners), size))
    return [(Counter(part).most_common(1)[0][0], len(part)) for part in parts]


def _busiest(found: Iterable[str | None]) -> tuple[str, ...]:
    counted = Counter(tenant for tenant in found if tenant is not None)
    named = [tenant for tenant, _ in counted.most_common(MAX_TENANTS)]
    return (*named, OTHERS) if len(counted) > MAX_TENANTS else tuple(named)


def _runs(cells: Sequence[tuple[Owner, int]], places: dict[str, int]) -> Iterator[Run]:
    def code(cell: tuple[Owner, int]) -> tuple[int, int, int]:
        tenant, lane, state = cell[0]
        place = NOBODY if tenant is None else places.get(tenant, len(places) - 1)
        return place, NOBODY if lane is None else _LANES.index(lane), STATES.index(state)

    for (tenant, lane, state), alike in groupby(cells, code):
        yield sum(count for _, count in alike), tenant, lane, state
