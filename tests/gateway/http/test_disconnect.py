"""A client that goes: its job ends within a step, and it pays for what was published and no more."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from fairlane.gateway.http.protocol import LimitedHttpProtocol
from tests.support.gateway.served import ASKED, CHAT, WAIT_S, Served, serving, settings, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000, "concurrent_requests": 5})
        yield opened


async def leave(served: Served, body: dict[str, Any], *, once: Any) -> None:
    """Ask, and hang up once something holds."""
    asking = asyncio.create_task(served.post(CHAT, body))
    await until(once)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(WAIT_S):
        await served.landed()


def published(served: Served) -> int:
    """Tokens that the gateway has received so far, over all jobs."""
    jobs = served.resources.fleet.dispatcher.jobs.values()
    return sum(choice.published for job in jobs for choice in job.choices)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tokens", [1, 3])
async def test_a_client_that_goes_mid_way_pays_for_what_was_published(
    served: Served, stream: bool, tokens: int
) -> None:
    served.worker.limit = tokens

    await leave(served, {**ASKED, "stream": stream}, once=lambda: published(served) >= tokens)

    assert len(served.worker.cancelled) == 1
    ((outcome, prompt, output),) = await served.ledger()
    assert (outcome, output) == ("cancelled", tokens)
    limits = await served.limits()
    assert limits["tokens_per_day"].used == prompt + output
    assert limits["tokens_per_day"].reserved == 0
    assert limits["concurrent_requests"].used == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_while_it_waits_pays_nothing(served: Served, stream: bool) -> None:
    served.worker.taking = False

    await leave(served, {**ASKED, "stream": stream}, once=lambda: bool(served.resources.fleet.dispatcher.jobs))

    limits = await served.limits()
    assert limits["tokens_per_day"].used == limits["tokens_per_day"].reserved == 0
    served.worker.taking = True
    assert (await served.post(CHAT, ASKED)).status_code == 200
    assert len(served.worker.seen) == 1


async def by_hand(served: Served) -> tuple[bytes, asyncio.StreamWriter]:
    """A request as bytes, and a connection to write it to."""
    body = json.dumps(ASKED)
    request = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.keys['acme']}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    )
    _, writer = await asyncio.open_connection(*served.server.servers[0].sockets[0].getsockname()[:2])
    return request.encode(), writer


async def test_a_client_that_goes_amid_pipelined_requests_is_not_written_to(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.worker.taking = False
    request, writer = await by_hand(served)
    writer.write(2 * request)
    await until(lambda: bool(served.resources.fleet.dispatcher.jobs))

    writer.close()
    await until(lambda: not served.resources.fleet.dispatcher.jobs)
    await served.landed()
    await asyncio.sleep(0)

    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []


async def test_a_client_that_has_sent_its_next_request_is_heard_to_go(served: Served) -> None:
    served.worker.taking = False
    request, writer = await by_hand(served)
    writer.write(request)
    await until(lambda: bool(served.resources.fleet.dispatcher.jobs))
    (connection,) = served.server.server_state.connections
    assert isinstance(connection, LimitedHttpProtocol)
    writer.write(request)
    await until(lambda: bool(connection.pipeline))

    writer.close()

    await until(lambda: not served.resources.fleet.dispatcher.jobs)


async def test_a_client_that_closes_after_the_end_of_a_stream_has_not_left_early(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client_left, end = asyncio.Event(), served.resources.requests.submitter.end

    async def end_late(*arguments: Any) -> None:
        await client_left.wait()
        await end(*arguments)

    monkeypatch.setattr(served.resources.requests.submitter, "end", end_late)
    caplog.set_level(logging.INFO, "fairlane.gateway.middleware.tenant")
    async with (
        served.http as client,
        client.stream(
            "POST", CHAT, json={**ASKED, "stream": True}, headers={"authorization": f"Bearer {served.keys['acme']}"}
        ) as answer,
    ):
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                break
    await until(lambda: not served.server.server_state.connections)
    client_left.set()
    await until(lambda: bool(caplog.records))

    assert [record.__dict__["context"].code for record in caplog.records] == ["ok"]


async def test_clients_that_go_at_any_moment_leave_nothing_behind(served: Served) -> None:
    for delay_ms in range(0, 40, 2):
        asking = asyncio.create_task(served.post(CHAT, {**ASKED, "stream": bool(delay_ms % 4)}))
        await asyncio.sleep(delay_ms / 1e3)  # any moment will do
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await served.landed()

    limits = await served.limits()
    assert limits["concurrent_requests"].used == limits["concurrent_requests"].reserved == 0
    assert limits["tokens_per_day"].reserved == 0
    assert limits["tokens_per_day"].used == sum(prompt + output for _, prompt, output in await served.ledger())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_client_that_goes_at_every_token_index_pays_for_each_choice_what_was_published(
    served: Served, stream: bool, n: int
) -> None:
    indices = range(12)
    for tokens in indices:
        served.worker.limit = tokens
        before = len(served.worker.seen)
        body = {**ASKED, "ignore_eos": True, "stream": stream, "n": n}
        await leave(served, body, once=partial(has_said, served, before, tokens))

    entries = await served.entries()
    assert [entry.output_tokens for entry in entries] == [n * tokens for tokens in indices]
    assert {entry.outcome for entry in entries} == {"cancelled"}
    limits = await served.limits()
    charged = sum(entry.prompt_tokens + entry.output_tokens for entry in entries)
    assert (limits["tokens_per_day"].used, limits["tokens_per_day"].reserved) == (charged, 0)


def has_said(served: Served, number: int, tokens: int) -> bool:
    """So many tokens of each choice of a job, by its number."""
    seen = served.worker.seen
    return len(seen) > number and len(served.worker.produced[seen[number].job.job_id]) == tokens
