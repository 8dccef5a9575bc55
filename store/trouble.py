"""What went wrong with a store, in one error."""

import redis


class StoreUnavailable(Exception):
    """The store did not answer in time or refused to work; what was asked may have been done."""


def lacks_function(error: Exception) -> bool:
    """The store does not know a function yet, or no longer: it is told then."""
    return isinstance(error, redis.exceptions.ResponseError) and "Function not found" in str(error)
