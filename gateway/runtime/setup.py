"""What the parts of a gateway process share: its settings, telemetry and id, and how background tasks are run."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.scheduler.protocol.lanes import Lane, LaneName

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings and telemetry of one process, and its id."""

    settings: GatewaySettings
    # New with each start: leftovers of an earlier process are the reaper's.
    gateway_id: str
    lanes: dict[LaneName, Lane]
    telemetry: Telemetry
    # Its place among the processes behind one port.
    process: int = 0


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
