"""The wake-up pipe between the engine's thread and the event loop."""

import asyncio
from threading import Thread

import pytest

from fairlane.worker.engine_thread import WakeUpPipe

pytestmark = pytest.mark.anyio


async def test_a_wake_up_in_another_thread_is_heard_on_the_loop() -> None:
    heard = asyncio.Event()
    pipe = WakeUpPipe(asyncio.get_running_loop(), heard.set)

    Thread(target=pipe.wake).start()
    await heard.wait()

    pipe.close()


async def test_more_wake_ups_than_are_heard_neither_block_nor_fail() -> None:
    heard = asyncio.Event()
    pipe = WakeUpPipe(asyncio.get_running_loop(), heard.set)

    for _ in range(100_000):
        pipe.wake()
    await heard.wait()

    pipe.close()
