"""A latency request takes KV blocks from a throughput one on the real engine, and either's record says so."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.system.harness import MODEL, Server
from tests.system.conftest import BLOCK_BYTES, SMALL_BLOCKS

pytestmark = [pytest.mark.system, pytest.mark.anyio]

# A slow request takes nearly all of the server's blocks: this many tokens of its prompt and of its output.
PROMPT_TOKENS, OUTPUT_TOKENS = 16 * SMALL_BLOCKS - 96, 80
WAIT_S = 300


async def test_a_preemption_is_told_with_its_cause_its_mode_and_what_it_cost(small_server: Server) -> None:
    server = small_server
    slow_key = server.tenant("slow", lanes=["latency", "throughput"])
    quick_key = server.tenant("quick", lanes=["latency", "throughput"])

    holds_most = asyncio.Event()
    async with asyncio.timeout(WAIT_S):
        slow = asyncio.create_task(stream(server, slow_key, "throughput", PROMPT_TOKENS, OUTPUT_TOKENS, holds_most))
        await holds_most.wait()
        quick_id = await stream(server, quick_key, "latency", 8, 60)
        slow_id = await slow

    record, quick = whole_record(server, slow_id), whole_record(server, quick_id)
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


def whole_record(server: Server, request_id: str) -> dict[str, Any]:
    """Return the record of a request that has ended, once its gateway process has written it."""
    with server.admin() as admin:
        while not (record := admin.get(f"/requests/{request_id}").json())["outcome"]:
            pass
    found: dict[str, Any] = record
    return found


async def stream(
    server: Server, key: str, lane: str, prompt_tokens: int, tokens: int, holds_most: asyncio.Event | None = None
) -> str:
    """Return the id of a stream's request once the stream has ended. `holds_most`: set once half of it has come."""
    body = {"model": MODEL, "prompt": [504] * prompt_tokens, "max_tokens": tokens, "ignore_eos": True}
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
