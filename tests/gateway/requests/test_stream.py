"""A generation by itself: what its client is told of, and what it comes to for one that does not listen."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import pytest

from fairlane.gateway.answers.chunks import AnswerChunk, KeepAliveSchedule, Progress, TextChunk
from fairlane.gateway.errors import ApiError
from fairlane.gateway.insight.telemetry.tracing import Span
from fairlane.gateway.model_text.token_stream import TokenStream
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline.prepare import Plan
from fairlane.gateway.pipeline.settlement import Settlements
from fairlane.gateway.pipeline.stream import TokenEvents
from fairlane.gateway.request.live_request import LiveJob, LiveRequest
from fairlane.gateway.request.service_level import ServiceLevel
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Outcome, TokenDelta
from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.one_request import job

pytestmark = pytest.mark.anyio

LANE = DEFAULT_LANES[LaneName.LATENCY]
TERMS = ServiceLevel(
    lane=LANE,
    service_tier="default",
    deadline_ms=None,
    hard_ttft_ms=None,
    max_wait_ms=LANE.max_wait_ms,
    tells_progress=True,
)


class Slow:
    """Takes nothing after the first piece, before it reads on."""

    def __init__(self) -> None:
        self.behind = asyncio.Event()
        self.reads = asyncio.Event()
        self.heard: list[AnswerChunk] = []

    def feed(self, pieces: Sequence[AnswerChunk]) -> bool:
        self.heard += pieces
        return self.reads.is_set()

    async def catch_up(self) -> None:
        self.behind.set()
        await self.reads.wait()


class Ends:
    """Notes how a request was handed over."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def hand_over(self, _: LiveRequest, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


@dataclass
class Planned:
    """What a generation needs of its plan."""

    reader: Callable[[], TokenStream]
    service_level: ServiceLevel = TERMS
    expected_ttft_ms: float = 60_000.0


def generation_of(
    airborne: LiveJob, text: TextModel, *, settlements: object = None, stop: tuple[str, ...] = ()
) -> TokenEvents:
    return TokenEvents(
        request=airborne.request,
        plan=cast(Plan, Planned(partial(TokenStream, text, stop))),
        settlements=cast(Settlements, settlements),
        arrived_s=asyncio.get_running_loop().time(),
        queue_span=Span(),
    )


async def test_a_stop_string_that_a_slow_client_left_unheard_is_charged_up_to_itself() -> None:
    text, airborne = TextModel(byte_level_card()), job(max_output_tokens=99)
    said = text.encode("one two three")
    events = generation_of(airborne, text, stop=("two",))
    slow = Slow()
    running = asyncio.create_task(events.run(slow, KeepAliveSchedule()))
    for index, token in enumerate(said):
        airborne.accept(TokenDelta(job_id="f", epoch=1, choice=0, first_index=index, token_ids=(token,)))
        airborne.request.ring()
        if not index:
            await slow.behind.wait()

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert airborne.choices[0].published == len(said)
    assert airborne.choices[0].counted == len(text.encode("one two"))


async def test_what_has_to_end_does_so_before_a_client_that_does_not_read() -> None:
    text, airborne, ends, slow = TextModel(byte_level_card()), job(max_output_tokens=99), Ends(), Slow()
    running = asyncio.create_task(generation_of(airborne, text, settlements=ends).run(slow, KeepAliveSchedule()))
    for index, token in enumerate(text.encode("one two")):
        airborne.accept(TokenDelta(job_id="f", epoch=1, choice=0, first_index=index, token_ids=(token,)))
        airborne.request.ring()
        await slow.behind.wait()

    airborne.fail(ApiError("This tenant is suspended.", "tenant_suspended"))

    assert ends.outcomes == [Outcome.CANCELLED]
    assert "".join(piece.text for piece in slow.heard if isinstance(piece, TextChunk)) == "o"
    slow.reads.set()
    with pytest.raises(ApiError, match="suspended"):
        await running
    assert "".join(piece.text for piece in slow.heard if isinstance(piece, TextChunk)) == "one two"
    assert ends.outcomes == [Outcome.CANCELLED]


class Third:
    """A queue in which every job is the third of its tenant's, with the places' waits, as settlements reach them."""

    @property
    def dispatcher(self) -> "Third":
        return self

    open_requests = dispatcher

    def queue(self, _: str) -> "Third":
        return self

    async def position(self, _: str) -> int:
        return 3

    def still_waits_ms(self, _: LiveJob, place: int) -> float:
        return 700.5 * place


async def test_a_comment_tells_the_wait_that_the_place_comes_to() -> None:
    airborne, slow = job(), Slow()
    events = generation_of(airborne, TextModel(byte_level_card()), settlements=Third())
    running = asyncio.create_task(events.run(slow, KeepAliveSchedule(first_s=0.0, every_s=1.0)))
    await slow.behind.wait()

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert slow.heard == [Progress("queued position=3 eta_ms=2102")]
