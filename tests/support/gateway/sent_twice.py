"""Requests with an `Idempotency-Key`, as the tests of it send them."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support.gateway.served import ASKED, CHAT, Served, gateway, serving, settings, until

KEY = "order-66"
STREAMED = {**ASKED, "stream": True}
QUICK = {"header_hold_s": 0.05, "comment_every_s": 0.05, "pulse_every_s": 0.05}
BOTH = pytest.mark.parametrize("asked", [ASKED, STREAMED], ids=["plain", "stream"])


@asynccontextmanager
async def two_gateways(url: str, **section: Any) -> AsyncIterator[tuple[Served, Served]]:
    """Two gateways of one fleet, one tenant known to both."""
    chosen = settings(url, section={**QUICK, **section})
    async with serving(chosen) as one, gateway(chosen) as other:
        await one.tenant(limits={"tokens_per_day": 100_000})
        other.keys = one.keys
        await until(lambda: any(model.is_served for model in other.resources.fleet.cache.models.values()))
        yield one, other


def post(served: Served, asked: dict[str, Any] = ASKED, *, key: str = KEY, **headers: str) -> Any:
    """Send one request with a key."""
    return served.post(CHAT, asked, idempotency_key=key, **headers)


def is_replay(answer: httpx.Response) -> bool:
    return "idempotent-replayed" in answer.headers


async def kept(served: Served) -> None:
    """Everything under a key has ended, and the store knows."""
    await until(lambda: not served.resources.requests.runs.in_hand)
    await served.landed()


async def hang_up(served: Served, asked: dict[str, Any], tokens: int = 2) -> None:
    """Ask, and leave after so many tokens; the worker makes no more until its limit is lifted."""
    served.worker.limit = tokens
    asking = asyncio.create_task(post(served, asked))
    await until(lambda: [len(made) for made in served.worker.produced.values()] == [tokens])
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: any(run.is_abandoned for run in served.resources.requests.runs.in_hand))


def waiting(answer: httpx.Response) -> bytes:
    """Newlines of a stream that waits for another gateway."""
    begins = re.match(rb"\n*", answer.content)
    return b"" if begins is None else begins[0]


def begun_with(served: Served) -> list[list[int]]:
    """How many tokens each job had when a worker took it, by choice."""
    return [[len(ids) for ids in lease.generated or [()] * lease.job.n] for lease in served.worker.seen]


async def used(served: Served) -> tuple[int, int]:
    status = (await served.limits())["tokens_per_day"]
    return status.used, status.reserved
