"""Who of the ranked list runs in a step: one walk from the most urgent down, no second list and no silent end.

Whoever finds no room is passed over with a reason. The first that lacks blocks, or just lost them, is the head: from
then on work that has not begun may start only if, by its longest possible output, it is over before running work can
have made room for the head (EASY backfill), so the head is not delayed. A fresh sequence gets blocks for its whole
prompt at once, and leaves one free for each running sequence of its lane or above that will still grow: half-begun
prefills cannot lock each other out. Resumed work needs room for all it has and one token more.
"""

import math
from enum import StrEnum

from scheduler.blocks import BlockPool
from scheduler.costs import CostModel
from scheduler.draft import Draft
from scheduler.ranking import IDLE, Standing
from scheduler.sequence import Sequence
from scheduler.steps import SeqId
from scheduler.victims import Guard, Victim, choose


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


class Placement:
    """One step's walk through the ranked list."""

    def __init__(self, ranked: list[Standing], draft: Draft, pool: BlockPool, costs: CostModel) -> None:
        self._ranked = ranked
        self._draft = draft
        self._pool = pool
        self._costs = costs
        self._guard = Guard(leader=self._find_leader())
        self._head_starts: float | None = None
        """Steps after which running work has made room for the head; None while there is no head."""

    def fill(self) -> dict[SeqId, WaitReason]:
        """Place all that fits; the reasons of those that wait."""
        reasons = self._walk()
        if not self._draft.rows and WaitReason.BLOCKS in reasons.values():
            self._guard = self._guard._replace(last_resort=True)
            reasons = self._walk()
        return reasons

    def _walk(self) -> dict[SeqId, WaitReason]:
        self._head_starts = None
        reasons = {}
        for standing in self._ranked:
            reason = self._place(standing)
            if reason is not None:
                reasons[standing.seq.id] = reason
        return reasons

    def _place(self, standing: Standing) -> WaitReason | None:
        reason = self._barred(standing)
        victims = None if reason else self._make_room(standing)
        if victims is None:
            reason = reason or WaitReason.BLOCKS
            if self._head_starts is None and reason in (WaitReason.BLOCKS, WaitReason.PREEMPTED):
                self._head_starts = self._steps_until(self._needed(standing))
            return reason
        for victim in victims:
            self._draft.preempt(victim)
        self._draft.run(standing.seq)
        return None

    def _barred(self, standing: Standing) -> WaitReason | None:
        """Why it cannot run whatever blocks are free."""
        seq = standing.seq
        if not seq.is_runnable:
            return WaitReason.GRANT
        if seq.awaits_prefix:
            return WaitReason.PREFIX
        if seq.id in self._draft.yielded:
            return WaitReason.PREEMPTED
        if self._draft.rows_left(seq.job.lane) <= 0:
            return WaitReason.SLOTS
        if self._draft.tokens_left(seq) <= 0:
            return WaitReason.TOKENS
        if self._delays_head(seq):
            return WaitReason.HEAD
        return None

    def _delays_head(self, seq: Sequence) -> bool:
        if seq.is_resident or self._head_starts is None:
            return False
        return self._draft.steps_left(seq) > self._head_starts

    def _make_room(self, standing: Standing) -> list[Victim] | None:
        """Whom it takes blocks from, perhaps nobody; None where it has to wait."""
        short = self._needed(standing) - self._pool.free_blocks
        if standing.seq.is_fresh and self._choose(short + self._growth(standing), standing) is None:
            return None  # it would fit, but leave running work no room to grow
        return self._choose(short, standing)

    def _choose(self, short: int, standing: Standing) -> list[Victim] | None:
        return choose(short, standing, self._ranked, self._pool, self._costs, self._guard)

    def _needed(self, standing: Standing) -> int:
        """Device blocks that it lacks."""
        seq = standing.seq
        resumes = not (seq.is_resident or seq.is_fresh)
        return max(0, self._pool.blocks_for(seq.length + resumes) - len(seq.table))

    def _growth(self, standing: Standing) -> int:
        """Blocks to leave free: one for each running sequence, not below this one's lane, that outgrows its table."""
        return sum(
            one.rank.lane <= standing.rank.lane
            and one.seq.is_resident
            and self._pool.blocks_for(one.seq.job.max_total_tokens) > len(one.seq.table)
            for one in self._ranked
        )

    def _steps_until(self, needed: int) -> float:
        """Steps until so many blocks are free, if everything that runs produces all it may."""
        room = self._pool.free_blocks
        for steps, one in sorted((self._draft.steps_left(one.seq), one) for one in self._resident()):
            room += len(one.seq.table)
            if room >= needed:
                return steps
        return math.inf

    def _resident(self) -> list[Standing]:
        return [one for one in self._ranked if one.seq.is_resident and one.rank.lane < IDLE]

    def _find_leader(self) -> SeqId | None:
        return next((one.seq.id for one in self._resident()), None)
