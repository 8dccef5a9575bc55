"""Checks of a store before Fairlane relies on it: version, eviction, persistence, the rights of Fairlane's user, and
the schema of what other releases have written.

A right is checked with a harmless call of the command itself, because `ACL DRYRUN` needs rights that Fairlane's user
should not have. The calls change only keys that belong to the checks, on connections of their own."""

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import redis
import redis.asyncio
from redis.crc import key_slot

from fairlane.store import cluster, schema, urls

OLDEST = {"redis": 7, "valkey": 8}
TRIAL_MS = 60_000
TRIAL_KEY = "fl:check:{%d}"


class FaultKind(StrEnum):
    """The kinds of faults. The values are those of the metric's label."""

    VERSION = "version"
    RIGHTS = "rights"
    EVICTION = "eviction"
    REPLICA = "replica"
    PERSISTENCE = "persistence"
    UNCHECKED = "unchecked"
    SCHEMA = "schema"
    WRITES = "writes"


# Faults that prevent a process from starting.
REFUSED = frozenset({FaultKind.VERSION, FaultKind.RIGHTS, FaultKind.SCHEMA})


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a store."""

    kind: FaultKind
    # The observed state, in a few words; contains no secret.
    found: str
    advice: str
    # A serious fault breaks promises to requests now; any other may lose data later.
    is_serious: bool = False

    def __str__(self) -> str:
        return f"{self.found}: {self.advice}"


@dataclass(frozen=True, slots=True)
class Inspection:
    """One server's INFO and its faults."""

    # Empty if the user may not run INFO.
    info: Mapping[str, Any]
    faults: list[Fault]


async def faults(url: str, commands: Collection[str], *, timeout_s: float) -> list[Fault]:
    """Return the faults of the masters behind a URL, without duplicates, and record this release's schema in the store.

    Raises STORE_ERRORS if one does not answer."""
    found: dict[Fault, None] = {}
    for server, key in await masters(url, timeout_s=timeout_s):
        async with urls.client(server, limit=1, timeout_s=timeout_s) as client:
            inspection = await inspect(client, key, commands)
            found |= dict.fromkeys(inspection.faults)
    async with cluster.client(url, limit=1, timeout_s=timeout_s) as client:
        with suppress(redis.ResponseError):  # it does not accept writes: one of the faults, or passing
            if refusal := await schema.join(client):
                found[schema_fault(refusal)] = None
    return list(found)


def schema_fault(refusal: str) -> Fault:
    """Return the fault of a store whose schema this release cannot work with."""
    advice = "upgrade one release at a time, and stop the processes of older releases before the next"
    if refusal.startswith("the restore"):
        advice = "wait for it, or repeat `fairlane restore` if it was interrupted"
    return Fault(FaultKind.SCHEMA, refusal, advice, is_serious=True)


async def masters(url: str, *, timeout_s: float) -> list[tuple[str, str]]:
    """Return each master's URL with a key that it holds; only a Cluster has several. Raises STORE_ERRORS."""
    if not url.startswith(urls.CLUSTER_SCHEMES):
        return [(url, TRIAL_KEY % 0)]
    named = urls.parse_cluster_url(url)
    failure: Exception = redis.ConnectionError("the URL names no node")
    for address in named.nodes:
        try:
            ranges = await cluster.read_slots(named, address, timeout_s=timeout_s)
        except (redis.RedisError, OSError) as error:
            failure = error
        else:
            held: dict[str, tuple[int, int]] = {}
            for first, last, master in ranges:
                held.setdefault(named.url(*master), (first, last))
            return [(server, _key_within(*slots)) for server, slots in held.items()]
    raise failure


async def inspect(client: redis.asyncio.Redis, key: str, commands: Collection[str]) -> Inspection:
    """Check one server, using `key`, which it must hold. Raises redis.RedisError or OSError if it does not answer."""
    try:
        info = await client.info()
    except redis.exceptions.NoPermissionError:
        info = {}
    found = [*_state_faults(info)]
    if info.get("role", "master") == "master":
        found += await _missing_rights(client, f"{key}:{secrets.token_hex(4)}", commands)
    return Inspection(info, found)


def version(info: Mapping[str, Any]) -> str:
    """Return the server's kind and version, as in `valkey 8.0.1`."""
    kind = "valkey" if "valkey_version" in info else "redis"
    return f"{kind} {info.get(f'{kind}_version', '0')}"


def _state_faults(info: Mapping[str, Any]) -> Iterator[Fault]:
    if not info:
        advice = "grant it +info: version, eviction and persistence cannot be checked"
        yield Fault(FaultKind.UNCHECKED, "its user may not run INFO", advice)
        return
    kind, _, number = version(info).partition(" ")
    if int(number.partition(".")[0]) < OLDEST[kind]:
        yield Fault(
            FaultKind.VERSION, f"{kind} {number}", "Fairlane needs Redis 7 or Valkey 8, or newer", is_serious=True
        )
    if info.get("role") != "master":
        advice = "name the master, or the Sentinels that know it"
        yield Fault(FaultKind.REPLICA, f"{version(info)}, a replica", advice)
    policy, most = str(info.get("maxmemory_policy", "noeviction")), int(info.get("maxmemory", 0))
    if policy != "noeviction":
        advice = "CONFIG SET maxmemory-policy noeviction: otherwise it drops tenants and budgets when memory runs out"
        yield Fault(FaultKind.EVICTION, f"maxmemory-policy is {policy}", advice, is_serious=most > 0)
    if not int(info.get("aof_enabled", 0)):
        advice = "appendonly yes: else a restart loses tenants, keys and budgets since the last snapshot"
        yield Fault(FaultKind.PERSISTENCE, "no append-only file", advice)
    elif info.get("aof_last_write_status", "ok") != "ok":
        found = "its last write to the append-only file failed"
        yield Fault(FaultKind.WRITES, found, "check its disk and its log")


async def _missing_rights(client: redis.asyncio.Redis, key: str, commands: Collection[str]) -> list[Fault]:
    """Try each command; return at most one fault, which names all commands that the user may not run."""
    try:
        await client.execute_command("SET", key, "", "PX", TRIAL_MS)  # type: ignore[no-untyped-call]
    except redis.exceptions.NoPermissionError as error:
        if "access a key" in str(error) or "access one of the keys" in str(error):
            advice = "grant them to Fairlane's user: ACL SETUSER … ~fl:*"
            return [Fault(FaultKind.RIGHTS, "its user may not use the keys fl:*", advice, is_serious=True)]
        return [_not_allowed(["SET"])]
    tried = [name for name in _CALLS if name in commands]
    async with client.pipeline(transaction=False) as calls:
        for name in tried:
            calls.execute_command(name, *[each.replace("KEY", key) for each in _CALLS[name].split()])
        replies = await calls.execute(raise_on_error=False)
    refused = redis.exceptions.NoPermissionError
    missing = [name for name, reply in zip(tried, replies, strict=True) if isinstance(reply, refused)]
    return [_not_allowed(missing)] if missing else []


def _not_allowed(commands: Sequence[str]) -> Fault:
    granted = " ".join(f"+{name.lower()}" for name in commands)
    advice = f"grant that to Fairlane's user: ACL SETUSER … {granted}"
    return Fault(FaultKind.RIGHTS, f"its user may not run {', '.join(commands)}", advice, is_serious=True)


def _key_within(first: int, last: int) -> str:
    number = 0
    while not first <= key_slot((TRIAL_KEY % number).encode()) <= last:
        number += 1
    return TRIAL_KEY % number


# Harmless calls, by the arguments of the commands. KEY holds a string, KEY:none does not exist.
_GATEWAY_ALONE = {
    "KEY": "INCR TTL HVALS LLEN SCARD",
    "KEY 0": "MSET HSCAN RPUSH ZREVRANK ZSCAN",
    "KEY 1": "INCRBY DECRBY HRANDFIELD",
    "KEY 0 0": "LRANGE ZREVRANGEBYSCORE",
    "KEY 1 0": "LREM",
    "KEY - +": "ZRANGEBYLEX",
    "KEY - + COUNT 1": "XRANGE",
    "KEY:none": "PERSIST",
    "KEY:none 60": "EXPIRE",
    "KEY:none KEY:none": "RENAME",
    "STREAM KEY": "XINFO",
}
_QUEUES = {
    "": "TIME",
    "return(1) 1 KEY": "EVAL",
    f"{'0' * 40} 1 KEY": "EVALSHA",
    "KEY": "GET MGET STRLEN EXISTS PTTL HGETALL HLEN SMEMBERS SPOP XLEN ZCARD",
    "KEY 0": "APPEND SADD SREM XDEL ZMSCORE ZRANK ZREM ZSCORE",
    "KEY 0 0": "ZADD ZCOUNT ZINCRBY ZRANGE ZRANGEBYSCORE ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE",
    "KEY f": "HDEL HEXISTS HGET HMGET",
    "KEY f 0": "HSET HSETNX",
    "KEY f 1": "HINCRBY",
    f"KEY {TRIAL_MS}": "PEXPIRE",
    "KEY * f 0": "XADD",
    "KEY + - COUNT 1": "XREVRANGE",
    "KEY MAXLEN 1": "XTRIM",
    "COUNT 1 STREAMS KEY 0": "XREAD",
    "KEY:none": "UNLINK",
    "KEY:none KEY:none": "SUNIONSTORE",
}


def _by_command(calls: Mapping[str, str]) -> dict[str, str]:
    return {command: arguments for arguments, commands in calls.items() for command in commands.split()}


# DEL comes last, because the others need the string.
_CALLS = _by_command(_GATEWAY_ALONE) | _by_command(_QUEUES) | {"DEL": "KEY"}
GATEWAY_COMMANDS = frozenset({"SET", *_CALLS})
# Commands of the queues and of the worker registry.
WORKER_COMMANDS = GATEWAY_COMMANDS - _by_command(_GATEWAY_ALONE).keys()
