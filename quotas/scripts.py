"""Redis for this package: functions and scripts by name, one error type. The only module here that imports redis.

A script has one key: the prefix of a root's keys (keyspace.of_root), unless its header says otherwise. Its first lines
name its arguments, and its header says what it returns."""

import itertools
import secrets
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from fairlane.quotas.windows import MINUTE, Slicing
from fairlane.store.functions import Library
from fairlane.store.scripts import CALL_ERRORS, Script, call, read_scripts, unavailable

__all__ = ["Database", "Redis", "Reply", "ResponseError"]

# The reply of a script or command; the script's header documents it.
Reply: TypeAlias = Any
LUA = read_scripts(Path(__file__).parent / "lua")
# The parts that precede some scripts, after clock.lua, which precedes all.
_PRELUDES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("tenant_put", "tenant_delete", "key_put", "key_change", "key_end", "prices_put"): ("once", "accounts", "admin"),
    ("key_bar", "keys_drop"): ("accounts",),
    ("idem_begin", "idem_renew", "idem_finish", "idem_release"): ("idempotency",),
    ("response_keep", "responses_drop"): ("responses",),
    ("response_drop",): ("once", "responses"),
    ("expired", "usage", "usage_roll"): ("records",),
}
# The parts that precede the functions. The store builds their functions and tables once; for scripts, at each call.
LIBRARY = ("clock", "calendar", "records", "window", "levels", "writes", "endings", "sizing", "escrow")
FUNCTIONS = {
    "reserve": "",
    "extend": "",
    "settle": "",
    "book": "",
    "statuses": "'no-writes'",
    "transfer": "",
    "escrow_reap": "",
}
_NO_SCRIPTS = {*LIBRARY, *FUNCTIONS, *(part for parts in _PRELUDES.values() for part in parts)}
# Each script: the parts that precede it, and its own.
PARTS = {name: ("clock", name) for name in LUA if name not in _NO_SCRIPTS} | {
    name: ("clock", *parts, name) for names, parts in _PRELUDES.items() for name in names
}


class Database:
    """One Redis, Valkey, Sentinel or Cluster client. Its errors become StoreUnavailable."""

    def __init__(self, client: Redis, *, clock: str | None = None, slicing: Slicing = MINUTE) -> None:
        """`clock` replaces clock.lua, and `slicing` the length of a minute, in simulations and tests only."""
        self._client = client
        self._scripts = {name: _join(parts, clock, slicing) for name, parts in PARTS.items()}
        self._library = library(clock, slicing)
        self._nonce = secrets.token_hex(6)
        self._calls = itertools.count()

    async def run(self, script: str, key: str, *args: str | int | bytes) -> Reply:
        """Run a script on the slot of `key`. Text is returned as str."""
        try:
            return _as_text(await self._scripts[script].run(self._client, key, *args))
        except CALL_ERRORS as error:
            raise unavailable(script, error) from error

    async def call_function(self, function: str, key: str, *args: str | int | bytes) -> Reply:
        """Call a library function on the slot of `key`. Text is returned as bytes."""
        try:
            return await self._library.call(self._client, function, key, *args)
        except CALL_ERRORS as error:
            raise unavailable(function, error) from error

    async def call(self, name: str, *args: str | int) -> Reply:
        return _as_text(await call(self._client, name, *args))

    async def read_bytes(self, key: str, field: str) -> bytes | None:
        found: bytes | None = await call(self._client, "HGET", key, field)
        return found

    async def secret(self, key: str) -> str:
        """Return 32 random bytes in hex, drawn at the first call for this key."""
        found: str | None = await self.call("GET", key)
        if found is None:
            await self.call("SET", key, secrets.token_hex(32), "NX")
            found = await self.call("GET", key)
        return str(found)

    def new_call(self) -> str:
        return f"{self._nonce}{next(self._calls):x}"

    async def now_ms(self) -> int:
        seconds, microseconds = await self.call("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000


@lru_cache(maxsize=64)
def _join(parts: tuple[str, ...], clock: str | None, slicing: Slicing) -> Script:
    lengths = f"{slicing.slice_ms}, {slicing.slices}, {slicing.length_ms}"
    texts = [f"local SLICE_MS, SLICES, MINUTE_MS = {lengths}"]
    texts += [clock if part == "clock" and clock else LUA[part] for part in parts]
    return Script("\n".join(texts))


def library(clock: str | None = None, slicing: Slicing = MINUTE) -> Library:
    """Return the functions with these settings, as for `Database`."""
    shared = _join(LIBRARY, clock, slicing).source
    return Library("fairlane_quotas", shared, {name: LUA[name] for name in FUNCTIONS}, FUNCTIONS)


def _as_text(reply: Reply) -> Reply:
    if isinstance(reply, bytes):
        return reply.decode()
    if isinstance(reply, (list, tuple)):
        return [
            item if type(item) is int else item.decode() if type(item) is bytes else _as_text(item) for item in reply
        ]
    if isinstance(reply, dict):
        return {_as_text(name): _as_text(value) for name, value in reply.items()}
    return reply
