"""The bell between the engine's thread and the event loop."""

import asyncio
from threading import Thread

import pytest

from fairlane.worker.engine_thread import Doorbell

pytestmark = pytest.mark.anyio


async def test_a_ring_in_another_thread_is_heard_on_the_loop() -> None:
    heard = asyncio.Event()
    bell = Doorbell(asyncio.get_running_loop(), heard.set)

    Thread(target=bell.ring).start()
    await heard.wait()

    bell.close()


async def test_more_rings_than_anybody_hears_neither_block_nor_fail() -> None:
    heard = asyncio.Event()
    bell = Doorbell(asyncio.get_running_loop(), heard.set)

    for _ in range(100_000):
        bell.ring()
    await heard.wait()

    bell.close()
