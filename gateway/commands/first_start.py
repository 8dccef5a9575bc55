"""What `serve` prepares in an empty store, so that the first request works as pasted."""

import redis.asyncio

from scheduler.settings import SharedSettings

DEMO = "demo"


async def first_start(client: redis.asyncio.Redis, settings: SharedSettings) -> str:
    """Make the admin key and the `demo` tenant where there are none yet; what to tell the operator, ready to print."""
    raise NotImplementedError
