"""SIGTERM in steps: new requests are told, those in the air finish, the rest end with an error that says so."""

import asyncio
import json
from collections.abc import AsyncIterator

import openai
import pytest

from tests.support.gateway.served import ASKED, CHAT, SAID, Served, serving, settings, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url, section={"grace_s": 0.3})) as opened:
        await opened.tenant(limits={"tokens_per_day": 100_000})
        yield opened


async def test_requests_in_the_air_finish_while_new_ones_are_told(valkey_url: str) -> None:
    async with serving(settings(valkey_url, section={"grace_s": 20.0})) as served:
        await served.tenant()
        served.worker.limit = 2
        running = asyncio.create_task(served.post(CHAT, ASKED))
        await until(lambda: [len(made) for made in served.worker.produced.values()] == [2])

        served.server.should_exit = True
        await until(lambda: served.resources.refusal() is not None)
        refused = await served.post(CHAT, ASKED)
        async with served.http as client:
            ready, alive = await client.get("/readyz"), await client.get("/healthz")
        served.worker.limit = None
        finished = await running
        await served.serving

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert int(refused.headers["retry-after"]) >= 1
    assert (ready.status_code, ready.json()["error"]["code"]) == (503, "shutting_down")
    assert alive.status_code == 200
    assert finished.json()["choices"][0]["message"]["content"] == SAID


async def test_what_outlasts_the_grace_ends_with_an_error_and_is_settled(served: Served) -> None:
    served.worker.limit = 2
    async with served.sdk() as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        said = aiter(stream)
        await anext(said)
        plain = asyncio.create_task(served.post(CHAT, ASKED))
        await until(lambda: [len(made) for made in served.worker.produced.values()] == [2, 2])

        stopping = asyncio.create_task(served.stop())
        with pytest.raises(openai.APIError) as cut:
            async for _ in said:
                pass
        answer = await plain
        await stopping

    assert cut.value.code == "shutting_down"
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert [(outcome, output) for outcome, _, output in await served.ledger()] == [("cancelled", 2)] * 2
    assert (await served.limits())["tokens_per_day"].reserved == 0
    assert len(served.worker.cancelled) == 2


@pytest.mark.parametrize("comes", [True, False], ids=["late", "never"])
async def test_a_request_whose_body_had_not_come_at_the_signal_is_told(
    served: Served, comes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    served.worker.limit = 2
    body = json.dumps(ASKED)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.keys['acme']}\r\n"
    reader, writer = await asyncio.open_connection(*served.server.servers[0].sockets[0].getsockname()[:2])
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode())
    await until(lambda: bool(served.server.server_state.tasks))

    stopping = asyncio.create_task(served.stop())
    await until(lambda: served.resources.refusal() is not None)
    if comes:
        writer.write(body.encode())
    answer = await reader.read()
    writer.close()
    await stopping

    assert answer.startswith(b"HTTP/1.1 503")
    assert b'"code":"shutting_down"' in answer
    assert served.worker.seen == []
    assert "Traceback" not in caplog.text


async def test_an_idle_gateway_stops_at_once(served: Served) -> None:
    async with asyncio.timeout(5):
        await served.stop()
