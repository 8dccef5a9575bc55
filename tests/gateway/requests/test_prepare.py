"""What happens to a request before anything is held for it, where the answer alone does not show it."""

import asyncio
import threading
from dataclasses import replace
from typing import Any, cast

import pytest

from fairlane.gateway.api.completions import CHAT
from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.http.body_budget import HUGE_AT_ONCE, HUGE_BODY_BYTES, BodyRoom
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES
from fairlane.gateway.openai.requests import ChatRequest
from fairlane.gateway.requests.prepare import Preparer

pytestmark = pytest.mark.anyio

NONE = cast(Any, None)
"""For parts that a body which cannot be parsed does not come to."""


async def test_huge_bodies_leave_threads_to_the_others() -> None:
    loop, released, all_turns_taken = asyncio.get_running_loop(), threading.Event(), asyncio.Event()
    held: list[bytes] = []

    def parse(body: bytes, _: int) -> ChatRequest:
        if len(body) > HUGE_BODY_BYTES:
            held.append(body)
            if len(held) == HUGE_AT_ONCE:
                loop.call_soon_threadsafe(all_turns_taken.set)
            released.wait()
        raise invalid(None, "no")

    async def prepare(size: int) -> None:
        with pytest.raises(ApiError):
            await preparer.prepare(replace(CHAT, parse=parse), b"x" * size, [], NONE, 0.0)

    preparer = Preparer({}, NONE, NONE, NONE, lambda: None, BodyRoom(HUGE_BODY_BYTES, lambda: None), NONE, NONE)
    huge = [asyncio.create_task(prepare(HUGE_BODY_BYTES + 1)) for _ in range(40)]
    try:
        async with asyncio.timeout(10):
            await all_turns_taken.wait()
            await prepare(LARGE_BODY_BYTES + 1)
        assert len(held) == HUGE_AT_ONCE
    finally:
        released.set()
    await asyncio.gather(*huge)
    assert len(held) == len(huge)
