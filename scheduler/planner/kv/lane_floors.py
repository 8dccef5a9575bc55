"""KV blocks reserved for a lane against the lanes above: its share floor of the pool (docs/internals/scheduling.md).

Blocks are gathered only for tenants without a token in the lane. Gathering for all of them preempted streams of the
lanes above repeatedly: one request in twelve missed its targets."""

from collections.abc import Iterable
from itertools import chain
from math import inf

from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.priority import IDLE, Ranked, Ranking
from fairlane.scheduler.planner.sequence import Sequence
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import Lane, LaneName


def own_blocks(lane: Lane, blocks: int) -> int:
    """Return the blocks of a pool that the lanes above leave to a lane with work. The first lane has none above it."""
    return int(lane.share_floor * blocks) if lane.rank else 0


def needed_blocks(seq: Sequence, pool: BlockPool) -> int:
    """Return the device blocks that a sequence lacks for its next token or, if it resumes, for one more."""
    resumes = not (seq.is_resident or seq.is_new)
    return max(0, pool.blocks_for(seq.length + resumes) - len(seq.table))


class BlockFloors:
    """The floors of one step, computed only when blocks run out."""

    def __init__(self, ranking: Ranking, pool: BlockPool) -> None:
        self._ranking, self._index, self._begun, self._pool = ranking, ranking.index, ranking.begun, pool
        busy = [lane.lane for lane in ranking.index.lanes.values() if lane.waits or lane.begun]
        first = min([lane.rank for lane in busy], default=inf)
        self._own = {lane.name: own_blocks(lane, pool.blocks) for lane in busy if lane.rank > first}
        self._most = sum(self._own.values())
        # The protected sequences, and the blocks that each lacked at the start of the step.
        self._kept: dict[SeqId, int] | None = None
        self._lacking: dict[LaneName, int] = {}

    @property
    def short(self) -> int:
        if self._pool.free_blocks >= self._most:
            return 0
        self._look()
        return max(0, sum(self._lacking.values()) - self._pool.free_blocks)

    @property
    def shortest(self) -> LaneName:
        return max(self._lacking, key=lambda name: self._lacking[name])

    def gives(self, one: Ranked) -> bool:
        if one.rank.lane == IDLE:
            return True
        return one.seq.job.lane not in self._own and all(self._binds(one.seq, name) for name in self._own)

    def keeps(self, seq: Sequence, beneficiary: Sequence) -> bool:
        name = seq.job.lane
        if name not in self._own or name is beneficiary.job.lane or not self._binds(beneficiary, name):
            return False
        return seq.id in self._look()

    def is_own(self, seq: Sequence) -> bool:
        """Return whether the floor has blocks for this newcomer, so that it neither waits nor displaces others. Only
        valid if other holders had no blocks to give."""
        lane = seq.job.lane
        return lane in self._own and not self._index.lanes[lane].has_token(seq.job.tenant) and seq.id in self._look()

    def kept_from(self, seq: Sequence, needed: int) -> int:
        if self._pool.free_blocks - needed - len(self._index.begun) >= self._most:
            return self._most  # enough are free anyway
        own = seq.job.lane if seq.id in self._look() else None
        return sum([lack for name, lack in self._lacking.items() if name is not own and self._binds(seq, name)])

    def kept_from_decodes(self, decodes: list[Sequence]) -> int:
        if not decodes or self._pool.free_blocks - len(decodes) >= self._most or decodes[0].is_promised:
            return 0
        self._look()
        return sum(self._lacking.values())

    def ran(self, sequences: Iterable[Sequence]) -> None:
        if self._kept:
            for seq in sequences:
                self._lacking[seq.job.lane] = max(0, self._lacking.get(seq.job.lane, 0) - self._kept.get(seq.id, 0))

    def binds_all(self, seq: Sequence) -> bool:
        return all(self._binds(seq, name) for name in self._own)

    def _binds(self, seq: Sequence, name: LaneName) -> bool:
        return not seq.is_promised and self._pool.blocks_for(seq.length) <= self._pool.blocks - self._own.get(name, 0)

    def _look(self) -> dict[SeqId, int]:
        if self._kept is None:
            self._kept = {}
            for name, own in self._own.items():
                self._kept |= self._fitting(name, own)
        return self._kept

    def _fitting(self, name: LaneName, own: int) -> dict[SeqId, int]:
        kept: dict[SeqId, int] = {}
        lane, pool, left, lacking = self._index.lanes[name], self._pool, own, 0
        decodes = chain.from_iterable(alike for kind, alike in self._begun.decodes.items() if kind[0] is name)
        begun = [*decodes, *(seq for seq in self._begun.others if seq.job.lane is name)]
        not_begun = [lane.next_of(tenant, self._ranking.now_ms) for tenant in lane.least_served()]
        for _, seq in sorted(map(self._ranking.stand, [*begun, *not_begun])):
            needed = needed_blocks(seq, pool)
            if len(seq.table) + needed <= left:
                left -= len(seq.table) + needed
                kept[seq.id] = 0 if lane.has_token(seq.job.tenant) else needed
                lacking += kept[seq.id]
        held = pool.freed_by([seq.table for seq in begun])
        self._lacking[name] = min(lacking, max(0, own - held))
        return kept
