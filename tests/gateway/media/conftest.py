"""A server of media on loopback, and names for it."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]
NAME = "images.example.com"


@pytest.fixture(params=[pytest.param(True, id="uvloop"), pytest.param(False, id="asyncio", marks=pytest.mark.thorough)])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", *(headers or (f"content-length: {len(body)}",))]
    return "\r\n".join([*lines, "", ""]).encode() + body


def moved(to: str, status: int = 302) -> bytes:
    return answer(b"", f"location: {to}", "content-length: 0", status=f"{status} Moved")


@dataclass
class MediaHost:
    """Answers each path with the bytes it is given."""

    port: int = 0
    answers: dict[str, Answer] = field(default_factory=dict)
    # Heads of requests, and of TLS the names that were asked for.
    requests: list[str] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    # Set once a client has closed its connection.
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            given = self.answers[head.split()[1]]
            if isinstance(given, bytes):
                writer.write(given)
                writer.write_eof() if writer.can_write_eof() else writer.close()
            else:
                await given(writer)
            await reader.read()
        except (OSError, asyncio.IncompleteReadError, RuntimeError):  # the last one: uvloop's, of a closed connection
            pass
        finally:
            self.left.set()
            writer.transport.abort()


@asynccontextmanager
async def media_host(tls: ssl.SSLContext | None = None) -> AsyncIterator[MediaHost]:
    """Serve on a free port of 127.0.0.1."""
    host = MediaHost()
    if tls is not None:
        tls.sni_callback = lambda _, name, __: host.names.append(name)
    server = await asyncio.start_server(host.serve, "127.0.0.1", ssl=tls)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()


@pytest.fixture
async def host() -> AsyncIterator[MediaHost]:
    async with media_host() as opened:
        yield opened


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of NAME and of 127.0.0.1, with its key, signed by itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    names = x509.SubjectAlternativeName([x509.DNSName(NAME), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(signed.public_bytes(pem) + private)
    return path
