"""Files of batches for tests, and what came of them."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
from openai.types import Batch

from fairlane.gateway.batches.batch import Batch as StoredBatch
from fairlane.gateway.batches.batch import new_id
from fairlane.gateway.config import FilesSection, GatewaySettings
from tests.support.gateway.served import COMPLETIONS, WAIT_S, Served, settings

PROMPT = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0}
ENDED = {"completed", "failed", "expired", "cancelled"}


def folder_settings(url: str, folder: Path, *, files: dict[str, Any] | None = None, **section: Any) -> GatewaySettings:
    """Settings of a gateway that keeps its files in a folder of the test. `files`: bounds of files and batches."""
    known = {"batch_lease_s": 1.0, **(files or {})}
    return settings(url, section={"files": FilesSection(**known), **section}, data_dir=str(folder))


def line(custom_id: object, *, url: str = COMPLETIONS, method: str = "POST", **body: Any) -> bytes:
    """One line of a file; `body`: in place of the usual one's fields."""
    asked = {"custom_id": custom_id, "method": method, "url": url, "body": {**PROMPT, **body}}
    return json.dumps(asked).encode()


def lines(count: int, **body: Any) -> bytes:
    """A file of so many lines, `line-0` first."""
    return b"".join(line(f"line-{number}", **body) + b"\n" for number in range(count))


def a_batch(tenant: str = "acme", **fields: Any) -> StoredBatch:
    """One as it is kept before anybody has begun with it."""
    now_s = int(time.time())
    known: dict[str, Any] = {
        "id": new_id(),
        "tenant": tenant,
        "key_id": "k",
        "endpoint": COMPLETIONS,
        "input_file_id": "file-" + "0" * 24,
        "completion_window": "24h",
        "created_at": now_s,
        "expires_at": now_s + 86_400,
        "output_expires_s": 86_400,
    }
    return StoredBatch(**{**known, **fields})


async def upload(
    served: Served, content: bytes, *, tenant: str = "acme", name: str = "in.jsonl", **fields: str
) -> httpx.Response:
    """Send a file past the SDK."""
    async with served.http as client:
        return await client.post(
            "/v1/files",
            headers={"authorization": f"Bearer {served.keys[tenant]}"},
            data={"purpose": "batch", **fields},
            files={"file": (name, content)},
        )


async def begun(client: openai.AsyncOpenAI, content: bytes, *, endpoint: Any = COMPLETIONS, **asked: Any) -> Batch:
    """A batch of a file's lines."""
    kept = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=kept.id, endpoint=endpoint, **{"completion_window": "24h", **asked}
    )


async def results(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str | None, dict[str, Any]]:
    """A batch's output or error file by custom id; each stands there once."""
    if file_id is None:
        return {}
    found = [json.loads(each) for each in (await client.files.content(file_id)).text.splitlines()]
    by_id = {each["custom_id"]: each for each in found}
    named: Sequence[dict[str, Any]] = [each for each in found if each["custom_id"] is not None]
    assert len(named) == len({each["custom_id"] for each in named})
    return by_id


async def ended(client: openai.AsyncOpenAI, batch: Batch, within_s: float = WAIT_S) -> Batch:
    """The batch once it has."""
    async with asyncio.timeout(within_s):
        while batch.status not in ENDED:
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def charged_as_told(served: Served, batch: Batch, found: dict[str | None, dict[str, Any]]) -> None:
    """The ledger has what the answers say, once each."""
    usages = [each["response"]["body"]["usage"] for each in found.values()]
    assert await served.ledger() == sorted(
        ("finished", usage["prompt_tokens"], usage["completion_tokens"]) for usage in usages
    )
    assert batch.usage is not None
    assert batch.usage.total_tokens == sum(usage["total_tokens"] for usage in usages)


async def answered(client: openai.AsyncOpenAI, batch: Batch, count: int) -> None:
    """Wait until so many lines have been."""
    async with asyncio.timeout(WAIT_S):
        while batch.request_counts is None or batch.request_counts.completed < count:
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
