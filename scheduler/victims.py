"""Who yields KV blocks to whom, and by which mode.

1. A victim ranks strictly below its beneficiary: in a lower lane, at its grant and idle, or of a tenant of the same
   lane that is outside the fairness window while the beneficiary's is inside. Only work that already runs may also take
   from other equals, from the last-ranked upwards. Nobody else yields to an equal that waits.
2. Lower lanes yield first, in order of resume cost per freed block; then the tenants that were served most; then
   equals. Ties: last-ranked first.
3. Swap or recompute is what the cost model finds cheaper, if the host has room. `exact` work and the leader (the most
   urgent that runs) never recompute: the one was promised so, the other carries the progress of the whole worker.
   Exact work yields by recompute only as the last resort, when otherwise nothing at all could run.
4. Only as many yield as are needed; if all together are too few, nobody does.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from scheduler.blocks import BlockPool
from scheduler.costs import CostModel
from scheduler.messages import YieldMode
from scheduler.ranking import Standing
from scheduler.sequence import Sequence
from scheduler.steps import SeqId


class Victim(NamedTuple):
    """A sequence that yields, how, and what its way back is expected to cost."""

    seq: Sequence
    mode: YieldMode
    resume_ms: float


class Guard(NamedTuple):
    """What limits the choice of a mode in this step."""

    leader: SeqId | None
    last_resort: bool = False


def choose(
    short: int, beneficiary: Standing, candidates: Iterable[Standing], pool: BlockPool, costs: CostModel, guard: Guard
) -> list[Victim] | None:
    """The victims that free `short` device blocks for the beneficiary; None where they cannot be freed.

    The step is planned from the most urgent down, so no candidate below the beneficiary has a part in it yet.
    """
    if short <= 0:
        return []
    below = [one for one in candidates if one.seq.is_resident and one.rank > beneficiary.rank]
    below.sort(key=lambda one: one.rank, reverse=True)
    lower = [one for one in below if one.rank.lane > beneficiary.rank.lane]
    same = [one for one in below if one.rank.lane == beneficiary.rank.lane]
    outside = [one for one in same if one.rank.outside_window and not beneficiary.rank.outside_window]
    outside.sort(key=lambda one: one.rank.counter, reverse=True)
    equals = [one for one in same if beneficiary.seq.is_resident and one not in outside]
    lower.sort(key=lambda one: _cost_per_block(one.seq, pool, costs, guard))
    return _greedy(short, [*lower, *outside, *equals], pool, costs, guard)


def _greedy(
    short: int, candidates: list[Standing], pool: BlockPool, costs: CostModel, guard: Guard
) -> list[Victim] | None:
    haul = _Haul(pool)
    for one in candidates:
        victim = yielding(one.seq, pool.free_slots - haul.slots, pool, costs, guard)
        if victim is not None:
            haul.add(victim)
        if haul.freed >= short:
            haul.shrink(short)
            return haul.victims
    return None


class _Haul:
    """The victims so far and the blocks that they free together: a shared block is free once all its holders yield."""

    def __init__(self, pool: BlockPool) -> None:
        self.victims: list[Victim] = []
        self.freed = 0
        self.slots = 0
        self._pool = pool
        self._held: Counter[int] = Counter()

    def add(self, victim: Victim) -> None:
        self.victims.append(victim)
        self._held.update(victim.seq.table)
        self.freed += self._freed_with(victim)
        if victim.mode == "swap":
            self.slots += self._pool.blocks_for(victim.seq.num_computed)

    def shrink(self, short: int) -> None:
        """Let go whom the need does not require, the dearest first."""
        for victim in sorted(self.victims, key=lambda one: one.resume_ms, reverse=True):
            without = self.freed - self._freed_with(victim)
            if without >= short:
                self.victims.remove(victim)
                self._held.subtract(victim.seq.table)
                self.freed = without

    def _freed_with(self, victim: Victim) -> int:
        """Blocks that are free with this victim among the others and would not be without it."""
        return sum(self._held[block] == self._pool.references(block) for block in victim.seq.table)


def yielding(seq: Sequence, room: int, pool: BlockPool, costs: CostModel, guard: Guard) -> Victim | None:
    """How this sequence would yield, with `room` host slots free; None where it may not."""
    blocks = pool.blocks_for(seq.num_computed)
    keeps = seq.num_computed > 0 and (seq.id == guard.leader or (seq.job.exact and not guard.last_resort))
    recompute = None if keeps else Victim(seq, "recompute", costs.recompute_ms(seq.num_computed))
    swap = Victim(seq, "swap", costs.swap_ms(blocks)) if 0 < blocks <= room else None
    if swap is None or recompute is None:
        return swap or recompute
    prefer_swap = seq.job.exact or swap.resume_ms <= recompute.resume_ms
    return swap if prefer_swap else recompute


def _cost_per_block(seq: Sequence, pool: BlockPool, costs: CostModel, guard: Guard) -> float:
    victim = yielding(seq, pool.free_slots, pool, costs, guard)
    return victim.resume_ms / max(1, pool.freed_by([seq.table])) if victim else float("inf")
