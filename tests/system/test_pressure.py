"""Both lanes at once with KV blocks for a quarter of the demand: everyone finishes, and the books balance.

The latency streams come when throughput streams hold all blocks: more than the host pool takes in.
"""

import asyncio
from dataclasses import dataclass, field

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support.ports import free_port
from tests.support.system.harness import MODEL, Server
from tests.system.conftest import StartServer

pytestmark = [pytest.mark.system, pytest.mark.anyio]

OUTPUT_TOKENS = 80
BLOCK_BYTES = 16 * 46_080  # 16 tokens of SmolLM2-135M's KV in float32, which every processor computes fast
BLOCKS_PER_STREAM = 8
AUDIT_LIMIT_S = 30


@pytest.mark.thorough
@pytest.mark.parametrize("streams", [16, 64])
async def test_streams_share_kv_blocks_for_a_quarter_of_them(start_server: StartServer, streams: int) -> None:
    room = streams // 4
    metrics_port = free_port()
    server = start_server(
        WORKER__DTYPE="float32",
        WORKER__KV_MEMORY=str(room * BLOCKS_PER_STREAM * BLOCK_BYTES),
        WORKER__HOST_KV_MEMORY=str(BLOCKS_PER_STREAM * room // 8 * BLOCK_BYTES),
        WORKER__METRICS_PORT=str(metrics_port),
    )
    key = server.tenant("both", lanes=["latency", "throughput"])
    await audited(metrics_port, times=1)

    crowd = Crowd(room)
    counted = await asyncio.gather(*(stream(server, key, number, crowd) for number in range(streams)))

    assert [output for _, output in counted] == [OUTPUT_TOKENS] * streams
    modes = sums(await audited(metrics_port, times=2), "fairlane_worker_preemptions_total", "mode")
    assert modes.get("swap", 0) + modes.get("recompute", 0) > 0, modes  # which of them is the processor's to say
    with server.admin() as admin:
        total = admin.get("/tenants/both/usage").json()["total"]
        workers = admin.get("/workers").json()["data"]
    assert total["requests"] == streams
    assert total["prompt_tokens"] == sum(prompt for prompt, _ in counted)
    assert total["output_tokens"] == streams * OUTPUT_TOKENS
    assert "IntegrityError" not in server.log()
    assert len(workers) == 1


@dataclass
class Crowd:
    """Throughput streams that must have begun before the latency streams come and take their blocks."""

    wanted: int
    full: asyncio.Event = field(default_factory=asyncio.Event)
    _begun: set[int] = field(default_factory=set)

    def begin(self, number: int) -> None:
        self._begun.add(number)
        if len(self._begun) >= self.wanted:
            self.full.set()


async def stream(server: Server, key: str, number: int, crowd: Crowd) -> tuple[int, int]:
    """Prompt and output tokens of one stream, as its usage says, checked against the chunks that came."""
    lane = "latency" if number % 4 == 0 else "throughput"
    if lane == "latency":
        await crowd.full.wait()
    async with server.async_sdk(key, timeout=300) as client:
        chunks = await client.completions.create(
            model=MODEL,
            prompt=f"Request number {number} wants a long story about the sea and the {number} ships upon it.",
            max_tokens=OUTPUT_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
            extra_headers={"x-fairlane-lane": lane},
        )
        usage = None
        finishes = []
        async for chunk in chunks:
            crowd.begin(number)
            usage = chunk.usage or usage
            finishes += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
    assert finishes == ["length"]
    assert usage is not None
    return usage.prompt_tokens, usage.completion_tokens


async def audited(metrics_port: int, *, times: int) -> list[Sample]:
    """The worker's metrics once it has so often found all KV blocks accounted for, and every one of them is free."""
    async with asyncio.timeout(AUDIT_LIMIT_S), httpx.AsyncClient() as client:
        while True:
            page = await client.get(f"http://127.0.0.1:{metrics_port}/metrics")
            samples = [sample for family in text_string_to_metric_families(page.text) for sample in family.samples]
            held = sums(samples, "fairlane_worker_kv_blocks", "state")["used"]
            if held == 0 and sums(samples, "fairlane_worker_kv_audits_total", "")[""] >= times:
                return samples
            await asyncio.sleep(0.1)


def sums(samples: list[Sample], name: str, label: str) -> dict[str, float]:
    """A metric by one of its labels, summed over the others."""
    found: dict[str, float] = {}
    for sample in samples:
        if sample.name == name:
            value = sample.labels.get(label, "")
            found[value] = found.get(value, 0) + sample.value
    return found
