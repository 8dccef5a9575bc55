"""The interface of escrow: rights that a store moves to a gateway, and what the gateway reports of them.

A *pool* holds the rights of one gateway for the requests of one tenant, key, model and lane. Every level counts them as
used from the moment of the transfer, so what the gateway admits within them is within every limit. A transfer returns
all of a pool's rights, records what was done with them, and takes new ones, in one step."""

from typing import Protocol, TypeAlias

import msgspec

from fairlane.quotas.limits import LimitStatus
from fairlane.quotas.store import Ask, Charge, QuotaStore
from fairlane.store.bounds import PER_CALL

# How long rights may be spent after the call that granted them was sent. A change of limits, keys or tenants waits for
# this long before it is acknowledged, so that no gateway still spends by the old ones.
VALID_MS = 1_000
# Requests that a pool has rights for, and reservations that one transfer reports.
MOST_REQUESTS = PER_CALL
# A pool of fewer requests saves nothing. No pool is granted of the last 1/LEAST_FREE of a limit.
FEWEST, LEAST_FREE = 4, 10


class Rights(msgspec.Struct, frozen=True):
    """What a pool's requests may hold together: their number, prompt tokens and output tokens."""

    requests: int = 0
    input: int = 0
    output: int = 0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """An open reservation made within a pool, which from now on is a reservation like any other in the store.

    Figures are since its start. Older figures than the store has change nothing."""

    ask: Ask
    # Tokens held, charged ones included.
    input: int
    output: int
    charged_input: int = 0
    charged_output: int = 0
    # Output tokens per choice: granted, and the most.
    choice: int
    ceiling: int

    def __post_init__(self) -> None:
        if not (0 <= self.charged_input <= self.input and 0 <= self.charged_output <= self.output):
            raise ValueError("a reservation is charged for what it holds")


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a reservation made within a pool, whether or not the store had it before."""

    ask: Ask
    charge: Charge


Entry: TypeAlias = Progress | Ending


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange of a pool's rights. Reservations made within a pool are named by `reservation_id`."""

    # 16 hexadecimal digits.
    pool: str
    root: str
    account: str
    key_id: str
    model: str
    lane: str
    # From 1; a repeat has the same number and the same content.
    call: int
    # Number of the first reservation that a later call may report. The granted requests are numbered from it.
    first: int
    # Nothing returns the rights and closes the pool.
    wanted: Rights
    # Live gateways, among which the free part of a limit is divided.
    gateways: int = 1
    entries: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        if len(self.entries) > PER_CALL or self.wanted.requests > MOST_REQUESTS or self.gateways < 1:
            raise ValueError(f"a transfer has at most {PER_CALL} entries and rights for {MOST_REQUESTS} requests")

    @property
    def share(self) -> int:
        """Return the divisor of what is free: a pool gets at most half of its gateway's part."""
        return 2 * self.gateways


class Transferred(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a transfer."""

    # No requests: the pool is closed. None: the pool is not as its gateway left it, and nothing was changed; the
    # gateway was taken for dead, or the store has lost calls.
    rights: Rights | None
    # The last call that changed the pool.
    call: int
    # Every limit that is set; the new rights count as used or reserved.
    statuses: tuple[LimitStatus, ...] = ()


class EscrowStore(QuotaStore, Protocol):
    """A store that can move rights. `expired` also recovers the rights of dead gateways: it returns the reservations
    that may have been made within them as lapsed, and releases the rights once all of these are settled."""

    async def transfer(self, order: Transfer) -> Transferred:
        """Exchange a pool's rights. Repeatable until it is answered. May raise StoreUnavailable."""


def reservation_id(pool: str, number: int) -> str:
    """Return the name of a reservation within a pool."""
    return f"{pool}{number:08x}"
