"""`GET /v1/responses` as a WebSocket: turns, what they may continue from, and clients that mean no good."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from openai.resources.responses.responses import AsyncResponsesConnection
from openai.types.responses import ResponsesServerEvent
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fairlane.gateway.api import response_socket
from fairlane.gateway.websocket.connection import WebSocket
from fairlane.gateway.websocket.inbox import MOST_FRAMES, MOST_WAITING
from fairlane.gateway.websocket.recent import MOST_RESPONSES, Recent, RecentResponses
from tests.support.gateway.response_events import RESPONSES, prompt
from tests.support.gateway.served import SAID, WAIT_S, Served, until

pytestmark = pytest.mark.anyio

ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}


@pytest.fixture
async def served(fresh_gateway: Served) -> AsyncIterator[Served]:
    await fresh_gateway.tenant()
    yield fresh_gateway
    await until(lambda: not fresh_gateway.resources.ports.bodies.held_bytes)


def socket(served: Served, tenant: str = "acme", *, key: str | None = None, **headers: str) -> connect:
    given = {"authorization": f"Bearer {key or served.keys[tenant]}", **headers}
    return connect(served.url.replace("http", "ws") + RESPONSES, additional_headers=given, max_size=None, proxy=None)


def handshake(served: Served) -> bytes:
    head = (
        f"GET {RESPONSES} HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        f"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"authorization: Bearer {served.keys['acme']}\r\n\r\n"
    )
    return head.encode()


async def ask(client: ClientConnection, **fields: Any) -> None:
    await client.send(json.dumps({"type": "response.create", "model": "tiny", "store": False, **fields}))


async def told(client: ClientConnection) -> list[dict[str, Any]]:
    """All events of one turn."""
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(WAIT_S):
        while not events or events[-1]["type"] not in ENDS:
            events.append(json.loads(await client.recv()))
    return events


async def turn(client: ClientConnection, **fields: Any) -> list[dict[str, Any]]:
    await ask(client, **fields)
    return await told(client)


async def ended(client: ClientConnection, **fields: Any) -> dict[str, Any]:
    """The response of a turn that succeeds."""
    event = (await turn(client, **fields))[-1]
    assert event["type"] == "response.completed", event
    response: dict[str, Any] = event["response"]
    return response


def refusal(events: list[dict[str, Any]]) -> tuple[int, str]:
    """Of a turn that was refused: that is its only event."""
    (event,) = events
    assert event["type"] == "error"
    return event["status"], event["error"]["code"]


def produced(served: Served) -> int:
    """Output tokens of the job that was leased last."""
    return len(served.worker.produced[served.worker.seen[-1].job.job_id]) if served.worker.seen else 0


async def closed(client: ClientConnection) -> tuple[list[dict[str, Any]], int]:
    """The events until the connection is closed, and its code."""
    events: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                events.append(json.loads(await client.recv()))
    except ConnectionClosed as end:
        return events, 1006 if end.rcvd is None else end.rcvd.code


async def test_the_events_are_those_of_a_stream(served: Served) -> None:
    streamed = await served.post(RESPONSES, {"model": "tiny", "input": "Hello", "stream": True, "store": False})
    frames = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]

    async with socket(served) as client:
        events = await turn(client, input="Hello")

    assert [*dict.fromkeys(event["type"] for event in events)] == [*dict.fromkeys(frame["type"] for frame in frames)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == SAID
    await served.landed()
    assert len(await served.ledger()) == 2


async def test_a_turn_continues_from_responses_of_its_connection_alone(served: Served) -> None:
    async with socket(served) as client:
        first = await ended(client, input="Remember cobalt.")
        second = await ended(client, input="And now?", previous_response_id=first["id"])
        asked = prompt(served)
        fork = await ended(client, input="Or now?", previous_response_id=first["id"])
        async with socket(served) as other:
            unknown = await turn(other, input="Again", previous_response_id=first["id"])
            clean = await ended(other, input="Again")

    assert (second["previous_response_id"], fork["previous_response_id"]) == (first["id"], first["id"])
    assert [part in asked for part in ("Remember cobalt.", SAID, "And now?")] == [True] * 3
    assert refusal(unknown) == (400, "previous_response_not_found")
    assert clean["store"] is False
    assert (await served.get(f"{RESPONSES}/{first['id']}")).status_code == 404


async def test_a_stored_response_is_known_on_every_connection_of_its_tenant(served: Served) -> None:
    await served.tenant("other")
    async with socket(served) as client:
        first = await ended(client, input="Hello", store=True)
    async with socket(served) as client:
        mine = await turn(client, input="Again", previous_response_id=first["id"])
    async with socket(served, "other") as client:
        others = await turn(client, input="Again", previous_response_id=first["id"])

    assert mine[-1]["type"] == "response.completed"
    assert refusal(others) == (400, "previous_response_not_found")


async def test_a_failed_turn_forgets_the_response_that_it_continued_from(served: Served) -> None:
    async with socket(served) as client:
        first, second = await ended(client, input="Hello"), await ended(client, input="Hello")
        failed = await turn(client, input="Again", temperature=9, previous_response_id=first["id"])
        again = await turn(client, input="Again", previous_response_id=first["id"])
        await ended(client, input="Again", previous_response_id=second["id"])

    assert refusal(failed) == (400, "invalid_request_error")
    assert refusal(again) == (400, "previous_response_not_found")


async def test_a_worker_that_fails_in_mid_stream_is_the_turns_last_event(served: Served) -> None:
    served.worker.limit = 2
    async with socket(served) as client:
        await ask(client, input="Hello", stream_id="a")
        await until(lambda: produced(served) == 2)
        served.worker.fails = "the logits of this row are not finite"
        events = await told(client)
        served.worker.renew()
        after = await turn(client, input="Hello")

    assert (events[-1]["status"], events[-1]["error"]["code"]) == (500, "internal_error")
    assert {event["stream_id"] for event in events} == {"a"}
    assert after[0]["type"] == "response.created"
    await served.landed()
    assert [(entry.outcome, entry.output_tokens) for entry in await served.entries()][:1] == [("failed", 2)]


async def test_a_warm_up_reads_the_prompt_and_can_be_continued(served: Served) -> None:
    async with socket(served) as client:
        warm = await ended(client, input="Remember cobalt.", generate=False)
        await ended(client, input="And now?", previous_response_id=warm["id"])

    assert (warm["output"], warm["usage"]["output_tokens"]) == ([], 0)
    assert "Remember cobalt." in prompt(served)


async def test_closing_cancels_the_response_and_charges_what_was_generated(served: Served) -> None:
    served.worker.limit = 3
    async with socket(served) as client:
        await ask(client, input="Hello")
        await until(lambda: produced(served) == 3)

    await served.landed()
    assert [(outcome, output) for outcome, _, output in await served.ledger()] == [("cancelled", 3)]


async def test_a_lost_connection_cancels_the_response_too(served: Served) -> None:
    served.worker.limit = 3
    async with socket(served) as client:
        await ask(client, input="Hello")
        await ask(client, input="This one waits.")
        await until(lambda: produced(served) == 3)
        client.transport.abort()

    await served.landed()
    assert [(outcome, output) for outcome, _, output in await served.ledger()] == [("cancelled", 3)]


async def test_without_a_key_or_a_handshake_there_is_no_socket(served: Served) -> None:
    with pytest.raises(InvalidStatus) as unknown:
        async with socket(served, key="fl-nobody-nothing"):
            pass
    with pytest.raises(InvalidStatus) as once:
        async with socket(served, **{"idempotency-key": "once"}):
            pass
    plain = await served.get(RESPONSES)

    assert (unknown.value.response.status_code, once.value.response.status_code) == (401, 400)
    assert (plain.status_code, plain.json()["error"]["code"]) == (426, "upgrade_required")
    assert plain.headers["upgrade"] == "websocket"


@pytest.mark.parametrize("rest", [b"\x81\x82\0\0\0\0{}", b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"])
async def test_what_follows_a_handshake_at_once_is_read_as_http(served: Served, rest: bytes) -> None:
    reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    writer.write(handshake(served) + rest)
    async with asyncio.timeout(WAIT_S):
        first = await reader.readline()
    writer.close()
    await writer.wait_closed()

    assert first == (b"HTTP/1.1 426 Upgrade Required\r\n" if rest.startswith(b"GET") else b"")


async def test_a_key_that_ends_ends_the_next_turn(served: Served) -> None:
    async with socket(served) as client:
        await ended(client, input="Hello")
        await served.resources.accounts.tenants.suspend(served.id_of())
        served.resources.accounts.authenticator.forget()
        after = await turn(client, input="Hello")

    assert refusal(after) == (403, "tenant_suspended")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("not json", None),
        ('{"type": "response.create"}', "model"),
        ('{"type": "session.update", "model": "tiny", "input": "x"}', "type"),
        ('{"type": "response.create", "model": "tiny", "input": "x", "generate": 5}', "generate"),
        ('{"type": "response.create", "model": "tiny", "input": "x", "background": true}', "background"),
    ],
)
async def test_a_wrong_message_is_one_error_and_the_connection_goes_on(
    served: Served, message: str, param: str | None
) -> None:
    async with socket(served) as client:
        await client.send(message)
        (event,) = await told(client)
        await ended(client, input="Hello", stream=False)

    assert (event["status"], event["error"]["param"]) == (400, param)
    assert event["headers"]["x-request-id"].startswith("req_")


async def test_a_binary_message_ends_the_connection(served: Served) -> None:
    async with socket(served) as client:
        await client.send(b"{}")
        events, code = await closed(client)

    assert (refusal(events), code) == ((400, "invalid_request_error"), 1003)


async def test_a_message_that_is_too_long_ends_the_connection(served: Served) -> None:
    async with socket(served) as client:
        with suppress(ConnectionClosed):
            await ask(client, input="x" * 100_000)
        events, code = await closed(client)

    assert (refusal(events), code) == ((413, "request_too_large"), 1009)


async def test_too_many_waiting_messages_end_the_connection(served: Served) -> None:
    served.worker.limit = 0
    async with socket(served) as client:
        for _ in range(MOST_WAITING + 2):
            await ask(client, input="Hello")
        events, code = await closed(client)

    assert (events[-1]["error"]["code"], code) == ("concurrency_limit_exceeded", 1008)
    await served.landed()
    assert len(await served.ledger()) <= 1


@pytest.mark.parametrize("frame", [b"\x00\x80\0\0\0\0", b"\x89\x80\0\0\0\0"], ids=["continuations", "pings"])
async def test_a_flood_of_empty_frames_ends_the_connection(served: Served, frame: bytes) -> None:
    async with socket(served) as client:
        client.transport.write(b"\x01\x80\0\0\0\0" + frame * 20 * MOST_FRAMES)
        events, code = await closed(client)
        await ended_elsewhere(served)

    assert (refusal(events), code) == ((400, "invalid_request_error"), 1008)


async def test_a_flood_while_a_response_runs_gets_its_reason(served: Served) -> None:
    served.worker.limit = 3
    async with socket(served) as client:
        await ask(client, input="Hello")
        await until(lambda: produced(served) == 3)
        client.transport.write(b"\x89\x80\0\0\0\0" * 4 * MOST_FRAMES)
        events, code = await closed(client)

    assert (refusal(events[-1:]), code) == ((400, "invalid_request_error"), 1008)
    await served.landed()
    assert [(outcome, output) for outcome, _, output in await served.ledger()] == [("cancelled", 3)]


async def test_a_request_that_does_not_wait_for_the_handshake_leaves_nothing(served: Served) -> None:
    rest = b"POST /v1/responses HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 5000\r\n\r\n" + b"x" * 5000
    for _ in range(10):
        reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
        writer.write(handshake(served))
        await asyncio.sleep(0)
        writer.write(rest)
        async with asyncio.timeout(WAIT_S):
            await reader.read()
        writer.close()
        await writer.wait_closed()


async def test_a_connection_leaves_nothing_to_the_collector(served: Served) -> None:
    await ended_elsewhere(served)
    kinds = (WebSocket, served.server.config.http_protocol_class)
    gc.collect()
    gc.disable()
    try:
        await ended_elsewhere(served)
        await until(lambda: not served.server.server_state.connections)
        kept = [type(each).__name__ for each in gc.get_objects() if type(each) in kinds]
    finally:
        gc.enable()

    assert kept == []


async def ended_elsewhere(served: Served) -> None:
    async with socket(served) as client:
        await ended(client, input="Hello")


async def test_a_message_may_come_in_parts_with_pings_between(served: Served) -> None:
    message = json.dumps({"type": "response.create", "model": "tiny", "input": "x" * 300, "store": False})
    async with socket(served) as client:
        for _ in range(MOST_FRAMES // 2):
            await client.ping()
        await client.send([message[at : at + 10] for at in range(0, len(message), 10)])
        events = await told(client)

    assert events[-1]["type"] == "response.completed"


async def test_idle_and_old_connections_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_socket, "IDLE_S", 0.1)
    async with socket(served) as client:
        idle = await closed(client)
    monkeypatch.setattr(response_socket, "IDLE_S", 60.0)
    monkeypatch.setattr(response_socket, "AGE_S", 0.1)
    async with socket(served) as client:
        old = await closed(client)

    assert (refusal(idle[0]), idle[1]) == ((408, "request_timeout"), 1001)
    assert (refusal(old[0]), old[1]) == ((400, "websocket_connection_limit_reached"), 1001)


async def ending(connection: AsyncResponsesConnection) -> AsyncIterator[ResponsesServerEvent]:
    """The events of one turn."""
    async for event in connection:
        yield event
        if event.type in ENDS:
            return


async def test_the_official_sdk_connects(served: Served) -> None:
    async with served.sdk() as sdk, sdk.responses.connect() as connection:
        await connection.response.create(model="tiny", input="Hello", store=False)
        said = [event.response.output_text async for event in ending(connection) if event.type == "response.completed"]
        await connection.response.create(model="tiny", input="Hello", previous_response_id="resp_none")
        failed = await connection.recv()

    assert said == [SAID]
    assert failed.type == "error"
    assert failed.error.code == "previous_response_not_found"


def test_a_tenant_with_too_many_bytes_forgets_its_own() -> None:
    kept = RecentResponses(most_bytes=100, most_tenant_bytes=50)
    first, second = Recent(kept), Recent(kept)
    for number in range(3):
        first.keep("a", f"a{number}", bytes(20))
    second.keep("b", "b0", bytes(50))
    assert [first.read("a", f"a{number}") is not None for number in range(3)] == [False, True, True]

    third = Recent(kept)
    third.keep("c", "c0", bytes(30))
    third.keep("c", "c1", bytes(60))

    assert second.read("b", "b0") is None, "it had most"
    assert (third.read("c", "c0"), third.read("c", "c1")) == (None, None), "more than a tenant's share"
    assert kept.held_bytes == 40
    assert second.read("a", "a1") is None, "another connection's"
    for each in (first, second, third):
        each.ended(has_failed=True)
        each.close()
    assert kept.held_bytes == 0


def test_a_connection_remembers_so_many_responses() -> None:
    one = Recent(RecentResponses())
    for number in range(MOST_RESPONSES + 1):
        one.keep("a", f"r{number}", b"x")

    assert [one.read("a", f"r{number}") for number in (0, MOST_RESPONSES, 1)] == [None, b"x", b"x"]
    one.keep("a", "r10", b"x")  # in place of r1, which was asked for
    one.ended(has_failed=True)
    one.close()
    assert one.all.held_bytes == 0
