"""A worker process without a model: `python -m tests.system.script_worker URL LEASE_MS [BLOCKS [FINGERPRINT]]`."""

import asyncio
import secrets
import sys

import msgspec

from gateway.store import connections
from tests.gateway.cards import byte_level_card
from tests.gateway.hand_worker import HandWorker


async def main(url: str, lease_ms: str, blocks: str = "256", fingerprint: str = "") -> None:
    """Until killed; under a new name each time, as a worker is."""
    store = connections(url, timeout_s=20.0, limit=8).short
    card = msgspec.structs.replace(byte_level_card(), fingerprint=fingerprint)
    worker = HandWorker(store, card=card, worker_id=secrets.token_hex(4), lease_ms=int(lease_ms), blocks=int(blocks))
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
