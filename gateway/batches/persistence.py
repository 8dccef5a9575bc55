"""Calls of a running batch that must succeed: it waits for the store and the storage of files."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

RETRY_S = 1.0
T = TypeVar("T")


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until it succeeds."""
    while True:
        try:
            return await call()
        except (*STORE_ERRORS, OSError) as error:
            log.debug("batch waits for the store: error=%s", type(error).__name__)
            await asyncio.sleep(RETRY_S)
