"""A network that can be made to fail, between a client and its store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class StoreProxy:
    """Listens on loopback and passes on to the store's unix socket what its state lets through."""

    def __init__(self, socket: Path) -> None:
        """`socket`: the store's."""
        self.socket = socket
        self.is_stuck = False
        """Takes what it is given and passes nothing on: a store of endless patience."""
        self.forbidden: tuple[bytes, ...] = ()
        """A call that has one of these words in it is answered with an error."""
        self.refusal = b"-ERR unknown command\r\n"
        self.loses = b""
        """The next call with this word in it is passed on, and its reply is lost."""
        self.cuts = True
        """Its connection is lost with it; otherwise the connection stays silent."""
        self._deaf: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._port = 0
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Where to reach the store through it."""
        return f"redis://127.0.0.1:{self._port}"

    @property
    def connected(self) -> int:
        """Clients that hold a connection."""
        return len(self._open)

    async def start(self) -> None:
        """Listen, on the port of the last time."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections, and cut those there are."""
        assert self._server is not None
        self._server.close()
        await self.cut()
        await self._server.wait_closed()

    async def cut(self) -> None:
        """End the connections that are open now."""
        ended = set(self._open)  # a client may be back before the last of them is gone
        for writer in ended:
            writer.transport.abort()
        while ended & self._open:  # noqa: ASYNC110 - a few turns of the loop
            await asyncio.sleep(0.001)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._server is not None
        if not self._server.is_serving():  # accepted in the moment of `stop`
            writer.transport.abort()
            return
        self._open.add(writer)
        to_store: asyncio.StreamWriter | None = None
        try:
            from_store, to_store = await asyncio.open_unix_connection(str(self.socket))
            async with asyncio.TaskGroup() as both:
                back = both.create_task(self._pass(from_store, writer))
                await self._pass(reader, to_store, answers=writer)
                back.cancel()
        except* OSError:
            pass
        finally:
            self._open.discard(writer)
            self._deaf.discard(writer)
            for each in (writer, to_store):
                if each is not None:
                    each.transport.abort()

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: asyncio.StreamWriter | None = None
    ) -> None:
        """Until the source ends. `answers`: where to say that a call is forbidden."""
        while data := await source.read(2**16):
            if self.is_stuck:
                continue
            if target in self._deaf:
                if self.cuts:
                    target.transport.abort()
                continue
            if answers is not None and self.loses and self.loses in data:
                self.loses = b""
                self._deaf.add(answers)
            if answers is not None and any(word in data for word in self.forbidden):
                answers.write(self.refusal)
            else:
                target.write(data)
                await target.drain()


@asynccontextmanager
async def proxied(socket: Path) -> AsyncIterator[StoreProxy]:
    """A proxy for one test."""
    proxy = StoreProxy(socket)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
