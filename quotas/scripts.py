"""Redis for this package: functions and scripts by name, one error type. The only module here that imports redis."""

import hashlib
import itertools
import secrets
from collections.abc import Awaitable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import redis.exceptions
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from fairlane.quotas.windows import MINUTE, Slicing
from fairlane.store.errors import StoreUnavailable, lacks_function
from fairlane.store.scripts import Script, read_scripts

__all__ = ["Database", "Redis", "Reply", "ResponseError"]

# The reply of a script or command; the script's header documents it.
Reply: TypeAlias = Any
LUA = read_scripts(Path(__file__).parent / "lua")
# Each script: the parts that precede it, and its own.
PARTS: dict[str, tuple[str, ...]] = {
    "renew": ("clock", "renew"),
    "expired": ("clock", "records", "expired"),
    "watch": ("clock", "watch"),
    "unlist": ("unlist",),
    "tenant_claim": ("tenant_claim",),
    "tenant_bar": ("tenant_bar",),
    "tenant_read": ("tenant_read",),
    "tenant_accounts": ("tenant_accounts",),
    "tenant_forget": ("tenant_forget",),
    "tenant_unclaim": ("tenant_unclaim",),
    "audit_redact": ("clock", "audit_redact"),
    "tenant_put": ("clock", "once", "admin", "accounts", "cards", "tenant_put"),
    "tenant_delete": ("clock", "once", "admin", "accounts", "cards", "tenant_delete"),
    "key_put": ("clock", "once", "admin", "accounts", "key_put"),
    "key_end": ("clock", "once", "admin", "accounts", "key_end"),
    "key_change": ("clock", "once", "admin", "accounts", "key_change"),
    "keys_read": ("keys_read",),
    "import_claim": ("import_claim",),
    "key_bar": ("accounts", "key_bar"),
    "delete_if": ("delete_if",),
    "keys_drop": ("cards", "keys_drop"),
    "prices_put": ("clock", "once", "admin", "prices_put"),
    "audit_write": ("clock", "audit_write"),
    "identity": ("clock", "identity"),
    "usage": ("records", "usage"),
    "idem_begin": ("clock", "idempotency", "idem_begin"),
    "idem_renew": ("clock", "idempotency", "idem_renew"),
    "idem_finish": ("idempotency", "idem_finish"),
    "idem_release": ("idempotency", "idem_release"),
    "idem_over": ("idem_over",),
    "response_keep": ("clock", "responses", "response_keep"),
    "response_drop": ("once", "responses", "response_drop"),
    "responses_drop": ("responses", "responses_drop"),
    "usage_roll": ("records", "usage_roll"),
    "ledger_unexported": ("ledger_unexported",),
    "ledger_exported": ("ledger_exported",),
    "ledger_trim": ("ledger_trim",),
    "export_write": ("export_write",),
}
# The parts that precede the functions. The store builds their functions and tables once; for scripts, at each call.
LIBRARY = ("clock", "calendar", "records", "window", "levels", "writes", "sizing")
FUNCTIONS = {"reserve": "", "extend": "", "settle": "", "book": "", "statuses": "no-writes"}

_SEQUENCES = (list, tuple)


class Database:
    """One Redis, Valkey, Sentinel or Cluster client. Its errors become StoreUnavailable."""

    def __init__(self, client: Redis, *, clock: str | None = None, slicing: Slicing = MINUTE) -> None:
        """`clock` replaces clock.lua, and `slicing` the length of a minute, in simulations and tests only."""
        self._client = client
        self._scripts = {name: _join(parts, clock, slicing) for name, parts in PARTS.items()}
        self._library, self._version = _library(clock, slicing)
        self._scripts |= {name: _join((*LIBRARY, name), clock, slicing) for name in FUNCTIONS}
        self._nonce = secrets.token_hex(6)
        self._calls = itertools.count()
        # False once the store has forbidden functions; they run as scripts then.
        self._may_load = True

    async def run(self, script: str, key: str, *args: str | int | bytes) -> Reply:
        """Run a script on the slot of `key`. Text is returned as str."""
        try:
            return _as_text(await self._scripts[script].run(self._client, key, *args))
        except (redis.exceptions.RedisError, OSError) as error:
            raise StoreUnavailable(f"{script}: {type(error).__name__}: {error}") from error

    async def call_function(self, function: str, key: str, *args: str | int | bytes) -> Reply:
        """Call a library function on the slot of `key`. Text is returned as bytes."""
        try:
            if self._may_load:
                command = ("FCALL", f"{function}_{self._version}", 1, key, *args)
                try:
                    return await self._execute(*command)
                except redis.exceptions.ResponseError as error:
                    if not (lacks_function(error) or _is_forbidden(error)):
                        raise
                    self._may_load = not _is_forbidden(error)
                if self._may_load and await self._load():
                    return await self._execute(*command)
            return await self._scripts[function].run(self._client, key, *args)
        except (redis.exceptions.RedisError, OSError) as error:
            raise StoreUnavailable(f"{function}: {type(error).__name__}: {error}") from error

    async def _load(self) -> bool:
        try:
            await self._execute("FUNCTION LOAD", "REPLACE", self._library)
        except redis.exceptions.ResponseError as error:
            if not _is_forbidden(error):
                raise
            self._may_load = False
        return self._may_load

    def _execute(self, *command: str | int | bytes) -> Awaitable[Reply]:
        reply: Awaitable[Reply] = self._client.execute_command(*command, NEVER_DECODE=True)  # type: ignore[no-untyped-call]
        return reply

    async def call(self, *command: str | int) -> Reply:
        try:
            return _as_text(await self._client.execute_command(*command))  # type: ignore[no-untyped-call]
        except (redis.exceptions.RedisError, OSError) as error:
            raise StoreUnavailable(f"{command[0]}: {type(error).__name__}: {error}") from error

    async def read_bytes(self, key: str, field: str) -> bytes | None:
        try:
            found: bytes | None = await self._client.execute_command("HGET", key, field)  # type: ignore[no-untyped-call]
        except (redis.exceptions.RedisError, OSError) as error:
            raise StoreUnavailable(f"HGET: {type(error).__name__}: {error}") from error
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


@lru_cache(maxsize=64)
def _library(clock: str | None, slicing: Slicing) -> tuple[str, str]:
    texts = [_join(LIBRARY, clock, slicing).source]
    bodies = {name: LUA[name] for name in FUNCTIONS}
    version = hashlib.sha1("".join([*texts, *bodies.values()]).encode(), usedforsecurity=False).hexdigest()[:16]
    for name, flags in FUNCTIONS.items():
        listed = f"'{flags}'" if flags else ""
        texts.append(
            f"redis.register_function{{function_name = '{name}_{version}', flags = {{{listed}}}, "
            f"callback = function(KEYS, ARGV)\n{bodies[name]}end}}"
        )
    return f"#!lua name=fairlane_{version}\n" + "\n".join(texts), version


def _is_forbidden(error: redis.exceptions.ResponseError) -> bool:
    said = str(error)
    is_denied = isinstance(error, redis.exceptions.NoPermissionError) or said.startswith("NOPERM")
    return is_denied or "unknown command" in said.lower()


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
