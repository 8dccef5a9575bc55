"""The seam between a gateway and its budgets: what is asked, answered and refused, and who may call what when.

QuotaError
├── Denied            a limit does not leave room for the request
├── AccessDenied      the key or its tenant may not be used
└── AlreadySettled     this reservation is over: it can not be reserved again
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import msgspec

from fairlane.quotas import keyspace
from fairlane.quotas.limits import FREE, Kind, LimitStatus, Prices


class Once(msgspec.Struct, frozen=True):
    """What all runs of one request under one idempotency key have in common. Together they are charged what the one
    came to that came furthest."""

    name: str
    until_ms: int
    """When that is forgotten, epoch ms by the store's clock: with the key's own record."""


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """Output tokens that earlier runs have published, from which a request goes on. Raises ValueError where the figures
    can not be."""

    published: int
    """Of all choices."""
    ended: int
    """Of these, those of choices that are over."""
    going: int
    """Choices that go on."""
    longest: int
    """Of one of those, the most."""

    def __post_init__(self) -> None:
        running = self.published - self.ended
        if min(self.ended, self.going, self.longest, running, self.lag) < 0 or (self.longest and not self.going):
            raise ValueError("the figures of a resumption must fit each other")

    @property
    def lag(self) -> int:
        """Tokens until all choices that go on have come as far as the first of them."""
        return self.going * self.longest - (self.published - self.ended)

    def reach(self, per_choice: int) -> int:
        """Output tokens of all choices, where each that goes on comes to so many."""
        return self.ended + self.going * per_choice


REJECTED = "rejected"
"""The outcome of a request that never ran: nothing is charged or counted."""
LARGEST_ASK = 10**9
LARGEST_MEASURE = 10**13
"""Of what workers measure of one request; sums of days and months stay exact."""
DEFAULT_LEASE_MS = 30_000
MAX_LEASE_MS = 600_000
TOMBSTONE_MS = 600_000
"""How long a settled reservation is remembered, so that a late or repeated call finds it over."""

Reason = Literal["revoked", "expired", "suspended", "deleted"]


class QuotaError(Exception):
    """Anything that a quota store refuses."""

    may_be_stored = False
    """Somebody else refused it, after a store that did not answer and may have written it."""


class Denied(QuotaError):
    """A limit leaves no room; nothing was written."""

    def __init__(self, status: LimitStatus, requested: int, retry_after_s: float | None, kind: Kind) -> None:
        super().__init__(f"{status.scope} limit {status.name}: {requested} requested, {status.remaining} remaining")
        self.status = status
        self.requested = requested
        self.retry_after_s = retry_after_s
        """When this request would fit if nothing else came; None: it can never fit, or (concurrency) only the end
        of a running request helps."""
        self.kind = kind


class AccessDenied(QuotaError):
    """The key or its tenant may not be used; nothing was written."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class AlreadySettled(QuotaError):
    """The reservation was settled before, or given up before its reservation arrived; nothing was written."""


@lru_cache(maxsize=256)  # a request asks half a dozen times
def _from_nothing(choices: int) -> Resumption:
    return Resumption(published=0, ended=0, going=choices, longest=0)


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request that wants its tokens. Raises ValueError where a figure or id can not be one."""

    reservation_id: str
    root: str
    tenant: str
    incarnation: str = ""
    """Of the tenant."""
    key_id: str
    """Public id of the key; empty: no key's state and limits are looked at."""
    model: str
    lane: str
    prompts: tuple[int, ...]
    """Tokens of each of its prompts."""
    max_output_tokens: int
    """Per choice: what the caller stated, or the most that context and KV pool leave."""
    n: int = 1
    """Choices of each prompt."""
    explicit_max: bool = True
    """The caller stated `max_output_tokens`; otherwise it is cut to what the limits leave."""
    quantum: int | None = None
    """Output tokens per choice to hold at a time, `extend` asks for the next; None: all at once."""
    once: Once | None = None
    """None: it has no idempotency key."""
    is_batch: bool = False
    """It is a line of a batch: it counts for days and months, and against what one request may be, but neither for a
    minute nor among the running requests, which are there for people."""
    resumption: Resumption | None = None
    """What it goes on from: it holds only what is new."""
    prices: Prices = FREE
    """Of its tokens, for as long as it lives; later runs under its idempotency key have those of its first."""

    def __post_init__(self) -> None:
        if not self.prompts or min(self.prompts) < 0 or self.prompt_tokens > LARGEST_ASK:
            raise ValueError(f"prompts must be of 0 to {LARGEST_ASK} tokens, together too")
        if not 1 <= self.max_output_tokens <= LARGEST_ASK or not (self.n >= 1 and self.choices <= 10_000):
            raise ValueError("max_output_tokens and choices must be at least 1 and not absurd")
        if self.quantum is not None and not 1 <= self.quantum <= LARGEST_ASK:
            raise ValueError("a quantum must be at least 1 and not absurd")
        if self.start.going > self.choices:
            raise ValueError("no more choices can go on than there are")
        named = (self.reservation_id, self.root, self.tenant, self.model, self.lane)
        once = "" if self.once is None else self.once.name
        if not (all(named) and "".join((*named, self.key_id, once)).isprintable()):
            raise ValueError("ids, model and lane must be printable and not empty")

    @property
    def account(self) -> str:
        """The tenant's, under which the store keeps its budgets."""
        return keyspace.account(self.tenant, self.incarnation)

    @property
    def prompt_tokens(self) -> int:
        return sum(self.prompts)

    @property
    def choices(self) -> int:
        return self.n * len(self.prompts)

    @property
    def start(self) -> Resumption:
        """Where it starts: with nothing, unless it goes on from something."""
        return self.resumption or _from_nothing(self.choices)


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens held for a reservation until it is settled."""

    granted_tokens: int
    """Output tokens per choice that are held by now."""
    most_tokens: int
    """Output tokens per choice that it may come to: the same, where all is held at once."""
    statuses: tuple[LimitStatus, ...]
    """Every limit that is set, the reservation included."""
    shadowed: tuple[str, ...] = ()
    """Limits in shadow that would have refused it."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a running reservation has come to, and may still come to: output tokens of all its choices together."""

    published: int
    """So far, of all choices: charged now."""
    prompt_tokens: int
    """Of the prompts that have brought any: charged now."""
    known: int
    """What the caller knows to be held, from the first token to the last."""
    most: int
    """That it may come to in all."""
    unit: int = 1
    """Choices that go on: what is given is a multiple."""
    ended: int = 0
    """Of what was published, tokens of the choices that go on no more."""
    quantum: int
    """Per choice."""
    stuck: bool = False
    """A choice has used up what it may have, and waits."""

    def __post_init__(self) -> None:
        figures = (self.published, self.prompt_tokens, self.known, self.most, self.ended)
        if min(figures) < 0 or max(figures) > LARGEST_ASK * 10_000 or self.unit < 1 or self.quantum < 1:
            raise ValueError("the figures of a need must not be negative nor absurd")


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """What a running reservation may come to by now."""

    granted_tokens: int
    """Output tokens of all its choices, from the first to the last."""
    limited_by: str = ""
    """The limit that leaves not even a token per choice now; empty: none."""
    spent: bool = False
    """It is a day's or a month's and nothing is left of it, or the most of a choice: no time brings more."""
    retry_after_s: float = 0.0
    """When to ask again, where a limit leaves nothing."""
    paused: bool = False
    """It waits for a minute to have room, and has its place among those that do. Ask again at least every second: who
    has not asked for some gives up its place."""


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """What a reservation came to. Raises ValueError where a figure can not be one."""

    prompt_tokens: int
    cached_tokens: int = 0
    """Of the prompt, what a cache held; charged all the same."""
    output_tokens: int
    """Published tokens of all choices."""
    outcome: str
    preemptions: int = 0
    gpu_us: int = 0
    """What workers measured: its share of their steps, in microseconds. Reported, never budgeted."""
    kv_block_ms: int = 0
    """The same: KV blocks that it held, times how long, in milliseconds."""

    def __post_init__(self) -> None:
        figures = (self.prompt_tokens, self.cached_tokens, self.output_tokens, self.preemptions)
        if min(figures) < 0 or max(figures) > LARGEST_ASK:
            raise ValueError(f"the figures of a charge must be from 0 to {LARGEST_ASK}")
        if not (0 <= self.gpu_us <= LARGEST_MEASURE and 0 <= self.kv_block_ms <= LARGEST_MEASURE):
            raise ValueError(f"what workers measured must be from 0 to {LARGEST_MEASURE}")

    @classmethod
    def refund(cls) -> "Charge":
        """The request never ran: give all back and count nothing."""
        return cls(prompt_tokens=0, output_tokens=0, outcome=REJECTED)

    @property
    def is_refund(self) -> bool:
        return self.outcome == REJECTED


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a settlement."""

    first: bool
    """This call charged the reservation: it was neither settled before nor unknown."""
    statuses: tuple[LimitStatus, ...] | None = None
    """Every limit that is set, the charge included; None where it was not the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lapsed:
    """A reservation whose lease has run out: whoever finds it settles it with what its jobs published."""

    root: str
    reservation_id: str
    tenant: str
    incarnation: str = ""
    """Of the tenant."""
    model: str
    lane: str
    prompts: int
    """How many the request has."""
    once_until_ms: int = 0
    """As of its `Once`; 0: it has no idempotency key."""


class QuotaStore(Protocol):
    """Budgets, kept to the token. Every call may raise StoreUnavailable, and all are idempotent by reservation.

    Always holds: charged + reserved of a limit never grows past it by a grant, a refusal writes nothing, and what a
    reservation holds ends exactly once, by `settle`.
    """

    async def reserve(self, ask: Ask) -> Reservation:
        """Hold the prompts and the output of all choices against every limit of tenant and key, all or nothing.

        Reserving a reservation twice gives the same answer. After StoreUnavailable the reservation may exist or may
        still arrive: follow with `settle(root, reservation_id, Charge.refund())`, in whichever order the store gets
        the two. Raises Denied, AccessDenied, AlreadySettled.
        """

    async def extend(self, root: str, reservation_id: str, need: Need) -> Extension:
        """Charge what a running reservation has come to, in the windows of now; hold a quantum more where limits leave
        it.

        Asking twice gives nothing twice: where more is held than `need.known`, that is the answer, and nothing is
        added. Where the tenant was suspended or deleted nothing more is held, whatever its limits; whoever ends its
        requests is about to. Raises AlreadySettled where the reservation holds nothing (any more).
        """

    async def settle(self, root: str, reservation_id: str, charge: Charge) -> Settled:
        """Charge what the reservation came to beyond that, release the rest and write the ledger; `first` is true for
        one call alone, even if its client sends it again because the reply was lost.

        What `extend` has charged was published and stands, in the ledger too, whatever figure or refund comes now.
        Of an unknown reservation it leaves a mark for ten minutes: a reservation that arrives later is refused.
        """

    async def book(self, ask: Ask) -> bool:
        """Note a reservation that runs though nothing is held for it, whatever the limits say; `settle` then charges
        it.

        True where it is open, from now on or before. False, having changed nothing, where it was settled or its tenant
        has gone.
        """

    async def renew(self, root: str, reservation_ids: Iterable[str]) -> set[str]:
        """Extend the leases of open reservations; returns those that hold nothing any more (settled or unknown)."""

    async def expired(self, limit: int) -> list[Lapsed]:
        """At most `limit` reservations whose lease has run out; they stay reserved until someone settles them.

        Call it every second or so. If nobody did for half a lease (the store was away, or its clock jumped),
        nothing is reported for one whole lease: holders renew first.
        """

    async def statuses(
        self, root: str, account: str, key_id: str | None = None, *, model: str = "", lane: str = ""
    ) -> list[LimitStatus]:
        """Every limit that is set on the tenant of an account, on those above it and on the key, as it stands; those of
        one model or lane where `model` and `lane` name it. `queued_requests` is always unused here: only the queue
        knows its depth.
        """
