"""The interface between a gateway and its budgets: requests, replies and refusals."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import msgspec

from fairlane.quotas import keyspace
from fairlane.quotas.limits import FREE, Kind, LimitStatus, Prices


class Once(msgspec.Struct, frozen=True):
    """The identity that all runs of one request under one idempotency key share. Together they are charged for the run
    that got furthest."""

    name: str
    # Expiry in epoch ms by the store's clock, together with the key's own record.
    until_ms: int


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """The output of earlier runs from which a request resumes. Raises ValueError for inconsistent figures."""

    # Output tokens of all choices.
    published: int
    # The part of them that belongs to finished choices.
    ended: int
    # Choices that resume.
    going: int
    # Output tokens of the longest of those.
    longest: int

    def __post_init__(self) -> None:
        running = self.published - self.ended
        if min(self.ended, self.going, self.longest, running, self.lag) < 0 or (self.longest and not self.going):
            raise ValueError("the figures of a resumption are inconsistent")

    @property
    def lag(self) -> int:
        return self.going * self.longest - (self.published - self.ended)

    def reach(self, per_choice: int) -> int:
        return self.ended + self.going * per_choice


# The outcome of a request that never ran: nothing is charged or counted.
REJECTED = "rejected"
LARGEST_ASK = 10**9
# Of what workers measure of one request, so that sums of days and months stay exact.
LARGEST_MEASURE = 10**13
DEFAULT_LEASE_MS = 30_000
MAX_LEASE_MS = 600_000
# How long a settled reservation is remembered, so that a late or repeated call is recognised.
TOMBSTONE_MS = 600_000

Reason = Literal["revoked", "expired", "suspended", "deleted"]


class QuotaError(Exception):
    """Any refusal of a quota store."""

    # Set if another store refused, after the first one did not answer and may have stored the reservation.
    may_be_stored = False


class Denied(QuotaError):
    """A limit leaves no room; nothing was written."""

    def __init__(self, status: LimitStatus, requested: int, retry_after_s: float | None, kind: Kind) -> None:
        super().__init__(f"{status.scope} limit {status.name}: {requested} requested, {status.remaining} remaining")
        self.status = status
        self.requested = requested
        # When it would fit if nothing else arrived; None if it never can, or only after the end of a running request.
        self.retry_after_s = retry_after_s
        self.kind = kind


class AccessDenied(QuotaError):
    """The key or its tenant may not be used; nothing was written."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class AlreadySettled(QuotaError):
    """The reservation was settled before, or given up before it arrived; nothing was written."""


@lru_cache(maxsize=256)  # called several times per request
def _from_nothing(choices: int) -> Resumption:
    return Resumption(published=0, ended=0, going=choices, longest=0)


class Ask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request for a reservation. Raises ValueError for an invalid figure or id."""

    reservation_id: str
    root: str
    tenant: str
    incarnation: str = ""
    # Public id; empty skips the key's state and limits.
    key_id: str
    model: str
    lane: str
    # Tokens of each prompt.
    prompts: tuple[int, ...]
    # Per choice: stated by the caller, or the most that context and KV pool leave.
    max_output_tokens: int
    # Choices per prompt.
    n: int = 1
    # The caller stated `max_output_tokens`; otherwise it is cut to what the limits leave.
    explicit_max: bool = True
    # Output tokens per choice to hold at a time, before `extend` asks for more; None holds everything at once.
    quantum: int | None = None
    once: Once | None = None
    # A batch line counts for days, months and per-request limits; minutes and concurrency are for interactive requests.
    is_batch: bool = False
    # Output to resume from; only new output is held.
    resumption: Resumption | None = None
    # Fixed for the whole request; later runs under its idempotency key use those of the first.
    prices: Prices = FREE

    def __post_init__(self) -> None:
        choices = self.n * len(self.prompts)
        if not self.prompts or min(self.prompts) < 0 or sum(self.prompts) > LARGEST_ASK:
            raise ValueError(f"prompts must be of 0 to {LARGEST_ASK} tokens, alone and together")
        if not 1 <= self.max_output_tokens <= LARGEST_ASK or not (self.n >= 1 and choices <= 10_000):
            raise ValueError(f"max_output_tokens must be from 1 to {LARGEST_ASK}, and choices from 1 to 10,000")
        if self.quantum is not None and not 1 <= self.quantum <= LARGEST_ASK:
            raise ValueError(f"quantum must be from 1 to {LARGEST_ASK}")
        if self.resumption is not None and self.resumption.going > choices:
            raise ValueError("more choices resume than there are")
        named = (self.reservation_id, self.root, self.tenant, self.model, self.lane)
        once = "" if self.once is None else self.once.name
        if "" in named or not "".join((*named, self.key_id, once)).isprintable():
            raise ValueError("ids, model and lane must be printable and not empty")

    @property
    def account(self) -> str:
        return keyspace.account(self.tenant, self.incarnation)

    @property
    def prompt_tokens(self) -> int:
        return sum(self.prompts)

    @property
    def choices(self) -> int:
        return self.n * len(self.prompts)

    @property
    def start(self) -> Resumption:
        return self.resumption or _from_nothing(self.n * len(self.prompts))


class Reservation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens held until the reservation is settled."""

    # Output tokens per choice that are held now.
    granted_tokens: int
    # Maximum output tokens per choice; equal to `granted_tokens` if everything is held at once.
    most_tokens: int
    statuses: tuple[LimitStatus, ...]
    # Limits in shadow that would have refused it.
    shadowed: tuple[str, ...] = ()


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a running reservation, and how much more it may need: output tokens of all choices together."""

    # Sent to the client so far; charged now.
    published: int
    # Tokens of the prompts that have produced output; charged now.
    prompt_tokens: int
    # Tokens held according to the caller, since the start.
    known: int
    most: int
    # Choices still running; grants are multiples of it.
    unit: int = 1
    # The part of them that belongs to finished choices.
    ended: int = 0
    quantum: int
    # A choice has used up its grant and waits.
    stuck: bool = False

    def __post_init__(self) -> None:
        figures = (self.published, self.prompt_tokens, self.known, self.most, self.ended)
        if min(figures) < 0 or max(figures) > LARGEST_ASK * 10_000 or self.unit < 1 or self.quantum < 1:
            raise ValueError("the figures of a need are out of range")


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """The grant of a running reservation."""

    # Output tokens of all choices, since the start.
    granted_tokens: int
    # The limit that leaves less than a token per choice; empty if there is none.
    limited_by: str = ""
    # That limit can never grant more: it is a spent day or month, or the maximum of a choice.
    spent: bool = False
    # When to ask again if a limit leaves nothing.
    retry_after_s: float = 0.0
    # It waits for room in a minute and has a place in that queue. Ask again at least every second: a reservation that
    # stops asking loses its place.
    paused: bool = False


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """The final usage of a reservation. Raises ValueError for an invalid figure."""

    prompt_tokens: int
    # Cached part of the prompt; it is charged as well.
    cached_tokens: int = 0
    # Output tokens of all choices.
    output_tokens: int
    outcome: str
    preemptions: int = 0
    # Its share of the workers' steps, in microseconds of accelerators. Reported, never budgeted.
    gpu_us: int = 0
    # KV blocks held, multiplied by milliseconds, as measured by workers.
    kv_block_ms: int = 0

    def __post_init__(self) -> None:
        figures = (self.prompt_tokens, self.cached_tokens, self.output_tokens, self.preemptions)
        if min(figures) < 0 or max(figures) > LARGEST_ASK:
            raise ValueError(f"the figures of a charge must be from 0 to {LARGEST_ASK}")
        if not (0 <= self.gpu_us <= LARGEST_MEASURE and 0 <= self.kv_block_ms <= LARGEST_MEASURE):
            raise ValueError(f"what workers measured must be from 0 to {LARGEST_MEASURE}")

    @classmethod
    def refund(cls) -> "Charge":
        """Return the charge of a request that never ran, which releases everything and counts nothing."""
        return cls(prompt_tokens=0, output_tokens=0, outcome=REJECTED)

    @property
    def is_refund(self) -> bool:
        return self.outcome == REJECTED


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a settlement."""

    # This call charged the reservation: it was neither settled before nor unknown.
    first: bool
    # Every limit that is set, after the charge; None unless `first`.
    statuses: tuple[LimitStatus, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lapsed:
    """A reservation whose lease has run out; its finder settles it with what workers have reported of its jobs."""

    root: str
    reservation_id: str
    tenant: str
    incarnation: str = ""
    model: str
    lane: str
    prompts: int
    # Expiry of its `Once`; 0 if it has no idempotency key.
    once_until_ms: int = 0


class QuotaStore(Protocol):
    """Budgets, exact to the token. Every call may raise StoreUnavailable, and is idempotent by reservation.

    Invariants: a grant never takes charged + reserved over a limit, a refusal writes nothing, and a reservation ends
    exactly once, by `settle`."""

    async def reserve(self, ask: Ask) -> Reservation:
        """Hold the prompts and the output of all choices against every limit of tenant and key, all or nothing.

        After StoreUnavailable the reservation may exist or may still arrive: settle it with `Charge.refund()`; the
        store accepts the two in either order. Raises Denied, AccessDenied, AlreadySettled."""

    async def extend(self, root: str, reservation_id: str, need: Need) -> Extension:
        """Charge a running reservation's progress in the current windows, and hold a quantum more if limits leave it.

        A repeat grants nothing more: if more is held than `need.known`, that is the answer. A suspended or deleted
        tenant gets nothing more. Raises AlreadySettled."""

    async def settle(self, root: str, reservation_id: str, charge: Charge) -> Settled:
        """Charge the rest of a reservation's usage, release what it holds and write the ledger; `first` is true for one
        call only, even if the client resends it after a lost reply.

        What `extend` has charged was published and remains charged, also in the ledger, regardless of the arguments. An
        unknown reservation is marked as settled for ten minutes, so that it is refused if it arrives later."""

    async def book(self, ask: Ask) -> bool:
        """Record a reservation that already runs, holding nothing and ignoring limits; `settle` charges it. Return
        False, without a change, if it was settled or its tenant was deleted."""

    async def renew(self, root: str, reservation_ids: Iterable[str]) -> set[str]:
        """Extend the leases of open reservations; return those that are settled or unknown."""

    async def expired(self, limit: int) -> list[Lapsed]:
        """Return at most `limit` reservations whose lease has run out; they stay reserved until they are settled.

        Call it every second or so. After a gap of half a lease (the store was unavailable, or its clock jumped),
        nothing is reported for one whole lease, so that holders can renew first."""

    async def statuses(
        self, root: str, account: str, key_id: str | None = None, *, model: str = "", lane: str = ""
    ) -> list[LimitStatus]:
        """Return every limit that is set on an account, its parents and the key; with `model` and `lane`, also theirs.

        `queued_requests` always counts as unused: only the queue knows its depth."""
