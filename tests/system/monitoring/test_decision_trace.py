"""A latency request takes KV blocks from a throughput one on the real engine, and either's record says so."""

import asyncio

import httpx
import pytest

from tests.support.system.harness import MODEL, Server
from tests.system.conftest import StartServer

pytestmark = [pytest.mark.system, pytest.mark.anyio]

BLOCK_BYTES = 16 * 46_080  # 16 tokens of SmolLM2-135M's KV in float32, which every processor computes fast
BLOCKS = 6
OUTPUT_TOKENS = 80
"""With its prompt nearly all of the blocks."""
WAIT_S = 300


async def test_a_preemption_is_told_with_its_cause_its_mode_and_what_it_cost(start_server: StartServer) -> None:
    server = start_server(
        WORKER__DTYPE="float32",
        WORKER__KV_MEMORY=str(BLOCKS * BLOCK_BYTES),
        WORKER__HOST_KV_MEMORY=str(BLOCKS * BLOCK_BYTES),
    )
    slow_key = server.tenant("slow", lanes=["latency", "throughput"])
    quick_key = server.tenant("quick", lanes=["latency", "throughput"])

    holds_most = asyncio.Event()
    async with asyncio.timeout(WAIT_S):
        slow = asyncio.create_task(stream(server, slow_key, "throughput", OUTPUT_TOKENS, holds_most))
        await holds_most.wait()
        quick_id = await stream(server, quick_key, "latency", 40)
        slow_id = await slow

    with server.admin() as admin:
        record = admin.get(f"/requests/{slow_id}").json()
        quick = admin.get(f"/requests/{quick_id}").json()
    first = record["preemptions"][0]
    assert first["cause"] == {"resource": "blocks", "lane": "latency", "tenant": "quick", "request": quick["id"]}
    assert first["mode"] in {"swap", "recompute"}
    assert first["blocks"] > 0
    assert first["bytes"] == first["blocks"] * BLOCK_BYTES
    assert first["stall_ms"] > 0
    assert record["stalled_ms"] >= first["stall_ms"]
    assert "by the latency lane of tenant quick, which needed KV blocks" in record["why"]
    assert {wait["reason"] for wait in record["waits"]} > {"queue"}
    assert record["steps"]["decode_steps"] <= OUTPUT_TOKENS
    assert record["steps"]["prefill_tokens"] >= record["prompt_tokens"]
    assert record["charges"]["output_tokens"] == OUTPUT_TOKENS
    assert quick["preemptions"] == []
    async with httpx.AsyncClient(base_url=server.url, headers={"authorization": f"Bearer {slow_key}"}) as client:
        own = (await client.get(f"/v1/requests/{slow_id}")).json()
    assert "quick" not in str(own)
    assert own["preemptions"][0]["cause"]["lane"] == "latency"


async def stream(server: Server, key: str, lane: str, tokens: int, holds_most: asyncio.Event | None = None) -> str:
    """One stream to its end; its request's id. `holds_most`: set once most of its tokens are there."""
    body = {"model": MODEL, "prompt": f"A story of the {lane} lane", "max_tokens": tokens, "ignore_eos": True}
    headers = {"authorization": f"Bearer {key}", "x-fairlane-lane": lane}
    async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S) as client:
        asked = {**body, "stream": True, "temperature": 0}
        async with client.stream("POST", "/v1/completions", json=asked, headers=headers) as answer:
            chunks = 0
            async for line in answer.aiter_lines():
                chunks += line.startswith("data: {")
                if holds_most is not None and chunks > tokens // 2:
                    holds_most.set()
            return str(answer.headers["x-request-id"])
