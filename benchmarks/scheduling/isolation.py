"""How soon a latency request's first token comes while throughput work saturates the worker, read from its trace.

python -m benchmarks.scheduling.isolation [--requests 50] [--flood 48] [--json FILE]

Starts `fairlane serve` with KV blocks for fewer sequences than the flood has, floods the throughput lane, and sends
latency requests one after another. The worker's `prefill` span of each says how many steps ended between its taking
and its first token, and in how many of them it computed its own prompt: the difference is what it waited for others.
"""

import argparse
import asyncio
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from rich.console import Console
from rich.progress import track

from benchmarks.common.line import Line, at_most
from benchmarks.common.machine import describe
from benchmarks.common.report import conclude, say
from benchmarks.common.served import MODEL, ServedFairlane
from benchmarks.common.spans import collecting

LINE = 5
WORST_WAIT_STEPS = 2
PROMPT = "A person waits for this answer, so please be brief. " * 8


@dataclass(frozen=True, slots=True)
class FirstToken:
    """One latency request's `prefill` span."""

    queued_ms: float
    """From the queue's `put` to the worker's taking."""
    steps: int
    own_steps: int
    ms: float
    """From taking to the first token."""

    @property
    def waited_steps(self) -> int:
        """Steps in which it had no row of its own."""
        return self.steps - self.own_steps


def first_tokens(spans: list[Span]) -> list[FirstToken]:
    """What the `prefill` spans of the latency lane say."""
    found = []
    for span in spans:
        noted = {pair.key: pair.value for pair in span.attributes}
        if span.name == "prefill" and noted["fairlane.lane"].string_value == "latency":
            steps, own = (noted[name].int_value for name in ("fairlane.steps", "fairlane.prefill_steps"))
            took_ms = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
            found.append(FirstToken(noted["fairlane.queued_ms"].double_value, steps, own, took_ms))
    return found


async def flood(server: ServedFairlane, key: str, streams: int, running: asyncio.Event) -> None:
    """Keep this many long throughput streams going until cancelled; `running` is set once the first has a token."""

    async def keep_on() -> None:
        async with server.async_sdk(key, timeout_s=600, max_retries=10) as client:
            while True:
                stream = await client.completions.create(
                    model=MODEL,
                    prompt="Once upon a time " * 10,
                    max_tokens=256,
                    stream=True,
                    extra_body={"ignore_eos": True, "service_tier": "flex"},
                )
                async for _ in stream:
                    running.set()

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(keep_on())


async def measure(server: ServedFairlane, requests: int, streams: int) -> None:
    """Flood one tenant's throughput lane, and send another's latency requests."""
    crowd, person = server.tenant("crowd"), server.tenant("person")
    running = asyncio.Event()
    background = asyncio.create_task(flood(server, crowd, streams, running))
    await running.wait()
    async with server.async_sdk(person, timeout_s=120) as client:
        for _ in track(range(requests), description="latency requests", console=Console(stderr=True)):
            await client.completions.create(
                model=MODEL, prompt=PROMPT, max_tokens=2, extra_body={"ignore_eos": True, "service_tier": "priority"}
            )
    background.cancel()
    await asyncio.gather(background, return_exceptions=True)


def results(found: list[FirstToken]) -> list[Line]:
    """The figures, in the form that all benchmarks report."""
    waited = [each.waited_steps for each in found]
    how = f"{len(found)} latency requests under a throughput flood, from the worker's traces"
    what = "steps waited for others before the first token"
    return [
        at_most(LINE, f"{what}, worst", max(waited), WORST_WAIT_STEPS, how),
        at_most(LINE, f"{what}, median", statistics.median(waited), WORST_WAIT_STEPS, how),
    ]


def main() -> int:
    """Run it; 1 where a first token waited longer than it may."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--flood", type=int, default=48)
    parser.add_argument("--kv-memory", default="64MiB")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, collecting() as (endpoint, collector):
        settings = {"WORKER__KV_MEMORY": options.kv_memory, "WORKER__HOST_KV_MEMORY": "64MiB"}
        with ServedFairlane(Path(directory), settings, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}) as server:
            asyncio.run(measure(server, options.requests, options.flood))
            spans = collector.wait_until(lambda came: len(first_tokens(came)) >= options.requests)
    found = first_tokens(spans)
    figures = results(found)
    took = sorted(each.ms for each in found)
    queued = sorted(each.queued_ms for each in found)
    own = statistics.median(each.own_steps for each in found)
    print(describe())
    print(f"in the queue: median {statistics.median(queued):.0f} ms, worst {queued[-1]:.0f} ms")
    print(f"first token after taking: median {statistics.median(took):.0f} ms, worst {took[-1]:.0f} ms")
    print(f"steps of its own prefill: median {own}")
    say(figures)
    return conclude(figures, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
