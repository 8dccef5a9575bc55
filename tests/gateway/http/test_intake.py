"""Parts of large bodies: one in each round of the event loop, whoever sends them."""

import asyncio
from collections import Counter

import pytest
from starlette.types import Message, Receive

from fairlane.gateway.http.body import read_body
from fairlane.gateway.http.body_budget import PART_BYTES, BodyBudget, BodyHold, Intake

pytestmark = pytest.mark.anyio

PATIENT_S = 10.0
PART = b"a" * PART_BYTES


class Rounds:
    """Counts the event loop's rounds, and the parts of bodies that are taken in each."""

    def __init__(self) -> None:
        self.number = 0
        self.parts: Counter[int] = Counter()
        self.is_over = False
        asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        self.number += 1
        if not self.is_over:
            asyncio.get_running_loop().call_soon(self._count)

    def receiving(self, part: bytes, count: int) -> Receive:
        """A body whose parts are all there."""
        left = count

        async def receive() -> Message:
            nonlocal left
            left -= 1
            self.parts[self.number] += 1
            return {"type": "http.request", "body": part, "more_body": left > 0}

        return receive


async def test_one_part_is_taken_in_each_round() -> None:
    budget, rounds = BodyBudget(most_bytes=2**30, most_tenant_bytes=2**30), Rounds()
    reading = [
        read_body(
            rounds.receiving(PART, 16), [], max_bytes=2**20, timeout_s=PATIENT_S, hold=BodyHold(budget), tenant="a"
        )
        for _ in range(8)
    ]
    bodies = await asyncio.gather(*reading)
    rounds.is_over = True

    assert bodies == [PART * 16] * 8
    first = min(rounds.parts)
    assert rounds.parts.pop(first) <= 8 + 1  # the first part of each may have come before it is known to be large
    assert max(rounds.parts.values()) <= 2


async def test_small_parts_wait_for_no_turn() -> None:
    budget, rounds = BodyBudget(most_bytes=2**30, most_tenant_bytes=2**30), Rounds()
    receive = rounds.receiving(b"a", 1_000)

    assert await read_body(receive, [], max_bytes=1_000, timeout_s=PATIENT_S, hold=BodyHold(budget)) == b"a" * 1_000
    assert len(rounds.parts) == 1
    rounds.is_over = True


async def test_who_leaves_takes_no_turn() -> None:
    intake = Intake()
    await intake.turn()
    gone, stays = (asyncio.create_task(intake.turn()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()

    await asyncio.wait_for(stays, PATIENT_S)
    await asyncio.wait_for(intake.turn(), PATIENT_S)
