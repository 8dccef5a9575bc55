"""A generation by itself: what its client is told of, and what it comes to for one that does not listen."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from gateway.dispatch import Queue
from gateway.generation import Generation
from gateway.pieces import Piece, Rhythm
from gateway.settle import Settlements
from gateway.spans import Span
from gateway.terms import Terms
from gateway.text import TextModel
from scheduler.lanes import DEFAULT_LANES, LaneName
from scheduler.messages import TokenDelta
from tests.gateway.cards import byte_level_card
from tests.gateway.one_flight import flight

pytestmark = pytest.mark.anyio

LANE = DEFAULT_LANES[LaneName.LATENCY]
TERMS = Terms(lane=LANE, service_tier="default", deadline_ms=None, hard_ttft_ms=None, max_wait_ms=LANE.max_wait_ms)


class Slow:
    """Takes nothing after the first piece."""

    def __init__(self) -> None:
        self.behind = asyncio.Event()

    def hear(self, pieces: Sequence[Piece]) -> bool:
        return False

    async def catch_up(self) -> None:
        self.behind.set()
        await asyncio.Event().wait()


async def test_a_stop_string_that_a_slow_client_left_unheard_is_charged_up_to_itself() -> None:
    text, airborne = TextModel(byte_level_card()), flight(max_output_tokens=99)
    said = text.encode("one two three")
    generation = Generation(
        flights=[airborne],
        queue=cast(Queue, None),
        mailbox=airborne.mailbox,
        settlements=cast(Settlements, None),
        text=text,
        terms=TERMS,
        arrived_s=asyncio.get_running_loop().time(),
        queue_span=Span(),
        stop=("two",),
    )
    slow = Slow()
    running = asyncio.create_task(generation.run(slow, Rhythm()))
    for index, token in enumerate(said):
        airborne.accept(TokenDelta(flight_id="f", epoch=1, choice=0, first_index=index, token_ids=(token,)))
        airborne.mailbox.ring()
        if not index:
            await slow.behind.wait()

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert airborne.choices[0].published == len(said)
    assert airborne.choices[0].counted == len(text.encode("one two"))
