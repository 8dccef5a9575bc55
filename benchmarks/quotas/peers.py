"""Other limiters' calls to the same store, in a process of their own environment: see benchmarks/peers.md.

One operation asks as many limits as a tenant of ours has, one after the other, as their interfaces want it. They count
hits only: nothing is held and settled later, no level stands above another, no ledger is written.
"""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import uvloop
from limits import RateLimitItemPerDay, RateLimitItemPerMinute
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter, SlidingWindowCounterRateLimiter
from throttled.asyncio import RateLimiterType, RedisStore, Throttled, rate_limiter

from benchmarks.common.turns import Answer, Order, answer_turns
from benchmarks.quotas.drive import Operation, drive
from benchmarks.quotas.kinds import COUNTER, GCRA, MOVING, SLIDING

PLENTY = 10**9
CONNECTIONS = 1_024
"""More than are asked for at once: a pool that has none left refuses."""
_ITEMS = (
    RateLimitItemPerMinute(PLENTY, namespace="requests"),
    RateLimitItemPerMinute(PLENTY, namespace="tokens"),
    RateLimitItemPerDay(PLENTY, namespace="day"),
)


def _limits(limiter: Any) -> Operation:  # noqa: ANN401 - of a package that is not installed here
    async def hit(number: int, tenant: int) -> None:
        for item in _ITEMS:
            if not await limiter.hit(item, f"t{tenant}"):
                raise RuntimeError("a limit that nobody reaches was reached")

    return hit


def _throttled(asks: Sequence[Callable[..., Awaitable[Any]]]) -> Operation:
    async def hit(number: int, tenant: int) -> None:
        for kind, ask in enumerate(asks):
            if (await ask(f"t{tenant}:{kind}")).limited:
                raise RuntimeError("a limit that nobody reaches was reached")

    return hit


def _operations(url: str) -> dict[str, Operation]:
    """Each limiter, over a store at a unix socket."""
    storage = RedisStorage(f"async+redis+{url}", implementation="redispy", max_connections=CONNECTIONS)
    store = RedisStore(server=url, options={"CONNECTION_POOL_KWARGS": {"max_connections": CONNECTIONS}})
    found = {
        MOVING: _limits(MovingWindowRateLimiter(storage)),
        COUNTER: _limits(SlidingWindowCounterRateLimiter(storage)),
    }
    quotas = (rate_limiter.per_min(PLENTY), rate_limiter.per_min(PLENTY), rate_limiter.per_day(PLENTY))
    for name, kind in ((SLIDING, RateLimiterType.SLIDING_WINDOW), (GCRA, RateLimiterType.GCRA)):
        found[name] = _throttled([Throttled(using=kind.value, quota=quota, store=store).limit for quota in quotas])
    return found


def build(options: Mapping[str, Any]) -> Callable[[Order], Answer]:
    """Serve one turn after the other."""
    os.sched_setaffinity(0, options["cores"])
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    runner.get_loop()
    operations, numbers = _operations(options["url"]), itertools.count()

    def serve(order: Order) -> Answer:
        load = {name: order[name] for name in ("tenants", "concurrency", "seconds")}
        return runner.run(drive(operations[order["kind"]], numbers, **load))

    return serve


if __name__ == "__main__":
    answer_turns(build, "limits", "throttled-py", "redis", "hiredis", "uvloop")
