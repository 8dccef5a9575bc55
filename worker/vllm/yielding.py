"""Which running requests of lower lanes yield their slots and KV blocks to which waiting ones.

vLLM takes all of a request's blocks and forgets what it computed, but for what its prefix cache still holds; so a
victim is taken whole, and as few as suffice.

1. Only a request of a strictly lower lane yields: equals never take from each other, so nothing goes in circles.
2. The last of the running order yields first: the lowest lane, the latest due, the least computed.
3. A lane keeps the slots of its share floor (`slot_floors`).
4. Whoever waits is served in order. Where all that may yield would not suffice for one, nobody yields to it, nor to
   those behind it, which vLLM would not admit before it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fairlane.scheduler.protocol.lanes import Lane


class Wish(NamedTuple):
    """A waiting request of an upper lane."""

    rank: int
    """Of its lane, lower is more urgent."""
    blocks: int
    """KV blocks that it needs to be admitted."""
    tokens: int
    """That it would have a step compute."""


class Holder(NamedTuple):
    """A running request."""

    place: int
    """In the running order."""
    rank: int
    """Of its lane, one higher once it has waited long."""
    lane_rank: int
    """Of its lane."""
    blocks: int
    """KV blocks that would be free once it had yielded."""


class Room(NamedTuple):
    """What is free, and what the next step holds."""

    slots: int
    blocks: int
    tokens: int


def slot_floors(lanes: Iterable[Lane], slots: int) -> dict[int, int]:
    """Slots that each lane below the first keeps while it has work, by rank: its share floor in whole slots, at least
    one where it has any, and together never all of them."""
    left, floors = slots - 1, {}
    for lane in sorted(lanes, key=lambda one: one.rank):
        if lane.rank and lane.share_floor > 0.0:
            floors[lane.rank] = min(left, max(1, int(lane.share_floor * slots)))
            left -= floors[lane.rank]
    return floors


def choose_yielding(
    wishes: Sequence[Wish], holders: Sequence[Holder], room: Room, floors: Mapping[int, int]
) -> tuple[list[int], int]:
    """The places of those that yield, and how many of the wishes, from the first, are met then.

    `holders`: those that could yield, in running order. A floor is counted over them alone.
    """
    slots, blocks, tokens = room
    running = Counter(holder.lane_rank for holder in holders)
    left = list(holders)
    yielding: list[int] = []
    met = 0
    for wish in wishes:
        if met and tokens < wish.tokens:
            break
        taken = _for_one(wish, left, running, floors, slots, blocks)
        if taken is None:
            break
        for holder in taken:
            left.remove(holder)
            running[holder.lane_rank] -= 1
        yielding += [holder.place for holder in taken]
        slots += len(taken) - 1
        blocks += sum([holder.blocks for holder in taken]) - wish.blocks
        tokens -= wish.tokens
        met += 1
    return yielding, met


def _for_one(
    wish: Wish,
    holders: Sequence[Holder],
    running: Mapping[int, int],
    floors: Mapping[int, int],
    slots: int,
    blocks: int,
) -> list[Holder] | None:
    """Who yields to one; None where that would not suffice."""
    short_slots, short_blocks = 1 - slots, wish.blocks - blocks
    may_go = {rank: count - floors.get(rank, 0) for rank, count in running.items()}
    taken: list[Holder] = []
    for holder in reversed(holders):
        if len(taken) >= short_slots and sum([one.blocks for one in taken]) >= short_blocks:
            break
        if holder.rank > wish.rank and may_go[holder.lane_rank] > 0:
            may_go[holder.lane_rank] -= 1
            taken.append(holder)
    freed = sum([one.blocks for one in taken])
    if len(taken) < short_slots or freed < short_blocks:
        return None
    for holder in [*reversed(taken)]:  # the last that was taken is the dearest: it stays where the others suffice
        if len(taken) > short_slots and freed - holder.blocks >= short_blocks:
            taken.remove(holder)
            freed -= holder.blocks
    return taken
