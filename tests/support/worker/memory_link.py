"""A link in memory between an outlet and a gateway's end. What is written travels when the test or the clock says, and
is lost with the link."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec

from fairlane.scheduler.links.connection import Link
from fairlane.scheduler.links.dialer import GatewayPeer
from fairlane.scheduler.links.frames import Codec, ToGateway, ToWorker
from tests.support.worker.gateway_end import GatewayEnd


class _FarEnd:
    """The gateway's end of one connection, as its streams see it."""

    def __init__(self, worker_id: str, link: "MemoryLink", queue: str) -> None:
        self.peer_name, self.queue, self._link = worker_id, queue, link

    def send(self, messages: Sequence[msgspec.Struct]) -> None:
        self._link.answered(self, messages)


class MemoryLink:
    """The worker's end. While `is_up` is false, dials fail. Writes wait in `to_gateway` and `to_worker`."""

    def __init__(
        self, gateway: GatewayEnd, peer: GatewayPeer, worker_id: str = "worker", *, is_up: bool = True
    ) -> None:
        self._gateway, self._peer, self._worker_id = gateway, peer, worker_id
        self._far: _FarEnd | None = None
        self._changed = asyncio.Event()
        self.is_up = is_up
        self.to_gateway: deque[bytes] = deque()
        self.to_worker: deque[bytes] = deque()
        self.on_write: Callable[[bool], None] = lambda _: None
        """Called after each write; true: to the worker."""

    @property
    def is_open(self) -> bool:
        return self._far is not None

    def send(self, messages: Sequence[msgspec.Struct]) -> None:
        if self._far is not None:
            self._write(self.to_gateway, messages)

    def answered(self, far: _FarEnd, messages: Sequence[msgspec.Struct]) -> None:
        if far is self._far:
            self._write(self.to_worker, messages)

    async def run(self) -> None:
        try:
            while True:
                self._changed.clear()
                if self.is_up and self._far is None:
                    self._far = _FarEnd(self._worker_id, self, self._gateway.queue_name)
                    self._peer.linked()
                await self._changed.wait()
        finally:
            self._close()

    def cut(self) -> None:
        """Lose the connection, and everything that is on its way."""
        if self._close():
            self._peer.unlinked()
        self._changed.set()

    def switch(self, *, is_up: bool) -> None:
        """Let dials succeed, or lose the link and let them fail."""
        self.is_up = is_up
        if not is_up:
            self.cut()
        self._changed.set()

    def deliver_to_gateway(self) -> None:
        """Deliver the oldest write."""
        if self.to_gateway and self._far is not None:
            far = cast(Link, self._far)
            for messages in _frames(self.to_gateway.popleft(), ToGateway):
                self._gateway.received(far, messages)

    def deliver_to_worker(self) -> None:
        """Deliver the oldest write."""
        if self.to_worker:
            for messages in _frames(self.to_worker.popleft(), ToWorker):
                self._peer.received(messages)

    def deliver(self) -> None:
        """Deliver everything, answers included."""
        while self.to_gateway or self.to_worker:
            self.deliver_to_gateway()
            self.deliver_to_worker()

    def _write(self, way: deque[bytes], messages: Sequence[msgspec.Struct]) -> None:
        if messages:  # else a ping
            way.append(Codec(Any).encode(messages))
            self.on_write(way is self.to_worker)

    def _close(self) -> bool:
        self.to_gateway.clear()
        self.to_worker.clear()
        far, self._far = self._far, None
        if far is not None:
            self._gateway.lost(cast(Link, far))
        return far is not None


def _frames(data: bytes, kind: object) -> Iterator[list[Any]]:
    codec = Codec(kind)
    codec.feed(data)
    while (messages := codec.next()) is not None:
        yield messages
