"""A socket that several processes listen on: a burst of connections is everybody's."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from fairlane.gateway.http import ports as accept
from fairlane.gateway.http.ports import Acceptor

pytestmark = pytest.mark.anyio
LIMIT_S = 10.0


class Greeter(asyncio.Protocol):
    """Says one byte and hangs up."""

    def __init__(self, said: bytes) -> None:
        self._chunk = said

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is there."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._chunk)
        transport.close()


@pytest.fixture
async def listener() -> AsyncIterator[socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as opened:
        yield opened


async def greeting(listener: socket.socket) -> bytes:
    """What a client that connects is told."""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        said = await reader.read()
        writer.close()
        return said


async def test_a_burst_is_taken_by_all(listener: socket.socket) -> None:
    with (
        listener.dup() as same,
        closing(Acceptor(listener, lambda: Greeter(b"a"))),
        closing(Acceptor(same, lambda: Greeter(b"b"))),
    ):
        said = await asyncio.gather(*(greeting(listener) for _ in range(40)))

    assert min(said.count(b"a"), said.count(b"b")) >= 10


async def test_whoever_waits_while_no_file_can_be_opened_is_taken_later(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "LONG_REST_S", 0.01)
    full = Full(listener.fileno(), times=2)

    with closing(Acceptor(full, lambda: Greeter(b"a"))):
        assert await greeting(listener) == b"a"

    full.detach()
    assert full.times == 0


class Full(socket.socket):
    """Cannot take the first few connections."""

    def __init__(self, number: int, *, times: int) -> None:
        super().__init__(fileno=number)
        self.times = times

    def accept(self) -> tuple[socket.socket, object]:
        """As the system does for a process with too many files."""
        if self.times:
            self.times -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()
