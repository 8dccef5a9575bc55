"""A batch whose gateways, workers and store are killed: every line is answered once, and charged once."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import pytest
from openai.types import Batch

from tests.support.gateway.batch_files import ENDED, lines, results
from tests.support.system.chaos import Process, World

pytestmark = [pytest.mark.system, pytest.mark.anyio]

LINES, TOKENS = 48, 32
WITHIN_S = 60.0
T = TypeVar("T")


async def sure(world: World, call: Callable[[openai.AsyncOpenAI], Awaitable[T]]) -> T:
    """What a call to whichever gateway lives returns."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            for url in world.urls:
                async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=world.key, max_retries=0) as client:
                    with contextlib.suppress(openai.APIConnectionError, openai.InternalServerError, httpx.HTTPError):
                        return await call(client)
            await asyncio.sleep(0.05)


async def reaches(world: World, batch_id: str, count: int) -> Batch:
    """The batch once it has ended, or so many lines have."""
    while True:
        batch = await sure(world, lambda client: client.batches.retrieve(batch_id))
        assert batch.request_counts is not None
        if batch.status in ENDED or batch.request_counts.completed >= count:
            return batch
        await asyncio.sleep(0.02)


def kill(victim: Process) -> None:
    victim.kill()
    victim.start()


def kill_store(world: World) -> None:
    world.store.process.kill()
    world.store.process.wait()
    world.store.start()


async def test_every_line_is_answered_and_charged_once_whoever_is_killed(tmp_path: Path) -> None:
    settings = {
        "DATA_DIR": str(tmp_path / "data"),
        "GATEWAY__FILES__BATCH_LEASE_S": "1",
        "GATEWAY__FILES__BATCH_LINES": "12",
    }
    content = lines(LINES, max_tokens=TOKENS, ignore_eos=True)
    with World(tmp_path, random.Random(1), settings, step_s=0.03) as world:
        await world.ready()
        await world.admin("POST", "/tenants", json={"id": "acme", "limits": {"tokens_per_month": 10**7}})
        world.key = (await world.admin("POST", "/tenants/acme/keys", json={"name": "test"}))["key"]
        kept = await sure(world, lambda client: client.files.create(file=content, purpose="batch"))
        batch = await sure(
            world,
            lambda client: client.batches.create(
                input_file_id=kept.id, endpoint="/v1/completions", completion_window="24h"
            ),
        )
        deaths: list[Callable[[], None]] = [
            lambda: kill(world.gateways[0]),
            lambda: kill(world.workers[0]),
            lambda: kill(world.gateways[1]),
            lambda: kill_store(world),
        ]
        for number, death in enumerate(deaths):
            batch = await reaches(world, batch.id, 1 + 10 * number)
            assert batch.status == "in_progress"
            await asyncio.to_thread(death)
        batch = await reaches(world, batch.id, LINES + 1)
        found: dict[str | None, dict[str, Any]] = await sure(
            world, lambda client: results(client, batch.output_file_id)
        )
        await world.ready()
        await world.landed()
        charged = (await world.admin("GET", "/tenants/acme/usage"))["total"]

    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": LINES, "completed": LINES, "failed": 0}
    assert set(found) == {f"line-{number}" for number in range(LINES)}
    usages = [each["response"]["body"]["usage"] for each in found.values()]
    assert {usage["completion_tokens"] for usage in usages} == {TOKENS}
    assert charged["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in usages)
    assert charged["output_tokens"] == sum(usage["completion_tokens"] for usage in usages)
