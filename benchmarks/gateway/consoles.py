"""Five consoles over fifty tenants: what they take of a gateway's processor and of the store, and whether it grows.

python -m benchmarks.gateway.consoles [--rounds 3] [--seconds 60] [--growth-s 1800] [--json FILE]

An open loop of 500 requests a minute, plain and streamed in turns, of all tenants; without consoles and with them, in
turns. Each console has the live stream open and reads what its view reads, as often: overview, map of KV blocks,
requests, tenants, workers. Then they stay open, and the gateway's memory is read each half minute.
"""

import argparse
import asyncio
import contextlib
import os
import random
import secrets
import statistics
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import redis.asyncio

from benchmarks.common.line import Line, at_most
from benchmarks.common.machine import describe
from benchmarks.common.report import conclude, open_console, summary
from benchmarks.gateway.__main__ import PACKAGES
from benchmarks.gateway.instant import MODEL
from benchmarks.gateway.load import PROMPT
from benchmarks.gateway.stand import Stand, StandError, stand, tenant_key

TENANTS, REQUESTS_PER_S, TOKENS = 50, 500 / 60, 16
CONSOLES = 5
READS = (
    ("/history?span=15m", 10.0),
    ("/requests?limit=50", 3.0),
    ("/tenants?limit=20&quota=true", 5.0),
    ("/workers", 2.0),
)
"""What a console's view reads beside the live stream, and how often; the fifth shows the map, which the stream has."""
MOST_CPU, MOST_STORE, MOST_GROWTH_MIB = 1.05, 1.10, 8.0
SETTLED_S, READ_EVERY_S = 180.0, 30.0


@dataclass(frozen=True)
class Turn:
    """One load."""

    requests: int
    cpu_s: float
    commands: int


class Bench:
    """Loads one stand."""

    def __init__(self, on: Stand, admin_key: str, keys: Sequence[str], seed: int) -> None:
        self._on = on
        self._admin = {"authorization": f"Bearer {admin_key}"}
        self._keys = keys
        self._seed, self._random, self._arrivals = seed, random.Random(seed), random.Random(seed)
        self._store = redis.asyncio.from_url(on.store_url)

    async def turn(self, seconds: float, *, consoles: bool, number: int) -> Turn:
        """The load for so long, which comes at the same times in each turn of a number. Raises StandError where an
        answer is not whole."""
        self._arrivals.seed(f"{self._seed}/{number}")
        async with self._consoles() if consoles else contextlib.nullcontext():
            await self._load(2.0)
            cpu_s, commands = self._on.cpu_s(), await self._commands()
            requests = await self._load(seconds)
            return Turn(requests, self._on.cpu_s() - cpu_s, await self._commands() - commands)

    async def growth_mib(self, seconds: float) -> list[float]:
        """The gateway's memory while consoles are open, each half minute, from when it has settled."""
        found = []
        async with self._consoles():
            await self._load(SETTLED_S)
            for _ in range(max(1, round(seconds / READ_EVERY_S))):
                await self._load(READ_EVERY_S)
                found.append(_resident_mib(self._on.gateway.pid))
        return found

    async def _commands(self) -> int:
        return int((await self._store.info("stats"))["total_commands_processed"])

    async def _load(self, seconds: float) -> int:
        """How many requests were sent and answered."""
        loop, sent = asyncio.get_running_loop(), 0
        end = due = loop.time()
        end += seconds
        async with httpx.AsyncClient(base_url=self._on.url, timeout=120.0) as client, asyncio.TaskGroup() as group:
            while (due := due + self._arrivals.expovariate(REQUESTS_PER_S)) < end:
                await asyncio.sleep(due - loop.time())
                group.create_task(self._ask(client, self._keys[sent % len(self._keys)], streams=sent % 2 == 0))
                sent += 1
            await asyncio.sleep(end - loop.time())
        return sent

    async def _ask(self, client: httpx.AsyncClient, key: str, *, streams: bool) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"{self._random.random()} {PROMPT}"}],
            "max_tokens": TOKENS,
            "seed": 1 if streams else TOKENS,
            "stream": streams,
        }
        answer = await client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
        if answer.status_code != 200 or (streams and "data: [DONE]" not in answer.text):
            raise StandError(f"an answer was not whole ({answer.status_code}): {answer.text[-200:]}")

    @contextlib.asynccontextmanager
    async def _consoles(self) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=f"{self._on.url}/admin/v1", headers=self._admin, timeout=120.0) as client:
            tasks = [asyncio.ensure_future(self._watch(client, with_map=place == 0)) for place in range(CONSOLES)]
            tasks += [asyncio.ensure_future(self._read(client, path, every)) for path, every in READS]
            try:
                yield
                if over := [task for task in tasks if task.done()]:
                    raise StandError(f"a console ended: {over[0].exception()!r}")
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, client: httpx.AsyncClient, *, with_map: bool) -> None:
        async with client.stream("GET", "/live", params={"kv": str(with_map).lower()}) as stream:
            stream.raise_for_status()
            async for _ in stream.aiter_raw():
                pass

    async def _read(self, client: httpx.AsyncClient, path: str, every_s: float) -> None:
        while True:
            (await client.get(path)).raise_for_status()
            await asyncio.sleep(every_s)


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def _tenants(store_url: str) -> list[str]:
    """A key of each."""
    client = redis.asyncio.from_url(store_url)
    keys = [await tenant_key(client, f"team-{number}") for number in range(TENANTS)]
    await client.aclose()
    return keys


async def _measure(on: Stand, admin_key: str, options: argparse.Namespace) -> tuple[list[Line], list[float]]:
    bench = Bench(on, admin_key, await _tenants(on.store_url), options.seed)
    pairs = []
    for number in range(options.rounds):
        found = {}
        for consoles in (False, True) if number % 2 == 0 else (True, False):
            found[consoles] = await bench.turn(options.seconds, consoles=consoles, number=number)
        pairs.append((found[False], found[True]))
        said = ", ".join(
            f"{name} {turn.requests} requests, {turn.cpu_s / options.seconds:.2%} of a core, {turn.commands} commands"
            for name, turn in zip(("without:", "with:"), pairs[-1], strict=True)
        )
        print(said, flush=True)
    how = f"median of {len(pairs)} turns of {options.seconds:g} s, per request"
    lines = [
        at_most(2, name, statistics.median(ratios), most, how)
        for name, most, ratios in (
            ("gateway's processor time", MOST_CPU, [_each(a.cpu_s, a, b.cpu_s, b) for a, b in pairs]),
            ("store commands", MOST_STORE, [_each(a.commands, a, b.commands, b) for a, b in pairs]),
        )
    ]
    resident: list[float] = []
    if options.growth_s:
        resident = await bench.growth_mib(options.growth_s)
        grown = statistics.median(resident[-6:]) - statistics.median(resident[:6])
        how = f"MiB, its last three minutes less its first three of {options.growth_s:g} s"
        lines.append(at_most(2, "gateway's memory", grown, MOST_GROWTH_MIB, how))
    return lines, resident


def _each(one: float, turn: Turn, other: float, second: Turn) -> float:
    return (other / second.requests) / (one / turn.requests)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the lines; 1 where one is not met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.consoles", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--growth-s", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    console = open_console()
    console.print(describe(PACKAGES), soft_wrap=True)
    admin_key = secrets.token_hex(32)
    with stand(variables={"FAIRLANE_ADMIN_KEY": admin_key}) as on:
        lines, resident = asyncio.run(_measure(on, admin_key, options))
    if resident:
        console.print("gateway's memory, MiB, each half minute: " + " ".join(f"{each:.1f}" for each in resident))
    console.print(summary(lines))
    return conclude(lines, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
