"""One leased job in a worker: its choices, the prompt blocks that they share, and its deadlines."""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fairlane.scheduler.planner.kv.blocks import BlockPool, IntegrityError
from fairlane.scheduler.planner.ordering import DECODE_WEIGHT, PREFILL_WEIGHT, first_due_ms, promoted_ms
from fairlane.scheduler.planner.sequence import Sequence, State, finish_reason
from fairlane.scheduler.planner.steps import Ended, Row, SeqId
from fairlane.scheduler.protocol.lanes import Lane
from fairlane.scheduler.protocol.messages import Job, JobSteps, Lease, Outcome


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """A job and its choices. The choice with the least output, usually choice 0, is the trunk: it computes the prompt's
    full blocks, which the others then share."""

    job: Job
    lane: Lane
    arrived_ms: float
    # Full blocks of the prompt that every choice may share; no choice ever writes them again.
    shared_blocks: int
    # Prompt tokens that were computed or cached before; recomputing them is not charged.
    prompt_charged: int
    resumed: bool
    choices: tuple[Sequence, ...]
    cached_tokens: int = 0
    prefill_steps: int = 0
    prefill_tokens: int = 0
    # Output tokens from the lease or from prefill steps; all others came from decode steps.
    known_tokens: int = 0

    @property
    def live(self) -> list[Sequence]:
        return [seq for seq in self.choices if seq.state is not State.FINISHED]

    def expired(self, now_ms: float) -> str:
        job, age_ms = self.job, now_ms - self.arrived_ms
        if job.deadline_ms is not None and age_ms > job.deadline_ms:
            return f"the deadline of {job.deadline_ms:.0f} ms has passed"
        no_token = not self.resumed and all(seq.first_token_ms is None for seq in self.choices)
        if job.hard_ttft_ms is not None and no_token and age_ms > job.hard_ttft_ms:
            return f"no token within {job.hard_ttft_ms:.0f} ms"
        has_started = self.resumed or any(seq.state is not State.WAITING for seq in self.choices)
        if not (job.states_wait or has_started) and age_ms > self.lane.max_wait_ms:
            return f"waited longer than the {self.lane.name} lane's {self.lane.max_wait_ms:.0f} ms"
        return ""

    def expiries(self) -> list[float]:
        limits = (self.job.deadline_ms, self.job.hard_ttft_ms, None if self.job.states_wait else self.lane.max_wait_ms)
        return [self.arrived_ms + limit for limit in limits if limit is not None]

    def share_prefix(self, seq: Sequence, pool: BlockPool, may_begin: Callable[[Sequence], bool]) -> list[Sequence]:
        """Share the prompt blocks with the waiting siblings once the trunk has computed them, and return these
        siblings. Those that may not start now count as work that has not started."""
        if seq.num_computed < self.shared_blocks * pool.block_size:
            return []
        sharing = []
        for sibling in self.choices:
            if sibling.awaits_prefix and sibling is not seq:
                sibling.awaits_prefix = False
                sharing.append(sibling)
                if not may_begin(sibling):
                    continue
                sibling.move(State.PREFILL)
                pool.share(seq.table, self.shared_blocks, sibling.table)
                sibling.num_computed = self.shared_blocks * pool.block_size
                sibling.shared = min(seq.shared, self.shared_blocks)
        return sharing

    def charge(self, row: Row) -> float:
        new, length = 0, len(self.job.prompt)
        if self.prompt_charged < length:
            first, end = min(row.first_position, length), min(row.context_length, length)
            self.cached_tokens += max(0, first - self.prompt_charged)
            new = max(0, end - max(first, self.prompt_charged))
            self.prompt_charged = max(end, self.prompt_charged)
        return new * PREFILL_WEIGHT + row.samples * DECODE_WEIGHT

    def check_integrity(self, pool: BlockPool) -> None:
        for seq in self.choices:
            held, needed = len(seq.table) + len(seq.slots), pool.blocks_for(seq.num_computed)
            if seq.state is State.SWAPPED:
                is_right = bool(seq.slots) and held == needed
            else:
                is_right = not seq.slots and (held >= needed if seq.may_hold_blocks else held == 0)
            if not is_right:
                raise IntegrityError("kv_location", f"{seq}: {len(seq.table)} blocks, {len(seq.slots)} slots")
            written = seq.table[seq.num_computed // pool.block_size :]
            if any(pool.references(block) > 1 or pool.cache.knows(block) for block in written):
                raise IntegrityError("shared_block_written", f"{seq} of {len(self.choices)} choices")

    def note_prefill(self, row: Row) -> None:
        self.prefill_steps += 1
        self.prefill_tokens += len(row.token_ids)
        self.known_tokens += row.samples

    def ended(self, outcome: Outcome, error: str = "", waits_ms: Mapping[str, float] | None = None) -> Ended:
        preemptions = sum(seq.preemptions for seq in self.choices)
        steps = JobSteps(
            prefill_steps=self.prefill_steps,
            prefill_tokens=self.prefill_tokens,
            decode_steps=sum(len(seq.output) for seq in self.choices) - self.known_tokens,
            waits_ms={**(waits_ms or {})},
        )
        return Ended(self.job.job_id, outcome, error, preemptions, self.cached_tokens, steps)


def refusal(job: Job, pool: BlockPool) -> str:
    """Return why this job can never run with these blocks, or an empty string."""
    if not job.prompt:
        return "the prompt is empty"
    if pool.blocks_for(job.max_total_tokens) > pool.blocks:
        most = pool.blocks * pool.block_size
        return f"prompt and max_tokens need {job.max_total_tokens} KV tokens, and the worker holds {most}"
    return ""


def open_group(lease: Lease, lane: Lane, arrived_ms: float, block_size: int) -> SequenceGroup:
    """Return the group of a lease, continuing from the tokens that its gateway has."""
    job = lease.job
    generated = [list(ids) for ids in lease.generated] + [[] for _ in range(job.n - len(lease.generated))]
    resumed = any(generated)
    choices = tuple(
        Sequence(
            id=SeqId(job.job_id, choice),
            job=job,
            epoch=lease.epoch,
            arrived_ms=arrived_ms,
            first_due_ms=arrived_ms + first_due_ms(job),
            promoted_ms=arrived_ms + promoted_ms(job, lane),
            granted_until=min(job.granted_until, job.max_tokens),
            output=output,
            state=State.WAITING if finish_reason(job, output) is None else State.FINISHED,
        )
        for choice, output in enumerate(generated)
    )
    group = SequenceGroup(
        job=job,
        lane=lane,
        arrived_ms=arrived_ms,
        shared_blocks=(len(job.prompt) - 1) // block_size,
        prompt_charged=len(job.prompt) if resumed else 0,
        resumed=resumed,
        choices=choices,
        known_tokens=sum(map(len, generated)),
    )
    # The choice with the least output can run whenever any of them can, so no choice waits for one that is at its
    # grant.
    trunk = min(group.live, key=lambda seq: len(seq.output), default=None)
    for seq in group.live:
        seq.awaits_prefix = group.shared_blocks > 0 and seq is not trunk
    return group


# Entries per live job at which those of ended jobs are removed.
MAX_STALE = 8


class Expiries:
    """Times at which a deadline of some job passes, so that a step does not have to check every job."""

    def __init__(self, job_ids: Mapping[str, SequenceGroup]) -> None:
        self._groups = job_ids
        self._times: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._times)

    def watch(self, group: SequenceGroup) -> None:
        for at_ms in group.expiries():
            heapq.heappush(self._times, (at_ms, group.job.job_id))
        if len(self._times) > MAX_STALE * (1 + len(self._groups)):
            self._times = [(at_ms, one.job.job_id) for one in self._groups.values() for at_ms in one.expiries()]
            heapq.heapify(self._times)

    def any_by(self, now_ms: float) -> bool:
        return bool(self._times) and self._times[0][0] < now_ms

    def passed(self, now_ms: float) -> Iterator[tuple[SequenceGroup, str]]:
        while self._times and self._times[0][0] < now_ms:
            group = self._groups.get(heapq.heappop(self._times)[1])
            reason = group.expired(now_ms) if group else ""
            if group and reason:
                yield group, reason
