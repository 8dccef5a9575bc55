"""Calls to a store, so many at once, for some time: how many, how long each took, and what they cost their caller.

Standard library alone, since peers' environments run it.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

SPREAD = 7_919
"""A prime: calls in a row go to tenants far apart."""
ASKED = 4_000
"""Of many tenants so many are asked in turn: more than a processor's caches hold, and each was asked before."""

Operation = Callable[[int, int], Awaitable[None]]
"""One operation by its number, for a tenant by its number."""


async def drive(
    operate: Operation, numbers: Iterator[int], *, tenants: int, concurrency: int, seconds: float
) -> dict[str, Any]:
    """What came of it: operations, seconds, processor seconds of this process, and percentiles in milliseconds."""
    latencies_ms: list[float] = []
    began, began_cpu = time.perf_counter(), time.process_time()

    async def one() -> None:
        asked = time.perf_counter()
        while True:  # once at least
            number = next(numbers)
            await operate(number, number % ASKED * SPREAD % tenants)
            answered = time.perf_counter()
            latencies_ms.append((answered - asked) * 1e3)
            asked = answered
            if answered >= began + seconds:
                return

    await asyncio.gather(*(one() for _ in range(concurrency)))
    percentiles = statistics.quantiles(latencies_ms, n=100, method="inclusive")
    return {
        "operations": len(latencies_ms),
        "seconds": time.perf_counter() - began,
        "client_s": time.process_time() - began_cpu,
        "p50_ms": percentiles[49],
        "p99_ms": percentiles[98],
    }
