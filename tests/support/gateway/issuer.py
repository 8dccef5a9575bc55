"""An identity provider for one test: real keys, real signatures, and its JWKS on a port of its own."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from fairlane.gateway.identity.settings import IssuerSection

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
ISSUER = "https://login.example.com/"
AUDIENCE = "fairlane"
RSA_KEY = rsa.generate_private_key(65537, 2048)
"""Made once: it takes a while."""


def jwk(key: PrivateKey, kid: str, **more: object) -> dict[str, Any]:
    """The public half, as a JWKS has it."""
    match key:
        case rsa.RSAPrivateKey():
            shown = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        case ec.EllipticCurvePrivateKey():
            shown = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        case _:
            shown = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**shown, "kid": kid, "use": "sig", **more}


def encoded(part: object) -> str:
    """As a token has it: JSON of it, or bytes as they are."""
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def claims(**changed: object) -> dict[str, Any]:
    """Of a token that is taken, with these in place of its own; None leaves one out."""
    now = int(time.time())
    own = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "org": "acme-org", "iat": now, "nbf": now, "exp": now + 600}
    return {name: value for name, value in {**own, **changed}.items() if value is not None}


def token(key: PrivateKey = RSA_KEY, kid: str | None = "one", algorithm: str = "RS256", **changed: object) -> str:
    """Signed; `header` among the changes adds to the header, the others are claims."""
    header = changed.pop("header", {})
    assert isinstance(header, dict)
    signed = json.dumps(claims(**changed)).encode()
    return jwt.PyJWS().encode(signed, key, algorithm, headers={"kid": kid, **header} if kid else header)


@dataclass
class Issuer:
    """What it publishes, and how often it was asked."""

    url: str
    keys: list[dict[str, Any]] = field(default_factory=lambda: [jwk(RSA_KEY, "one")])
    status: int = 200
    body: bytes | None = None
    """In place of the keys."""
    headers: list[str] = field(default_factory=list)
    """More of them."""
    asked: int = 0
    silent: bool = False
    """It takes connections, and never answers."""

    def section(self, **changed: object) -> IssuerSection:
        """As the settings state it."""
        own = {
            "name": "login",
            "issuer": ISSUER,
            "jwks_url": self.url,
            "audience": [AUDIENCE],
            "algorithms": ["RS256", "ES256", "EdDSA"],
            "tenant_claim": "org",
            "tenants": {"acme-org": "acme"},
        }
        return msgspec.convert({**own, **changed}, IssuerSection)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            if self.silent:
                await reader.read()
                return
            body = json.dumps({"keys": self.keys}).encode() if self.body is None else self.body
            lines = [f"HTTP/1.1 {self.status} x", "connection: close", f"location: {self.url}", *self.headers]
            head = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""])
            writer.write(head.encode() + body)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def issuing() -> AsyncIterator[Issuer]:
    """One that listens."""
    issuer = Issuer("")
    server = await asyncio.start_server(issuer.answer, "127.0.0.1", 0)
    issuer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
    try:
        yield issuer
    finally:
        server.close()
