"""Scripts and commands of files and batches in Redis; every error of the store becomes StoreUnavailable."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis.exceptions
from redis.asyncio import Redis

from fairlane.store.errors import StoreUnavailable
from fairlane.store.scripts import Script, read_scripts

_LUA = read_scripts(Path(__file__).parent / "lua")
_CLOCK = """local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""
# Source that is put in front of a script.
_BEFORE = {
    "batch_take": _CLOCK,
    "batch_renew": _CLOCK + _LUA["ownership"],
    "batch_save": _LUA["ownership"],
    "batch_finish": _LUA["ownership"],
    "batch_cancel": _CLOCK,
    "batches_open": _CLOCK,
}
_SCRIPTS = {name: Script(_BEFORE.get(name, "") + source) for name, source in _LUA.items() if name != "ownership"}

Reply = Any


async def run(client: Redis, name: str, prefix: str, *args: bytes | str | float) -> Reply:
    """Run a script on the slot of `prefix`. Raise StoreUnavailable."""
    try:
        return await _SCRIPTS[name].run(client, prefix, *args)
    except (redis.exceptions.RedisError, OSError) as error:
        raise StoreUnavailable(f"{name}: {type(error).__name__}") from error


async def call(client: Redis, *command: str | float) -> Reply:
    """Run one plain command. Raise StoreUnavailable."""
    try:
        return await client.execute_command(*command)  # type: ignore[no-untyped-call]
    except (redis.exceptions.RedisError, OSError) as error:
        raise StoreUnavailable(f"{command[0]}: {type(error).__name__}") from error


def texts(found: Sequence[bytes]) -> list[str]:
    """Decode names and ids."""
    return [each.decode() for each in found]
