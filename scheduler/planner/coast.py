"""Coasting: steps of a simulation that need no plan, because all decodes continue in the same order.

Such a step needs only a few sums for the whole batch. All conditions are checked before each step, conservatively. Each
token repeats the sequence's last one, as in simulated outputs."""

import math
from collections import defaultdict
from collections.abc import Sequence as Items

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.kv.prefix_reuse import Prefixes
from fairlane.scheduler.planner.ordering import DECODE_WEIGHT
from fairlane.scheduler.planner.sequence import Kind, Sequence
from fairlane.scheduler.planner.sequence_group import Expiries
from fairlane.scheduler.planner.sequence_index import SequenceIndex
from fairlane.scheduler.planner.step_budget import Price, pace_time_ms, pressure
from fairlane.scheduler.planner.step_builder import decode_rows
from fairlane.scheduler.planner.steps import StepFeatures, StepPlan

ROUNDING = 1.0 - 1e-9


class Coast:
    """A batch that only decodes. `begin` and `end` alternate until `land`."""

    def __init__(
        self,
        sequences: Items[Sequence],
        index: SequenceIndex,
        pool: BlockPool,
        prefixes: Prefixes,
        costs: CostModel,
        expiries: Expiries,
    ) -> None:
        self.sequences = sequences
        self.steps = 0
        self.under_way = False
        self._index, self._pool, self._prefixes = index, pool, prefixes
        self._costs, self._expiries = costs, expiries
        self._most = min([seq.granted_until - len(seq.output) for seq in sequences]) - 1
        self._context = sum([seq.num_computed + 1 for seq in sequences])
        self._synced = dict.fromkeys(sequences, 0)
        ranks = {name: one.lane.rank for name, one in index.lanes.items()}
        # Decodes of the first lane, if lower lanes may have to wait for them.
        self._pressing = [seq for seq in sequences if ranks[seq.job.lane] == 0]
        if len(self._pressing) == len(sequences):
            self._pressing = []
        self._pace_ms = min([seq.job.tpot_ms for seq in self._pressing], default=math.inf)
        # Sequences that need another block, by the step before which.
        self._full: defaultdict[int, list[Sequence]] = defaultdict(list)
        # Sequences that fill a block, by the number of steps after which.
        self._turned: defaultdict[int, list[Sequence]] = defaultdict(list)
        for seq in sequences:
            self._full[len(seq.table) * pool.block_size - seq.num_computed].append(seq)
            self._turned[pool.block_size - seq.num_computed % pool.block_size].append(seq)

    def begin(self, now_ms: float) -> StepFeatures | None:
        """Start one more step, allocate its blocks and return its features; None, unchanged, if it has to be
        planned."""
        full = self._full.get(self.steps, ())
        if self.steps >= self._most or self._expiries.any_by(now_ms) or self._index.decodes.promotes(now_ms):
            return None
        if not self._pool.can_allocate(len(full)) or not self._in_time(now_ms):
            return None
        if full:
            self._grow(full)
        self._costs.begin_step(now_ms)
        self.under_way = True
        return self._features

    def end(self, run_ms: float) -> None:
        self._costs.observe(self._features, run_ms, 0, 0.0)
        self.steps, self.under_way = self.steps + 1, False
        self._context += len(self.sequences)
        turned = self._turned.pop(self.steps, ())
        for seq in turned:
            if self._prefixes.enabled:
                self._sync(seq)
                self._prefixes.leave_full(seq)
        if turned:
            self._turned[self.steps + self._pool.block_size] += turned
        self._costs.end_step(run_ms)

    def sync(self) -> None:
        for seq in self.sequences:
            self._sync(seq)

    def land(self) -> None:
        self.sync()
        for seq in self.sequences if self.steps else ():
            self._index.charge(seq.job, self.steps * DECODE_WEIGHT)

    def as_plan(self, number: int) -> StepPlan:
        if not self.under_way:
            return StepPlan(number=number)
        rows = tuple(decode_rows(self.sequences))
        return StepPlan(
            number=number, rows=rows, features=self._features, predicted_ms=self._costs.step_ms(self._features)
        )

    @property
    def _features(self) -> StepFeatures:
        return StepFeatures(len(self.sequences), 0, self._context, 0)

    def _in_time(self, now_ms: float) -> bool:
        if not self._pressing or not self._costs.knows_steps:
            return True
        base_ms, *each = self._costs.step_weights()
        price = Price(*each)
        rows_ms = len(self.sequences) * price.row + price.context * self._context
        if rows_ms <= ROUNDING * pace_time_ms(self._pace_ms, 0.0, base_ms, self._costs):
            return True
        for seq in self._pressing:
            self._sync(seq)
        slack_ms = pressure(self._pressing, now_ms)[1]
        return rows_ms <= ROUNDING * pace_time_ms(self._pace_ms, slack_ms, base_ms, self._costs)

    def _grow(self, full: Items[Sequence]) -> None:
        for seq in full:
            self._pool.allocate(seq.table, 1)
            seq.table_view = tuple(seq.table)
        self._full[self.steps + self._pool.block_size] += self._full.pop(self.steps)

    def _sync(self, seq: Sequence) -> None:
        gained = self.steps - self._synced[seq]
        if gained:
            self._synced[seq] = self.steps
            seq.num_computed += gained
            seq.output += [seq.output[-1]] * gained


def batch(decodes: dict[Kind, tuple[Sequence, ...]], index: SequenceIndex) -> list[Sequence] | None:
    """Return all decodes in the order of a plan's rows, or None if it is not certain: some were stopped, belong to jobs
    with several choices, or share a group with those of another lane."""
    lanes = {kind[0] for kind in decodes}
    kinds = sorted(decodes, key=lambda kind: _group(kind, index)) if len(lanes) > 1 else [*decodes]
    places = {(_group(kind, index), kind[0]) for kind in kinds}
    if len(lanes) > 1 and len({group for group, _ in places}) < len(places):
        return None
    found = [seq for kind in kinds for seq in decodes[kind]]
    if any(seq.stalled_since_ms is not None or seq.job.n > 1 for seq in found):
        return None
    return found


def _group(kind: Kind, index: SequenceIndex) -> tuple[int, bool]:
    name, _, promised, promoted = kind
    return max(0, index.lanes[name].lane.rank - promoted), not promised
