"""The store as a gateway reaches it, whatever its URL names, and how its troubles are met."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import redis
import redis.asyncio

from fairlane.store import urls
from fairlane.store.circuit_breaker import StoreStanding
from fairlane.store.client import server
from fairlane.store.cluster_client import ClusterConnections
from fairlane.store.trouble import StoreUnavailable

log = logging.getLogger(__name__)

STORE_TROUBLE = (redis.RedisError, OSError, TimeoutError, StoreUnavailable)
"""What any call raises while the store is away, loads its data or fails over."""


class Troubles:
    """Around each of several calls in turn: what one part of the store cannot answer keeps nobody from the rest. `tell`
    afterwards."""

    def __init__(self) -> None:
        self._last: BaseException | None = None

    def __enter__(self) -> None:
        """A call begins."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        """It has ended."""
        if not isinstance(error, STORE_TROUBLE):
            return False
        self._last = error
        return True

    def tell(self) -> None:
        """Raise what the last call raised that failed, if one did."""
        if self._last is not None:
            raise self._last


class Connections(Protocol):
    """The clients of one store, each kind with the patience that its calls deserve."""

    @property
    def short(self) -> redis.asyncio.Redis:
        """For all that a request waits for."""

    @property
    def patient(self) -> redis.asyncio.Redis:
        """For operators and upkeep."""

    @property
    def breaker(self) -> StoreStanding:
        """Whether it answers. While it does not, calls of both fail at once."""

    def reader(self) -> redis.asyncio.Redis:
        """A client for one task that blocks up to BLOCK_S in the store, and its heartbeat; the caller closes it."""

    async def aclose(self) -> None:
        """Close every connection of the shared clients."""


def connections(url: str, *, timeout_s: float, limit: int, name: str = "store") -> Connections:
    """Open nothing yet. `timeout_s`: of a request's question; `limit`: connections of each client to each server;
    `name`: in logs."""
    if url.startswith(urls.CLUSTERED):
        return ClusterConnections(url, timeout_s=timeout_s, limit=limit, name=name)
    return server(url, timeout_s=timeout_s, limit=limit, name=name)


async def every(period_s: float, what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do some work again and again, until cancelled. Whatever happens to it once, the next time comes."""
    while True:
        try:
            await work()
        except STORE_TROUBLE as error:
            log.debug("%s waits for the store (%s)", what, type(error).__name__)  # a Breaker says it once, aloud
        except Exception:  # a defect in one round must not end what every request relies on
            log.exception("%s failed", what)
        await asyncio.sleep(period_s)
