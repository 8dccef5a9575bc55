"""An event stream: its frames as a client's parser cuts them, and its end where a client leaves or takes nothing."""

import asyncio
import json

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from fairlane.gateway.http import sse
from fairlane.gateway.http.disconnect import Disconnect
from fairlane.gateway.http.sse import ClientConnection, EventStream

pytestmark = pytest.mark.anyio


def test_an_event_is_one_line_of_json() -> None:
    frame = sse.data({"text": "a\nb\r\n\u2028\x85é🙂", "none": None})

    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert b"\n" not in frame[:-2]
    assert b"\r" not in frame
    assert json.loads(frame[6:]) == {"text": "a\nb\r\n\u2028\x85é🙂", "none": None}


def test_json_that_is_ready_is_framed_as_it_is() -> None:
    assert sse.data(b'{"a":1}') == b'data: {"a":1}\n\n'


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ("queued position=4 eta_ms=1200", b": queued position=4 eta_ms=1200\n\n"),
        ("a\n\ndata: forged", b": a data: forged\n\n"),
        ("a\rb\u2028c", b": a b c\n\n"),
    ],
)
def test_a_comment_cannot_become_anything_else(text: str, frame: bytes) -> None:
    assert sse.comment(text) == frame


def test_the_last_frame() -> None:
    assert sse.DONE == b"data: [DONE]\n\n"


WAIT_S = 20.0


def stays() -> Disconnect:
    """A client whose connection reads on by itself."""
    return Disconnect(lambda: None)


def never(_: bytes) -> bool:
    """A client that nothing can be sent to without waiting."""
    return False


async def test_a_client_that_leaves_ends_the_block() -> None:
    disconnect = stays()

    async def block() -> None:
        async with asyncio.timeout(WAIT_S):
            with ClientConnection(disconnect):
                disconnect.left()
                await asyncio.Event().wait()

    with pytest.raises(ClientDisconnect):
        await block()


async def test_a_client_that_had_left_before_ends_the_block_as_well() -> None:
    disconnect = stays()
    disconnect.left()

    async def block() -> None:
        async with asyncio.timeout(WAIT_S):
            with ClientConnection(disconnect):
                await asyncio.Event().wait()

    with pytest.raises(ClientDisconnect):
        await block()


async def test_a_block_that_has_ended_is_not_told() -> None:
    disconnect = stays()

    with ClientConnection(disconnect):
        pass
    disconnect.left()

    await asyncio.sleep(0)  # a cancellation would come here


async def test_a_cancelled_block_ends_as_cancelled() -> None:
    async def block() -> None:
        with ClientConnection(stays()):
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_client_that_takes_nothing_for_too_long_is_gone() -> None:
    async def stuck(message: Message) -> None:
        await asyncio.Event().wait()

    async def block() -> None:
        async with asyncio.timeout(WAIT_S):
            with EventStream(stays(), stuck, never, write_timeout_s=0.01) as out:
                await out.write(b"data: 1\n\n")

    with pytest.raises(ClientDisconnect):
        await block()


async def test_a_stream_with_nothing_to_say_may_last() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    with EventStream(stays(), send, never, write_timeout_s=0.001) as out:
        out.lead_with([(b"a", b"b")])
        await out.write(b"data: 1\n\n")
        loop = asyncio.get_running_loop()
        until = loop.create_future()
        loop.call_later(0.05, until.set_result, None)  # fifty times as long as a write may take
        await until
        await out.write(b"data: 2\n\n")
    await out.close()

    assert [message.get("body") for message in sent] == [None, b"data: 1\n\n", b"data: 2\n\n", b""]
    assert sent[0]["headers"][:2] == [(b"a", b"b"), (b"content-type", b"text/event-stream")]


async def test_frames_go_out_without_waiting_where_the_client_keeps_up_and_in_their_order_where_not() -> None:
    keeps_up = True
    sent: list[bytes] = []

    async def send(message: Message) -> None:
        sent.append(message.get("body", b"head"))

    def push(frames: bytes) -> bool:
        if keeps_up:
            sent.append(frames)
        return keeps_up

    with EventStream(stays(), send, push, write_timeout_s=WAIT_S) as out:
        assert not out.put(b"1")  # its headers have to go before it
        await out.catch_up()
        assert out.put(b"2")
        keeps_up = False
        assert not out.put(b"3")
        keeps_up = True
        assert not out.put(b"4")  # not before what waits
        await out.catch_up()
        assert out.put(b"5")

    assert sent == [b"head", b"1", b"2", b"34", b"5"]
