"""Lua scripts, read from a folder and run by digest.

A file holds one script, named after the file, or several, each after a line `-- name: <script>`. Text before the first
such line is the file's own comment."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis.exceptions
from redis.asyncio import Redis

from fairlane.store.errors import StoreUnavailable

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class Script:
    """One script, run by digest. Avoids redis-py's own `Script`, which costs as much as the rest of a call."""

    __slots__ = ("_digest", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self._digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    async def run(self, client: Redis, key: bytes | str, *args: bytes | str | float) -> Any:  # noqa: ANN401 - its reply
        try:
            return await client.evalsha(self._digest, 1, key, *args)
        except redis.exceptions.NoScriptError:  # SCRIPT LOAD may be forbidden where EVAL is not
            return await client.eval(self.source, 1, key, *args)


def read_scripts(folder: Path) -> dict[str, str]:
    """Return every script in a folder and its subfolders, by name."""
    found: dict[str, str] = {}
    for file in sorted(folder.rglob("*.lua")):
        comment, *named = _NAME.split(file.read_text())
        found |= zip(named[::2], named[1::2], strict=True) if named else [(file.stem, comment)]
    return found


class Scripts(dict[str, Script]):
    """The scripts of a folder, each behind the one named `shared`, if there is one."""

    def __init__(self, folder: Path) -> None:
        sources = read_scripts(folder)
        shared = sources.pop("shared", "")
        super().__init__({name: Script(shared + source) for name, source in sources.items()})

    async def run(self, client: Redis, name: str, key: str, *args: bytes | str | float) -> Any:  # noqa: ANN401
        """Run a script and return its reply. Raise StoreUnavailable."""
        try:
            return await self[name].run(client, key, *args)
        except CALL_ERRORS as error:
            raise unavailable(name, error) from error


async def call(client: Redis, name: str, *args: bytes | str | float) -> Any:  # noqa: ANN401 - the command's reply
    """Run a plain command and return its reply. Raise StoreUnavailable."""
    try:
        return await client.execute_command(name, *args)  # type: ignore[no-untyped-call]
    except CALL_ERRORS as error:
        raise unavailable(name, error) from error


# Errors of a call that become StoreUnavailable.
CALL_ERRORS = (redis.exceptions.RedisError, OSError)


def unavailable(what: str, error: Exception) -> StoreUnavailable:
    """Return the StoreUnavailable for an error of a call."""
    return StoreUnavailable(f"{what}: {type(error).__name__}")


def texts(found: Sequence[bytes]) -> list[str]:
    """Decode names and ids."""
    return [each.decode() for each in found]
