"""Who runs in a step: one walk from the most urgent down, no second list and no silent end.

Whoever finds no room is passed over with a reason. The first that lacks blocks, or just lost them, is the head: from
then on work that has not begun may start only if, by its longest possible output, it is over before running work can
have made room for the head (EASY backfill), so the head is not delayed. A fresh sequence gets blocks for its whole
prompt at once, and leaves one free for each running sequence of its lane or above that will still grow: half-begun
prefills cannot lock each other out. Resumed work needs room for all it has and one token more.

Where all decodes fit and nothing else stands above any of them, the walk over them would end in a row for each: they
get it at once, and only the rest is walked. That is what makes a step of hundreds of sequences cheap.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cached_property

from scheduler.blocks import BlockPool
from scheduler.costs import CostModel
from scheduler.draft import Draft
from scheduler.lanes import LaneName
from scheduler.ranking import IDLE, Phase, Ranking, Standing
from scheduler.roster import Roster
from scheduler.sequence import Sequence, State
from scheduler.steps import SeqId
from scheduler.victims import Guard, Victim, choose

BACKFILL = 4
"""How many of a tenant's fresh requests a step looks at behind one that found no blocks."""


class WaitReason(StrEnum):
    """Why a sequence has no row in a step."""

    SLOTS = "slots"
    """The batch is full of more urgent work."""
    TOKENS = "tokens"
    """The step's token budget is spent on more urgent work."""
    BLOCKS = "blocks"
    """KV blocks are short, and nobody that may yield holds enough."""
    HEAD = "head"
    """It would fit, but would delay a more urgent request that lacks blocks."""
    GRANT = "grant"
    """Its budget allows no further token yet."""
    PREFIX = "prefix"
    """A sibling choice is computing the prompt that both share."""
    PREEMPTED = "preempted"
    """It yielded its blocks in this very step."""
    ORDER = "order"
    """Its turn has not come: other work of its tenant, or of tenants served less, waits before it."""


class Placement:
    """One step's walk."""

    def __init__(self, roster: Roster, ranking: Ranking, draft: Draft, pool: BlockPool, costs: CostModel) -> None:
        self._roster = roster
        self._ranking = ranking
        self._draft = draft
        self._pool = pool
        self._costs = costs
        self._last_resort = False
        self._head_starts: float | None = None
        """Steps after which running work has made room for the head; None while there is no head."""
        self._growing: tuple[int, list[int]] = (-1, [])

    def fill(self) -> dict[SeqId, WaitReason]:
        """Place all that fits; the reasons of those that were looked at and wait."""
        reasons = self._walk()
        if not self._draft.running and WaitReason.BLOCKS in reasons.values():
            self._last_resort = True
            reasons = self._walk()
        for seq in self._roster.idle.values():
            reasons[seq.id] = WaitReason.PREFIX if seq.awaits_prefix and seq.is_runnable else WaitReason.GRANT
        return reasons

    def _walk(self) -> dict[SeqId, WaitReason]:
        self._head_starts = None
        fresh = Fresh(self._roster, self._ranking)
        waiting = self._begin(fresh.first())
        heapq.heapify(waiting)
        reasons = {}
        while waiting:
            standing = heapq.heappop(waiting)
            reason = self._place(standing)
            if reason is not None:
                reasons[standing.seq.id] = reason
            if standing.rank.phase is Phase.FRESH:
                for behind in fresh.behind(standing.seq, reason):
                    heapq.heappush(waiting, behind)
        return reasons

    def _begin(self, fresh: list[Standing]) -> list[Standing]:
        """What is to be walked; decodes are not in it where all of them have their row already."""
        decodes: list[Sequence] = []
        others: list[Sequence] = []
        for seq in self._roster.begun.values():
            (decodes if seq.state is State.DECODE else others).append(seq)
        waiting = [*map(self._ranking.stand, others), *fresh]
        if decodes and self._draft.all_fit(decodes):
            last = self._ranking.last_group(decodes)
            if all(one.rank.group >= last for one in waiting):
                self._draft.run_decodes(decodes)
                return waiting
        return [*waiting, *map(self._ranking.stand, decodes)]

    def _place(self, standing: Standing) -> WaitReason | None:
        reason = self._barred(standing.seq)
        victims = None if reason else self._make_room(standing)
        if victims is None:
            reason = reason or WaitReason.BLOCKS
            if self._head_starts is None and reason in (WaitReason.BLOCKS, WaitReason.PREEMPTED):
                self._head_starts = self._steps_until(self._needed(standing.seq))
            return reason
        for victim in victims:
            self._draft.preempt(victim)
        self._draft.run(standing.seq)
        return None

    def _barred(self, seq: Sequence) -> WaitReason | None:
        """Why it cannot run whatever blocks are free."""
        if seq.id in self._draft.yielded:
            return WaitReason.PREEMPTED
        if self._draft.rows_left(seq.job.lane) <= 0:
            return WaitReason.SLOTS
        if self._draft.tokens_left(seq) <= 0:
            return WaitReason.TOKENS
        if self._head_starts is not None and not seq.is_resident and self._draft.steps_left(seq) > self._head_starts:
            return WaitReason.HEAD
        return None

    def _make_room(self, standing: Standing) -> list[Victim] | None:
        """Whom it takes blocks from, perhaps nobody; None where it has to wait."""
        short = self._needed(standing.seq) - self._pool.free_blocks
        if standing.seq.is_fresh and self._choose(short + self._growth(standing.rank.lane), standing) is None:
            return None  # it would fit, but leave running work no room to grow
        return self._choose(short, standing)

    def _choose(self, short: int, standing: Standing) -> list[Victim] | None:
        if short <= 0:
            return []
        guard = Guard(self._leader, self._last_resort)
        return choose(short, standing, self._holders, self._pool, self._costs, guard)

    def _needed(self, seq: Sequence) -> int:
        """Device blocks that it lacks."""
        resumes = not (seq.is_resident or seq.is_fresh)
        return max(0, self._pool.blocks_for(seq.length + resumes) - len(seq.table))

    def _growth(self, lane_rank: int) -> int:
        """Blocks to leave free: one for each running sequence, not below this lane, that outgrows its table."""
        done = len(self._draft.running) + len(self._draft.yielded)
        if self._growing[0] != done:
            size = self._pool.block_size
            outgrow = [
                self._ranking.lane_rank(seq)
                for seq in self._resident()
                if seq.job.max_total_tokens > len(seq.table) * size
            ]
            self._growing = (done, outgrow)
        return sum(rank <= lane_rank for rank in self._growing[1])

    def _steps_until(self, needed: int) -> float:
        """Steps until so many blocks are free, if everything that runs produces all it may."""
        room = self._pool.free_blocks
        for steps, held in sorted((self._draft.steps_left(seq), len(seq.table)) for seq in self._resident()):
            room += held
            if room >= needed:
                return steps
        return math.inf

    def _resident(self) -> Iterator[Sequence]:
        return (seq for seq in self._roster.begun.values() if seq.is_resident)

    @cached_property
    def _holders(self) -> list[Standing]:
        """All that holds blocks as the step begins, and so may yield them."""
        held = [*self._resident(), *(seq for seq in self._roster.idle.values() if seq.table)]
        return [self._ranking.stand(seq) for seq in held]

    @cached_property
    def _leader(self) -> SeqId | None:
        """The most urgent that runs."""
        runs = [one for one in self._holders if one.rank.lane < IDLE]
        return min(runs).seq.id if runs else None


class Fresh:
    """Fresh work as a walk comes to it: of each tenant the first, the next once that is placed, a few behind one that
    found no blocks."""

    def __init__(self, roster: Roster, ranking: Ranking) -> None:
        self._roster = roster
        self._ranking = ranking
        self._refused: Counter[tuple[LaneName, str]] = Counter()
        self._seen: set[SeqId] = set()

    def first(self) -> list[Standing]:
        """What the walk begins with."""
        found = []
        for lane in self._roster.lanes.values():
            tenants = lane.least_served()
            heads = (lane.waiting(tenant, 0) for tenant in tenants)
            found += self._unseen((*heads, *lane.promoted(self._ranking.now_ms)))
        return found

    def behind(self, seq: Sequence, reason: WaitReason | None) -> list[Standing]:
        """What comes into view once this was placed, or refused for this reason."""
        place = seq.job.lane, seq.job.tenant
        if reason is not None:
            self._refused[place] += 1
            if reason not in (WaitReason.BLOCKS, WaitReason.HEAD) or self._refused[place] > BACKFILL:
                return []
        lane = self._roster.lanes[seq.job.lane]
        return self._unseen((lane.waiting(seq.job.tenant, self._refused[place]),))

    def _unseen(self, sequences: Iterable[Sequence | None]) -> list[Standing]:
        fresh = [seq for seq in sequences if seq is not None and seq.id not in self._seen]
        self._seen.update(seq.id for seq in fresh)
        return [self._ranking.stand(seq) for seq in fresh]
