"""Selects the running requests of lower lanes that yield their slots and KV blocks to waiting ones.

vLLM frees all of a victim's blocks, so as few as possible yield, the last in running order first, down to their lanes'
share floors. If all victims would not suffice for a waiting request, none yields to it or to those behind it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fairlane.scheduler.protocol.lanes import Lane


class Demand(NamedTuple):
    """A waiting request of an upper lane."""

    # Its lane's rank; lower is more urgent.
    rank: int
    # KV blocks needed to admit it.
    blocks: int
    # Tokens that a step would compute of it.
    tokens: int


class Candidate(NamedTuple):
    """A running request."""

    # Index in the running order.
    place: int
    # Its lane's rank, promoted by one after a long wait.
    rank: int
    lane_rank: int
    # KV blocks that its preemption would free.
    blocks: int


class Room(NamedTuple):
    """The free slots and blocks, and the next step's token budget."""

    slots: int
    blocks: int
    tokens: int


def slot_floors(lanes: Iterable[Lane], slots: int) -> dict[int, int]:
    """Return the slots that each lower lane keeps while it has work, by rank; together they never take all slots."""
    left, floors = slots - 1, {}
    for lane in sorted(lanes, key=lambda one: one.rank):
        if lane.rank and lane.share_floor > 0.0:
            floors[lane.rank] = min(left, max(1, int(lane.share_floor * slots)))
            left -= floors[lane.rank]
    return floors


def choose_yielding(
    demands: Sequence[Demand], candidates: Sequence[Candidate], room: Room, floors: Mapping[int, int]
) -> tuple[list[int], int]:
    """Return the indexes of the victims, and the number of demands, from the first, that they satisfy.

    `candidates` are the possible victims in running order, over which floors are counted."""
    slots, blocks, tokens = room
    running = Counter(candidate.lane_rank for candidate in candidates)
    left = list(candidates)
    yielding: list[int] = []
    met = 0
    for demand in demands:
        if met and tokens < demand.tokens:
            break
        taken = _victims(demand, left, running, floors, slots, blocks)
        if taken is None:
            break
        for candidate in taken:
            left.remove(candidate)
            running[candidate.lane_rank] -= 1
        yielding += [candidate.place for candidate in taken]
        slots += len(taken) - 1
        blocks += sum([candidate.blocks for candidate in taken]) - demand.blocks
        tokens -= demand.tokens
        met += 1
    return yielding, met


def _victims(
    demand: Demand,
    candidates: Sequence[Candidate],
    running: Mapping[int, int],
    floors: Mapping[int, int],
    slots: int,
    blocks: int,
) -> list[Candidate] | None:
    short_slots, short_blocks = 1 - slots, demand.blocks - blocks
    may_go = {rank: count - floors.get(rank, 0) for rank, count in running.items()}
    taken: list[Candidate] = []
    for candidate in reversed(candidates):
        if len(taken) >= short_slots and sum([one.blocks for one in taken]) >= short_blocks:
            break
        if candidate.rank > demand.rank and may_go[candidate.lane_rank] > 0:
            may_go[candidate.lane_rank] -= 1
            taken.append(candidate)
    freed = sum([one.blocks for one in taken])
    if len(taken) < short_slots or freed < short_blocks:
        return None
    for candidate in [*reversed(taken)]:  # the last one is the most expensive: spare it if the others suffice
        if len(taken) > short_slots and freed - candidate.blocks >= short_blocks:
            taken.remove(candidate)
            freed -= candidate.blocks
    return taken
