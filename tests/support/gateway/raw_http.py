"""A server with the gateway's protocol and a small application in it, spoken to in bytes."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from fairlane.gateway import errors
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.body import read_body
from fairlane.gateway.http.body_budget import BodyBudget
from fairlane.gateway.http.connections import ConnectionLimiter, Heads
from fairlane.gateway.http.limits import HttpLimits
from fairlane.gateway.http.protocol import limited_protocol
from fairlane.gateway.http.refusals import Malformed
from fairlane.gateway.middleware.request_id import RequestIdMiddleware
from tests.support.quick_stop import QuickStop

SHORT_S = 0.15
PATIENT_S = 10.0
MAX_BODY = 100_000
SMALL = 4096
LIMITS = HttpLimits(max_header_bytes=1024, max_headers=8, header_timeout_s=PATIENT_S, linger_s=PATIENT_S)
IMPATIENT = replace(LIMITS, header_timeout_s=SHORT_S, first_byte_timeout_s=SHORT_S)
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\n"


@dataclass
class Echo:
    """An application that reads the body and says how long it was; `/stream` says two parts, the second on `go`,
    `/held` begins to answer on `go`, `/long/N` says N bytes, and `/headers` the names that it was sent."""

    body_timeout_s: float
    go: asyncio.Event
    lost: asyncio.Event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
            await self.go.wait()
            await send({"type": "http.response.body", "body": b"two"})
            return
        if scope["path"].startswith("/long/"):
            many = int(scope["path"].removeprefix("/long/"))
            headers = [(b"content-length", str(many).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"a" * many})
            return
        if scope["path"] == "/held":
            await self.go.wait()
        try:
            body = await read_body(receive, scope["headers"], max_bytes=MAX_BODY, timeout_s=self.body_timeout_s)
        except ApiError as error:
            await errors.response(error)(scope, receive, send)
        except ClientDisconnect:
            self.lost.set()
        else:
            said = str(len(body)).encode()
            if scope["path"] == "/headers":
                said = b" ".join(name for name, _ in scope["headers"])
            length = [(b"content-length", str(len(said)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": length})
            await send({"type": "http.response.body", "body": said})


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        async with asyncio.timeout(PATIENT_S):
            return await self.reader.read()

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(PATIENT_S):
            return await self.reader.readuntil(end)

    async def answer(self) -> tuple[int, bytes]:
        """The status and body of an answer that says its length."""
        head = await self.until(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        async with asyncio.timeout(PATIENT_S):
            return int(head.split()[1]), await self.reader.readexactly(length)

    async def refusal(self) -> tuple[int, dict[str, Any]]:
        """The status and error of an answer that is the last of its connection."""
        head, body = (await self.rest()).split(b"\r\n\r\n", 1)
        assert b"\r\nx-request-id: " in head.lower()
        assert b"\r\ncontent-type: application/json" in head.lower()
        return int(head.split()[1]), json.loads(body)["error"]


@dataclass
class Server:
    """A running server and the application in it."""

    address: tuple[str, int]
    app: Echo
    clients: list[Client]
    connections: Collection[object]
    """Those that are open."""

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection(*self.address))
        self.clients.append(client)
        return client

    async def ask(self, data: bytes) -> tuple[int, dict[str, Any]]:
        """The refusal that some bytes earn."""
        client = await self.client()
        client.send(data)
        return await client.refusal()


@asynccontextmanager
async def serving(
    limits: HttpLimits = LIMITS,
    *,
    body_timeout_s: float = PATIENT_S,
    idle_s: int = 60,
    limiter: ConnectionLimiter | None = None,
    malformed: Malformed | None = None,
    bodies: BodyBudget | None = None,
    heads: Heads | None = None,
) -> AsyncIterator[Server]:
    app = Echo(body_timeout_s, asyncio.Event(), asyncio.Event())
    config = uvicorn.Config(
        RequestIdMiddleware(app),
        http=limited_protocol(
            limits, bodies or BodyBudget(most_bytes=2**30, most_tenant_bytes=2**30), limiter, None, malformed, heads
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=idle_s,
        timeout_graceful_shutdown=1,
    )
    config.load()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)  # what is not taken soon stays with the server
    uvicorn_server = QuickStop(config)  # without its main loop, which only watches for signals
    uvicorn_server.lifespan = config.lifespan_class(config)
    await uvicorn_server.startup(sockets=[listener])
    server = Server(listener.getsockname(), app, [], uvicorn_server.server_state.connections)
    try:
        yield server
    finally:
        for client in server.clients:
            client.writer.transport.abort()
        await uvicorn_server.shutdown(sockets=[listener])
