"""An identity provider that signs operators in: real keys and codes, on a port of its own."""

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from fairlane.gateway.control.operators.settings import SignInSection
from tests.support.gateway.issuer import RSA_KEY, jwk, token

CLIENT, SECRET = "the-console", "a-client-secret"


@dataclass
class Provider:
    """What it would say of its user, and what it was asked."""

    url: str = ""
    redirect_url: str = ""
    user: dict[str, Any] = field(default_factory=lambda: {"email": "ada@example.com", "groups": ["sre"]})
    """Claims; they win over those that it would make."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    """Codes that were not used yet, by what each was asked with."""
    exchanges: int = 0
    status: int = 200
    body: bytes | None = None
    """In place of a token."""

    def section(self, **changed: object) -> SignInSection:
        """As the settings state it."""
        own = {
            "issuer": self.url,
            "client_id": CLIENT,
            "client_secret": SECRET,
            "authorize_url": f"{self.url}/authorize",
            "token_url": f"{self.url}/token",
            "jwks_url": f"{self.url}/keys",
            "redirect_url": self.redirect_url,
            "roles": {"sre": "operator", "leads": "owner", "everyone": "viewer"},
        }
        return msgspec.convert({**own, **changed}, SignInSection)

    def consent(self, url: str) -> dict[str, str]:
        """What the user's browser brings back, once the user has agreed to what this URL asks."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_hex(8)
        self.codes[code] = asked
        return {"code": code, "state": asked["state"]}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path, body = head.split(" ")[1], b""
        for line in head.splitlines():
            if line.lower().startswith("content-length:"):
                body = await reader.readexactly(int(line.split(":")[1]))
        status, told = (200, json.dumps({"keys": [jwk(RSA_KEY, "one")]}).encode())
        if path == "/token":
            status, told = self._exchanged(head, body.decode())
        writer.write(f"HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {len(told)}\r\n\r\n".encode() + told)
        await writer.drain()
        writer.close()

    def _exchanged(self, head: str, body: str) -> tuple[int, bytes]:
        self.exchanges += 1
        if self.status != 200 or self.body is not None:
            return self.status, self.body or b"{}"
        form = {name: values[0] for name, values in parse_qs(body).items()}
        asked = self.codes.pop(form["code"], None)
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        is_right = asked is not None and digest == asked["code_challenge"] and f"Basic {basic}" in head
        if asked is None or not is_right or form["redirect_uri"] != asked["redirect_uri"]:
            return 400, b'{"error": "invalid_grant"}'
        own = {"iss": self.url, "aud": CLIENT, "nonce": asked["nonce"], "org": None, **self.user}
        return 200, json.dumps({"id_token": token(**own), "token_type": "Bearer"}).encode()


@asynccontextmanager
async def providing() -> AsyncIterator[Provider]:
    """One that listens."""
    provider = Provider()
    server = await asyncio.start_server(provider.answer, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield provider
    finally:
        server.close()
