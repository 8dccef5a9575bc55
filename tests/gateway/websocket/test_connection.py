"""One WebSocket without a network: what it parses at once, how long it waits, and what it holds."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from fairlane.gateway.http.body_budget import BodyBudget
from fairlane.gateway.http.exchange import Carried
from fairlane.gateway.http.flow import Flow
from fairlane.gateway.http.turns import Turns
from fairlane.gateway.websocket.connection import MOST_AT_ONCE, PIECE_BYTES, SocketBounds, WebSocket
from fairlane.gateway.websocket.inbox import FRAMES_PER_S, MOST_FRAMES

pytestmark = pytest.mark.anyio

BOUNDS = SocketBounds(max_message_bytes=1_000, message_timeout_s=0.05, idle_s=60.0, age_s=60.0, write_timeout_s=60.0)
PING, MASK = b"\x89\x80\0\0\0\0", b"\0\0\0\0"


def text(content: bytes, declared: int | None = None) -> bytes:
    return b"\x81" + bytes([0x80 | (len(content) if declared is None else declared)]) + MASK + content


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = self.has_ended = False
        self.reads = True

    def write(self, data: Any) -> None:
        self.written += data

    def write_eof(self) -> None:
        self.has_ended = True

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def event(self) -> dict[str, Any]:
        """The last event, before the close frame."""
        sent = self.written[self.written.rindex(b'{"type":"error"') :]
        event: dict[str, Any] = json.JSONDecoder().raw_decode(sent.decode("latin-1"))[0]
        return event


class Opened:
    """A WebSocket on such a wire, whose messages are kept until `go`."""

    def __init__(self) -> None:
        self.wire, self.turns = Wire(), Turns()
        self.bodies = BodyBudget(most_bytes=10_000, most_tenant_bytes=1_000)
        self.tasks: set[asyncio.Task[None]] = set()
        self.said: list[bytes] = []
        self.go = asyncio.Event()
        carried = Carried(self.wire, Flow(self.wire), self.turns, None, set(), self.tasks, self.bodies)
        self.socket = WebSocket(carried, "acme", BOUNDS)
        self.socket.begin(self.converse)

    async def converse(self, socket: WebSocket) -> None:
        while True:
            message, hold = await socket.next()
            self.said.append(message)
            await self.go.wait()
            hold.release()


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    made = Opened()
    yield made
    made.go.set()
    made.socket.connection_lost(None)
    await asyncio.gather(*made.tasks)
    assert made.bodies.held_bytes == made.turns.waiting_bytes == 0


async def until_over(opened: Opened) -> None:
    async with asyncio.timeout(10):
        while b'{"type":"error"' not in opened.wire.written:  # noqa: ASYNC110 - a timer of the connection ends it
            await asyncio.sleep(0.005)


async def test_a_read_with_many_frames_is_parsed_in_turns(opened: Opened) -> None:
    opened.socket.data_received(PING * 200)
    at_once = opened.wire.written.count(b"\x8a")

    assert at_once < MOST_AT_ONCE + PIECE_BYTES // len(PING)
    assert not opened.wire.reads
    async with asyncio.timeout(10):
        while opened.wire.written.count(b"\x8a") < 200:  # noqa: ASYNC110 - the turns have no event
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert opened.wire.reads


async def test_a_large_frame_takes_no_turns(opened: Opened) -> None:
    opened.socket.data_received(text(b"x" * 100))
    opened.socket.data_received(b"\x81\xfe\x03\x00" + MASK + b"x" * 0x2F0)

    assert not opened.turns.waiting_bytes


async def test_frames_are_allowed_by_age_too(opened: Opened) -> None:
    opened.socket._inbox._began_s -= MOST_FRAMES / FRAMES_PER_S
    for _ in range(2 * MOST_FRAMES):
        opened.socket.data_received(PING)
    assert not opened.wire.has_ended
    for _ in range(MOST_FRAMES):
        opened.socket.data_received(PING)

    assert opened.wire.event()["error"]["message"].startswith("Too many frames")


async def test_a_part_of_a_message_has_to_go_on_in_time(opened: Opened) -> None:
    opened.socket.data_received(text(b"half", declared=100))
    assert opened.bodies.of_tenant("acme") == 10
    await until_over(opened)

    assert opened.wire.event()["status"] == 408
    assert opened.bodies.of_tenant("acme") == 10, "held until the connection is lost"


async def test_whole_messages_and_pings_need_not(opened: Opened) -> None:
    opened.go.set()
    opened.socket.data_received(text(b"{}") + PING)
    async with asyncio.timeout(10):
        while opened.bodies.held_bytes or not opened.said:  # noqa: ASYNC110 - a task takes the message
            await asyncio.sleep(0)

    assert opened.socket._deadline is None


async def test_parts_beyond_the_tenants_share_end_the_connection(opened: Opened) -> None:
    opened.socket.data_received(b"\x81\xfe\x03\xe8" + MASK + b"x" * 900)
    assert not opened.wire.written
    opened.socket.data_received(b"x" * 99)

    assert opened.wire.event()["error"]["code"] == "concurrency_limit_exceeded"


async def test_giving_way_closes_at_once(opened: Opened) -> None:
    opened.socket.give_way()

    assert opened.wire.is_closed
    assert opened.wire.written.endswith((1013).to_bytes(2, "big"))


async def test_what_is_sent_after_the_end_is_not_parsed(opened: Opened) -> None:
    opened.socket.close(1000)  # type: ignore[arg-type] # as the library has it
    opened.socket.data_received(PING * 2_000)
    opened.socket.data_received(PING * 2_000)

    assert opened.wire.has_ended
    assert b"\x8a" not in opened.wire.written
    with pytest.raises(ClientDisconnect):
        await opened.socket.next()


async def test_the_clients_close_frame_closes(opened: Opened) -> None:
    opened.socket.close(1000)  # type: ignore[arg-type] # as the library has it
    opened.socket.data_received(b"\x88\x82" + MASK + (1000).to_bytes(2, "big"))

    assert opened.wire.is_closed
