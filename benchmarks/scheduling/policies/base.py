"""The engine mechanics that all policies share: blocks, rows, results, ends, preemption by recompute and by swap.

What a policy adds is `_enqueue` and `_schedule`. No deadline ends a request here, since none of the engines has one:
what comes late shows in the records. Rows carry what a simulation reads: token ids and block tables stay blank, unless
the setup asks for them to run a model.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic

from benchmarks.scheduling.policies.setup import R, Setup, first_due_ms
from fairlane.scheduler.planner.capacity import Counts, count
from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.ordering import DECODE_WEIGHT, PREFILL_WEIGHT
from fairlane.scheduler.planner.sequence import State, finish_reason
from fairlane.scheduler.planner.steps import (
    Capacity,
    Copy,
    Ended,
    Produced,
    Row,
    SeqId,
    StepFeatures,
    StepOutcome,
    StepPlan,
    StepResult,
)
from fairlane.scheduler.protocol.messages import FinishReason, Job, Lease, Outcome

ONE_TOKEN = (0,)
DECODE = State.DECODE


class Engine(ABC, Generic[R]):
    """One worker under some policy; satisfies `scheduler.simulation.simulate.Policy`."""

    def __init__(self, setup: Setup, kind: type[R]) -> None:
        self._setup = setup
        self._kind = kind
        self._pool = BlockPool(blocks=setup.blocks, block_size=setup.block_size, host_slots=setup.host_slots)
        self._block_size = setup.block_size
        self._requests: dict[str, R] = {}
        self._running: list[R] = []
        """Resident requests, in the policy's own order."""
        self._ended: list[Ended] = []
        self._arrivals = 0
        self._steps = 0
        self._clear()

    # What the simulator calls.

    @property
    def has_work(self) -> bool:
        """There are requests here, or ends to report."""
        return bool(self._requests or self._ended)

    def look_ahead(self) -> tuple[Row, ...]:
        """What a next step is likely to be: nothing is told of it here."""
        return ()

    def add(self, lease: Lease, now_ms: float) -> None:
        """Take up a job. What can never fit ends as failed."""
        job = lease.job
        self._arrivals += 1
        arrived_ms = now_ms - lease.arrived_ms_ago
        request = self._kind(
            id=SeqId(job.job_id, 0),
            job=job,
            epoch=lease.epoch,
            arrived_ms=arrived_ms,
            first_due_ms=first_due_ms(job, arrived_ms, job.max_tokens),
            promoted_ms=math.inf,  # no policy here knows of it
            granted_until=job.max_tokens,
            output=[token for choice in lease.generated for token in choice],
            number=self._arrivals,
            prompt_tokens=len(job.prompt),
        )
        refusal = self._refusal(job)
        if refusal or finish_reason(job, request.output):
            self._ended.append(Ended(job.job_id, Outcome.FAILED if refusal else Outcome.FINISHED, refusal))
            return
        self._requests[job.job_id] = request
        self._enqueue(request, now_ms)

    def plan(self, now_ms: float) -> StepPlan:
        """Decide the next step."""
        self._clear()
        self._schedule(now_ms)
        self._steps += 1
        return StepPlan(
            number=self._steps,
            rows=tuple(map(self._filled, self._rows) if self._setup.fills_rows else self._rows),
            swap_out=tuple(self._swaps_out),
            swap_in=tuple(self._swaps_in),
            features=self._features,
        )

    def apply(self, result: StepResult, now_ms: float) -> StepOutcome:
        """Take in what came out of it."""
        self._pool.slots.settle()
        produced: list[Produced] = []
        charges: dict[str, float] = {}
        finished: list[R] = []
        for row, request in zip(self._rows, self._picked, strict=True):
            request.num_computed += len(row.token_ids)
            charge = 0.0 if request.state is DECODE else self._prompt_charge(request)
            if row.samples:
                token = result.tokens[row.seq]
                reason = _append(request, token, now_ms)
                produced.append(Produced(row.seq, row.output_index, token, reason))
                charge += DECODE_WEIGHT
                if reason is not None:
                    finished.append(request)
            charges[row.seq.job_id] = charge
        self._served(result, now_ms)
        if finished:
            self._finish(finished, now_ms)
        return StepOutcome(produced=tuple(produced), ended=self.collect().ended, charges=charges)

    def collect(self) -> StepOutcome:
        """What ended since the last outcome."""
        ended, self._ended = tuple(self._ended), []
        return StepOutcome(ended=ended)

    def capacity(self) -> Capacity:
        """What could be taken besides the requests that are here: the same for every lane."""
        waiting = sum(request.length for request in self._requests.values() if not request.table)
        room = max(0, self._setup.max_sequences - len(self._requests))
        tokens = max(0, self._pool.free_blocks * self._block_size - waiting)
        return Capacity(dict.fromkeys(self._setup.lanes, room), dict.fromkeys(self._setup.lanes, tokens))

    @property
    def blocks_free(self) -> int:
        """Device blocks that nobody holds."""
        return self._pool.free_blocks

    @property
    def blocks_cached(self) -> int:
        """None: these policies know no prefix cache."""
        return 0

    @property
    def host_slots_free(self) -> int:
        """Host slots that nobody holds."""
        return self._pool.slots.free

    def counts(self) -> Counts:
        """Sequences running, waiting and preempted, by lane."""
        return count(self._requests.values(), self._setup.lanes)

    def check_integrity(self) -> None:
        """Compare the block accounting with the requests. Raises IntegrityError."""
        held = self._requests.values()
        self._pool.check_integrity([request.table for request in held], [request.slots for request in held])

    # What a policy writes.

    @abstractmethod
    def _enqueue(self, request: R, now_ms: float) -> None:
        """A request arrived."""

    @abstractmethod
    def _schedule(self, now_ms: float) -> None:
        """Give out the step's rows."""

    def _served(self, result: StepResult, now_ms: float) -> None:
        """A step ran: `_rows` and `_picked` still say what was in it."""

    def _finish(self, finished: list[R], now_ms: float) -> None:
        """Requests are complete; a policy that keeps lists of its own takes them out first."""
        for request in finished:
            self._end(request, Outcome.FINISHED)
        self._running = [request for request in self._running if request.state is not State.FINISHED]

    # What a policy uses.

    @property
    def _features(self) -> StepFeatures:
        return StepFeatures(len(self._rows), self._prefill_tokens, self._context, self._attention)

    def _clear(self) -> None:
        self._rows: list[Row] = []
        self._picked: list[R] = []
        """The requests of the rows."""
        self._tokens_left = self._setup.max_step_tokens
        self._prefill_tokens = self._context = self._attention = 0
        self._swaps_out: list[Copy] = []
        self._swaps_in: list[Copy] = []

    def _grow(self, request: R, tokens: int) -> bool:
        """Give a request blocks for this many tokens in all; False, and nothing, where they are not free."""
        short = -(-tokens // self._block_size) - len(request.table)
        if short > 0:
            if not self._pool.can_allocate(short):
                return False
            self._pool.allocate(request.table, short)
        return True

    def _lacks_blocks(self, decodes: Sequence[R]) -> bool:
        """Would these need more blocks for their next token than are free?"""
        size = self._block_size
        return not self._pool.can_allocate(sum(one.num_computed == len(one.table) * size for one in decodes))

    def _run(self, request: R, count: int) -> bool:
        """A row of this many tokens, with blocks for them; False, and nothing, where they are not free."""
        if not self._grow(request, request.num_computed + count):
            return False
        self._put(request, count)
        return True

    def _put(self, request: R, count: int) -> None:
        """A row of this many tokens; its blocks are there, or do not matter."""
        first = request.num_computed
        end = first + count
        produced = len(request.output)
        samples = end == request.prompt_tokens + produced
        self._rows.append(Row(request.id, ONE_TOKEN * count, first, (), samples, produced))
        self._picked.append(request)
        if count == 1:  # as `_account`, without the call: there is one of these for every token
            self._context += end
            self._tokens_left -= 1
        else:
            self._account(count, end, 1)

    def _filled(self, row: Row) -> Row:
        request = self._requests[row.seq.job_id]
        return row._replace(
            token_ids=request.token_ids(row.first_position, len(row.token_ids)),
            block_table=tuple(request.table[: self._blocks(row.context_length)]),
        )

    def _account(self, count: int, end: int, sign: int) -> None:
        self._tokens_left -= sign * count
        if count == 1:
            self._context += sign * end
        else:
            self._prefill_tokens += sign * count
            self._attention += sign * count * end

    def _take_back(self, request: R) -> None:
        """Take a request's row, if it has one, out of the step."""
        if request in self._picked:
            at = self._picked.index(request)
            del self._picked[at]
            row = self._rows.pop(at)
            self._account(len(row.token_ids), row.context_length, -1)

    def _drop(self, request: R, now_ms: float) -> None:
        """Preempt by recompute."""
        self._pool.release(request.table)
        request.leave(State.DROPPED, now_ms)

    def _swap_out(self, request: R, now_ms: float) -> None:
        """Preempt by swap; the host has room."""
        self._swaps_out += self._pool.swap_out(request.table, self._blocks(request.num_computed), request.slots)
        request.leave(State.SWAPPED, now_ms)

    def _swap_in(self, request: R) -> None:
        """Bring a request back; its blocks are free."""
        self._swaps_in += self._pool.swap_in(request.slots, request.table)
        request.move(State.DECODE if request.pending == 1 and request.output else State.PREFILL)

    def _end(self, request: R, outcome: Outcome, error: str = "") -> None:
        """A request is over, wherever it stood."""
        self._pool.release(request.table)
        self._pool.slots.release(request.slots)
        if request.state is not State.FINISHED:
            request.move(State.FINISHED)
        del self._requests[request.id.job_id]
        self._ended.append(Ended(request.id.job_id, outcome, error, preemptions=request.preemptions))

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _rank(self, request: R) -> int:
        return self._setup.lanes[request.job.lane].rank

    def _refusal(self, job: Job) -> str:
        if job.n != 1 or not job.prompt:
            return "a policy runs one choice of a prompt that is not empty"
        if self._blocks(job.max_total_tokens) > self._setup.blocks:
            return f"prompt and max_tokens need {job.max_total_tokens} KV tokens: more than the pool holds"
        return ""

    def _prompt_charge(self, request: R) -> float:
        reached = min(request.num_computed, request.prompt_tokens)
        fresh = max(0, reached - request.prompt_charged)
        request.prompt_charged += fresh
        return fresh * PREFILL_WEIGHT


def _append(request: R, token: int, now_ms: float) -> FinishReason | None:
    """As `Sequence.append`, short where a decode just goes on: the hottest line of a simulation."""
    job = request.job
    if request.state is DECODE and token not in job.sampling.stop_token_ids:
        output = request.output
        output.append(token)
        if len(output) < job.max_tokens:
            return None
        request.move(State.FINISHED)
        return "length"
    return request.append(token, now_ms)
