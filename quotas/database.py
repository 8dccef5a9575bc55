"""Redis as this package sees it, and the only file that imports it: scripts by name, replies as text, one error."""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import redis.exceptions
from redis.asyncio import Redis

from quotas.store import StoreUnavailable
from quotas.windows import MINUTE, Slicing

__all__ = ["Database", "Redis", "Reply"]

Reply: TypeAlias = Any
"""What a script or command returns; the script's header says what."""
LUA = Path(__file__).parent / "lua"
WINDOWS = "clock", "minute", "calendar"
PARTS: dict[str, tuple[str, ...]] = {
    "reserve": (*WINDOWS, "minute_add", "rules", "scopes", "levels", "status", "pauses", "room", "sizing", "reserve"),
    "extend": (*WINDOWS, "minute_add", "rules", "levels", "pauses", "room", "more", "charging", "extend"),
    "settle": (*WINDOWS, "minute_add", "rules", "levels", "status", "charging", "settle"),
    "book": (*WINDOWS, "minute_add", "rules", "scopes", "levels", "book"),
    "renew": ("clock", "renew"),
    "expired": ("clock", "expired"),
    "watch": ("clock", "watch"),
    "statuses": (*WINDOWS, "rules", "scopes", "levels", "status", "statuses"),
    "tenant_put": ("tenant_put",),
    "tenant_delete": ("tenant_delete",),
    "key_put": ("key_put",),
    "key_end": ("key_end",),
    "key_change": ("key_change",),
    "identity": ("clock", "identity"),
    "usage": ("usage",),
    "idem_begin": ("clock", "idem", "idem_begin"),
    "idem_renew": ("clock", "idem", "idem_renew"),
    "idem_finish": ("idem", "idem_finish"),
    "idem_release": ("idem", "idem_release"),
    "usage_roll": ("usage_roll",),
}
"""Each script: the parts that stand before it, and its own."""

_SEQUENCES = (list, tuple)


class Database:
    """One Redis, Valkey, Sentinel or Cluster client. Every trouble with it is StoreUnavailable."""

    def __init__(self, client: Redis, *, clock: str | None = None, slicing: Slicing = MINUTE) -> None:
        """`clock` and `slicing` are for simulations and tests: they replace clock.lua, and what a minute is; served
        budgets know the store's clock alone."""
        self._client = client
        self._scripts = {name: _join(parts, clock, slicing) for name, parts in PARTS.items()}

    async def run(self, script: str, key: str, *args: str | int | bytes) -> Reply:
        """Run a script on the slot of `key`. Text comes back as str."""
        source, digest = self._scripts[script]
        try:
            try:
                return _as_text(await self._client.evalsha(digest, 1, key, *args))
            except redis.exceptions.NoScriptError:
                return _as_text(await self._client.eval(source, 1, key, *args))
        except (redis.exceptions.RedisError, OSError) as error:
            raise StoreUnavailable(f"{script}: {type(error).__name__}: {error}") from error

    async def call(self, *command: str | int) -> Reply:
        """Run one plain command. Text comes back as str."""
        try:
            return _as_text(await self._client.execute_command(*command))  # type: ignore[no-untyped-call]
        except (redis.exceptions.RedisError, OSError) as error:
            raise StoreUnavailable(f"{command[0]}: {type(error).__name__}: {error}") from error

    async def read_bytes(self, key: str, field: str) -> bytes | None:
        """A field of a hash that is no text."""
        try:
            found: bytes | None = await self._client.execute_command("HGET", key, field)  # type: ignore[no-untyped-call]
        except (redis.exceptions.RedisError, OSError) as error:
            raise StoreUnavailable(f"HGET: {type(error).__name__}: {error}") from error
        return found

    async def now_ms(self) -> int:
        """The store's clock."""
        seconds, microseconds = await self.call("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000


@lru_cache(maxsize=64)
def _join(parts: tuple[str, ...], clock: str | None, slicing: Slicing) -> tuple[str, str]:
    lengths = f"{slicing.slice_ms}, {slicing.slices}, {slicing.length_ms}"
    texts = [f"local SLICE_MS, SLICES, MINUTE_MS = {lengths}"]
    texts += [clock if part == "clock" and clock else (LUA / f"{part}.lua").read_text() for part in parts]
    source = "\n".join(texts)
    return source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


def _as_text(reply: Reply) -> Reply:
    if isinstance(reply, bytes):
        return reply.decode()
    if isinstance(reply, _SEQUENCES):
        return [
            item if type(item) is int else item.decode() if type(item) is bytes else _as_text(item) for item in reply
        ]
    if isinstance(reply, dict):
        return {_as_text(name): _as_text(value) for name, value in reply.items()}
    return reply
