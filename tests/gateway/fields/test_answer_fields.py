"""Fields that change the form of a chat's answer: the older form of calls, and what becomes of reasoning."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from fairlane.gateway.model_text.tokenizer import TextModel
from tests.support.gateway.served import CHAT, Served, serving, settings
from tests.support.gateway.tool_models import tool_card

pytestmark = pytest.mark.anyio
CARD = replace(tool_card("Qwen 3"), model="tiny")
MODEL = TextModel(CARD)
HI = [{"role": "user", "content": "Weather?"}]
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
ARGUMENTS = '{"city": "Köln"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
TOOL = {"type": "function", "function": WEATHER}


@pytest.fixture(scope="module")
async def file_gateway(file_url: str) -> AsyncIterator[Served]:
    async with serving(settings(file_url), card=CARD) as opened:
        yield opened


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


async def ask(served: Served, words: str, **fields: Any) -> httpx.Response:
    served.worker.say(words)
    return await served.post(CHAT, {"model": "tiny", "messages": HI, **fields})


async def message_of(served: Served, words: str, **fields: Any) -> tuple[dict[str, Any], str]:
    answer = await ask(served, words, **fields)
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    return choice["message"], choice["finish_reason"]


async def streamed(served: Served, words: str, **fields: Any) -> list[dict[str, Any]]:
    """The choices of a stream's chunks."""
    answer = await ask(served, words, stream=True, **fields)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [choice for line in lines for choice in json.loads(line)["choices"]]


@pytest.mark.parametrize("words", [CALL, f"{CALL}\n{CALL}", f"Well.\n{CALL}"])
async def test_a_function_is_called_in_the_older_form(served: Served, words: str) -> None:
    message, finish = await message_of(served, words, functions=[WEATHER], function_call="auto")

    assert finish == "function_call"
    assert message["function_call"] == {"name": "weather", "arguments": ARGUMENTS}
    assert message["content"] == ("Well.\n" if words.startswith("Well") else None)
    assert "tool_calls" not in message


async def test_a_stream_calls_a_function_in_the_older_form(served: Served) -> None:
    choices = await streamed(served, f"{CALL}\n{CALL}", functions=[WEATHER])

    calls = [choice["delta"]["function_call"] for choice in choices if "function_call" in choice["delta"]]
    assert [call["name"] for call in calls if "name" in call] == ["weather"]
    assert "".join(call["arguments"] for call in calls) == ARGUMENTS
    assert choices[-1]["finish_reason"] == "function_call"
    assert not [choice for choice in choices if "tool_calls" in choice["delta"]]


async def test_a_function_must_be_called_or_must_not(served: Served) -> None:
    named = {"functions": [WEATHER, {"name": "time"}], "function_call": {"name": "time"}}
    await message_of(served, "Rain.", **named)
    forced = served.worker.seen[-1].job.grammar
    message, finish = await message_of(served, CALL, functions=[WEATHER], function_call="none")

    assert "time" in forced
    assert "weather" not in forced
    assert (message["content"], finish) == (CALL, "stop")


async def test_tools_with_the_older_choice_are_called_in_the_newer_form(served: Served) -> None:
    message, finish = await message_of(served, CALL, tools=[TOOL], function_call="auto")

    assert (message["tool_calls"][0]["function"]["name"], finish) == ("weather", "tool_calls")


NEUTRAL: list[dict[str, Any]] = [
    {"functions": [], "function_call": "auto"},
    {"functions": None, "function_call": None},
    {"function_call": "none"},
    {"function_call": ""},
    {"tools": [TOOL], "functions": []},
    {"include_reasoning": True},
    {"include_reasoning": None},
    {"reasoning": {"exclude": False}},
]


@pytest.mark.parametrize("fields", NEUTRAL)
async def test_what_asks_for_nothing_changes_nothing(served: Served, fields: dict[str, Any]) -> None:
    message, finish = await message_of(served, "<think>Hm.</think>Rain.", **fields)

    assert (message["content"], message["reasoning_content"], finish) == ("Rain.", "Hm.", "stop")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [WEATHER], "tools": [TOOL]}, "functions"),
        ({"functions": [WEATHER, WEATHER]}, "functions.[1].name"),
        ({"functions": [{"name": "weather", "parameters": {"type": "array"}}]}, "functions.[0].parameters"),
        ({"functions": [{"name": "weather", "strict": True, "parameters": {"$ref": "#"}}]}, "functions.[0].parameters"),
        ({"functions": [WEATHER], "function_call": {"name": "time"}}, "function_call"),
        ({"functions": [WEATHER], "function_call": "required"}, "function_call"),
        ({"function_call": {"name": "weather"}}, "function_call"),
        ({"include_reasoning": "no"}, "include_reasoning"),
    ],
)
async def test_what_is_wrong_is_named(served: Served, fields: dict[str, Any], param: str) -> None:
    answer = await ask(served, "Rain.", **fields)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}])
async def test_reasoning_may_be_left_out(served: Served, fields: dict[str, Any]) -> None:
    words = "<think>Clouds. Many clouds.</think>Rain."
    answer = await ask(served, words, **fields)
    choices = await streamed(served, words, **fields)

    assert answer.json()["choices"][0]["message"] == {"role": "assistant", "content": "Rain.", "refusal": None}
    assert answer.json()["usage"]["completion_tokens"] > 10
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Rain."
    assert not [choice for choice in choices if choice["delta"].keys() - {"role", "content", "refusal"}]


@pytest.mark.parametrize("said", ["<think>", "<think>\nClouds." + " More clouds." * 60])
async def test_reasoning_is_continued_too(served: Served, said: str) -> None:
    turns = [*HI, {"role": "assistant", "content": said}]
    message, _ = await message_of(served, " Many.</think>Rain.", messages=turns, continue_final_message=True)
    turns = [*HI, {"role": "assistant", "content": f"{said}</think>"}]
    done, _ = await message_of(served, "Rain.", messages=turns, continue_final_message=True)

    assert (message["content"], message["reasoning_content"]) == ("Rain.", "Many.")
    assert (done["content"], done.get("reasoning_content")) == ("Rain.", None)


async def test_a_stream_without_its_reasoning_is_not_silent(served: Served) -> None:
    answer = await ask(served, "<think>Clouds. Many clouds.</think>Rain.", stream=True, include_reasoning=False)

    opened, _, rest = answer.text.partition("\n\n")
    assert '"role"' in opened
    assert rest.startswith("\n")


@pytest.mark.parametrize("fields", [{}, {"include_reasoning": False}, {"n": 2}, {"tools": [TOOL]}])
async def test_tokens_of_reasoning_are_counted(served: Served, fields: dict[str, Any]) -> None:
    words = "<think>\nClouds. Many clouds.\n</think>\n\nRain."
    expected = len(MODEL.encode("Clouds. Many clouds.\n")) * fields.get("n", 1)
    answer = await ask(served, words, **fields)
    usage = {"include_usage": True, "continuous_usage_stats": True}
    stream = await ask(served, words, stream=True, stream_options=usage, **fields)

    counts = [
        json.loads(line.removeprefix("data: "))["usage"]["completion_tokens_details"]["reasoning_tokens"]
        for line in stream.text.splitlines()
        if line.startswith("data: {")
    ]
    assert answer.json()["usage"]["completion_tokens_details"]["reasoning_tokens"] == counts[-1] == expected
    assert counts == sorted(counts)
    assert 0 in counts


async def test_a_response_counts_them_too(served: Served) -> None:
    served.worker.say("<think>Clouds. Many clouds.</think>Rain.")
    answer = await served.post("/v1/responses", {"model": "tiny", "input": "Weather?"})

    details = answer.json()["usage"]["output_tokens_details"]
    assert details == {"reasoning_tokens": len(MODEL.encode("Clouds. Many clouds."))}
