"""How answers go out: a client that leaves or takes nothing ends what is done for it, and nothing else does."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from gateway.replies import EventStream, while_connected

pytestmark = pytest.mark.anyio
WAIT_S = 20.0


def received(gone: asyncio.Event) -> Callable[[], Awaitable[Message]]:
    """A client that leaves when it is told to."""

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


async def test_a_client_that_leaves_ends_the_block() -> None:
    gone = asyncio.Event()

    async def block() -> None:
        async with asyncio.timeout(WAIT_S), while_connected(received(gone)):
            gone.set()
            await asyncio.Event().wait()

    with pytest.raises(ClientDisconnect):
        await block()


async def test_a_cancelled_block_ends_as_cancelled() -> None:
    async def block() -> None:
        async with while_connected(received(asyncio.Event())):
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
        async with asyncio.timeout(WAIT_S), while_connected(received(asyncio.Event())) as connection:
            with EventStream(stuck, [], connection, write_timeout_s=0.01) as out:
                await out.write(b"data: 1\n\n")

    with pytest.raises(ClientDisconnect):
        await block()


async def test_a_stream_with_nothing_to_say_may_last() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async with while_connected(received(asyncio.Event())) as connection:
        with EventStream(send, [(b"a", b"b")], connection, write_timeout_s=0.001) as out:
            await out.write(b"data: 1\n\n")
            loop = asyncio.get_running_loop()
            until = loop.create_future()
            loop.call_later(0.05, until.set_result, None)  # fifty times as long as a write may take
            await until
            await out.write(b"data: 2\n\n")
        await out.close()

    assert [message.get("body") for message in sent] == [None, b"data: 1\n\n", b"data: 2\n\n", b""]
    assert (b"content-type", b"text/event-stream") in sent[0]["headers"]
