"""Streams of the Responses API: events in their order, and what the SDK's helper makes of them."""

from itertools import pairwise
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.support.system.harness import Server
from tests.support.system.sdk import CITY, RESPONDED, SAID, OfField, respond, response_events

pytestmark = [pytest.mark.system, pytest.mark.anyio]

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
WEATHER: OfField = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
CALL: OfField = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 60}
FORM: OfField = {"text": {"format": {"type": "json_schema", "name": "c", "schema": CITY}}, "max_output_tokens": 24}
BEGIN = ["response.created", "response.in_progress", "response.output_item.added"]
MESSAGE = [*BEGIN, "response.content_part.added", "response.output_text.delta", "response.output_text.done"]
ENDED = ["response.content_part.done", "response.output_item.done"]
CALLED = [*BEGIN, "response.function_call_arguments.delta", "response.function_call_arguments.done"]

STREAMS: list[tuple[OfField, list[str]]] = [
    ({}, [*MESSAGE, *ENDED, "response.completed"]),
    ({"max_output_tokens": 2}, [*MESSAGE, *ENDED, "response.incomplete"]),
    (FORM, [*MESSAGE, *ENDED, "response.completed"]),
    (CALL, [*CALLED, "response.output_item.done", "response.completed"]),
]
NAMES = ["text", "cut", "form", "call"]


class Place(BaseModel):
    city: str


def whole(event: ResponseStreamEvent) -> Response:
    """The response that an event holds."""
    assert event.type in ("response.created", "response.completed", "response.incomplete")
    return event.response


def told(answer: Response) -> list[OfField]:
    """The items of an answer, without what is made anew each time."""
    return [item.model_dump(exclude={"id", "call_id"}) for item in answer.output]


def words(answer: Response) -> str:
    """What it says, and what it calls with."""
    return answer.output_text + "".join(item.arguments for item in answer.output if item.type == "function_call")


@pytest.mark.parametrize(("fields", "kinds"), STREAMS, ids=NAMES)
def test_events_come_in_their_order_and_come_to_the_plain_answer(
    client: openai.OpenAI, fields: OfField, kinds: list[str]
) -> None:
    events = response_events(client, **fields)

    for event in events:
        EVENT.validate_python(event.model_dump(by_alias=True), strict=True)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    seen = [event.type for event in events]
    assert [seen[0], *(after for before, after in pairwise(seen) if after != before)] == kinds
    assert whole(events[0]).status == "in_progress"
    assert told(whole(events[-1])) == told(respond(client, **fields))
    assert "".join(getattr(event, "delta", "") for event in events) == words(whole(events[-1]))


def test_the_helper_gathers_a_text(client: openai.OpenAI) -> None:
    with client.responses.stream(**RESPONDED) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        gathered = stream.get_final_response()

    assert "".join(texts) == gathered.output_text == SAID
    assert len(texts) > 1


def test_the_helper_parses_forms_and_calls(client: openai.OpenAI) -> None:
    asked: OfField = {**RESPONDED, "max_output_tokens": 60}
    with client.responses.stream(**asked, text_format=Place) as stream:
        formed = stream.get_final_response()
    with client.responses.stream(**{**asked, **CALL, "tools": [openai.pydantic_function_tool(Place)]}) as stream:
        called: Any = stream.get_final_response()

    assert isinstance(formed.output_parsed, Place)
    assert isinstance(called.output[0].parsed_arguments, Place)


async def test_the_asynchronous_helper_gathers_the_same(server: Server, key: str) -> None:
    async with (
        server.async_sdk(key, max_retries=0) as client,
        client.responses.stream(**RESPONDED) as stream,
    ):
        kinds = [event.type async for event in stream]
        gathered = await stream.get_final_response()

    assert kinds[-1] == "response.completed"
    assert gathered.output_text == SAID


def test_a_streamed_response_is_kept_and_gone_on_from(client: openai.OpenAI) -> None:
    first = whole(response_events(client)[-1])
    events = response_events(client, input="Sure?", previous_response_id=first.id, max_output_tokens=2)

    assert client.responses.retrieve(first.id).output_text == SAID
    assert whole(events[-1]).previous_response_id == first.id


def test_a_stream_that_is_sent_twice_is_told_again(client: openai.OpenAI) -> None:
    once: OfField = {"extra_headers": {"Idempotency-Key": "events"}, "temperature": 1}

    assert response_events(client, **once) == response_events(client, **once)
