"""Lua functions that a store keeps: it builds their shared parts once, where a script builds them at each call.

A store that forbids FUNCTION runs the same functions as scripts. Each release and each change of a setting that they
contain loads another library, which takes 300 kB of the store and its replicas and 5 ms of their start, so old ones are
dropped. A process that still uses one of them loads it again with its next call."""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import redis.exceptions
from redis.asyncio import Redis

from fairlane.store.errors import has_library, lacks_function
from fairlane.store.scripts import Script


class Library:
    """Functions by name. Each is named in the store with a digest of the whole library, so that releases that run side
    by side each call their own."""

    def __init__(self, name: str, shared: str, bodies: Mapping[str, str], flags: Mapping[str, str]) -> None:
        """`shared`: definitions that all use. `bodies`: statements, which get `KEYS` and `ARGV`. `flags`: of those that
        have any, as in `redis.register_function`."""
        self._kind, self._shared = name, shared
        self._texts = {each: f"function(KEYS, ARGV)\n{body}end" for each, body in bodies.items()}
        whole = "".join([shared, *self._texts.values()])
        self._digest = hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest()[:16]
        registered = [
            f"redis.register_function{{function_name = '{each}_{self._digest}', flags = {{{flags.get(each, '')}}},"
            f" callback = {text}}}"
            for each, text in self._texts.items()
        ]
        self._name = f"{name}_{self._digest}"
        self._source = "\n".join([f"#!lua name={self._name}", shared, *registered])
        # False once the store has forbidden functions.
        self._may_load = True

    @cached_property
    def scripts(self) -> dict[str, Script]:
        shared = f"local GIVEN = ARGV\n{self._shared}"
        return {each: Script(f"{shared}\nreturn ({text})(KEYS, GIVEN)") for each, text in self._texts.items()}

    async def call(self, client: Redis, function: str, key: str, *args: bytes | str | float) -> Any:  # noqa: ANN401 - its reply
        """Call a function on the slot of `key`. Text is returned as bytes."""
        if self._may_load:
            command = ("FCALL", f"{function}_{self._digest}", 1, key, *args)
            try:
                return await client.execute_command(*command, NEVER_DECODE=True)  # type: ignore[no-untyped-call]
            except redis.exceptions.ResponseError as error:
                if not (lacks_function(error) or _is_forbidden(error)):
                    raise
                self._may_load = not _is_forbidden(error)
            if self._may_load and await self._load(client):
                return await client.execute_command(*command, NEVER_DECODE=True)  # type: ignore[no-untyped-call]
        return await self.scripts[function].run(client, key, *args)

    async def drop_others(self, client: Redis) -> None:
        if not self._may_load:
            return
        try:
            listed = await client.execute_command("FUNCTION LIST", "LIBRARYNAME", f"{self._kind}_*")  # type: ignore[no-untyped-call]
            for _, name, *_ in listed:
                if name.decode() != self._name:
                    await client.execute_command("FUNCTION DELETE", name)  # type: ignore[no-untyped-call]
        except redis.exceptions.ResponseError as error:  # or another process was faster
            self._may_load = not _is_forbidden(error)

    async def _load(self, client: Redis) -> bool:
        try:
            await client.execute_command("FUNCTION LOAD", self._source)  # type: ignore[no-untyped-call]
        except redis.exceptions.ResponseError as error:
            if not (has_library(error) or _is_forbidden(error)):
                raise
            self._may_load = not _is_forbidden(error)
        return self._may_load


def _is_forbidden(error: redis.exceptions.ResponseError) -> bool:
    said = str(error)
    is_denied = isinstance(error, redis.exceptions.NoPermissionError) or said.startswith("NOPERM")
    return is_denied or "unknown command" in said.lower()
