"""`GET /v1/responses` as a WebSocket: turns, what is remembered between them, and clients that mean no good."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.gateway.response_events import RESPONSES, prompt
from tests.support.gateway.served import SAID, WAIT_S, Served, serving, settings, until

pytestmark = pytest.mark.anyio

ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    section = {"cors_origins": ["https://good.example"]}
    async with serving(settings(valkey_url, section=section)) as opened:
        await opened.tenant()
        yield opened


def socket(served: Served, *, key: str | None = None, **options: Any) -> connect:
    """A connection of the tenant's."""
    headers = {"authorization": f"Bearer {key or served.keys['acme']}", **options.pop("headers", {})}
    url = served.url.replace("http", "ws") + RESPONSES
    return connect(url, additional_headers=headers, max_size=None, proxy=None, **options)


async def turn(client: ClientConnection, **fields: Any) -> list[dict[str, Any]]:
    """One turn's events."""
    await client.send(json.dumps({"type": "response.create", "model": "tiny", "store": False, **fields}))
    return await told(client)


async def told(client: ClientConnection) -> list[dict[str, Any]]:
    """All events until the turn is over."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in ENDS:
        events.append(json.loads(await client.recv()))
    return events


def refusal(events: list[dict[str, Any]]) -> tuple[int, str]:
    """Of a turn that was refused."""
    (event,) = events
    assert event["type"] == "error"
    return event["status"], event["error"]["code"]


async def closed(client: ClientConnection) -> tuple[list[dict[str, Any]], int]:
    """What is told until the connection is closed, and the code of that."""
    events: list[dict[str, Any]] = []
    try:
        while True:
            events.append(json.loads(await client.recv()))
    except ConnectionClosed as end:
        return events, 1006 if end.rcvd is None else end.rcvd.code


async def test_the_events_are_those_of_a_stream(served: Served) -> None:
    streamed = await served.post(RESPONSES, {"model": "tiny", "input": "Hello", "stream": True, "store": False})
    frames = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]

    async with socket(served) as client:
        events = await turn(client, input="Hello")

    assert [event["type"] for event in events] == [frame["type"] for frame in frames]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == SAID


async def test_a_turn_goes_on_from_the_last_one_though_nothing_is_stored(served: Served) -> None:
    async with socket(served) as client:
        first = (await turn(client, input="Remember cobalt."))[-1]["response"]
        second = (await turn(client, input="And now?", previous_response_id=first["id"]))[-1]["response"]
        shown = prompt(served)

    assert second["previous_response_id"] == first["id"]
    assert "Remember cobalt." in shown
    assert SAID in shown
    assert "And now?" in shown
    assert (await served.get(f"{RESPONSES}/{first['id']}")).status_code == 404, "nothing was stored"


async def test_another_connection_does_not_know_it(served: Served) -> None:
    async with socket(served) as client:
        first = (await turn(client, input="Hello"))[-1]["response"]

    async with socket(served) as client:
        events = await turn(client, input="Again", previous_response_id=first["id"])
        again = await turn(client, input="Again")

    assert refusal(events) == (400, "previous_response_not_found")
    assert again[-1]["type"] == "response.completed"


async def test_a_stored_response_is_known_to_its_tenant_alone(served: Served) -> None:
    other = await served.tenant("other")
    async with socket(served) as client:
        first = (await turn(client, input="Hello", store=True))[-1]["response"]
    async with socket(served) as client:
        mine = await turn(client, input="Again", previous_response_id=first["id"])
    async with socket(served, key=other) as client:
        others = await turn(client, input="Again", previous_response_id=first["id"])

    assert mine[-1]["type"] == "response.completed"
    assert refusal(others) == (400, "previous_response_not_found")


async def test_a_failed_turn_forgets_what_it_went_on_from(served: Served) -> None:
    lost = [{"type": "function_call_output", "call_id": "call_lost", "output": "42"}]
    async with socket(served) as client:
        first = (await turn(client, input="Hello"))[-1]["response"]
        failed = await turn(client, input=lost, previous_response_id=first["id"])
        again = await turn(client, input="Again", previous_response_id=first["id"])

    assert refusal(failed) == (400, "invalid_request_error")
    assert refusal(again) == (400, "previous_response_not_found")


async def test_without_a_key_nothing_is_upgraded(served: Served) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(served, key="fl-nobody-nothing"):
            pass

    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body)["error"]["code"] == "invalid_api_key"


async def test_frames_sent_before_the_answer_do_not_get_past_a_refusal(served: Served) -> None:
    """The frames come with the handshake: they are heard once it was accepted, and not otherwise."""
    frame = bytes([0x81, 0x80 | 2, 0, 0, 0, 0]) + b"{}"
    for key, first, second in ((served.keys["acme"], b" 101 ", b'"error"'), ("fl-a-b", b" 401 ", b"")):
        reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
        head = (
            f"GET {RESPONSES} HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            f"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            f"authorization: Bearer {key}\r\n"
        )
        writer.write(head.encode() + b"\r\n" + frame)
        assert first in await reader.readuntil(b"\r\n\r\n")
        assert second in await reader.readuntil(b"}")
        writer.close()


@pytest.mark.parametrize(("origin", "status"), [("https://good.example", None), ("https://evil.example", 403)])
async def test_web_pages_connect_where_cors_lets_them(served: Served, origin: str, status: int | None) -> None:
    if status is None:
        async with socket(served, headers={"origin": origin}) as client:
            assert (await turn(client, input="Hello"))[-1]["type"] == "response.completed"
        return
    with pytest.raises(InvalidStatus) as refused:
        async with socket(served, headers={"origin": origin}):
            pass
    assert refused.value.response.status_code == status


async def test_an_idempotency_key_and_a_plain_get_are_refused(served: Served) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(served, headers={"idempotency-key": "once"}):
            pass

    assert refused.value.response.status_code == 400
    assert (await served.get(RESPONSES)).json()["error"]["param"] == "upgrade"


async def test_a_key_that_ends_ends_the_next_turn(served: Served) -> None:
    async with socket(served) as client:
        before = await turn(client, input="Hello")
        await served.resources.tenants.suspend("acme")
        served.resources.authenticator.forget()
        after = await turn(client, input="Hello")

    assert before[-1]["type"] == "response.completed"
    assert refusal(after) == (403, "tenant_suspended")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("not json", None),
        ('{"type": "response.create"}', "model"),
        ('{"type": "session.update", "model": "tiny", "input": "x"}', "type"),
        ('{"type": "response.create", "model": "tiny", "input": "x", "stream": false}', "stream"),
        ('{"type": "response.create", "model": "tiny", "input": "x", "generate": false}', "generate"),
        ('{"type": "response.create", "model": "tiny", "input": "x", "background": true}', "background"),
    ],
)
async def test_a_wrong_message_is_one_error_and_the_connection_goes_on(
    served: Served, message: str, param: str | None
) -> None:
    async with socket(served) as client:
        await client.send(message)
        (event,) = await told(client)
        after = await turn(client, input="Hello")

    assert (event["status"], event["error"]["param"]) == (400, param)
    assert event["headers"]["x-request-id"].startswith("req_")
    assert after[-1]["type"] == "response.completed"


async def test_a_binary_message_ends_the_connection(served: Served) -> None:
    async with socket(served) as client:
        await client.send(b"{}")
        events, code = await closed(client)

    assert refusal(events) == (400, "invalid_request_error")
    assert code == 1003


async def test_a_huge_message_ends_the_connection_before_it_is_read(served: Served) -> None:
    async with socket(served) as client:
        sending = asyncio.create_task(client.send("x" * (64 * 2**20)))
        events, code = await closed(client)
        await asyncio.gather(sending, return_exceptions=True)

    assert refusal(events) == (413, "request_too_large")
    assert code == 1009
    await until(lambda: served.resources.bodies.held_bytes == 0)


async def test_two_messages_at_once_are_answered_one_after_the_other(served: Served) -> None:
    async with socket(served) as client:
        for text in ("One", "Two"):
            await client.send(json.dumps({"type": "response.create", "model": "tiny", "input": text, "store": False}))
        first, second = await told(client), await told(client)

    ids = [{event["response"]["id"] for event in events if "response" in event} for events in (first, second)]
    assert [len(each) for each in ids] == [1, 1]
    assert ids[0] != ids[1]


async def test_a_flood_of_messages_ends_the_connection(served: Served) -> None:
    served.worker.limit = 0
    async with socket(served) as client:
        for _ in range(10):
            await client.send(json.dumps({"type": "response.create", "model": "tiny", "input": "Hi", "store": False}))
        events, code = await closed(client)

    served.worker.limit = None
    assert (events[-1]["status"], events[-1]["error"]["code"]) == (429, "concurrency_limit_exceeded")
    assert code == 1008
    await served.landed()


async def test_closing_amid_an_answer_settles_it_once(served: Served) -> None:
    await served.resources.tenants.update("acme", {"limits": {"tokens_per_day": 100_000}})
    served.worker.limit = 3
    async with socket(served) as client:
        await client.send(json.dumps({"type": "response.create", "model": "tiny", "input": "Hi", "store": False}))
        while json.loads(await client.recv())["type"] != "response.output_text.delta":
            pass
    await served.landed()

    assert [outcome for outcome, _, _ in await served.ledger()] == ["cancelled"]
    assert (await served.limits())["tokens_per_day"].reserved == 0
    assert served.resources.bodies.held_bytes == 0
    await until(lambda: served.resources.crowd.count == 0)


async def _flood(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write for as long as anybody takes it."""
    while True:
        writer.write(data)
        await writer.drain()


async def test_a_client_that_takes_nothing_is_cut_off(valkey_url: str) -> None:
    """It floods the gateway with pings, whose answers it never reads."""
    async with serving(settings(valkey_url, section={"write_timeout_s": 0.2})) as served:
        await served.tenant()
        reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"), limit=1_024)
        head = (
            f"GET {RESPONSES} HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            f"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            f"authorization: Bearer {served.keys['acme']}\r\n\r\n"
        )
        writer.write(head.encode())
        await reader.readuntil(b"\r\n\r\n")
        pings = (bytes([0x89, 0x80 | 125, 0, 0, 0, 0]) + bytes(125)) * 1_000
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(_flood(writer, pings), WAIT_S)

        assert served.resources.bodies.held_bytes == 0
        await until(lambda: served.resources.crowd.count == 0)


async def test_a_refused_upgrade_leaves_the_connection_in_http(served: Served) -> None:
    """On another path a WebSocket is a plain GET, and what follows it a request."""
    reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    upgrade = "connection: upgrade\r\nupgrade: websocket\r\n"
    writer.write(f"GET /healthz HTTP/1.1\r\nhost: a\r\n{upgrade}\r\nGET /ping HTTP/1.1\r\nhost: a\r\n\r\n".encode())

    for _ in range(2):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
    writer.close()


async def test_an_idle_connection_and_an_old_one_are_closed(valkey_url: str) -> None:
    for section, code in (
        ({"websocket_idle_s": 0.2}, "request_timeout"),
        ({"websocket_age_s": 0.2}, "websocket_connection_limit_reached"),
    ):
        async with serving(settings(valkey_url, section=section)) as served:
            await served.tenant(f"t-{code}")
            async with socket(served, key=served.keys[f"t-{code}"]) as client:
                events, closed_by = await closed(client)
            assert refusal(events)[1] == code
            assert closed_by == 1001


async def test_a_shutdown_closes_it(served: Served) -> None:
    async with socket(served) as client:
        await turn(client, input="Hello")
        await served.stop()
        _, code = await closed(client)

    assert code == 1001


async def test_the_sdk_converses(served: Served) -> None:
    async with served.sdk() as sdk, sdk.responses.connect() as connection:
        await connection.response.create(model="tiny", input="Hello", store=False)
        async for event in connection:
            if event.type == "response.completed":
                assert event.response.output_text == SAID
                break
