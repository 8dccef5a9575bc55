"""A worker process without a model: `python -m tests.support.system.script_worker URL LEASE_MS [BLOCKS [STEP_S]]`."""

import asyncio
import secrets
import sys

from fairlane.store.connections import connections
from tests.support.gateway.hand_worker import HandWorker


async def main(url: str, lease_ms: str, blocks: str = "256", step_s: str = "0") -> None:
    """Until killed; under a new name each time, as a worker is."""
    store = connections(url, timeout_s=20.0, limit=8).short
    await HandWorker(
        store, worker_id=secrets.token_hex(4), lease_ms=int(lease_ms), blocks=int(blocks), step_s=float(step_s)
    ).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
