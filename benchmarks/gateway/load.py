"""The load on a gateway, from a process of its own: as many requests at once as asked for, each by a bare client.

python -m benchmarks.gateway.load '{"kind": "plain", "url": …}' prints what it saw as one JSON object. Its clients only
count what they read: whoever measures a gateway needs one core for it, and a thrifty client on the other.
"""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import redis.asyncio
import uvloop

from benchmarks.gateway.instant import LEASE_MS
from fairlane.scheduler.links.connection import Link
from fairlane.scheduler.links.frames import Closed, Events, Open, Opened
from fairlane.scheduler.links.listener import LinkListener
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Finished, Job, Sampling
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry

END_OF_CHUNKS = b"\r\n0\r\n\r\n"
PROMPT = "Tell me in a few words what the capital of France is known for, and why people like to go there."
COMPLAINT_BYTES = 500
DIRECT = "direct"
"""The tenant of the engine's own clients."""

_COMPLETION_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')
LoadKind = Literal["plain", "stream", "direct"]
"""`direct` puts jobs straight into the engine's queue, past every gateway."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to do."""

    kind: LoadKind
    url: str
    """The gateway's; the store's for `direct`."""
    seconds: float
    clients: int = 1
    tokens: int
    """Of each answer."""
    key: str = ""
    headers: dict[str, str] = {}
    """Besides those of every request."""
    model: str
    queue: str = ""
    prompt: str = PROMPT


@dataclass
class Seen:
    """What came of it."""

    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    failed: int = 0
    """Answers that were no 200, or not whole."""
    complaint: str = ""
    """The first such answer, as far as it tells why."""
    latencies_ms: list[float] = field(default_factory=list)


class Client(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._read = bytearray()
        self._whole: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # what TCP gives
        """Ready to ask."""
        self._transport = transport

    async def ask(self, request: bytes) -> bytes:
        """The whole answer, headers too. Raises ConnectionError."""
        assert self._transport is not None  # noqa: S101 - asked once connected
        self._read.clear()
        self._whole = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._whole

    def data_received(self, data: bytes) -> None:
        """A part of it."""
        self._read += data
        if self._whole is not None and not self._whole.done() and self._is_whole():
            self._whole.set_result(bytes(self._read))

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody will answer."""
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(exc or ConnectionError("the gateway closed the connection"))

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def _is_whole(self) -> bool:
        if self._read.endswith(END_OF_CHUNKS):
            return True
        head, found, body = self._read.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        return bool(found and length) and len(body) >= int(length)


def request_bytes(order: Order) -> bytes:
    """One request as it goes over the wire."""
    streams = order.kind == "stream"
    body: dict[str, Any] = {
        "model": order.model,
        "messages": [{"role": "user", "content": order.prompt}],
        "max_tokens": order.tokens,
        "seed": 1 if streams else order.tokens,  # read by the instant engine alone
        "stream": streams,
    }
    content = json.dumps(body).encode()
    extra = "".join(f"{name}: {value}\r\n" for name, value in order.headers.items())
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {urlsplit(order.url).netloc}\r\n"
        f"authorization: Bearer {order.key}\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n"
        f"{extra}\r\n"
    )
    return head.encode() + content


def tokens_of(answer: bytes, order: Order) -> int:
    """Tokens of a whole answer; 0 where it is not what was asked for."""
    if not answer.startswith(b"HTTP/1.1 200"):
        return 0
    if order.kind == "stream":
        found = answer.count(b'"content":"') - answer.count(b'"content":""')
        return found if found == order.tokens and b"data: [DONE]" in answer else 0
    told = _COMPLETION_TOKENS.search(answer)
    return order.tokens if told is not None and int(told[1]) == order.tokens else 0


async def over_http(order: Order) -> Seen:
    """Through the gateway."""
    place, request, seen = urlsplit(order.url), request_bytes(order), Seen()
    loop = asyncio.get_running_loop()
    began = time.perf_counter()

    async def one() -> None:
        _, client = await loop.create_connection(Client, place.hostname or "", place.port or 80)
        while time.perf_counter() - began < order.seconds:
            asked = time.perf_counter()
            answer = await client.ask(request)
            tokens = tokens_of(answer, order)
            seen.latencies_ms.append((time.perf_counter() - asked) * 1e3)
            seen.requests += 1
            seen.tokens += tokens
            if not tokens:
                seen.failed += 1
                seen.complaint = seen.complaint or answer[-COMPLAINT_BYTES:].decode(errors="replace")
        client.close()

    await asyncio.gather(*(one() for _ in range(order.clients)))
    seen.seconds = time.perf_counter() - began
    return seen


class _Direct:
    """The other end of the engine's link: grants all, keeps nothing."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        for message in messages:
            if isinstance(message, Open):
                link.send([Opened(message.stream, 0, ((),))])  # its job grants all
            elif isinstance(message, Events) and isinstance(message.events[-1], Finished):
                link.send([Closed(message.stream)])
                self.ended.set()

    def lost(self, link: Link) -> None:
        """The engine redials."""


async def straight(order: Order) -> Seen:
    """One job after the other, put into the engine's queue: what an answer takes without any gateway."""
    client, seen, direct = redis.asyncio.from_url(order.url), Seen(), _Direct()
    gateway_id = f"{DIRECT}-{os.getpid()}"
    queue = RedisQueue(client, order.queue, dict(DEFAULT_LANES), lease_ms=LEASE_MS)
    listener = LinkListener(gateway_id, RedisRegistry(client).link_secret, direct)
    address = f"tcp://127.0.0.1:{await listener.listen('127.0.0.1', 0)}"
    await queue.gateway_alive(gateway_id)
    began = time.perf_counter()
    while time.perf_counter() - began < order.seconds:
        asked = time.perf_counter()
        direct.ended.clear()
        await queue.put(_job(f"{began}-{seen.requests}", gateway_id, address, order.tokens))
        await direct.ended.wait()
        seen.latencies_ms.append((time.perf_counter() - asked) * 1e3)
        seen.requests += 1
        seen.tokens += order.tokens
        await queue.gateway_alive(gateway_id)
    seen.seconds = time.perf_counter() - began
    await listener.aclose()
    await client.aclose()
    return seen


def _job(job_id: str, gateway_id: str, address: str, tokens: int) -> Job:
    return Job(
        job_id=job_id,
        gateway_id=gateway_id,
        gateway_address=address,
        tenant=DIRECT,
        lane=LaneName.LATENCY,
        prompt=tuple(range(len(PROMPT))),
        max_tokens=tokens,
        granted_until=tokens,
        sampling=Sampling(seed=tokens),
        ttft_ms=1e3,
        tpot_ms=1e3,
    )


async def main(order: Order) -> Seen:
    """Do what the order says."""
    return await (straight(order) if order.kind == "direct" else over_http(order))


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Order))))))
