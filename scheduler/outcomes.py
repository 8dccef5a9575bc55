"""How a request ends: exactly one word each, and what that word means, in one table."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The one end of a request. The value is the metric label, the log field and the ledger entry."""

    REJECTED = "rejected"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What follows from an outcome."""

    charged: bool
    """Published tokens are charged; otherwise the reservation is given back and the request is not counted."""
    retryable: bool
    """Sending the same request again later can end differently."""


MEANING: dict[Outcome, Meaning] = {
    Outcome.REJECTED: Meaning(charged=False, retryable=True),
    Outcome.FINISHED: Meaning(charged=True, retryable=False),
    Outcome.CANCELLED: Meaning(charged=True, retryable=False),
    Outcome.EXPIRED: Meaning(charged=True, retryable=False),
    Outcome.FAILED: Meaning(charged=True, retryable=True),
}
