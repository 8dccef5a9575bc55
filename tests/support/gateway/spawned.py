"""A gateway in processes of its own, as `fairlane gateway` starts it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from tests.support.gateway.served import ADMIN_KEY, WAIT_S
from tests.support.ports import free_port

LEASE_S = 1.0


@asynccontextmanager
async def process(url: str, **given: str) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    """A gateway process that is ready to answer, and where."""
    port = free_port()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLANE_", "OTEL_"))}
    environ |= {
        "FAIRLANE_REDIS_URL": url,
        "FAIRLANE_PORT": str(port),
        "FAIRLANE_ADMIN_KEY": ADMIN_KEY,
        "FAIRLANE_GATEWAY__RESERVATION_LEASE_S": str(LEASE_S),
        "FAIRLANE_GATEWAY__STORE_TIMEOUT_S": "2",
        "FAIRLANE_LEASE_S": str(LEASE_S),
        **given,
    }
    started = subprocess.Popen(  # noqa: ASYNC220 - starting it takes no time
        [sys.executable, "-m", "fairlane.gateway"],
        env=environ,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    base = f"http://127.0.0.1:{port}"
    try:
        await answering(base)
        yield started, base
    finally:
        started.kill()
        await asyncio.to_thread(started.communicate)


async def answering(base: str) -> None:
    """Wait until it is ready."""
    async with asyncio.timeout(WAIT_S), httpx.AsyncClient() as client:
        while True:
            try:
                if (await client.get(f"{base}/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)
