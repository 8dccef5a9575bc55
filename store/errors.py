"""Errors of the store."""

import redis


class StoreUnavailable(Exception):
    """The store did not answer in time, or refused to work. The call may have taken effect."""


# Raised by any call while the store is unavailable, loads its data or fails over. A TimeoutError is an OSError.
STORE_ERRORS = (redis.RedisError, OSError, StoreUnavailable)


class StoreFailures:
    """A context manager around each of several calls: a failed call does not prevent the next one. End with
    `raise_last`."""

    def __init__(self) -> None:
        self._last: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, STORE_ERRORS):
            return False
        self._last = error
        return True

    def raise_last(self) -> None:
        if self._last is not None:
            raise self._last


def lacks_function(error: Exception) -> bool:
    """Return whether the store does not know a function, so that its library has to be loaded."""
    return isinstance(error, redis.exceptions.ResponseError) and "Function not found" in str(error)


def has_library(error: Exception) -> bool:
    """Return whether a library was not loaded because another process had just loaded it."""
    return isinstance(error, redis.exceptions.ResponseError) and "already exists" in str(error)


def is_rewriting(error: Exception) -> bool:
    """Return whether BGREWRITEAOF failed because a rewrite of the append-only file is already running."""
    return isinstance(error, redis.exceptions.ResponseError) and "rewriting already in progress" in str(error)
