"""What happens to a request before anything is held for it, where the answer alone does not show it."""

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlane.gateway.api.completions import CHAT
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import ChatRequest
from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.http.body_budget import HUGE_BODY_BYTES, BodyRoom
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES
from fairlane.gateway.pipeline.fitting import pack_inputs
from fairlane.gateway.pipeline.prepare import Preparer
from fairlane.quotas.tenants import Tenant
from tests.support.gateway.one_request import a_context

pytestmark = pytest.mark.anyio

NONE = cast(Any, None)
"""For parts that a body which cannot be parsed does not come to."""
HUGE, LARGE = HUGE_BODY_BYTES + 1, LARGE_BODY_BYTES + 1
CALLER = cast(Any, SimpleNamespace(tenant_id="a", root="a", identity=SimpleNamespace(tenant=Tenant(id="a", root="a"))))


@pytest.mark.parametrize(("many", "one"), [(HUGE, LARGE), (LARGE, HUGE)], ids=["huge", "large"])
async def test_one_body_is_read_at_a_time_and_others_of_another_size_meanwhile(many: int, one: int) -> None:
    loop, released, is_held = asyncio.get_running_loop(), threading.Event(), asyncio.Event()
    held: list[bytes] = []

    def parse(body: bytes, _: Reading) -> ChatRequest:
        if len(body) == many:
            held.append(body)
            loop.call_soon_threadsafe(is_held.set)
            released.wait()
        raise invalid(None, "no")

    async def prepare(size: int) -> None:
        with pytest.raises(ApiError):
            await preparer.prepare(replace(CHAT, parse=parse), b"x" * size, a_context(CALLER))

    preparer = Preparer({}, NONE, NONE, lambda: None, BodyRoom(HUGE_BODY_BYTES, lambda: None), NONE, NONE, NONE)
    limiter = [asyncio.create_task(prepare(many)) for _ in range(40)]
    try:
        async with asyncio.timeout(10):
            await is_held.wait()
            await prepare(one)
        assert len(held) == 1
    finally:
        released.set()
    await asyncio.gather(*limiter)
    assert len(held) == len(limiter)


class CountedTokens(tuple[int, ...]):
    """Token ids that count how many ids their concatenations copy."""

    copied = 0

    def __radd__(self, left: tuple[int, ...]) -> tuple[int, ...]:
        CountedTokens.copied += len(left) + len(self)
        return (*left, *self)


def test_packing_inputs_copies_no_token_twice() -> None:
    CountedTokens.copied = 0
    inputs = [CountedTokens([at]) for at in range(1_000)]

    prompts, lengths = pack_inputs([*inputs, (1,) * 1_001, (), (2, 3)], 600)

    assert prompts == [tuple(range(600)), tuple(range(600, 1_000)), (1,) * 1_001, (2, 3)]
    assert lengths == [[1] * 600, [1] * 400, [1_001], [0, 2]]
    assert CountedTokens.copied <= len(inputs)


def test_a_job_has_no_more_inputs_than_one_message_of_results_holds() -> None:
    inputs = [(at,) for at in range(5)]

    assert pack_inputs(inputs, 600, most=2) == ([(0, 1), (2, 3), (4,)], [[1, 1], [1, 1], [1]])
    assert pack_inputs(inputs[:4], 3, parts=2) == ([(0, 1), (2, 3)], [[1, 1], [1, 1]])
