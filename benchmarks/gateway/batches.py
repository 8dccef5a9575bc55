"""A batch beside people: first tokens of the latency lane alone and beside a batch, and what the batch gets.

python -m benchmarks.gateway.batches [--lines 5000] [--load 0.3] [--latency-s 60] [--json FILE]

One `fairlane serve`. First people alone: an open loop of streamed chats at the given part of what the worker can do
(measured by a closed loop before). Then the batch alone, then both together; prompts all differ. The batch's rates are
output tokens per second while it runs; a person's request counts by its first token and its pace.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import openai
from rich.console import Console

from benchmarks.common.line import Line, at_least, at_most
from benchmarks.common.machine import describe
from benchmarks.common.report import conclude, summary
from benchmarks.common.served import MODEL, ServedFairlane

OUTPUT_TOKENS, LINE_TOKENS = 32, 16
TIMEOUT_S = 1_800.0
POLL_S = 0.5
CLOSED_LOOP, CLOSED_LOOP_S = 16, 20.0
WORDS = [
    "river",
    "stone",
    "lamp",
    "orchard",
    "winter",
    "signal",
    "paper",
    "harbour",
    "engine",
    "quiet",
    "copper",
    "field",
]
MOST_TPOT_S, TPOT_STEPS = 0.1, 3.0
"""The latency lane's target of a token: so many times what one alone takes, at most so long."""
TPOT_SHARE = 1.5
"""Of the latency lane's target of a token, that a first token may be later beside the batch."""
BATCH_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class People:
    """What the open loop saw."""

    ttft_s: Sequence[float]
    tokens_per_s: float
    tpot_s: float

    def ttft_ms(self, percentile: int) -> float:
        """A percentile of the times to the first token."""
        return 1e3 * statistics.quantiles(self.ttft_s, n=100)[percentile - 1]

    @property
    def told(self) -> str:
        """The first tokens and the pace."""
        firsts = " ".join(f"P{percentile} {self.ttft_ms(percentile):.0f}" for percentile in (50, 90, 95, 99))
        return f"{firsts} ms, a token {1e3 * self.tpot_s:.1f} ms"


def prompt(chooser: random.Random) -> str:
    """A question that nobody else asks."""
    return "Tell me about " + " ".join(chooser.choice(WORDS) for _ in range(12)) + "."


async def chat(client: openai.AsyncOpenAI, chooser: random.Random) -> tuple[float, float, int]:
    """Seconds to the first token, seconds for each further one, and tokens."""
    began_s, first_s, tokens = time.perf_counter(), 0.0, 0
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt(chooser)}],
        max_tokens=OUTPUT_TOKENS,
        service_tier="priority",
        stream=True,
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            first_s = first_s or time.perf_counter() - began_s
            tokens += 1
    return first_s, (time.perf_counter() - began_s - first_s) / max(1, tokens - 1), OUTPUT_TOKENS


async def capacity(client: openai.AsyncOpenAI) -> float:
    """Requests per second of a closed loop."""
    chooser, done, end_s = random.Random(0), 0, time.perf_counter() + CLOSED_LOOP_S

    async def loop() -> None:
        nonlocal done
        while time.perf_counter() < end_s:
            await chat(client, chooser)
            done += time.perf_counter() < end_s

    await asyncio.gather(*(loop() for _ in range(CLOSED_LOOP)))
    return done / CLOSED_LOOP_S


async def people(client: openai.AsyncOpenAI, rate: float, seconds: float, seed: int) -> People:
    """An open loop with exponential gaps for so long."""
    chooser, tasks, began_s = random.Random(seed), list[asyncio.Task[tuple[float, float, int]]](), time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        tasks.append(asyncio.create_task(chat(client, chooser)))
        await asyncio.sleep(chooser.expovariate(rate))
    found = await asyncio.gather(*tasks)
    took_s = time.perf_counter() - began_s
    tokens = sum(tokens for _, _, tokens in found)
    return People(
        [first_s for first_s, _, _ in found], tokens / took_s, statistics.median(tpot for _, tpot, _ in found)
    )


async def begin_batch(client: openai.AsyncOpenAI, lines: int, seed: int) -> str:
    """Upload a file of so many lines, and begin its batch; the batch's id."""
    chooser = random.Random(seed)
    body = {"model": MODEL, "max_tokens": LINE_TOKENS, "ignore_eos": True}
    written = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {**body, "messages": [{"role": "user", "content": prompt(chooser)}]},
        }
        for number in range(lines)
    ]
    text = "\n".join(map(json.dumps, written)).encode()
    file = await client.files.create(file=("lines.jsonl", text), purpose="batch")
    batch = await client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    return batch.id


async def done(client: openai.AsyncOpenAI, batch_id: str) -> int:
    """Lines that were answered. Raises RuntimeError where one failed."""
    batch = await client.batches.retrieve(batch_id)
    counts = batch.request_counts
    if counts is None or counts.failed:
        raise RuntimeError(f"a line of the batch failed: {batch.status}")
    return counts.completed


async def batch_rate(client: openai.AsyncOpenAI, batch_id: str, seconds: float) -> float:
    """Output tokens per second of a batch that runs, over so long."""
    before = 0
    while not before:
        await asyncio.sleep(POLL_S)
        before = await done(client, batch_id)
    began_s = time.perf_counter()
    await asyncio.sleep(seconds)
    return (await done(client, batch_id) - before) * LINE_TOKENS / (time.perf_counter() - began_s)


async def measure(served: ServedFairlane, options: argparse.Namespace) -> list[Line]:
    """All three, one after the other."""
    crowd = served.async_sdk(served.tenant("people"), timeout_s=TIMEOUT_S)
    clerk = served.async_sdk(served.tenant("clerk"), timeout_s=TIMEOUT_S)
    most = await capacity(crowd)
    rate = options.load * most
    await people(crowd, rate, 5.0, 1)
    alone = await people(crowd, rate, options.latency_s, 2)
    first = await begin_batch(clerk, options.lines, 3)
    batch_alone = await batch_rate(clerk, first, options.latency_s)
    beside, batch_beside = await asyncio.gather(
        people(crowd, rate, options.latency_s, 2), batch_rate(clerk, first, options.latency_s)
    )
    left = batch_alone - beside.tokens_per_s
    how = f"{most:.1f} requests per second at most, {rate:.2f} sent: {len(beside.ttft_s)}; {options.lines} lines"
    target_ms = 1e3 * min(MOST_TPOT_S, TPOT_STEPS * alone.tpot_s)
    return [
        at_most(
            1,
            "TTFT P99 beside the batch, ms",
            beside.ttft_ms(99),
            alone.ttft_ms(99) + TPOT_SHARE * target_ms,
            f"{how}; alone {alone.told}; beside {beside.told}; target of a token {target_ms:.0f} ms",
        ),
        at_least(
            2,
            "the batch's tokens per second, of what people leave",
            batch_beside / left,
            BATCH_SHARE,
            f"{batch_alone:.0f} alone, {batch_beside:.0f} beside people's {beside.tokens_per_s:.0f}",
        ),
    ]


def main() -> int:
    """Measure and print; 1 where a line is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=5_000)
    parser.add_argument("--load", type=float, default=0.3)
    parser.add_argument("--latency-s", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console(width=250)
    console.print(describe())
    with tempfile.TemporaryDirectory() as directory, ServedFairlane(Path(directory)) as served:
        lines = asyncio.run(measure(served, options))
    console.print(summary(lines))
    return conclude(lines, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
