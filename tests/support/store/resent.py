"""Replies lost after the call was executed: a client that sends each call twice, as the retry layers do.

A script is idempotent by the id it carries if the second call returns what the first one returned, and leaves the
store as the first one left it.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from fairlane.store.scripts import Script
from tests.support.store import topology
from tests.support.store.watched import ForwardingRedis

_LEAST_EPOCH_MS = 10**12
_CLOCK_MS = 60_000
"""Two readings of the store's clock in one test differ by less."""
_SCRIPT_CALLS = ("EVALSHA", "EVAL", "FCALL")


@dataclass(frozen=True, slots=True)
class Repeat:
    """One script call and its repeat: both replies, and the store's contents after each."""

    script: str
    first: Any
    second: Any
    contents: Any
    contents_again: Any

    def check(self, *, replies: bool) -> None:
        """Fail unless the repeat was answered alike, where `replies`, and changed nothing."""
        assert not replies or alike(self.first, self.second), (self.script, self.first, self.second)
        assert alike(self.contents, self.contents_again), (self.script, self.contents, self.contents_again)


class ResendingRedis(ForwardingRedis):
    """Executes each command twice and returns the second reply."""

    def __init__(self, scripts: Iterable[Mapping[str, Script]], watcher: redis.asyncio.Redis) -> None:
        """`scripts`: each set by name; `watcher`: a client of the same store, to read what the scripts have written."""
        super().__init__(watcher)
        self._names = {script._digest: name for each in scripts for name, script in each.items()}
        self._watcher = watcher
        self.repeats: list[Repeat] = []

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        first = await super().execute_command(*args, **options)
        if args[0] not in _SCRIPT_CALLS:
            return await super().execute_command(*args, **options)
        contents = await contents_of(self._watcher)
        second = await super().execute_command(*args, **options)
        name = self._name(args[0], args[1])
        self.repeats.append(Repeat(name, first, second, contents, await contents_of(self._watcher)))
        return second

    def _name(self, command: str, called: str) -> str:
        if command == "FCALL":
            return called.rpartition("_")[0]
        digest = Script(called)._digest if command == "EVAL" else called
        return self._names.get(digest, digest)

    def check(self, script: str, *, other_replies: Collection[str] = ()) -> None:
        """Fail unless this script was called, and each repeat of a call changed nothing and was answered alike, but for
        scripts whose `other_replies` are meant."""
        assert script in {each.script for each in self.repeats}
        for each in self.repeats:
            each.check(replies=each.script not in other_replies)


@asynccontextmanager
async def resending(
    url: str, *scripts: Mapping[str, Script]
) -> AsyncIterator[tuple[ResendingRedis, redis.asyncio.Redis]]:
    """A resending client of an empty store, and a plain one to prepare the store with."""
    async with topology.client(url) as plain:
        await plain.flushall()
        async with ResendingRedis(scripts, plain) as resender:
            yield resender, plain


_READS: dict[bytes, tuple[str, ...]] = {
    b"string": ("GET",),
    b"hash": ("HGETALL",),
    b"list": ("LRANGE", "0", "-1"),
    b"set": ("SMEMBERS",),
    b"zset": ("ZRANGE", "0", "-1", "WITHSCORES"),
    b"stream": ("XRANGE", "-", "+"),
}


async def contents_of(client: redis.asyncio.Redis) -> dict[bytes, Any]:
    """All that the store holds, by key, with whether it expires. A message that a worker is sent twice counts once."""
    found: dict[bytes, Any] = {}
    async for key in client.scan_iter(count=1_000):
        command, *rest = _READS[await _ask(client, "TYPE", key)]
        value = await _ask(client, command, key, *rest)
        if b":control:" in key:
            value = [fields for at, (_, fields) in enumerate(value) if fields not in [each for _, each in value[:at]]]
        found[key] = value, await _ask(client, "PTTL", key) > 0
    return found


async def _ask(client: redis.asyncio.Redis, *command: str | bytes) -> Any:
    return await client.execute_command(*command)  # type: ignore[no-untyped-call]


def alike(one: Any, other: Any) -> bool:
    """Whether two replies or contents are the same, but for when they were written."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if one == other:
        return True
    try:
        earlier, later = float(one), float(other)
    except (TypeError, ValueError):
        return False
    return min(earlier, later) > _LEAST_EPOCH_MS and abs(later - earlier) < _CLOCK_MS
