"""One connection between a worker and a gateway: frames in and out, and pings.

A peer that is silent for SILENT_S is gone, whatever the network says: service meshes keep connections of dead processes
open. A worker never sends more than its gateway has granted, and a gateway only answers: only a peer that does not read
reaches MOST_UNSENT_BYTES."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol, cast

import msgspec

from fairlane.scheduler.links.frames import MAX_FRAME_BYTES, MAX_HANDSHAKE_BYTES, Codec, FrameError

log = logging.getLogger(__name__)

PING_S = 0.5
# A worker that redials after this silence sends the next token within 2 s of the loss.
SILENT_S = 1.5
HANDSHAKE_S = 3.0
# Bytes written to a peer that has not read them; then its link is closed. After a redial, a worker sends the whole
# output of its running jobs.
MOST_UNSENT_BYTES = 128 * 2**20


class Peer(Protocol):
    """What a link's owner does with it. The calls come from the event loop and must not raise."""

    def received(self, link: "Link", messages: Sequence[Any]) -> None: ...

    def lost(self, link: "Link") -> None:
        """Called once, after the last message, for a link that was open."""


class Link(asyncio.Protocol):
    """One end of a connection. `peer_name` is the worker's or the gateway's id, once it has proved it; `queue` is a
    worker's."""

    def __init__(self, owner: Peer, handshake: object) -> None:
        """`handshake` is the type of the messages before `open`, which `shake` returns."""
        self.peer_name = self.queue = ""
        self.is_open = self.has_heard = False
        self._owner = owner
        self._codec = Codec(handshake, MAX_HANDSHAKE_BYTES)
        # Messages of the handshake, and None once the connection is lost.
        self._said: asyncio.Queue[Any] = asyncio.Queue()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._ticking: asyncio.TimerHandle | None = None
        self._heard_s = self._loop.time()
        self._has_sent = False
        self._ended = self._loop.create_future()

    # Handshake.

    async def shake(self) -> Any:  # noqa: ANN401 - the type given at the start
        """Return the peer's next message of the handshake. Raises FrameError if the peer left."""
        said = await self._said.get()
        if said is None:
            raise FrameError("the peer left during the handshake")
        return said

    def open(self, peer_name: str, incoming: object, queue: str = "") -> None:
        """End the handshake: frames of this type go to the owner from now on. Call it before anything else is sent.

        Raises FrameError if the connection is lost already, because its owner would not be informed."""
        if self._ended.done():
            raise FrameError("the peer left during the handshake")
        self.peer_name, self.queue, self.is_open = peer_name, queue, True
        self._codec.expect(incoming, MAX_FRAME_BYTES)
        self._loop.call_soon(self.data_received, b"")  # frames that came with the handshake's last
        self._tick()

    # Messages.

    def send(self, messages: Sequence[msgspec.Struct]) -> None:
        """Send messages in one write. Messages on a closed link are dropped, as a lost connection drops them."""
        if self._transport is None or self._transport.is_closing():
            return
        self._has_sent = True
        self._transport.write(self._codec.encode(messages))
        if self._transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            log.warning("link closed: %s does not read", self.peer_name or "a peer")
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def closed(self) -> None:
        await asyncio.shield(self._ended)

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._heard_s, self.has_heard = self._loop.time(), True
        self._codec.feed(data)
        try:
            while (messages := self._codec.next()) is not None:
                if self.is_open:
                    if messages:
                        self._owner.received(self, messages)
                else:
                    self._take_handshake(messages)
                    return  # what follows is read by the type that `open` sets
        except FrameError as error:
            log.warning("link closed: peer=%s error=%s", self.peer_name or "not authenticated", error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        if not self._ended.done():
            self._ended.set_result(None)
            self._said.put_nowait(None)
        if self.is_open:
            self._owner.lost(self)

    def _take_handshake(self, messages: Sequence[Any]) -> None:
        if len(messages) != 1:
            raise FrameError("unexpected handshake")
        self._said.put_nowait(messages[0])

    def _tick(self) -> None:
        left_s = self._heard_s + SILENT_S - self._loop.time()
        if left_s <= 0:
            log.warning("link lost: %s was silent for %.1f s", self.peer_name, SILENT_S)
            self.close()
            return
        if not self._has_sent:
            self.send(())
        self._has_sent = False
        self._ticking = self._loop.call_later(min(PING_S, left_s), self._tick)
