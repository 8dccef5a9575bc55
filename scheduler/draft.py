"""One step's plan in the making: what is left of its budgets, and what has been given and taken so far."""

from scheduler.blocks import BlockPool
from scheduler.budget import Budget
from scheduler.costs import CostModel
from scheduler.lanes import LaneName
from scheduler.messages import Paused, Preempted, Resumed
from scheduler.sequence import Sequence, State
from scheduler.steps import Copy, Row, SeqId, StepPlan, features
from scheduler.victims import Victim


class Draft:
    """Gives rows to sequences and takes blocks from victims; every call keeps pool and states consistent."""

    def __init__(self, budget: Budget, pool: BlockPool, now_ms: float) -> None:
        self.rows: list[Row] = []
        self.running: dict[SeqId, Sequence] = {}
        """The sequences that have a row."""
        self.yielded: set[SeqId] = set()
        """Who was preempted in this step: not to be resumed in it."""
        self._budget = budget
        self._floors = dict(budget.floors)
        self._pool = pool
        self._now_ms = now_ms
        self._tokens = budget.tokens
        self._prefill_tokens = budget.prefill_tokens
        self._swap_out: list[Copy] = []
        self._swap_in: list[Copy] = []
        self._events: list[Preempted | Resumed] = []

    def rows_left(self, lane: LaneName) -> int:
        """Rows that a sequence of this lane may still have; other lanes' floors are not among them."""
        return self._budget.rows - len(self.rows) - self._kept_from(lane)

    def tokens_left(self, seq: Sequence) -> int:
        """Tokens that this sequence may compute in the step."""
        pending, left = seq.pending, self._tokens - self._kept_from(seq.job.lane)
        return min(pending, left) if pending == 1 else min(pending, left, self._prefill_tokens)

    def steps_left(self, seq: Sequence) -> int:
        """Steps that a sequence runs for if it produces all it may."""
        return seq.remaining - 1 + -(-seq.pending // self._budget.tokens)

    def preempt(self, victim: Victim) -> None:
        """Take all blocks of a resident sequence, now."""
        seq, held = victim.seq, len(victim.seq.table)
        if victim.mode == "swap":
            self._swap_out += self._pool.swap_out(seq.table, self._pool.blocks_for(seq.num_computed), seq.slots)
            seq.leave(State.SWAPPED, self._now_ms)
        else:
            self._pool.release(seq.table)
            seq.leave(State.DROPPED, self._now_ms)
        self.yielded.add(seq.id)
        self._events.append(
            Preempted(
                flight_id=seq.id.flight_id,
                choice=seq.id.choice,
                mode=victim.mode,
                blocks=held,
                predicted_ms=victim.resume_ms,
            )
        )

    def run(self, seq: Sequence) -> None:
        """Give a sequence its row: bring its KV back if need be, and blocks for all its tokens. The blocks are free."""
        if seq.state is State.SWAPPED:
            self._swap_in += self._pool.swap_in(seq.slots, seq.table)
            seq.move(State.DECODE if seq.pending == 1 and seq.output else State.PREFILL)
        elif not seq.is_resident:
            seq.move(State.PREFILL)
        self._pool.allocate(seq.table, max(0, self._pool.blocks_for(seq.length) - len(seq.table)))
        self._resume(seq)
        self._add_row(seq, self.tokens_left(seq))

    def finish(self, number: int, paused: list[Paused], costs: CostModel) -> StepPlan:
        """The plan; the pauses happened since the last one and come first."""
        copies, work = len(self._swap_out) + len(self._swap_in), features(self.rows)
        return StepPlan(
            number=number,
            rows=tuple(self.rows),
            swap_out=tuple(self._swap_out),
            swap_in=tuple(self._swap_in),
            events=(*paused, *self._events),
            features=work,
            predicted_ms=costs.step_ms(work) + costs.copy_ms(copies),
        )

    def _kept_from(self, lane: LaneName) -> int:
        return sum(self._floors.values()) - self._floors[lane]

    def _resume(self, seq: Sequence) -> None:
        if seq.stalled_since_ms is not None:
            stalled_ms = self._now_ms - seq.stalled_since_ms
            self._events.append(Resumed(flight_id=seq.id.flight_id, choice=seq.id.choice, stalled_ms=stalled_ms))
            seq.stalled_since_ms = None

    def _add_row(self, seq: Sequence, count: int) -> None:
        first = seq.num_computed
        self.rows.append(
            Row(
                seq=seq.id,
                token_ids=seq.token_ids(first, count),
                first_position=first,
                block_table=tuple(seq.table[: self._pool.blocks_for(first + count)]),
                samples=count == seq.pending,
                output_index=len(seq.output),
            )
        )
        self.running[seq.id] = seq
        self._tokens -= count
        if seq.pending > 1:
            self._prefill_tokens -= count
        self._floors[seq.job.lane] = max(0, self._floors[seq.job.lane] - 1)
