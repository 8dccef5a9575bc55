"""Line 4: what a request costs while the store does not answer, and how soon one is served when it does again."""

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from benchmarks.common.line import Line, at_most
from benchmarks.gateway.instant import MODEL
from benchmarks.quotas.stand import Gateways, gateways

LINE = 4
ADDED_MS, RETURN_S = 25.0, 5.0
REQUESTS = 500
PATIENCE_S = 30.0
STORE_TIMEOUT_S = 0.25
BODY = {"model": MODEL, "prompt": [5], "max_tokens": 1}


@dataclass(frozen=True)
class Outage:
    """Milliseconds of each request, and seconds to the first that is served again."""

    unasked_ms: Sequence[float]
    """Malformed ones, which ask no store."""
    away_ms: Sequence[float]
    back_s: float


async def outage(on: Gateways) -> Outage:
    """Through one gateway: the store is stopped as if its machine hung, and goes on after a while."""
    _, key = await on.tenant("bench", {"tokens_per_day": 10**6})
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=on.urls[0], headers=headers, timeout=PATIENCE_S) as client:
        await _ask(client, 200)
        unasked_ms = [await _ask(client, 400, b"{") for _ in range(REQUESTS)]
        on.server.process.send_signal(signal.SIGSTOP)
        try:
            while await _ask(client, 503) > 1e3 * STORE_TIMEOUT_S / 2:
                pass  # each of these found out by itself
            away_ms = [await _ask(client, 503) for _ in range(REQUESTS)]
        finally:
            on.server.process.send_signal(signal.SIGCONT)
        began_s = time.perf_counter()
        async with asyncio.timeout(PATIENCE_S):
            while (await client.post("/v1/completions", json=BODY)).status_code != httpx.codes.OK:
                continue
        return Outage(unasked_ms, away_ms, time.perf_counter() - began_s)


async def _ask(client: httpx.AsyncClient, status: int, content: bytes | None = None) -> float:
    began_s = time.perf_counter()
    body = {"json": BODY} if content is None else {"content": content}
    answer = await client.post("/v1/completions", **body)
    assert answer.status_code == status, answer.text  # noqa: S101 - a figure of another answer is none
    return (time.perf_counter() - began_s) * 1e3


async def measure() -> list[Line]:
    """The line's figures. Raises StandError."""
    async with gateways(1, store_timeout_s=STORE_TIMEOUT_S) as on:
        found = await outage(on)
    p99 = [sorted(each)[int(0.99 * len(each))] for each in (found.unasked_ms, found.away_ms)]
    how = f"P99 of {REQUESTS} requests one by one, {p99[1]:.2f} ms, less that of as many without a store, {p99[0]:.2f}"
    return [
        at_most(LINE, "added P99 once it is known that the store is away, ms", p99[1] - p99[0], ADDED_MS, how),
        at_most(LINE, "from the store's return to the next request that is served, s", found.back_s, RETURN_S, "once"),
    ]
