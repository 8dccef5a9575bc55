"""What is sent again after its gateway was killed goes on from what that one had asked for and published."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from fairlane.gateway.pipeline.recovery import Reaper
from tests.support.gateway.sent_twice import KEY, QUICK, STREAMED, begun_with, kept, post, used
from tests.support.gateway.served import ASKED, CHAT, SAID, WAIT_S, Served, serving, settings, settled, until
from tests.support.gateway.spawned import LEASE_S, process

pytestmark = pytest.mark.anyio


def said(answer: httpx.Response) -> list[str]:
    """The text of a stream, and how it ended."""
    frames = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    choices = [choice for frame in frames for choice in json.loads(frame)["choices"]]
    text = "".join([choice["delta"].get("content") or "" for choice in choices])
    return [text, choices[-1]["finish_reason"], answer.text.splitlines()[-2]]


@asynccontextmanager
async def one_killed(url: str, tokens: int | None, asked: dict[str, Any]) -> AsyncIterator[Served]:
    """Of two gateways one was killed: after it had seen so many tokens of a request; None: when it had seen one, and
    all others were made while it stood still."""
    chosen = settings(url, section={**QUICK, "reservation_lease_s": LEASE_S}, lease_s=LEASE_S)
    async with serving(chosen) as served, process(url) as (started, base):
        await served.tenant(limits={"tokens_per_day": 100_000})
        served.worker.limit = 1 if tokens is None else tokens
        headers = {"authorization": f"Bearer {served.keys['acme']}", "idempotency-key": KEY}
        async with httpx.AsyncClient(base_url=base, timeout=WAIT_S) as client:
            owner = asyncio.create_task(client.post(CHAT, json=asked, headers=headers))
            await until(lambda: [len(made) for made in served.worker.produced.values()] == [served.worker.limit])
            if tokens is None:
                started.send_signal(signal.SIGSTOP)
                served.worker.limit = None
                await until(lambda: not served.worker.leases)
            started.kill()
            await asyncio.gather(owner, return_exceptions=True)
        served.worker.limit = None if tokens is None else tokens
        lifting = asyncio.create_task(lift(served))
        yield served
        await lifting


async def lift(served: Served) -> None:
    """Let the worker go on once it no longer has the killed gateway's job."""
    await until(lambda: served.worker.limit is None or not served.worker.leases)
    served.worker.limit = None


@pytest.mark.parametrize("tokens", [1, 4])
async def test_a_killed_gateways_stream_goes_on_from_the_next_token(valkey_url: str, tokens: int) -> None:
    async with one_killed(valkey_url, tokens, STREAMED) as served:
        again = await post(served, STREAMED)
        undisturbed = await served.post(CHAT, STREAMED)
        await kept(served)
        await settled(served)

        assert said(again) == said(undisturbed)
        assert begun_with(served) == [[0], [tokens], [0]]
        (_, *first), (_, *second), (_, *whole) = await served.ledger()
        assert [sum(parts) for parts in zip(first, second, strict=True)] == whole
        assert await used(served) == (2 * sum(whole), 0)


async def test_what_a_stopped_gateway_missed_is_told_without_a_worker(valkey_url: str) -> None:
    async with one_killed(valkey_url, None, ASKED) as served:
        again = await post(served)
        await kept(served)
        await settled(served)

        assert again.json()["choices"][0]["message"]["content"] == SAID
        assert again.json()["choices"][0]["finish_reason"] == "stop"
        assert len(served.worker.seen) == 1
        assert await used(served) == (again.json()["usage"]["total_tokens"], 0)


async def test_what_came_behind_a_stop_string_unseen_is_not_charged(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as no reaper was earlier, which does not know of stop strings."""
    monkeypatch.setattr(Reaper, "reap", AsyncMock())
    asked = {**ASKED, "stop": ["France"]}
    async with one_killed(valkey_url, None, asked) as served:
        again = await post(served, asked)
        await kept(served)

        assert again.json()["choices"][0]["message"]["content"] == "The capital of "
        assert len(served.worker.seen) == 1
        assert again.json()["usage"]["completion_tokens"] < len(served.worker.script)
        assert await used(served) == (again.json()["usage"]["total_tokens"], 0)
