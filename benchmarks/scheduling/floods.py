"""How soon another tenant's first token comes while one tenant floods `fairlane serve`, over HTTP.

python -m benchmarks.scheduling.floods [--only NAME] [--requests 60] [--json FILE]

Four closed-loop floods of one tenant, no prompt like another, sent from a process of their own: answers of two choices
on all slots, and long prompts, in the lane of the newcomer; bodies of many long prompts; and throughput work beside
which latency requests come. The newcomer's requests come one after another, first alone and then beside the flood.
Beside throughput work the pace of its streams counts too, and what the flood gets.
"""

import argparse
import asyncio
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import openai

from benchmarks.common.line import Line, at_most
from benchmarks.common.machine import describe
from benchmarks.common.report import conclude, say
from benchmarks.common.served import MODEL, ServedFairlane
from benchmarks.scheduling.crowd import FLOODS, Crowd, words
from fairlane.scheduler.protocol.lanes import LATENCY
from fairlane.scheduler.simulation.results import Spread, spread

WORST_MS = 500.0
"""P99 of another tenant's first token, beside a flood in its own lane."""
TTFT_PACES = 1.5
"""Beside throughput work: by how many of the lane's TPOT targets it may be later than alone."""
LINE = 13
SETTLES_S = 6.0
"""How long a flood runs before anybody else comes."""


@dataclass
class Seen:
    """Of the newcomer's requests, in milliseconds."""

    first_ms: list[float] = field(default_factory=list)
    pace_ms: list[float] = field(default_factory=list)
    """Mean times between tokens."""
    failed: int = 0


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


async def beside(
    server: ServedFairlane, name: str | None, requests: int, tokens: int, tenant: str
) -> tuple[Seen, float]:
    """The newcomer's requests beside a flood, or alone; and the flood's tokens per second meanwhile."""
    draws, seen = random.Random(str((name, tenant))), Seen()
    crowd = None if name is None else Crowd(name, f"{server.url}/v1", server.tenant(f"crowd-{tenant}"))
    try:
        if crowd is not None:
            await asyncio.sleep(SETTLES_S)
        began, before = time.perf_counter(), crowd.tokens if crowd else 0
        async with server.async_sdk(server.tenant(f"person-{tenant}"), timeout_s=120, max_retries=0) as person:
            for _ in range(requests):
                await newcomer(person, draws, seen, tokens)
                await asyncio.sleep(draws.uniform(0.05, 0.35))
        gained = crowd.tokens - before if crowd else 0
        return seen, gained / (time.perf_counter() - began)
    finally:
        if crowd is not None:
            crowd.stop()


def _target_ms(server: ServedFairlane) -> float:
    with server.admin() as admin:
        workers = admin.get("/workers").raise_for_status().json()["data"]
    return max(LATENCY.tpot_on(worker["single_stream_ms"]) for worker in workers)


def _measure(server: ServedFairlane, name: str, requests: int) -> list[Line]:
    tokens = 32 if name == "batch" else 1
    alone, _ = asyncio.run(beside(server, None, max(20, requests // 3), tokens, f"{name}-alone"))
    seen, rate = asyncio.run(beside(server, name, requests, tokens, name))
    quiet, first = spread(alone.first_ms), spread(seen.first_ms)
    if quiet is None or first is None:
        raise SystemExit("nobody came")
    how = f"{requests} requests; alone P50 {quiet.p50:.0f}, P99 {quiet.p99:.0f} ms; {seen.failed} failed"
    print(f"{name}: first token P50 {first.p50:.0f}, P99 {first.p99:.0f} ms; {how}; flood {rate:.0f} tokens/s")
    if name != "batch":
        return [at_most(LINE, f"first token beside {name}, P99, ms", first.p99, WORST_MS, how)]
    target_ms = _target_ms(server)
    pace = spread(seen.pace_ms)
    lines = [at_most(LINE, "first token beside a batch, P99, ms", first.p99, quiet.p99 + TTFT_PACES * target_ms, how)]
    if isinstance(pace, Spread):
        print(f"time between tokens: P50 {pace.p50:.1f}, P99 {pace.p99:.1f} ms; target {target_ms:.1f}")
        lines.append(at_most(LINE, "time between tokens beside a batch, P99, ms", pace.p99, target_ms, how))
    return lines


def main() -> int:
    """Run it; 1 where a first token came later than it may."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=FLOODS)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(describe())
    figures = list[Line]()
    for name in [options.only] if options.only else FLOODS:
        with tempfile.TemporaryDirectory() as directory:
            settings = {"WORKER__KV_MEMORY": "2GiB", "WORKER__HOST_KV_MEMORY": "1GiB"}
            with ServedFairlane(Path(directory), settings) as server:
                figures += _measure(server, name, options.requests)
    say(figures)
    return conclude(figures, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
