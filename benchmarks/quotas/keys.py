"""Line 7: what looking up a key adds to a request, and how soon a revoked one is refused everywhere."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common.line import Line, at_most
from benchmarks.gateway.stand import StandError
from benchmarks.quotas.stand import ADMIN_KEY, Gateways, gateways
from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.gateway.identity.auth import Authenticator, check
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.tenants import TenantStore
from fairlane.store.connections import connections

LINE = 7
MEDIAN_US, REVOKED_S = 50.0, 1.0
KEYS, LOOKUPS = 100, 20_000
TIMES = 5
"""Keys that are revoked, one after the other."""
TENANT = "bench"
STORE_TIMEOUT_S = 10.0


async def lookups() -> Sequence[float]:
    """Microseconds of each look-up of KEYS keys in turn, through a gateway's memory of them and a real store."""
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as directory:
        server = EmbeddedStore(Path(directory))
        server.start()
        store = connections(server.url, timeout_s=STORE_TIMEOUT_S, limit=8)
        try:
            tenant = await TenantStore(store.patient).create({"id": TENANT})
            keys = KeyStore(store.patient)
            scopes = [_scope((await keys.create(tenant, {"name": "bench"})).secret) for _ in range(KEYS)]
            authenticator = Authenticator(KeyStore(store.short))
            taken_us = []
            for number in range(LOOKUPS):
                began = time.perf_counter()
                check(await authenticator.identify(scopes[number % KEYS]), scopes[number % KEYS])
                taken_us.append((time.perf_counter() - began) * 1e6)
            return taken_us
        finally:
            await store.aclose()
            server.stop()


def _scope(key: str) -> dict[str, Any]:
    headers = [(b"authorization", f"Bearer {key}".encode())]
    return {"type": "http", "path": "/v1/completions", "headers": headers, "client": ("127.0.0.1", 1)}


async def revocations(on: Gateways) -> Sequence[float]:
    """Seconds from a revocation through one gateway to the last answer that its key gets from the other."""
    return [await _revoke(on, f"tenant-{number}") for number in range(TIMES)]


async def _revoke(on: Gateways, tenant: str) -> float:
    key_id, secret = await on.tenant(tenant, {})
    operator = {"authorization": f"Bearer {ADMIN_KEY}"}
    async with httpx.AsyncClient() as client:
        using = asyncio.create_task(_use(client, on.urls[1], secret))
        await asyncio.sleep(0)  # it is under way
        while (await _status(client, on.urls[1], secret)) != 200:
            raise StandError("a new key is refused")
        began = time.perf_counter()
        gone = await client.delete(f"{on.urls[0]}/admin/v1/tenants/{tenant}/keys/{key_id}", headers=operator)
        if gone.is_error:
            raise StandError(f"the key was not revoked: {gone.status_code}")
        return await using - began


async def _use(client: httpx.AsyncClient, url: str, key: str) -> float:
    """Ask with a key again and again until it is refused; when the last request that it still served was answered."""
    served_s = time.perf_counter()
    while (status := await _status(client, url, key)) != 401:
        if status != 200:
            raise StandError(f"a key was answered {status}")
        served_s = time.perf_counter()
    return served_s


async def _status(client: httpx.AsyncClient, url: str, key: str) -> int:
    return (await client.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"})).status_code


async def measure() -> Sequence[Line]:
    """Both figures."""
    taken_us = await lookups()
    async with gateways(2) as on:
        lags_s = await revocations(on)
    p99_us = statistics.quantiles(taken_us, n=100)[98]
    how = f"{LOOKUPS:,} look-ups of {KEYS} keys in turn, in process; p99 {p99_us:.0f} µs"
    until = f"two gateways: from revoking at one to the last answer of the other, the latest of {TIMES}"
    return [
        at_most(LINE, "key look-up, median µs", statistics.median(taken_us), MEDIAN_US, how),
        at_most(LINE, "a revoked key still served, s", max(lags_s), REVOKED_S, until),
    ]
