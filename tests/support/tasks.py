"""How tests end the tasks that they have started."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


async def end(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks until each has ended: redis-py can lose a cancellation on Python 3.11, so once may not do."""
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=0.1)


@asynccontextmanager
async def ending(*tasks: asyncio.Task[None]) -> AsyncIterator[None]:
    """End tasks with the block, however it ends."""
    try:
        yield
    finally:
        await end(*tasks)
