"""What the global queue takes, gives and refuses: shared by its in-memory rules and their twin in Redis."""

import math
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from fairlane.scheduler.planner.ordering import DECODE_WEIGHT, first_due_ms, promised_due_ms
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import Event, Job, Outcome
from fairlane.scheduler.queue.promises import RECENT_MS

QUANTUM_COST = 64 * DECODE_WEIGHT
"""Weighted tokens charged for each choice when a job is taken, before its worker has reported anything."""
OWED_LIMIT = 4096.0
"""Weighted tokens that a lane's share floor may run ahead or behind; bounds the burst that pays it back."""
TENANTS_PER_TAKE = 32
"""Tenants of one lane whose heads are compared for each job taken: those with the lowest counters at that moment."""
ELDERS_PER_TAKE = 8
"""Also compared: of a lane the first that came back from a worker, the first due of what is guaranteed, and the eldest
that are promoted."""
LOOKS_PER_TAKE = 64
"""Of a list whose first jobs could not run in the worker that asks, how many are looked at for some that could. The
tenants of a lane whose heads could not share as many."""
MAX_LOSSES = 5
"""A job whose workers died this often is poisoned: it ends as failed."""
SUSPECT_LOSSES = 3
"""From this many losses on, a worker holds one such job at a time: the poisoned one fails alone."""
GATEWAY_LEASES = 3
"""A gateway's heartbeat holds for this many worker leases."""
RECORD_TTL_MS = 3_600_000
"""How long a stream that nobody writes to and a worker's loss are remembered."""
KEPT_MS = 7 * 24 * RECORD_TTL_MS
"""How long an ended job's record waits for a gateway that charges it, and what is left of a queue for a worker."""
NEVER_MS = 1 << 53
"""The deadline of a job that has none: the largest time that a double holds exactly."""
APART_MS = 1 << 50
"""How far apart jobs stand that no due time may bring together, in one list of numbers that a double holds exactly."""


class JobState(StrEnum):
    """Where a job is. It may go from leased back to queued; ended is for good."""

    QUEUED = "queued"
    LEASED = "leased"
    ENDED = "ended"


class QueuePresence(StrEnum):
    """What has become of a queue's workers, and so of the queue."""

    SERVED = "served"
    """One lives, or nobody can say yet that none does."""
    ORPHANED = "orphaned"
    """None has lived for the grace; somebody waits, or holds a lease still."""
    EMPTY = "empty"
    """None has lived for the grace, and nobody waits."""
    REMOVED = "removed"
    """The same for so long that nothing of it is left."""


class QueueError(Exception):
    """A job was refused; nothing was written.

    QueueError
     ├─ LaneFull          the lane's cap: the system is contended
     ├─ TenantQueueFull   the tenant's own `queued_requests`
     └─ Unattainable      its stated deadline: other gateways had promised the time
    """


class LaneFull(QueueError):
    """The lane holds as many jobs as it may. `retry_after_ms`: when one place frees, at the rate it drains now."""

    def __init__(self, lane: LaneName, depth: int, retry_after_ms: int) -> None:
        super().__init__(f"lane {lane} holds {depth} jobs")
        self.lane, self.depth, self.retry_after_ms = lane, depth, retry_after_ms


class TenantQueueFull(QueueError):
    """The tenant has as many requests queued, over all lanes, as it may. `retry_after_ms`: when one of them leaves, at
    the rate at which the job's lane drains now."""

    def __init__(self, limit: int, depth: int, retry_after_ms: int) -> None:
        super().__init__(f"the tenant has {depth} requests queued, its limit is {limit}")
        self.limit, self.depth, self.retry_after_ms = limit, depth, retry_after_ms


class Unattainable(QueueError):
    """What other gateways had promised leaves no time for it, not even as best effort. `late_ms`: by how much it would
    miss its stated deadline; as much later it might be kept."""

    def __init__(self, late_ms: int) -> None:
        super().__init__(f"it would miss its deadline by {late_ms} ms")
        self.late_ms = late_ms


class Publication(NamedTuple):
    """One job's part of one step, from the worker that holds it under `epoch`.

    A publication that was not answered is sent again unchanged: tokens that are on record already are then skipped.
    """

    job_id: str
    epoch: int
    events: tuple[Event, ...] = ()
    tokens: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    """(choice, first index, ids) of what the events say was produced."""
    cost: float = 0.0
    """Weighted tokens computed for this job since its last publication."""
    ends: Outcome | None = None

    def __repr__(self) -> str:
        counts = [(choice, first, len(ids)) for choice, first, ids in self.tokens]
        return f"Publication({self.job_id}, epoch={self.epoch}, tokens={counts}, ends={self.ends})"


class ReportExchange(NamedTuple):
    """What a gateway gets back for its own report."""

    reports: tuple[tuple[bytes, int], ...]
    """The last report of each other gateway, and its age in milliseconds."""
    asked: dict[LaneName, float]
    """Part of all workers' time that came to each lane of late, over all gateways; more than 1 where it is too much."""


class Put(NamedTuple):
    """A job that is queued."""

    position: int
    """1 + the tenant's own ahead in its lane; 0 where it was put before and is queued no more."""
    guaranteed: bool
    """Whether its deadlines are promised: never where its gateway did not, and not where other gateways had promised
    the time that it would take."""
    home: str = ""
    """The worker that is to ask for it first (`scheduler.queue.homes`); empty: none."""
    called: str = ""
    """The worker that was called for it (`scheduler.queue.rooms`); empty: every worker was woken."""


class Wake(IntEnum):
    """What a worker hears of the queue."""

    NOTHING = 0
    NOW = 1
    """There may be jobs for it."""
    LATER = 2
    """There may be jobs, and another worker is to ask for them first."""
    CALLED = 3
    """This worker is to ask for a job, and no other was woken for it."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What the queue knows of a job, from `put` until `forget` or KEPT_MS after its end."""

    state: JobState
    outcome: Outcome | None
    generated: tuple[int, ...]
    """Published tokens of each choice."""
    prompt_tokens: int
    worker_id: str
    """Who holds it, or held it last; empty before it was ever taken, and while it waits."""
    tenant: str
    lane: LaneName
    gateway_id: str
    cancelled: bool
    """Its holder was told to stop, and has not confirmed yet."""
    epoch: int = 0
    guaranteed: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """What there is to go on from of a job."""

    prompt_print: str
    """As of the job: tokens belong to a prompt."""
    token_ids: tuple[tuple[int, ...], ...] = field(repr=False)
    """Of each choice."""


@dataclass(frozen=True, slots=True)
class LaneDepth:
    """How full one lane of the queue is."""

    queued: int
    oldest_wait_ms: int
    queued_tokens: int = 0
    """Of the prompts that wait."""


def drain_ms(depth: int, oldest_wait_ms: int) -> int:
    """When one of so many places frees, at the rate at which they drain now: who comes last waits as the oldest did."""
    return max(1, math.ceil(oldest_wait_ms / max(1, depth)))


def in_rank_order(lanes: dict[LaneName, Lane]) -> tuple[Lane, ...]:
    """The lanes, most urgent first."""
    return tuple(sorted(lanes.values(), key=lambda lane: lane.rank))


def due_after_ms(job: Job) -> int:
    """From arrival to when its first token is due, in whole milliseconds."""
    return _whole(first_due_ms(job))


def claim_us(job: Job) -> int:
    """What a guaranteed job claims of the workers' time, in whole microseconds."""
    return whole_us(job.claim_ms) if job.guaranteed else 0


def work_us(job: Job) -> int:
    """What it is expected to take of the workers' time, in whole microseconds; no more than counts as all of it, as
    what nobody can tell does."""
    return whole_us(min(job.work_ms or math.inf, RECENT_MS / 2))


def whole_us(ms: float) -> int:
    """Milliseconds in whole microseconds, rounded up."""
    return math.ceil(min(ms * 1e3, NEVER_MS))


def claim_due_ms(job: Job) -> int:
    """From arrival to when the first token of a guaranteed job must be there, in whole milliseconds."""
    return _whole(promised_due_ms(job))


def place_ms(due_ms: int, *, guaranteed: bool, returned: bool) -> int:
    """Where a job stands among its tenant's own: what came back from a worker first, then what is guaranteed, then by
    when the first token is due. Below zero exactly for what came back."""
    return due_ms + (0 if guaranteed else APART_MS) - (2 * APART_MS if returned else 0)


def hard_first_ms(job: Job) -> int:
    """From arrival to the stated, hard deadline of the first token."""
    return NEVER_MS if job.hard_ttft_ms is None else _whole(job.hard_ttft_ms)


def hard_end_ms(job: Job) -> int:
    """From arrival to the stated, hard deadline of the last token."""
    return NEVER_MS if job.deadline_ms is None else _whole(job.deadline_ms)


def _whole(ms: float) -> int:
    return int(min(ms, NEVER_MS))
