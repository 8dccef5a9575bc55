"""What connections keep in memory: nothing once they are closed, little while they are idle, heads within bounds."""

import gc
import weakref
from typing import Any

import pytest
from starlette.types import Message

from fairlane.gateway.http.body import read_body
from fairlane.gateway.http.connections import Heads
from fairlane.gateway.http.protocol import LimitedHttpProtocol
from tests.support.gateway.raw_http import GET, IMPATIENT, POST, serving
from tests.support.gateway.served import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the gateway runs on: what a transport keeps of its protocol is its own matter."""
    return "asyncio", {"use_uvloop": True}


@pytest.mark.parametrize(
    "said",
    [b"", GET[:-2], GET, b"nonsense\r\n\r\n", POST + b"content-length: 9\r\n\r\nhello"],
    ids=["nothing", "half a head", "a request", "nonsense", "half a body"],
)
async def test_a_connection_that_is_closed_leaves_nothing_for_a_collection(said: bytes) -> None:
    async with serving() as server:
        gc.collect()
        gc.disable()
        try:
            client = await server.client()
            client.send(said)
            await until(lambda: len(server.connections) == 1)
            left = weakref.ref(next(iter(server.connections)))
            if said.endswith(b"\r\n\r\n"):
                await client.until(b"\r\n\r\n")
            client.writer.transport.abort()
            await until(lambda: left() is None)
        finally:
            gc.enable()


class Part(dict[str, Any]):
    """A message that can be seen to go."""


async def test_a_part_of_a_body_is_held_once_while_the_next_is_waited_for() -> None:
    given: list[weakref.ref[Part]] = []

    async def receive() -> Message:
        assert not any(part() for part in given)
        part = Part(type="http.request", body=b"part", more_body=len(given) < 2)
        given.append(weakref.ref(part))
        return part

    assert await read_body(receive, [], max_bytes=100, timeout_s=1.0) == b"part" * 3


async def test_an_idle_connection_keeps_nothing_of_its_last_request() -> None:
    async with serving() as server:
        client = await server.client()
        client.send(GET)
        await client.answer()
        (held,) = server.connections

        assert isinstance(held, LimitedHttpProtocol)
        kept: list[object] = [held.cycle, held.scope, held.headers]
        assert kept == [None, None, None]


async def test_a_head_that_begins_behind_a_request_goes_on_after_its_answer() -> None:
    async with serving() as server:
        client = await server.client()
        client.send(GET + GET[:-9])
        first = await client.answer()
        client.send(GET[-9:])

        assert [first, await client.answer()] == [(200, b"0"), (200, b"0")]


async def test_a_head_that_begins_behind_a_request_has_its_bounds_as_well() -> None:
    async with serving(IMPATIENT) as server:
        client = await server.client()
        client.send(GET + GET[:-9])
        assert await client.answer() == (200, b"0")
        (held,) = server.connections
        assert is_sending(held)

        assert (await client.refusal())[0] == 408


async def test_where_unfinished_heads_take_too_much_the_first_of_them_go() -> None:
    async with serving(heads=Heads(most_bytes=2_000)) as server:
        slow = [await server.client() for _ in range(4)]
        for number, client in enumerate(slow):
            client.send(b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 600)
            await until(lambda: sum(map(is_sending, server.connections)) == min(number + 1, 3))  # noqa: B023

        assert await slow[0].rest() == b""
        slow[3].send(b"\r\n\r\n")
        assert await slow[3].answer() == (200, b"0")
        other = await server.client()
        other.send(GET)
        assert await other.answer() == (200, b"0")


def is_sending(connection: object) -> bool:
    """A part of a head has come."""
    return isinstance(connection, LimitedHttpProtocol) and connection in connection.heads._held
