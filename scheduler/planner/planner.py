"""Decides what a worker runs in each step: `plan` decides, the runner executes, `apply` learns from the result.

Synchronous: a non-empty plan must be applied before the next one. Time is an argument, in milliseconds of one monotonic
clock. The same calls with the same times give the same plans."""

from collections import Counter
from collections.abc import Iterator, Mapping

from fairlane.scheduler.planner import capacity
from fairlane.scheduler.planner.coast import Coast, batch
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.forecast import Lengths
from fairlane.scheduler.planner.kv.block_map import block_map, held_by_tenant
from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.kv.host_claims import HostClaims
from fairlane.scheduler.planner.kv.prefix_cache import PrefixCache
from fairlane.scheduler.planner.kv.prefix_reuse import Prefixes, scopes_of
from fairlane.scheduler.planner.ordering import DECODE_WEIGHT, STEP_WINDOW
from fairlane.scheduler.planner.placement import Placement
from fairlane.scheduler.planner.preemption import lost
from fairlane.scheduler.planner.priority import Ranking
from fairlane.scheduler.planner.sequence import DECODE, FINISHED, PAUSED, Sequence, State
from fairlane.scheduler.planner.sequence_group import Expiries, SequenceGroup, open_group, refusal
from fairlane.scheduler.planner.sequence_index import SequenceIndex
from fairlane.scheduler.planner.step_budget import ample_budget, step_budget, survey
from fairlane.scheduler.planner.step_builder import StepBuilder
from fairlane.scheduler.planner.steps import (
    Capacity,
    Ended,
    PoolSizes,
    Produced,
    Row,
    SeqId,
    StepOutcome,
    StepPlan,
    StepResult,
    WaitReason,
    require,
)
from fairlane.scheduler.planner.waits import WaitLog
from fairlane.scheduler.protocol.block_map import BlockMap
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import Lease, Outcome, Paused, YieldMode

NOT_YET_KNOWN = 0


class StepOrderError(RuntimeError):
    """`plan` was called before the last result was applied, or `apply` with another plan's result."""


class Planner:
    """A worker's jobs, and the decision of each step. Raises ValueError for parameters out of range.

    `prefix_share` enables the prefix cache; up to this fraction of the pool a tenant's cached blocks are safe from
    others. Without `holds_decodes`, every decode that has its blocks and a row runs in every step, because an external
    engine could only hold a stream back by aborting and restarting it."""

    def __init__(
        self,
        *,
        lanes: Mapping[LaneName, Lane],
        block_size: int,
        blocks: int,
        host_slots: int,
        max_sequences: int,
        max_step_tokens: int,
        costs: CostModel,
        bytes_per_block: int = 0,
        prefix_share: float | None = None,
        window: float = STEP_WINDOW,
        copies_ahead: int = 0,
        holds_decodes: bool = True,
    ) -> None:
        require("max_sequences", max_sequences, 1)
        require("max_step_tokens", max_step_tokens, 1)
        self._lanes = lanes
        cache = PrefixCache(blocks=blocks, block_size=block_size, share=prefix_share or 0.0, prices_ms=costs.prefill_ms)
        self._pool = BlockPool(blocks=blocks, block_size=block_size, host_slots=host_slots, cache=cache)
        self._pool.bytes_per_block = bytes_per_block
        self._prefixes = Prefixes(self._pool, enabled=prefix_share is not None)
        self._max_sequences = max_sequences
        self._max_step_tokens = max_step_tokens
        self._copies_ahead = copies_ahead
        self._holds_decodes = holds_decodes
        self._costs = costs
        costs.expect_blocks_of(bytes_per_block)
        self._ample = ample_budget(lanes, max_sequences, max_step_tokens)
        self._index = SequenceIndex(lanes, window=window)
        self._claims = HostClaims(self._pool, self._index.paused)
        # The counts, and the state of the index for which they hold.
        self._counts, self._counted_at = capacity.Counts(), -1
        self._lengths = Lengths()
        self._groups: dict[str, SequenceGroup] = {}
        self._expiries = Expiries(self._groups)
        self._waits = WaitLog()
        self._ended: list[Ended] = []
        self._paused: list[Paused] = []
        self._forced: dict[SeqId, tuple[YieldMode, int | None]] = {}
        self._plan = StepPlan(number=0)
        self._in_flight: dict[SeqId, Sequence] = {}

    def add(self, lease: Lease, now_ms: float) -> None:
        job = lease.job
        self.drop(job.job_id)
        group = open_group(lease, self._lanes[job.lane], now_ms - lease.arrived_ms_ago, self._pool.block_size)
        reason = refusal(job, self._pool)
        if reason:
            self._ended.append(group.ended(Outcome.FAILED, reason))
        elif not group.live:
            self._ended.append(group.ended(Outcome.FINISHED))
        else:
            self._groups[job.job_id] = group
            self._claims.came(job)
            for seq in group.live:
                self._index.file(seq)
            self._expiries.watch(group)

    def cancel(self, job_id: str) -> Ended | None:
        group = self._groups.get(job_id)
        return None if group is None else self._close(group, Outcome.CANCELLED)

    def grant(self, job_id: str, granted_until: int) -> None:
        """Raise the number of output tokens that each choice may produce in total; a grant never shrinks."""
        group = self._groups.get(job_id)
        for seq in group.live if group else ():
            seq.grant(granted_until)
            self._index.file(seq)

    def drop(self, job_id: str) -> None:
        """Forget a job without an outcome: another worker has its lease."""
        group = self._groups.get(job_id)
        if group is not None:
            self._release(group)

    def forget_prompts(self, tenant: str, tenant_since: float, share_group: str) -> int:
        return self._pool.forget(scopes_of(tenant, tenant_since, share_group))

    def preempt(self, seq_id: SeqId, mode: YieldMode, blocks: int | None = None) -> None:
        """Preempt the last `blocks` of a sequence (default: all) in the next plan, if it holds any and the host has
        room for a swap."""
        self._forced[seq_id] = mode, blocks

    def plan(self, now_ms: float) -> StepPlan:
        """Decide the next step. Expired jobs end first. Raises StepOrderError while a result is missing."""
        if not self._plan.is_empty:
            raise StepOrderError(f"the result of step {self._plan.number} has not been applied")
        self._costs.begin_step(now_ms)
        for group, reason in self._expiries.passed(now_ms):
            self._ended.append(self._close(group, Outcome.EXPIRED, reason))
        reasons, waits = dict[SeqId, WaitReason](), Counter[str]()
        builder = StepBuilder(self._ample, self._pool, self._prefixes, self._index, now_ms)
        if self._forced or not builder.run_all():
            builder, reasons = self._weigh_up(now_ms)
            waits = Counter[str](reasons.values())
            waits.update(self._index.idle_counts)
            reasons |= self._index.turned_idle
            self._index.turned_idle.clear()
        if reasons or not self._waits.is_empty:
            self._waits.note(reasons, builder.running, now_ms)
        builder.copy_ahead(self._copies_ahead)
        events = [event for event in self._paused if event.job_id in self._groups]
        self._plan, self._paused = builder.finish(self._plan.number + 1, events, self._costs, waits), []
        self._in_flight = builder.running
        if self._plan.is_empty:
            self._pool.slots.settle()  # an empty plan copies nothing
        return self._plan

    def _weigh_up(self, now_ms: float) -> tuple[StepBuilder, dict[SeqId, WaitReason]]:
        begun = survey(self._index, now_ms)
        budget = step_budget(
            begun,
            self._lanes,
            self._costs,
            self._max_sequences,
            self._max_step_tokens,
            number=self._plan.number,
            holds_decodes=self._holds_decodes,
        )
        builder = StepBuilder(budget, self._pool, self._prefixes, self._index, now_ms)
        if self._forced:
            self._yield_forced(builder)
            begun = survey(self._index, now_ms)
        for seq in self._claims.beyond_share():
            builder.preempt(lost(seq, self._pool, self._costs))
        ranking = Ranking(self._index, begun, self._costs, now_ms, self._max_sequences)
        placement = Placement(ranking, builder, self._pool, self._costs, self._lengths, self._claims)
        return builder, placement.fill()

    def apply(self, result: StepResult, now_ms: float) -> StepOutcome:
        """Process the result of the last plan. Return the tokens, ended jobs and charges since the last outcome. Raises
        StepOrderError for another plan's result."""
        if result.number != self._plan.number:
            raise StepOrderError(f"result of step {result.number}, but step {self._plan.number} is planned")
        plan, self._plan = self._plan, StepPlan(number=self._plan.number)
        self._pool.slots.settle()
        if result.is_typical:
            self._costs.observe(plan.features, result.run_ms, plan.copies, result.copy_ms)
        if result.failed or len(result.tokens) < sum([row.samples for row in plan.rows]):
            self._fail(plan.rows, result)
        produced: list[Produced] = []
        charges: dict[str, float] = {}
        for row, seq in zip(plan.rows, self._in_flight.values(), strict=True):
            if row.seq not in result.pending and seq.state is not FINISHED:  # it may have ended during the step
                charge = self._advance(seq, row, result, now_ms, produced)
                charges[row.seq.job_id] = charges.get(row.seq.job_id, 0.0) + charge
        self._in_flight = {}
        self._costs.end_step(result.run_ms + result.copy_ms if self._groups and result.is_typical else None)
        return StepOutcome(tuple(produced), self.collect().ended, charges)

    def collect(self) -> StepOutcome:
        ended, self._ended = tuple(self._ended), []
        return StepOutcome(ended=ended)

    def coast(self, now_ms: float) -> Coast | None:
        """Return a batch that can continue without plans, or None if the next step needs a decision.

        Its steps are unknown to this planner: call `Coast.sync` before `capacity`, and `land` before anything else."""
        if not self._index.only_decode or self._ended or self._forced or self._paused or self._copies_ahead:
            return None
        found = batch(self._index.decodes.by_kind(now_ms), self._index)
        if not found or len(found) > min(self._max_sequences, self._max_step_tokens):
            return None
        return Coast(found, self._index, self._pool, self._prefixes, self._costs, self._expiries)

    def land(self, coast: Coast) -> StepPlan:
        """Apply the steps of a batch. `apply` must still be called with the result of the returned plan if it has
        rows."""
        coast.land()
        self._plan = coast.as_plan(self._plan.number + coast.steps + coast.under_way)
        self._in_flight = {seq.id: seq for seq in coast.sequences}
        return self._plan

    def look_ahead(self) -> tuple[Row, ...]:
        """Return the predicted rows of the next step while one runs, without their tokens; none if it needs a decision.

        The runner prepares them; the next plan may differ."""
        rows, full = [], 0
        for row, seq in zip(self._plan.rows, self._in_flight.values(), strict=True):
            if len(row.token_ids) > 1 or not row.samples or row.output_index + 1 >= seq.granted_until:
                return ()
            table, first = row.block_table, row.first_position + 1
            if first == len(table) * self._pool.block_size:
                full += 1
                block = self._pool.next_free(full)
                if block is None:
                    return ()
                table = (*table, block)
            rows.append(Row(row.seq, (NOT_YET_KNOWN,), first, table, True, row.output_index + 1))
        return tuple(rows)

    @property
    def pool_sizes(self) -> PoolSizes:
        return PoolSizes(self._pool.block_size, self._pool.blocks, self._pool.host_slots)

    @property
    def max_sequences(self) -> int:
        return self._max_sequences

    @property
    def has_work(self) -> bool:
        """Return whether there are jobs, or ends to report. Paused jobs count: their deadlines pass in `plan`."""
        return bool(self._groups or self._ended)

    @property
    def blocks_free(self) -> int:
        return self._pool.free_blocks

    @property
    def blocks_cached(self) -> int:
        return self._pool.cache.idle

    @property
    def host_slots_free(self) -> int:
        return self._pool.slots.free

    def job_ids(self) -> list[str]:
        return list(self._groups)

    def counts(self) -> capacity.Counts:
        if self._counted_at != self._index.changes:
            self._counts, self._counted_at = capacity.count_all(self._index), self._index.changes
        return self._counts

    def capacity(self) -> Capacity:
        return capacity.measure(self._index, self._lanes, self._pool, self._max_sequences, self._costs)

    def block_map(self) -> BlockMap:
        return block_map(self._pool, self._live())

    def held_by_tenant(self) -> dict[str, int]:
        return held_by_tenant(self._live())

    def _live(self) -> Iterator[Sequence]:
        return (seq for group in self._groups.values() for seq in group.live)

    def check_integrity(self) -> None:
        """Compare blocks and states. Raises IntegrityError naming the broken invariant."""
        live = list(self._live())
        self._pool.check_integrity([seq.table for seq in live], [seq.slots for seq in live])
        for group in self._groups.values():
            group.check_integrity(self._pool)

    def _yield_forced(self, builder: StepBuilder) -> None:
        for seq_id, (mode, blocks) in self._forced.items():
            group = self._groups.get(seq_id.job_id)
            if group:
                seq = group.choices[seq_id.choice]
                builder.force(seq, mode, blocks, self._claims.room().of(seq))
        self._forced = {}

    def _close(self, group: SequenceGroup, outcome: Outcome, error: str = "") -> Ended:
        return group.ended(outcome, error, self._release(group))

    def _release(self, group: SequenceGroup) -> dict[str, float]:
        for seq in group.live:
            self._free(seq)
            seq.move(State.FINISHED)
            self._index.remove(seq)
        del self._groups[group.job.job_id]
        self._claims.left(group.job)
        return self._waits.leave(group.job.job_id, [seq.id for seq in group.choices])

    def _free(self, seq: Sequence) -> None:
        self._pool.release(seq.table)
        self._pool.slots.release(seq.slots)
        self._claims.release(seq)

    def _fail(self, rows: tuple[Row, ...], result: StepResult) -> None:
        for row in rows:
            is_missing = row.samples and row.seq not in result.tokens and row.seq not in result.pending
            missing = "the runner returned no token" if is_missing else ""
            reason = result.failed.get(row.seq, missing)
            if reason and self._in_flight[row.seq].state is not State.FINISHED:
                self._ended.append(self._close(self._groups[row.seq.job_id], Outcome.FAILED, reason))

    def _advance(self, seq: Sequence, row: Row, result: StepResult, now_ms: float, produced: list[Produced]) -> float:
        before, charge, cached = seq.state, DECODE_WEIGHT, 0
        seq.num_computed += len(row.token_ids)
        if row.seq in result.cached_tokens:
            group = self._groups[row.seq.job_id]
            group.cached_tokens = cached = max(group.cached_tokens, result.cached_tokens[row.seq])
        if before is not DECODE:  # for decodes the prompt is charged and shared already
            group = self._groups[row.seq.job_id]
            charge, cached = group.charge(row), cached if row.output_index else group.cached_tokens
            group.note_prefill(row)
            self._index.lanes[seq.job.lane].computed(seq, len(row.token_ids))
            for sibling in group.share_prefix(seq, self._pool, self._claims.may_begin):
                self._index.file(sibling)
        self._index.charge(seq.job, charge)
        if row.samples:
            reason = seq.append(result.tokens[row.seq], now_ms)
            produced.append(Produced(row.seq, row.output_index, seq.output[-1], reason, cached))
            self._prefixes.leave(seq, row)
            if seq.state is not before:
                self._moved(seq, self._groups[row.seq.job_id])
        return charge

    def _moved(self, seq: Sequence, group: SequenceGroup) -> None:
        if seq.state is FINISHED:
            self._index.remove(seq)
            self._free(seq)
            self._lengths.learn(group.job, len(seq.output))
            if not group.live:
                self._ended.append(self._close(group, Outcome.FINISHED))
            return
        self._index.file(seq)
        if seq.state is PAUSED:
            self._paused.append(Paused(job_id=seq.id.job_id, choice=seq.id.choice))
