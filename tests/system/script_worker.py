"""A worker process without a model: `python -m tests.system.script_worker REDIS_URL LEASE_MS`."""

import asyncio
import secrets
import sys

from gateway.store import connections
from tests.gateway.hand_worker import HandWorker


async def main(url: str, lease_ms: int) -> None:
    """Until killed; under a new name each time, as a worker is."""
    store = connections(url, timeout_s=20.0, limit=8).short
    await HandWorker(store, worker_id=secrets.token_hex(4), lease_ms=lease_ms).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
