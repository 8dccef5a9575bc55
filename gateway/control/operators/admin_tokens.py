"""Named tokens with a role. The store has only a salt and a keyed hash of a secret."""

import re
import secrets
import time
from collections.abc import Callable

import msgspec
from redis.asyncio import Redis

from fairlane.gateway.control.operators.admin_key import is_kept, kept
from fairlane.gateway.control.operators.operator import Operator, Role
from fairlane.gateway.errors import ApiError
from fairlane.quotas.field_checks import FieldError, text

TOKEN = re.compile(r"flo-([0-9a-f]{12})-[A-Za-z0-9_-]{43}")
MOST_TOKENS = 1_000
TOKENS = "fl:{operators}:tokens"
REVISION = "fl:{operators}:revision"
_ID_BYTES = 6


class AdminToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret. Times are Unix seconds."""

    id: str
    name: str
    role: Role
    kept: bytes
    created_at: float
    created_by: str
    expires_at: float | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[AdminToken] = msgspec.msgpack.Decoder(AdminToken)


class AdminTokens:
    """All tokens of an installation. Every call may raise redis.RedisError."""

    def __init__(self, client: Redis, *, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._clock = clock

    async def create(
        self, name: str, role: Role, maker: Operator, expires_at: float | None = None
    ) -> tuple[AdminToken, str]:
        """Return a new token and its secret, which is not stored."""
        if not text(name, "name").strip():
            raise FieldError("name", "must not be empty")
        if expires_at is not None and expires_at <= self._clock():
            raise FieldError("expires_at", "must lie in the future")
        if await self._client.execute_command("HLEN", TOKENS) >= MOST_TOKENS:  # type: ignore[no-untyped-call]
            raise ApiError(f"There are {MOST_TOKENS} tokens already: revoke some.", "request_exceeds_limit")
        token_id = secrets.token_hex(_ID_BYTES)
        secret = f"flo-{token_id}-{secrets.token_urlsafe(32)}"
        token = AdminToken(
            id=token_id,
            name=name,
            role=role,
            kept=kept(secret),
            created_at=self._clock(),
            created_by=maker.actor,
            expires_at=expires_at,
        )
        await self._client.execute_command("HSET", TOKENS, token_id, _encode(token))  # type: ignore[no-untyped-call]
        return token, secret

    async def list(self) -> list[AdminToken]:
        found = await self._client.execute_command("HGETALL", TOKENS)  # type: ignore[no-untyped-call]
        return sorted((_decode.decode(blob) for blob in found.values()), key=lambda token: token.id)

    async def get(self, token_id: str) -> AdminToken | None:
        token = await self._find(token_id)
        if token is None or (token.expires_at is not None and token.expires_at <= self._clock()):
            return None
        return token

    async def end(self, token_id: str) -> AdminToken | None:
        """End a token and return its previous state; None if it does not exist. Gateways reject it from the next call
        on.

        It remains listed until `forget`, so that a repeated call after a lost reply still finds it."""
        token = await self._find(token_id)
        if token is None:
            return None
        over = msgspec.structs.replace(token, expires_at=0.0)  # by every gateway's clock
        await self._client.execute_command("HSET", TOKENS, token_id, _encode(over))  # type: ignore[no-untyped-call]
        await self.ended()
        return token

    async def forget(self, token_id: str) -> None:
        await self._client.execute_command("HDEL", TOKENS, token_id)  # type: ignore[no-untyped-call]

    async def ended(self) -> None:
        """Record that an operator lost rights, so that live views authenticate again."""
        await self._client.execute_command("INCR", REVISION)  # type: ignore[no-untyped-call]

    async def revision(self) -> bytes:
        found: bytes | None = await self._client.execute_command("GET", REVISION)  # type: ignore[no-untyped-call]
        return found or b""

    async def shown(self, secret: str) -> AdminToken | None:
        match = TOKEN.fullmatch(secret)
        token = None if match is None else await self.get(match[1])
        return token if token is not None and is_kept(token.kept, secret) else None

    async def _find(self, token_id: str) -> AdminToken | None:
        blob = await self._client.execute_command("HGET", TOKENS, token_id)  # type: ignore[no-untyped-call]
        return None if blob is None else _decode.decode(blob)


def operator_of(token: AdminToken) -> Operator:
    """Return the operator that a token represents."""
    return Operator(name=token.name, role=token.role, kind="token", token=token.id)
