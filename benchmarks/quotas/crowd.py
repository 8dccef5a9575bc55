"""Line 1: what fifty streams get of a hundred tokens a minute, on a virtual clock and through real gateways."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import httpx

from benchmarks.common.line import Line, at_least, at_most
from benchmarks.gateway.instant import MODEL
from benchmarks.gateway.stand import StandError
from benchmarks.quotas.stand import WINDOW_MS, gateways
from benchmarks.quotas.streams import LIMIT, MINUTE_MS, STREAMS, contend, most_within

LINE = 1
MINUTES = 10
START_MS = 1_800_000_000_000
"""Of the virtual clock."""
UTILISATION = 0.98
ASKED = {"model": MODEL, "prompt": [5], "stream": True, "ignore_eos": True}
FIRST_TOKEN_S = 120.0
REQUEST_S = 600.0


@dataclass(frozen=True)
class Share:
    """What was got of a budget."""

    most: int
    """Tokens in any window."""
    utilisation: float
    """Of what it allows."""

    @classmethod
    def of(cls, made_ms: Sequence[float], window_ms: int, windows: int) -> "Share":
        """From the times of all tokens in so many windows."""
        return cls(most_within(made_ms, window_ms), len(made_ms) / (LIMIT * windows))


async def simulated() -> Share:
    """Ten minutes in the twin."""
    return Share.of(await contend(START_MS, MINUTES), MINUTE_MS, MINUTES)


async def served(count: int, windows: int) -> Share:
    """On so many gateways, for so many windows from the first token on. Raises StandError."""
    async with gateways(count) as on:
        _, key = await on.tenant("crowd", {"tokens_per_minute": LIMIT})
        urls = cycle(on.urls)
        clients = [asyncio.create_task(_want(next(urls), key)) for _ in range(STREAMS)]
        try:
            await _first(on.worker.made_ms, clients)
            await asyncio.sleep((windows + 1) * WINDOW_MS / 1e3)  # one more, so that the last is whole
        finally:
            for client in clients:
                client.cancel()
            ended = await asyncio.gather(*clients, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        made_ms = on.worker.made_ms
        within = [at_ms for at_ms in made_ms if at_ms < made_ms[0] + windows * WINDOW_MS]
        return Share.of(within, WINDOW_MS, windows)


async def _first(made_ms: Sequence[float], clients: Sequence["asyncio.Task[None]"]) -> None:
    async with asyncio.timeout(FIRST_TOKEN_S):
        while not made_ms and not any(client.done() for client in clients):  # noqa: ASYNC110 - polled
            await asyncio.sleep(0.001)


async def _want(url: str, key: str) -> None:
    """One client that asks again and again, and waits as it is told."""
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_S, headers={"authorization": f"Bearer {key}"}) as client:
        while True:
            async with client.stream("POST", "/v1/completions", json=ASKED) as answer:
                if answer.status_code == 200:
                    async for _ in answer.aiter_raw():
                        pass
                elif answer.status_code != 429:
                    raise StandError(f"a stream was answered {answer.status_code}: {(await answer.aread())[:500]!r}")
            await asyncio.sleep(float(answer.headers.get("retry-after-ms", 0)) / 1e3)


def lines(name: str, found: Share, how: str) -> list[Line]:
    """Two figures of one setting."""
    return [
        at_most(LINE, f"{name}: most tokens in any window", found.most, LIMIT, how),
        at_least(LINE, f"{name}: utilisation", found.utilisation, UTILISATION, how),
    ]


async def measure(counts: Sequence[int], windows: int) -> list[Line]:
    """The twin, and each count of gateways."""
    wanted = f"{LIMIT} tokens a minute wanted by {STREAMS} streams, prompts counted"
    found = lines("twin", await simulated(), f"{wanted}; virtual clock, {MINUTES} minutes")
    for count in counts:
        name = "1 gateway" if count == 1 else f"{count} gateways"
        how = f"{wanted}; Valkey, a minute of {WINDOW_MS / 1e3:g} s, {windows} of them; times by the store's clock"
        found += lines(name, await served(count, windows), how)
    return found
