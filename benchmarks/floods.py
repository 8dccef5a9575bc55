"""How soon another tenant's first token comes while one tenant floods `fairlane serve`, over HTTP.

python -m benchmarks.floods [--only NAME] [--requests 60] [--json FILE]

Four closed-loop floods of one tenant, no prompt like another: answers of two choices on all slots, and long prompts, in
the lane of the newcomer; bodies of many long prompts; and throughput work beside which latency requests come. The
newcomer's requests come one after another, first alone and then beside the flood. Beside throughput work the pace of
its streams counts too, and what the flood gets.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

from benchmarks.machine import describe
from scheduler.lanes import LATENCY
from scheduler.measures import Spread, spread
from tests.system.harness import MODEL, Server

WORST_MS = 500.0
"""P99 of another tenant's first token, beside a flood in its own lane."""
TTFT_PACES = 1.5
"""Beside throughput work: by how many of the lane's TPOT targets it may be later than alone."""
SETTLES_S = 6.0
"""How long a flood runs before anybody else comes."""
WORDS = (
    "time",
    "river",
    "stone",
    "light",
    "north",
    "garden",
    "window",
    "letter",
    "market",
    "bridge",
    "summer",
    "music",
)


def words(draws: random.Random, count: int) -> str:
    """A text that no other begins like."""
    return " ".join(draws.choices(WORDS, k=count))


@dataclass
class Seen:
    """Of the newcomer's requests, in milliseconds; and the flood's output tokens."""

    first_ms: list[float] = field(default_factory=list)
    pace_ms: list[float] = field(default_factory=list)
    """Mean times between tokens."""
    flood_tokens: int = 0
    failed: int = 0


Flood = Callable[[openai.AsyncOpenAI, random.Random, Seen], Awaitable[None]]


async def _completion(
    client: openai.AsyncOpenAI,
    seen: Seen,
    prompt: str | list[list[int]],
    tokens: int,
    *,
    n: int = 1,
    tier: str = "priority",
) -> None:
    body = {"ignore_eos": True, "service_tier": tier}
    stream = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=tokens, n=n, stream=True, extra_body=body
    )
    async for chunk in stream:
        seen.flood_tokens += len(chunk.choices)


async def choices(client: openai.AsyncOpenAI, draws: random.Random, seen: Seen) -> None:
    """Two choices each."""
    await _completion(client, seen, words(draws, 20), 300, n=2)


async def prompts(client: openai.AsyncOpenAI, draws: random.Random, seen: Seen) -> None:
    """Some 6,000 tokens."""
    await _completion(client, seen, words(draws, 5_900), 16)


async def lists(client: openai.AsyncOpenAI, draws: random.Random, seen: Seen) -> None:
    """A body of 128 prompts of 7,900 ids."""
    body = [[draws.randrange(1_000, 40_000) for _ in range(7_900)] for _ in range(128)]
    await _completion(client, seen, body, 1)


async def batch(client: openai.AsyncOpenAI, draws: random.Random, seen: Seen) -> None:
    """Throughput work of 200 tokens."""
    await _completion(client, seen, words(draws, 100), 200, tier="flex")


FLOODS: dict[str, tuple[Flood, int]] = {
    "choices": (choices, 35),
    "prompts": (prompts, 8),
    "lists": (lists, 8),
    "batch": (batch, 48),
}
"""By name, with the number of streams."""


async def newcomer(client: openai.AsyncOpenAI, draws: random.Random, seen: Seen, tokens: int) -> None:
    """One request of the other tenant."""
    began, first, last, count = time.perf_counter(), 0.0, 0.0, 0
    try:
        stream = await client.completions.create(
            model=MODEL,
            prompt=words(draws, 30),
            max_tokens=tokens,
            stream=True,
            extra_body={"ignore_eos": True, "service_tier": "priority"},
        )
        async for chunk in stream:
            if chunk.choices:
                last, count = time.perf_counter(), count + 1
                first = first or last
    except openai.APIError:
        seen.failed += 1
    seen.first_ms.append(((first or time.perf_counter()) - began) * 1e3)
    if tokens > 1 and count > 1:
        seen.pace_ms.append((last - first) * 1e3 / (tokens - 1))


async def beside(server: Server, name: str | None, requests: int, tokens: int, tenant: str) -> tuple[Seen, float]:
    """The newcomer's requests beside a flood, or alone; and the flood's tokens per second meanwhile."""
    draws, seen, tasks = random.Random(str((name, tenant))), Seen(), list[asyncio.Task[None]]()
    crowd = server.async_sdk(server.tenant(f"crowd-{tenant}"), timeout=900, max_retries=0)
    person = server.async_sdk(server.tenant(f"person-{tenant}"), timeout=120, max_retries=0)
    if name is not None:
        flood, streams = FLOODS[name]

        async def keep_on(own: random.Random) -> None:
            while True:
                try:
                    await flood(crowd, own, seen)
                except openai.APIStatusError:
                    await asyncio.sleep(0.2)

        tasks = [asyncio.create_task(keep_on(random.Random(draws.random()))) for _ in range(streams)]
        await asyncio.sleep(SETTLES_S)
    began, before = time.perf_counter(), seen.flood_tokens
    for _ in range(requests):
        await newcomer(person, draws, seen, tokens)
        await asyncio.sleep(draws.uniform(0.05, 0.35))
    rate = (seen.flood_tokens - before) / (time.perf_counter() - began)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await crowd.close()
    await person.close()
    return seen, rate


def _target_ms(server: Server) -> float:
    with server.admin() as admin:
        workers = admin.get("/workers").raise_for_status().json()["data"]
    return max(LATENCY.tpot_on(worker["single_stream_ms"]) for worker in workers)


def _measure(server: Server, name: str, requests: int) -> list[dict[str, Any]]:
    tokens = 32 if name == "batch" else 1
    alone, _ = asyncio.run(beside(server, None, max(20, requests // 3), tokens, f"{name}-alone"))
    seen, rate = asyncio.run(beside(server, name, requests, tokens, name))
    quiet, first = spread(alone.first_ms), spread(seen.first_ms)
    if quiet is None or first is None:
        raise SystemExit("nobody came")
    how = f"{requests} requests; alone P50 {quiet.p50:.0f}, P99 {quiet.p99:.0f} ms; {seen.failed} failed"
    print(f"{name}: first token P50 {first.p50:.0f}, P99 {first.p99:.0f} ms; {how}; flood {rate:.0f} tokens/s")
    if name != "batch":
        return [_line(f"first token beside {name}, P99, ms", first.p99, WORST_MS, how)]
    target_ms = _target_ms(server)
    pace = spread(seen.pace_ms)
    lines = [_line("first token beside a batch, P99, ms", first.p99, quiet.p99 + TTFT_PACES * target_ms, how)]
    if isinstance(pace, Spread):
        print(f"time between tokens: P50 {pace.p50:.1f}, P99 {pace.p99:.1f} ms; target {target_ms:.1f}")
        lines.append(_line("time between tokens beside a batch, P99, ms", pace.p99, target_ms, how))
    return lines


def _line(name: str, value: float, target: float, how: str) -> dict[str, Any]:
    return {"line": 13, "name": name, "value": value, "target": target, "met": value <= target, "how": how}


def main() -> int:
    """Run it; 1 where a first token came later than it may."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=FLOODS)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(describe())
    figures: list[dict[str, Any]] = []
    for name in [options.only] if options.only else FLOODS:
        with tempfile.TemporaryDirectory() as directory:
            settings = {"WORKER__KV_MEMORY": "2GiB", "WORKER__HOST_KV_MEMORY": "1GiB"}
            server = Server(Path(directory), settings).start()
            try:
                figures += _measure(server, name, options.requests)
            finally:
                server.stop()
    for figure in figures:
        print(f"{figure['name']}: {figure['value']:.1f} (at most {figure['target']:.1f})")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0 if all(figure["met"] for figure in figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
