"""A proxy on one path of the fleet's network, which can be made to fail."""

import asyncio
from contextlib import suppress
from enum import IntEnum

CHUNK_BYTES = 2**16


class Way(IntEnum):
    """A direction, seen from the process that connects."""

    OUT = 0
    BACK = 1


class _Gate:
    """What one direction lets through."""

    def __init__(self) -> None:
        self.passes = asyncio.Event()
        self.passes.set()
        self.delay_s = 0.0
        # The next chunk is split, and the direction is held after its first half.
        self.splits_next = False


class _Pair:
    """One client's connection. `passes`: cleared when only the existing connections are held."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.target: asyncio.StreamWriter | None = None
        self.passes = asyncio.Event()
        self.passes.set()

    def abort(self) -> None:
        self.passes.set()
        for writer in (self.client, self.target):
            if writer is not None:
                writer.transport.abort()


class Proxy:
    """Forwards connections of a loopback port. Held bytes are not lost, as TCP would send them again: they arrive when
    the path heals, unless an end has given the connection up."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self.target_port = target_port
        self._gates = (_Gate(), _Gate())
        self._pairs: set[_Pair] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._refuses = False
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._serve(reader, writer))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

        self._server = await asyncio.start_server(accepted, "127.0.0.1", self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    # Faults.

    def hold(self, *ways: Way) -> None:
        """Hold the bytes of all connections, present and new; their senders block once the buffers are full."""
        for way in ways or tuple(Way):
            self._gates[way].passes.clear()

    def hold_existing(self) -> None:
        """Hold the present connections for ever. New ones pass."""
        for pair in self._pairs:
            pair.passes.clear()

    def split(self, way: Way) -> None:
        """Forward half of the next chunk, and hold the rest."""
        self._gates[way].splits_next = True

    def delay(self, seconds: float) -> None:
        for gate in self._gates:
            gate.delay_s = seconds

    def reset(self) -> None:
        """Reset all connections."""
        for pair in [*self._pairs]:
            pair.abort()

    def refuse(self) -> None:
        """Reset all connections, and each new one."""
        self._refuses = True
        self.reset()

    def heal(self) -> None:
        self._refuses = False
        for gate in self._gates:
            gate.splits_next, gate.delay_s = False, 0.0
            gate.passes.set()

    # Connections.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = _Pair(writer)
        self._pairs.add(pair)
        try:
            if self._refuses:
                return
            back, pair.target = await asyncio.open_connection("127.0.0.1", self.target_port)
            pumps = [
                asyncio.ensure_future(self._pump(reader, pair.target, pair, self._gates[Way.OUT])),
                asyncio.ensure_future(self._pump(back, writer, pair, self._gates[Way.BACK])),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        finally:
            self._pairs.discard(pair)
            pair.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: _Pair, gate: _Gate) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await gate.passes.wait()
                await pair.passes.wait()
                if gate.splits_next:
                    gate.splits_next = False
                    gate.passes.clear()
                    half = (len(data) + 1) // 2
                    writer.write(data[:half])
                    data = data[half:]
                    await gate.passes.wait()
                if gate.delay_s:
                    await asyncio.sleep(gate.delay_s)
                writer.write(data)
                await writer.drain()
        await gate.passes.wait()  # an end of the connection is held as its bytes are
        await pair.passes.wait()
