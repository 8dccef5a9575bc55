"""Worker processes of unequal KV memory behind one gateway: what a small one cannot end goes to a large one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest

from tests.support.gateway.served import COMPLETIONS, Served, gateway, settings, until
from tests.support.system.script_workers import LEASE_S, script_worker

pytestmark = pytest.mark.anyio
SMALL, LARGE = 4, 32
"""Blocks of 16 tokens."""


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with gateway(settings(valkey_url, lease_s=LEASE_S)) as opened:
        await opened.tenant()
        yield opened


def asked(max_tokens: int, **more: object) -> dict[str, object]:
    return {"model": "tiny", "prompt": "Who?", "max_tokens": max_tokens, "ignore_eos": True, **more}


async def ready(served: Served, pools: list[int]) -> None:
    """The gateway knows workers of these pools, in blocks."""
    await until(lambda: sorted(each.blocks_total for each in served.resources.fleet.cache.workers) == pools)


async def test_a_long_request_is_never_given_to_the_small_worker(served: Served, valkey_url: str) -> None:
    with script_worker(valkey_url, blocks=SMALL), script_worker(valkey_url, blocks=LARGE):
        await ready(served, [SMALL, LARGE])
        lengths = [400, 20] * 8
        answers = await asyncio.gather(*(served.post(COMPLETIONS, asked(length)) for length in lengths))

    assert [answer.status_code for answer in answers] == [200] * len(lengths)
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == lengths


@pytest.mark.thorough
async def test_a_stream_whose_large_worker_died_waits_for_another_large_one(served: Served, valkey_url: str) -> None:
    with ExitStack() as workers:
        workers.enter_context(script_worker(valkey_url, blocks=SMALL))
        large = workers.enter_context(script_worker(valkey_url, blocks=LARGE))
        await ready(served, [SMALL, LARGE])
        text = ""
        finish: str | None = None
        async with served.sdk() as client:
            stream = await client.completions.create(
                model="tiny", prompt="Who?", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
            )
            async for chunk in stream:
                if not text:
                    large.kill()
                    await ready(served, [SMALL])
                    alone = await served.post(COMPLETIONS, asked(20))
                    workers.enter_context(script_worker(valkey_url, blocks=LARGE))
                text += chunk.choices[0].text
                finish = chunk.choices[0].finish_reason
        await ready(served, [SMALL, LARGE])
        whole = await served.post(COMPLETIONS, asked(400))

    assert alone.status_code == 200
    assert (text, finish) == (whole.json()["choices"][0]["text"], "length")


async def test_what_no_living_worker_holds_is_refused_at_the_door(served: Served, valkey_url: str) -> None:
    with script_worker(valkey_url, blocks=SMALL):
        await ready(served, [SMALL])
        answer = await served.post(COMPLETIONS, asked(400))

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request_exceeds_limit")
