"""Preemption: which sequences yield KV blocks to which others, how many, and in which mode.

A victim ranks below its beneficiary and yields its last blocks, no more than needed, by the cheaper of swap and
recompute. docs/internals/scheduling.md has the rules."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.kv.host_claims import HostClaims
from fairlane.scheduler.planner.priority import Phase, Ranked
from fairlane.scheduler.planner.sequence import Sequence
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import YieldMode


class Victim(NamedTuple):
    """A sequence that yields: the mode, the number of its last blocks, and the expected cost of resuming them."""

    seq: Sequence
    mode: YieldMode
    blocks: int
    resume_ms: float


def _yields(holder: Ranked, beneficiary: Ranked) -> bool:
    if beneficiary.rank.service_class == 0 and holder.rank.service_class > 0:
        return True
    return holder.rank.outside_window and not beneficiary.rank.outside_window


def lost(seq: Sequence, pool: BlockPool, costs: CostModel) -> Victim:
    """Return a preempted sequence as a victim that loses its KV on the host."""
    kept = min(seq.num_computed, len(seq.table) * pool.block_size)
    return Victim(seq, "recompute", 0, costs.recompute_ms(seq.num_computed - kept, kept))


class VictimSearch:
    """Chooses victims in one step. The `leader` is never recomputed; `last_resort`: otherwise nothing could run."""

    def __init__(
        self,
        pool: BlockPool,
        costs: CostModel,
        claims: HostClaims,
        leader: SeqId | None = None,
        *,
        last_resort: bool = False,
    ) -> None:
        self._pool, self._costs, self._claims = pool, costs, claims
        self._leader, self._last_resort = leader, last_resort

    def choose(self, short: int, beneficiary: Ranked, candidates: Iterable[Ranked]) -> list[Victim] | None:
        """Return the victims that free `short` device blocks for the beneficiary, or None if there are not enough."""
        if short <= 0:
            return []
        if self._last_resort and self._claims.stays(beneficiary.seq):
            others = sorted(
                (one for one in candidates if one.seq.table and one.seq is not beneficiary.seq), reverse=True
            )
            without_leader = VictimSearch(self._pool, self._costs, self._claims)
            return without_leader._fewest(short, [one.seq for one in others])
        below = [one for one in candidates if one.seq.table and one.rank > beneficiary.rank]
        below.sort(key=lambda one: one.rank, reverse=True)
        lower = [one for one in below if one.rank.lane > beneficiary.rank.lane]
        same = [one for one in below if one.rank.lane == beneficiary.rank.lane]
        outside = [one for one in same if one.rank.group > beneficiary.rank.group and _yields(one, beneficiary)]
        outside.sort(key=lambda one: one.rank.counter, reverse=True)
        equals = [one for one in same if self._yields_to_equal(one, beneficiary) and one not in outside]
        lower.sort(key=lambda one: self._cost_per_block(one.seq, short))
        return self._fewest(short, [one.seq for one in (*lower, *outside, *equals)])

    def give_back(self, short: int, holders: Iterable[Ranked]) -> list[Victim]:
        """Return the victims that free `short` device blocks for a lane's share floor, least urgent first; none
        if together they hold too few."""
        return self._fewest(short, [one.seq for one in sorted(holders, reverse=True)]) or []

    def _yields_to_equal(self, holder: Ranked, beneficiary: Ranked) -> bool:
        if beneficiary.seq.is_resident:
            return True
        return beneficiary.rank.phase is Phase.RESUME and (self._last_resort or not holder.seq.is_resident)

    def _fewest(self, short: int, candidates: list[Sequence]) -> list[Victim] | None:
        """Return the fewest leading candidates that suffice, without the costliest if the others do;
        None if all of them together do not."""
        victims = self._gather(short, candidates)
        for dearest in sorted(victims or (), key=lambda one: one.resume_ms, reverse=True):
            others = [one.seq for one in victims or () if one.seq is not dearest.seq]
            victims = self._gather(short, others) or victims
        return victims

    def _cost_per_block(self, seq: Sequence, short: int) -> float:
        blocks = min(short, self._pool.freed_by([seq.table]))
        victims = self._gather(blocks, [seq]) if blocks else None
        return victims[0].resume_ms / blocks if victims else float("inf")

    def _gather(self, short: int, candidates: list[Sequence]) -> list[Victim] | None:
        """Take only blocks that the candidates do not share, if those suffice. Shared prefixes are long, and free only
        after all their holders have given them. A sequence that shares any block shares its first."""
        alone, references = self._take(short, candidates, shared=False), self._pool.references
        if alone is not None or all(references(seq.table[0]) == 1 for seq in candidates):
            return alone
        if self._pool.freed_by([seq.table for seq in candidates]) < short:
            return None
        return self._take(short, candidates, shared=True)

    def _take(self, short: int, candidates: list[Sequence], *, shared: bool) -> list[Victim] | None:
        given: list[tuple[Sequence, int]] = []
        held: Counter[int] = Counter()
        room, freed = self._claims.room(), 0
        for seq in candidates:
            count, most = 0, self._most(seq, room.of(seq))
            while count < most and freed < short:
                if not shared and self._pool.references(seq.table[-count - 1]) > 1:
                    break
                count += 1
                held[seq.table[-count]] += 1
                freed += held[seq.table[-count]] == self._pool.references(seq.table[-count])
            if count:
                given.append((seq, count))
                if self._offer(seq, count, room.of(seq)).mode == "swap":
                    room.take(seq, len(self._moved(seq, count)))
            if freed >= short:
                return self._trimmed(given, held)
        return None

    def _trimmed(self, given: list[tuple[Sequence, int]], held: Counter[int]) -> list[Victim]:
        """Return the shared blocks that would not become free. Host room goes first to sequences that must be kept."""
        left: list[tuple[Sequence, int]] = []
        for seq, count in given:
            while count and held[seq.table[-count]] < self._pool.references(seq.table[-count]):
                held[seq.table[-count]] -= 1
                count -= 1
            if count:
                left.append((seq, count))
        room = self._claims.room()
        kept = sum([len(self._moved(seq, count)) for seq, count in left if self._needs_room(seq)])
        victims = []
        for seq, count in left:
            moved = len(self._moved(seq, count))
            kept -= moved if self._needs_room(seq) else 0
            victims.append(self._offer(seq, count, room.of(seq) - (0 if self._claims.may_leave(seq) else kept)))
            if victims[-1].mode == "swap":
                room.take(seq, moved)
        return victims

    def _most(self, seq: Sequence, room: int) -> int:
        return len(seq.table) - (max(0, self._computed(seq) - room) if self._must_keep(seq) else 0)

    def _must_keep(self, seq: Sequence) -> bool:
        return seq.id == self._leader or seq.job.exact

    def _needs_room(self, seq: Sequence) -> bool:
        return self._must_keep(seq) and not self._claims.may_leave(seq)

    def _offer(self, seq: Sequence, blocks: int, room: int) -> Victim:
        lost = seq.num_computed - (len(seq.table) - blocks) * self._pool.block_size
        if lost <= 0:
            return Victim(seq, "recompute", blocks, 0.0)
        recompute_ms = self._costs.recompute_ms(lost, seq.num_computed - lost)
        moved = self._moved(seq, blocks)
        swap_ms = self._costs.swap_ms(len(moved), len(seq.slots), self._pool.slots.unsaved(moved))
        swaps = swap_ms <= recompute_ms or self._must_keep(seq) or not self._costs.knows_copies
        if swaps and len(moved) <= room:
            return Victim(seq, "swap", blocks, swap_ms)
        return Victim(seq, "recompute", blocks, recompute_ms)

    def _moved(self, seq: Sequence, blocks: int) -> list[int]:
        """Return those of its last `blocks` blocks that hold KV; each takes a host slot."""
        return seq.table[len(seq.table) - blocks : self._computed(seq)]

    def _computed(self, seq: Sequence) -> int:
        return min(len(seq.table), self._pool.blocks_for(seq.num_computed))
