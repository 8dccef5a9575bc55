"""The background tasks of a part."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

log = logging.getLogger(__name__)


@asynccontextmanager
async def background(**tasks: Coroutine[object, object, None] | None) -> AsyncIterator[None]:
    """Run coroutines as tasks, named by their keyword, until the block ends. Skips those that are None."""
    started = [asyncio.create_task(each, name=name) for name, each in tasks.items() if each is not None]
    try:
        yield
    finally:
        for task in started:
            task.cancel()
        for ended in await asyncio.gather(*started, return_exceptions=True):
            if isinstance(ended, Exception):
                log.error("a background task failed", exc_info=ended)
