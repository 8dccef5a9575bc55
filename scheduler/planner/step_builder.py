"""Builds one step's plan: tracks the remaining budget, and the rows and blocks assigned and taken so far."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import add

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.kv.prefix_reuse import Prefixes
from fairlane.scheduler.planner.preemption import Victim
from fairlane.scheduler.planner.sequence import Sequence, State
from fairlane.scheduler.planner.sequence_index import SequenceIndex
from fairlane.scheduler.planner.step_budget import StepBudget
from fairlane.scheduler.planner.steps import (
    NO_WORK,
    Copy,
    Row,
    SeqId,
    StepFeatures,
    StepPlan,
    Yield,
    features,
)
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Cause, Paused, Preempted, Resumed, YieldMode


class StepBuilder:
    """Assigns rows to sequences and takes blocks from victims; every call keeps pool, states and index consistent."""

    def __init__(
        self, budget: StepBudget, pool: BlockPool, prefixes: Prefixes, index: SequenceIndex, now_ms: float
    ) -> None:
        self.prefixes = prefixes
        self.running: dict[SeqId, Sequence] = {}
        # Sequences preempted in this step, which must not resume in it.
        self.yielded: set[SeqId] = set()
        self._rows: list[Row] = []
        self._work = NO_WORK
        self._budget = budget
        self._floors = dict(budget.floors)
        self._pool = pool
        self._index = index
        self._now_ms = now_ms
        self._tokens = budget.tokens
        self._decoded: Counter[LaneName] = Counter()
        self._prefilled = self._trickled = 0
        self._left_ms = budget.time_ms
        self._swap_out: list[Copy] = []
        self._swap_in: list[Copy] = []
        self._ahead = 0
        self._events: list[Preempted | Resumed] = []
        self._yields: list[Yield] = []

    @property
    def is_full(self) -> bool:
        return len(self.running) >= self._budget.rows

    def rows_left(self, lane: LaneName) -> int:
        return self._budget.rows - len(self.running) - self._kept_from(lane)

    def tokens_left(self, seq: Sequence) -> int:
        pending, left = seq.pending, self._tokens - self._kept_from(seq.job.lane)
        if pending == 1:
            return min(pending, left)
        left -= self._due_to_decodes(seq.job.lane)
        if self._is_first(seq.job.lane):
            least = self._budget.least_prefill - self._prefilled
            below = self._for_lanes_below((self._prefilled + left) / (1.0 + self._budget.share_below))
            if not self._prefilled:  # else a step of two tokens could stay empty
                below = min(below, max(0, left - 1))
            return min(pending, left - below, max(self._in_time(seq, self._budget.spare_ms), least))
        return min(pending, left, max(self._in_time(seq, 0.0), self._for_lanes_below(self._prefilled)))

    def _for_lanes_below(self, prefilled: float) -> int:
        return max(0, max(self._budget.trickle, int(self._budget.share_below * prefilled)) - self._trickled)

    def _due_to_decodes(self, lane: LaneName) -> int:
        """Return the tokens that a newcomer's prompt leaves to the decodes of its lane, which are placed after it. They
        depend on the step's tokens, not on the remaining ones, which would approach zero after several prompts."""
        decodes = self._index.decodes.counts[lane] - self._decoded[lane]
        return max(0, min(decodes, self.rows_left(lane) - 1, self._budget.tokens // 2))

    def is_late(self, seq: Sequence) -> bool:
        """Return whether a lower lane's decode would delay first-lane decodes, and its lane has no reserved row
        left."""
        lane = seq.job.lane
        if not self._budget.times_decodes or self._floors[lane] or self._is_first(lane):
            return False
        return seq.pending == 1 and self._budget.price.of(1, seq.length) > self._left_ms

    def _in_time(self, seq: Sequence, spare_ms: float) -> int:
        if self._left_ms == math.inf:
            return self._budget.prefill - self._prefilled - self._trickled
        price = self._budget.price
        per_token = price.token + price.pair * seq.num_computed
        left_ms = max(0.0, self._left_ms + spare_ms - price.row)
        return int(left_ms / per_token) if per_token > 0.0 else self._budget.tokens

    def steps_left(self, seq: Sequence) -> int:
        return seq.remaining - 1 + -(-seq.pending // self._budget.tokens)

    def preempt(self, victim: Victim, cause: Cause | None = None) -> None:
        """Take a sequence's last blocks now. It does not run until it has them again; reported once, when it stops
        running."""
        seq, keep, ran = victim.seq, len(victim.seq.table) - victim.blocks, victim.seq.runs
        kept, gone, copied = min(seq.num_computed, keep * self._pool.block_size), seq.num_computed, 0
        if victim.mode == "swap":
            gone = min(gone, len(seq.table) * self._pool.block_size)
            computed = self._pool.blocks_for(seq.num_computed)
            copies = self._pool.swap_out(seq.table, computed, seq.slots, keep)
            self._swap_out += copies
            copied = len(copies)
            seq.leave(State.SWAPPED, self._now_ms)
        else:
            self._pool.release(seq.table, keep)
            self._pool.slots.retire(seq.slots)
            seq.leave(State.DROPPED, self._now_ms, kept)
        self._yields.append(Yield(seq.id, victim.mode, kept, gone, victim.resume_ms, copied))
        self._index.file(seq)
        self.yielded.add(seq.id)
        taken = Preempted(
            job_id=seq.id.job_id,
            choice=seq.id.choice,
            mode=victim.mode,
            blocks=victim.blocks,
            predicted_ms=victim.resume_ms,
            bytes=victim.blocks * self._pool.bytes_per_block,
            cause=cause,
        )
        seq.given_up.append(taken)
        if ran:
            self._events.append(taken)

    def force(self, seq: Sequence, mode: YieldMode, most: int | None, room: int) -> None:
        held = len(seq.table)
        blocks = held if most is None else min(most, held)
        copied = min(held, self._pool.blocks_for(seq.num_computed)) - (held - blocks)
        if blocks and (mode == "recompute" or 0 < copied <= room):
            self.preempt(Victim(seq, mode, blocks, 0.0))

    def set_aside(self, seq: Sequence, cause: Cause | None) -> None:
        """Leave a decode without a row; it keeps its blocks. Reported once, when it stops running."""
        if seq.stalled_since_ms is None:
            seq.set_aside(self._now_ms)
            self._index.note_stop(seq)
            self._events.append(
                Preempted(
                    job_id=seq.id.job_id, choice=seq.id.choice, mode="keep", blocks=0, predicted_ms=0.0, cause=cause
                )
            )

    def run(self, seq: Sequence) -> None:
        """Give a sequence its row: swap its KV in if needed, and allocate blocks for all its tokens, which must be
        free."""
        if seq.state is State.SWAPPED:
            self._swap_in += self._pool.swap_in(seq.slots, seq.table, seq.num_computed // self._pool.block_size)
            seq.move(State.DECODE if seq.pending == 1 and seq.output else State.PREFILL)
            self._index.file(seq)
        elif not seq.is_resident:
            seq.move(State.PREFILL)
            self._index.file(seq)
        self._pool.allocate(seq.table, max(0, self._pool.blocks_for(seq.length) - len(seq.table)))
        self._resume(seq)
        self._give(seq, max(1, self.tokens_left(seq)))  # the reused prefix raised the price per token

    def run_all(self) -> bool:
        """Give a row to every sequence if all of them decode in one lane and fit, so that no decision is needed."""
        lane = self._index.only_decodes()
        if lane is None:
            return False
        return self.run_decodes(lane, [*chain.from_iterable(self._index.decodes.by_kind(self._now_ms).values())])

    def run_decodes(self, lane: LaneName, decodes: list[Sequence], kept: int = 0) -> bool:
        """Give a row to all of these decodes if rows, tokens, time and blocks (except `kept` ones) suffice, else to
        none."""
        size, count, price = self._pool.block_size, len(decodes), self._budget.price
        context = count + sum([seq.num_computed for seq in decodes])
        take_ms = count * price.row + price.context * context
        full = [seq for seq in decodes if seq.num_computed >= len(seq.table) * size]
        if count > self.rows_left(lane) or count > self._tokens - self._kept_from(lane):
            return False
        if self._budget.times_decodes and take_ms > self._left_ms and not self._is_first(lane):
            return False
        if not self._pool.can_allocate(len(full) + kept):
            return False
        for seq in full:
            self._pool.allocate(seq.table, 1)
            seq.table_view = tuple(seq.table)
        for seq in decodes:
            if seq.stalled_since_ms is not None:
                self._resume(seq)
        self.running.update([(seq.id, seq) for seq in decodes])
        self._rows += decode_rows(decodes)
        self._add_work(StepFeatures(count, 0, context, 0))
        self._tokens -= count
        self._decoded[lane] += count
        if self._budget.times_decodes:
            self._left_ms -= take_ms
        self._floors[lane] = max(0, self._floors[lane] - count)
        return True

    def copy_ahead(self, most: int) -> None:
        """If no swap copies anything, copy at most `most` full blocks of lower lanes, which may have to yield them
        later."""
        most = min(most, self._pool.slots.unused)
        if self._swap_out or self._swap_in:
            return
        for seq in self.running.values() if most > 0 else ():
            full = min(seq.num_computed // self._pool.block_size, seq.saved + most - self._ahead)
            if full > seq.saved and not self._is_first(seq.job.lane):
                self._swap_out += self._pool.slots.copy_ahead(seq.table[seq.saved : full])
                seq.saved, self._ahead = full, len(self._swap_out)

    def finish(self, number: int, paused: list[Paused], costs: CostModel, waits: Mapping[str, int]) -> StepPlan:
        """Return the plan. The pauses happened since the last one and come first."""
        copies, work = len(self._swap_out) + len(self._swap_in) - self._ahead, self._work
        return StepPlan(
            number=number,
            rows=tuple(self._rows),
            swap_out=tuple(self._swap_out),
            swap_in=tuple(self._swap_in),
            events=(*paused, *self._events),
            yields=tuple(self._yields),
            features=work,
            waits=waits,
            ahead=self._ahead,
            predicted_ms=costs.step_ms(work) + costs.copy_ms(copies),
        )

    def _add_work(self, more: StepFeatures) -> None:
        self._work = StepFeatures(*map(add, self._work, more))

    def _is_first(self, lane: LaneName) -> bool:
        return self._index.lanes[lane].lane.rank == 0

    def _kept_from(self, lane: LaneName) -> int:
        return sum(self._floors.values()) - self._floors[lane]

    def _resume(self, seq: Sequence) -> None:
        if seq.stalled_since_ms is not None:
            stalled_ms = self._now_ms - seq.stalled_since_ms
            self._events.append(_resumed(seq, stalled_ms))
            seq.stalled_since_ms = None
            seq.given_up.clear()
            self._index.note_stop(seq)

    def _give(self, seq: Sequence, count: int) -> None:
        first, whole, lane = seq.num_computed, count == seq.pending, seq.job.lane
        seq.table_view = tuple(seq.table if whole else seq.table[: self._pool.blocks_for(first + count)])
        row = Row(seq.id, seq.token_ids(first, count), first, seq.table_view, whole, len(seq.output))
        self._rows.append(row)
        self._add_work(features([row]))
        self.running[seq.id] = seq
        self._tokens -= count
        self._decoded[lane] += seq.state is State.DECODE
        if seq.pending > 1 and self._is_first(lane):
            self._prefilled += count
        elif seq.pending > 1:
            self._trickled += count
        if self._budget.times_decodes or seq.pending > 1:
            self._left_ms -= self._budget.price.of(count, first + count)
        self._floors[lane] = max(0, self._floors[lane] - 1)


def decode_rows(decodes: Iterable[Sequence]) -> list[Row]:
    """Return the next row of each decode, whose table has a block for it."""
    row: Callable[[type[Row], tuple[object, ...]], Row] = tuple.__new__  # three times as fast as Row()
    return [
        row(Row, (seq.id, (seq.output[-1],), seq.num_computed, seq.table_view, True, len(seq.output)))
        for seq in decodes
    ]


def _resumed(seq: Sequence, stalled_ms: float) -> Resumed:
    job_id, choice = seq.id
    if not seq.given_up:
        return Resumed(job_id=job_id, choice=choice, stalled_ms=stalled_ms)
    last = seq.given_up[-1]
    return Resumed(
        job_id=job_id,
        choice=choice,
        stalled_ms=stalled_ms,
        mode=last.mode,
        blocks=sum([each.blocks for each in seq.given_up]),
        bytes=sum([each.bytes for each in seq.given_up]),
        predicted_ms=sum([each.predicted_ms for each in seq.given_up]),
        cause=last.cause,
    )
