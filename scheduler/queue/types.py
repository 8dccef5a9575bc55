"""Arguments, results, errors and limits of the global queue, shared by the in-memory and the Redis implementation."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from fairlane.scheduler.planner.ordering import DECODE_WEIGHT, first_due_ms, promised_due_ms
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import Control, Job, Lease, Outcome
from fairlane.scheduler.queue.promises import RECENT_MS
from fairlane.scheduler.queue.shards import ShardNews

# Weighted tokens charged per choice when a job is taken, before its worker has reported anything.
QUANTUM_COST = 64 * DECODE_WEIGHT
# Bound of a lane's share floor balance, in weighted tokens, and so of the burst that pays it back.
FLOOR_LIMIT = 4096.0
# Tenants of one lane whose first jobs are compared for each job taken: those with the lowest counters.
TENANTS_PER_TAKE = 32
# Also compared, per lane: this many returned jobs, the earliest due guaranteed jobs, and the oldest promoted jobs.
OLDEST_PER_TAKE = 8
# Jobs of a list that are examined for some that can run in the asking worker, after the first ones could not. Tenants
# of a lane whose first jobs cannot run share this number.
LOOKS_PER_TAKE = 64
# A job that has lost this many workers ends as failed.
MAX_LOSSES = 5
# From this number of losses on, a worker holds one such job at a time, so that a job that kills workers fails alone.
SUSPECT_LOSSES = 3
# A gateway's heartbeat lasts this many worker leases.
GATEWAY_LEASES = 3
# Lifetime of an unused stream and of the record of a worker's loss.
RECORD_TTL_MS = 3_600_000
# Lifetime of an ended job's record that no gateway has charged, and of a queue without workers.
KEPT_MS = 7 * 24 * RECORD_TTL_MS
# Deadline of a job without a stated one: the largest time that a double holds exactly.
NEVER_MS = 1 << 53
# Distance between classes of jobs in one list of scores, larger than any due time and exact in a double.
APART_MS = 1 << 50


class JobState(StrEnum):
    """State of a job. A leased job may become queued again; ended is final."""

    QUEUED = "queued"
    LEASED = "leased"
    ENDED = "ended"


class QueuePresence(StrEnum):
    """State of a queue, by its workers."""

    # A worker is alive, or the grace period has not passed yet.
    SERVED = "served"
    # No worker has been alive for the grace period; jobs wait or are still leased.
    ORPHANED = "orphaned"
    # No worker has been alive for the grace period, and no jobs are left.
    EMPTY = "empty"
    # Empty for so long that its keys were deleted.
    REMOVED = "removed"


class QueueError(Exception):
    """A job was refused; nothing was written.

    QueueError
     ├─ LaneFull          the lane's cap: the system is contended
     ├─ TenantQueueFull   the tenant's own `queued_requests`
     └─ Unattainable      its stated deadline: other gateways have already promised the time
    """


class LaneFull(QueueError):
    """The lane holds its maximum of jobs. `retry_after_ms`: time until a place becomes free, at the lane's current
    rate."""

    def __init__(self, lane: LaneName, depth: int, retry_after_ms: int) -> None:
        super().__init__(f"lane {lane} holds {depth} jobs")
        self.lane, self.depth, self.retry_after_ms = lane, depth, retry_after_ms


class TenantQueueFull(QueueError):
    """The tenant has its maximum of requests queued, over all lanes.

    `retry_after_ms`: time until one of them leaves the queue, at the current rate of the job's lane."""

    def __init__(self, limit: int, depth: int, retry_after_ms: int) -> None:
        super().__init__(f"the tenant has {depth} requests queued, its limit is {limit}")
        self.limit, self.depth, self.retry_after_ms = limit, depth, retry_after_ms


class Unattainable(QueueError):
    """Other gateways' guarantees leave no time for the job, even as best effort.

    `late_ms`: how late it would be for its stated deadline."""

    def __init__(self, late_ms: int) -> None:
        super().__init__(f"it would miss its deadline by {late_ms} ms")
        self.late_ms = late_ms


class Progress(NamedTuple):
    """The progress of one leased job, by the worker that holds it under `epoch`.

    A report without a reply is sent again unchanged, and counted once."""

    job_id: str
    epoch: int
    # Output tokens of all choices, including those of earlier holders.
    generated: int = 0
    # Weighted tokens computed for this job since its last report.
    cost: float = 0.0
    ends: Outcome | None = None
    # Output of each choice, from which another run of the request can continue; empty: not kept.
    token_ids: tuple[tuple[int, ...], ...] = ()

    def __repr__(self) -> str:
        return f"Progress({self.job_id}, epoch={self.epoch}, generated={self.generated}, ends={self.ends})"


class ReportExchange(NamedTuple):
    """A gateway's result of exchanging reports."""

    # The last report of each other gateway, and its age in milliseconds.
    reports: tuple[tuple[bytes, int], ...]
    # Fraction of all workers' time recently requested in each lane, over all gateways; above 1 if it is too much.
    asked: dict[LaneName, float]


class Put(NamedTuple):
    """The result of queueing a job."""

    # 1 + the tenant's own jobs ahead in its lane; 0 if the job does not wait.
    position: int
    # Whether its deadlines are guaranteed: its gateway requested it, and other gateways' guarantees left room for it.
    guaranteed: bool
    # The preferred worker (`scheduler.queue.prefix_affinity`); empty: none.
    preferred: str = ""
    # The worker that it was leased to, or that was called for it (`scheduler.queue.rooms`); empty: neither.
    called: str = ""


class Turn(NamedTuple):
    """The result of a worker's turn."""

    # Jobs whose reported progress was refused.
    refused: set[str]
    leases: list[Lease]
    # The call stopped at its bound, while jobs waited.
    has_more: bool = False
    # Jobs wait that were not leased, here or elsewhere.
    jobs_wait: bool = False
    # Of one of several shards.
    shard: ShardNews | None = None


class News(NamedTuple):
    """What a worker read from its streams."""

    # To continue from.
    last_id: str
    controls: list[Control]
    # Jobs that it was given at once.
    leases: list[Lease]
    # Jobs that it was called for.
    calls: list[str]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The queue's record of a job, from `put` until `forget` or KEPT_MS after its end."""

    state: JobState
    outcome: Outcome | None
    # Output tokens of all choices, as last reported by a worker.
    generated: int
    prompt_tokens: int
    # Its present or last holder; empty while it waits.
    worker_id: str
    tenant: str
    lane: LaneName
    gateway_id: str
    # Its holder was asked to stop, and has not confirmed yet.
    cancelled: bool
    epoch: int = 0
    guaranteed: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """The output of an ended job that its workers handed in, from which another run of the request can continue."""

    prompt_print: str
    token_ids: tuple[tuple[int, ...], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class LaneDepth:
    """Load of one lane of the queue."""

    queued: int
    oldest_wait_ms: int
    queued_tokens: int = 0


def drain_ms(depth: int, oldest_wait_ms: int) -> int:
    """Return the time until one of `depth` places becomes free. A new job is assumed to wait as long as the oldest one
    has."""
    return max(1, math.ceil(oldest_wait_ms / max(1, depth)))


def in_rank_order(lanes: dict[LaneName, Lane]) -> tuple[Lane, ...]:
    """Return the lanes, most urgent first."""
    return tuple(sorted(lanes.values(), key=lambda lane: lane.rank))


def charged_when_taken(job: Job, *, resumes: bool) -> float:
    """Return the weighted tokens that are charged for a job before it runs.

    A prompt that was computed before, for a job that resumes, is not charged again."""
    return (0 if resumes else len(job.prompt)) + job.n * QUANTUM_COST


def due_after_ms(job: Job) -> int:
    """Return the time from arrival until the first token is due, in whole milliseconds."""
    return _whole(first_due_ms(job))


def claim_us(job: Job) -> int:
    """Return the workers' time claimed by a guaranteed job, in whole microseconds."""
    return whole_us(job.claim_ms) if job.guaranteed else 0


def work_us(job: Job) -> int:
    """Return the expected workers' time in whole microseconds.

    The maximum counts as all of the workers' time; unknown work counts as the maximum."""
    return whole_us(min(job.work_ms or math.inf, RECENT_MS / 2))


def whole_us(ms: float) -> int:
    """Return milliseconds in whole microseconds, rounded up."""
    us = ms * 1e3
    return math.ceil(us) if us < NEVER_MS else NEVER_MS


def claim_due_ms(job: Job) -> int:
    """Return the time from arrival by which a guaranteed job's first token is due, in whole milliseconds."""
    return _whole(promised_due_ms(job))


def place_ms(due_ms: int, *, guaranteed: bool, returned: bool) -> int:
    """Return a job's score among its tenant's jobs: returned ones first, then guaranteed ones, then by due time.

    Negative exactly for returned jobs."""
    return due_ms + (0 if guaranteed else APART_MS) - (2 * APART_MS if returned else 0)


def hard_first_ms(job: Job) -> int:
    """Return the time from arrival to the stated, hard deadline of the first token."""
    return NEVER_MS if job.hard_ttft_ms is None else _whole(job.hard_ttft_ms)


def hard_end_ms(job: Job) -> int:
    """Return the time from arrival to the stated, hard deadline of the last token."""
    return NEVER_MS if job.deadline_ms is None else _whole(job.deadline_ms)


def _whole(ms: float) -> int:
    return int(ms) if ms < NEVER_MS else NEVER_MS
