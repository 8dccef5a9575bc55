"""How a request ends: exactly one word each, and whether anything is owed then."""

from enum import StrEnum


class Outcome(StrEnum):
    """The one end of a request. The value is the metric label, the log field and the ledger entry."""

    REJECTED = "rejected"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    UNAVAILABLE = "unavailable"
    """The workers that could have gone on with it went."""
    FAILED = "failed"


CHARGED = frozenset(Outcome) - {Outcome.REJECTED}
"""By these, published tokens are charged; else the reservation is given back and the request is not counted."""
