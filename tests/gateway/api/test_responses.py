"""The Responses API as the official SDK calls it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from fairlane.gateway.errors import unavailable
from tests.support.gateway.response_events import RESPONSES, events, prompt
from tests.support.gateway.served import SAID, Served, serving, settings
from tests.support.gateway.tool_models import tool_card

pytestmark = pytest.mark.anyio

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": False,
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
PATCH: dict[str, Any] = {"type": "custom", "name": "patch", "description": "Change a file"}


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


@pytest.fixture
async def caller(valkey_url: str) -> AsyncIterator[Served]:
    """A gateway whose model calls tools and thinks."""
    async with serving(settings(valkey_url), card=tool_card("Qwen 3")) as opened:
        await opened.tenant()
        yield opened


def says(served: Served, words: str) -> None:
    """What the model says from now on."""
    served.worker.say(words)


async def test_a_text_is_answered_with_a_message(served: Served) -> None:
    async with served.sdk() as sdk:
        answer = await sdk.responses.create(
            model="tiny", input="What is the capital of France?", instructions="Be brief."
        )

    read = Response.model_validate(answer.model_dump(by_alias=True), strict=True)
    assert (read.object, read.status, read.output_text) == ("response", "completed", SAID)
    assert read.id.startswith("resp_")
    assert [item.type for item in read.output] == ["message"]
    assert read.usage is not None
    assert read.usage.output_tokens == len(served.worker.script)
    assert read.usage.total_tokens == read.usage.input_tokens + read.usage.output_tokens
    assert (read.instructions, read.error, read.incomplete_details) == ("Be brief.", None, None)
    assert prompt(served) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_items_are_a_conversation(served: Served) -> None:
    """OpenResponses: an instruction as a message, and several turns."""
    items: list[Any] = [
        {"type": "message", "role": "system", "content": "Talk like a pirate."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "I am Ann."}]},
        {"type": "message", "role": "assistant", "content": "Ahoy, Ann!"},
        {"role": "user", "content": "Who am I?"},
    ]
    async with served.sdk() as sdk:
        answer = await sdk.responses.create(model="tiny", input=items)

    assert answer.status == "completed"
    assert [line.partition("<|")[0] for line in prompt(served).split("\n")[1::2]][:4] == [
        "Talk like a pirate.",
        "I am Ann.",
        "Ahoy, Ann!",
        "Who am I?",
    ]


async def test_a_stream_is_numbered_events_that_come_to_the_whole_answer(served: Served) -> None:
    found = await events(served, model="tiny", input="What?", max_output_tokens=200)

    assert [event.sequence_number for event in found] == list(range(len(found)))
    kinds = [event.type for event in found]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert "".join(event.delta for event in found if event.type == "response.output_text.delta") == SAID
    last = found[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == SAID
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == len(served.worker.script)


async def test_a_stream_names_its_events_and_has_no_other_end(served: Served) -> None:
    answer = await served.post(RESPONSES, {"model": "tiny", "input": "What?", "stream": True})

    frames = answer.text.split("\n\n")
    assert frames.pop() == ""
    for frame in frames:
        name, data = frame.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]


async def test_the_sdks_own_stream_gathers_the_same(served: Served) -> None:
    async with served.sdk() as sdk, sdk.responses.stream(model="tiny", input="What?") as stream:
        async for _ in stream:
            pass
        gathered = await stream.get_final_response()

    assert gathered.output_text == SAID


async def test_an_answer_cut_short_says_so(served: Served) -> None:
    async with served.sdk() as sdk:
        answer = await sdk.responses.create(model="tiny", input="What?", max_output_tokens=3)
    found = await events(served, model="tiny", input="What?", max_output_tokens=3)

    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert found[-1].type == "response.incomplete"


class City(BaseModel):
    name: str
    people: int


async def test_a_parsed_answer_is_the_callers_own_type(served: Served) -> None:
    says(served, '{"name": "Köln", "people": 1000000}')
    async with served.sdk() as sdk:
        answer = await sdk.responses.parse(model="tiny", input="Tell me of a city.", text_format=City)

    assert answer.output_parsed == City(name="Köln", people=1_000_000)
    assert served.worker.seen[-1].job.grammar
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_schema"


async def test_a_tool_is_called_and_its_result_is_told_to_the_model(caller: Served) -> None:
    says(caller, CALL)
    asked: list[Any] = [{"role": "user", "content": "How is the weather in Köln?"}]
    async with caller.sdk() as sdk:
        first = await sdk.responses.create(model="Qwen 3", input=asked, tools=[WEATHER])  # type: ignore[list-item]
        (call,) = first.output
        assert call.type == "function_call"
        assert (call.name, json.loads(call.arguments), call.status) == ("weather", {"city": "Köln"}, "completed")
        says(caller, "Rain.")
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}
        items = [*asked, call.model_dump(exclude_none=True), result]
        second = await sdk.responses.create(model="Qwen 3", input=items, tools=[WEATHER])  # type: ignore[list-item]

    assert second.output_text == "Rain."
    assert "<tool_response>\nIt rains." in prompt(caller)
    assert '{"name": "weather", "arguments": {"city": "Köln"}}' in prompt(caller)


async def test_a_streamed_call_has_events_of_its_own(caller: Served) -> None:
    """Also of OpenResponses."""
    says(caller, f"Let me see.{CALL}")
    found = await events(caller, model="Qwen 3", input="Weather?", tools=[WEATHER])

    added = [event.item.type for event in found if event.type == "response.output_item.added"]
    done = [event.item for event in found if event.type == "response.output_item.done"]
    deltas = [event.delta for event in found if event.type == "response.function_call_arguments.delta"]
    (ended,) = [event for event in found if event.type == "response.function_call_arguments.done"]
    assert added == ["message", "function_call"]
    assert [item.type for item in done] == ["message", "function_call"]
    assert json.loads("".join(deltas)) == json.loads(ended.arguments) == {"city": "Köln"}


async def test_reasoning_is_an_item_and_goes_back_as_one(caller: Served) -> None:
    says(caller, "<think>\nIt is far.\n</think>\n\nParis.")
    found = await events(caller, model="Qwen 3", input="Where?")

    (thought,) = [event.text for event in found if event.type == "response.reasoning_text.done"]
    assert thought.strip() == "It is far."
    last = found[-1]
    assert last.type == "response.completed"
    assert [item.type for item in last.response.output] == ["reasoning", "message"]
    assert last.response.output_text.strip() == "Paris."
    assert last.response.usage is not None
    assert 0 < last.response.usage.output_tokens_details.reasoning_tokens < last.response.usage.output_tokens

    output = [item.model_dump(exclude_none=True) for item in last.response.output]
    async with caller.sdk() as sdk:
        await sdk.responses.create(
            model="Qwen 3",
            input=[{"role": "user", "content": "Where?"}, *output, {"role": "user", "content": "Sure?"}],  # type: ignore[list-item]
        )
    assert "<think>\nIt is far." in prompt(caller)


async def test_a_custom_tool_takes_a_text(caller: Served) -> None:
    says(caller, '<tool_call>\n{"name": "patch", "arguments": {"input": "+ \\"ü\\""}}\n</tool_call>')
    asked: dict[str, Any] = {"model": "Qwen 3", "input": "Change it.", "tools": [PATCH]}
    async with caller.sdk() as sdk:
        answer = await sdk.responses.create(**asked)
    found = await events(caller, **asked)

    (call,) = answer.output
    assert call.type == "custom_tool_call"
    assert (call.name, call.input) == ("patch", '+ "ü"')
    (told,) = [event.input for event in found if event.type == "response.custom_tool_call_input.done"]
    assert told == '+ "ü"'

    result = {
        "type": "custom_tool_call_output",
        "call_id": call.call_id,
        "output": [{"type": "input_text", "text": "ok"}],
    }
    items = [{"role": "user", "content": "Change it."}, call.model_dump(exclude_none=True), result]
    assert (await caller.post(RESPONSES, {**asked, "input": items})).status_code == 200
    assert "ok" in prompt(caller)


async def test_log_probabilities_are_told_of_each_token(served: Served) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "input": "What?",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
    }
    async with served.sdk() as sdk:
        answer = await sdk.responses.create(**asked)
    found = await events(served, **asked)

    part = answer.output[0].content[0]
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert len(part.logprobs) == len(served.worker.script)
    assert len(part.logprobs[0].top_logprobs) == 1
    assert "".join(token.token for token in part.logprobs[:-1]) == SAID
    deltas = [event for event in found if event.type == "response.output_text.delta"]
    assert "".join(token.token for event in deltas for token in event.logprobs) == SAID


async def test_the_same_request_twice_is_one_response(served: Served) -> None:
    for stream in (True, False):
        body = {"model": "tiny", "input": "What?", "stream": stream}
        first = await served.post(RESPONSES, body, idempotency_key=f"k{stream}")
        again = await served.post(RESPONSES, body, idempotency_key=f"k{stream}")

        assert again.headers["idempotent-replayed"] == "true"
        assert again.content == first.content
    assert len(served.worker.seen) == 2


async def test_a_fault_after_the_start_ends_the_stream_with_an_event(served: Served) -> None:
    served.worker.limit = 2
    async with served.sdk() as sdk:
        stream = await sdk.responses.create(model="tiny", input="What?", stream=True)
        found = []
        async for event in stream:
            found.append(event)
            if event.type == "response.output_text.delta":
                for job in served.resources.fleet.dispatcher.jobs.values():
                    job.fail(unavailable())

    assert [event.type for event in found[-2:]] == ["error", "response.failed"]
    assert [event.sequence_number for event in found] == list(range(len(found)))
    last = found[-1]
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"


async def test_a_response_is_charged_as_any_request_is(served: Served) -> None:
    answer = (await served.post(RESPONSES, {"model": "tiny", "input": "What?"})).json()
    await served.landed()

    used = answer["usage"]
    assert await served.ledger() == [("finished", used["input_tokens"], used["output_tokens"])]


async def test_a_response_has_every_field_that_openresponses_requires(served: Served) -> None:
    answer = (await served.post(RESPONSES, {"model": "tiny", "input": [{"role": "user", "content": "Hello"}]})).json()

    assert answer.keys() >= {
        *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "error", "usage"),
        *("previous_response_id", "instructions", "output", "tools", "tool_choice", "truncation", "text", "user"),
        *("parallel_tool_calls", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "temperature"),
        *("reasoning", "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata"),
        *("safety_identifier", "prompt_cache_key"),
    }
    assert isinstance(answer["created_at"], int)
    assert isinstance(answer["completed_at"], int)


async def test_an_image_is_refused_by_name(served: Served) -> None:
    """The one case of OpenResponses that a model of text cannot pass."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}

    answer = await served.post(RESPONSES, {"model": "tiny", "input": [{"role": "user", "content": [image]}]})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input.[0].content")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b'{"model": "tiny"}', "input"),
        (b'{"model": "tiny", "input": "x", "previous_response_id": 5}', "previous_response_id"),
        (b'{"model": "tiny", "input": "x", "previous_response_id": "\\ud800"}', "previous_response_id"),
        (b'{"model": "tiny", "input": "x", "previous\\u005fresponse_id": "resp_1"}', "previous_response_id"),
        (b'{"model": "tiny", "input": "x", "tools": [{"type": "web_search"}]}', "tools.[0]"),
    ],
)
async def test_a_broken_body_is_refused_with_its_field(served: Served, body: bytes, param: str | None) -> None:
    answer = await served.post(RESPONSES, body)

    assert answer.status_code == 400
    if param is not None:
        assert answer.json()["error"]["param"] == param
    assert not served.worker.seen


async def test_a_schema_that_cannot_be_served_is_named_where_it_stands(caller: Served) -> None:
    odd = {"type": "object", "properties": {"a": {"$ref": "https://example.org/schema"}}}
    asked = {"model": "Qwen 3", "input": "Weather?"}
    form = {"format": {"type": "json_schema", "name": "a", "schema": odd}}

    tool = await caller.post(RESPONSES, {**asked, "tools": [{**WEATHER, "parameters": odd, "strict": True}]})
    text = await caller.post(RESPONSES, {**asked, "text": form})

    assert (tool.status_code, tool.json()["error"]["param"]) == (400, "tools.[0].parameters.properties.a.$ref")
    assert (text.status_code, text.json()["error"]["param"]) == (400, "text.format.schema.properties.a.$ref")


async def test_a_required_tool_is_forced_by_grammar(caller: Served) -> None:
    says(caller, CALL)
    answer = await caller.post(
        RESPONSES, {"model": "Qwen 3", "input": "Weather?", "tools": [WEATHER], "tool_choice": "required"}
    )

    assert answer.json()["output"][0]["type"] == "function_call"
    assert "weather" in caller.worker.seen[-1].job.grammar
