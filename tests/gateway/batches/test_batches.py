"""Batches by the official SDK, from a file to its answers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from openai.types import Batch

from tests.support.gateway.batch_files import ENDED, begun, folder_settings, lines, results
from tests.support.gateway.served import WAIT_S, Served, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(valkey_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(folder_settings(valkey_url, tmp_path)) as opened:
        await opened.tenant()
        yield opened


async def ended(client: openai.AsyncOpenAI, batch: Batch) -> Batch:
    """The batch once it has."""
    async with asyncio.timeout(WAIT_S):
        while batch.status not in ENDED:
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def test_every_line_is_answered_once_and_charged_once(served: Served) -> None:
    async with served.sdk() as client:
        batch = await ended(client, await begun(client, lines(40), metadata={"of": "us"}))
        found = await results(client, batch.output_file_id)

    assert (batch.status, batch.error_file_id, batch.metadata) == ("completed", None, {"of": "us"})
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 40, "completed": 40, "failed": 0}
    assert set(found) == {f"line-{number}" for number in range(40)}
    usages = [each["response"]["body"]["usage"] for each in found.values()]
    assert sorted(await served.ledger()) == sorted(
        ("finished", usage["prompt_tokens"], usage["completion_tokens"]) for usage in usages
    )
    assert batch.usage is not None
    assert batch.usage.total_tokens == sum(usage["total_tokens"] for usage in usages)
