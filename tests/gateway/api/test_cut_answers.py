"""Answers that a limit or a stop string cuts in the middle of a character or of a call."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.gateway.served import CHAT, COMPLETIONS, Served, serving, settings
from tests.support.gateway.sse_events import read_events
from tests.support.gateway.tool_models import tool_card

pytestmark = pytest.mark.anyio
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
TURNS = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "parameters": SCHEMA}
PATHS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": TURNS, "tools": [{"type": "function", "function": FUNCTION}]},
    COMPLETIONS: {"prompt": "Hi"},
    MESSAGES: {"messages": TURNS, "tools": [{"name": "weather", "input_schema": SCHEMA}]},
    RESPONSES: {"input": "Hi", "tools": [{"type": "function", **FUNCTION}]},
}
WITH_TOOLS = [path for path in PATHS if path != COMPLETIONS]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
MARK, NAME, ARGUMENTS = "Well. <tool_ca", 'Well. <tool_call>\n{"name": "we', f"Well. {CALL[: CALL.index('ln')]}"


@pytest.fixture(scope="module")
async def caller(file_url: str) -> AsyncIterator[Served]:
    """A gateway whose model calls tools; its marks are text."""
    async with serving(settings(file_url), card=tool_card("no tools")) as opened:
        yield opened


@pytest.fixture
async def served(caller: Served) -> Served:
    await caller.renew()
    await caller.tenant()
    return caller


async def ask(served: Served, path: str, says: str, *, most: int | None = None, **asked: Any) -> httpx.Response:
    """Have the model say something, of which an answer has as many tokens as it says, or as given."""
    served.worker.say(says)
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    tokens = len(served.worker.script) - 1 if most is None else most
    return await served.post(path, {"model": served.worker.card.model, **PATHS[path], limit: tokens, **asked})


def end(path: str, answer: httpx.Response) -> dict[str, Any]:
    """The last object of a stream that says how it ended."""
    events: list[dict[str, Any]] = [
        json.loads(event.data) for event in read_events(answer.content) if event.data != "[DONE]"
    ]
    if path == CHAT:
        return next(event for event in reversed(events) if event["choices"] and event["choices"][0]["finish_reason"])
    response: dict[str, Any] = events[-2] if path == MESSAGES else events[-1]["response"]
    return response


def why(path: str, answer: dict[str, Any]) -> str:
    if path == CHAT:
        return str(answer["choices"][0]["finish_reason"])
    if path == MESSAGES:
        return str(answer.get("delta", answer)["stop_reason"])
    return str(answer["status"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_character_that_the_limit_cuts_is_not_sent(served: Served, path: str, stream: bool) -> None:
    served.worker.say("Yes 🙈")
    most = len(served.worker.script) - 2  # one less than its last character has

    answer = await ask(served, path, "Yes 🙈", most=most, stream=stream)

    assert answer.status_code == 200, answer.text
    assert "Y" in answer.text
    assert "\ufffd" not in answer.text
    assert r"\ufffd" not in answer.text


@pytest.mark.parametrize("path", WITH_TOOLS)
@pytest.mark.parametrize("says", [MARK, NAME, ARGUMENTS])
async def test_a_call_that_the_limit_cuts_is_not_in_the_answer(served: Served, path: str, says: str) -> None:
    whole = (await ask(served, path, says)).json()
    streamed = await ask(served, path, says, stream=True)

    remarks = {"incomplete_tool_call": {"text": says.removeprefix("Well. ")}}
    reasons = {CHAT: "length", MESSAGES: "max_tokens", RESPONSES: "incomplete"}
    for answer in (whole, end(path, streamed)):
        assert (why(path, answer), answer["fairlane"]) == (reasons[path], remarks)
    if path == CHAT:
        assert whole["choices"][0]["message"] == {"role": "assistant", "content": "Well. ", "refusal": None}
    elif path == MESSAGES:
        assert whole["content"] == [{"type": "text", "text": "Well. "}]
    else:
        item, *calls = whole["output"]
        assert item["content"][0]["text"] == "Well. "
        assert [call["status"] for call in calls] == (["incomplete"] if says == ARGUMENTS else [])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("says", "stop", "finish", "left"),
    [
        (CALL, "tool_call>", "stop", "<"),
        (CALL, "ther", "stop", '<tool_call>\n{"name": "wea'),
        (CALL, "öln", "stop", '<tool_call>\n{"name": "weather", "arguments": {"city": "K'),
        (f"{CALL}\n{CALL}!", '"}}\n</tool_call>!', "stop", CALL[: CALL.index('"}}')]),
        (CALL, "</tool_call>", "tool_calls", None),
        (CALL, "\n</to", "tool_calls", None),
    ],
)
async def test_a_stop_string_in_a_call(
    served: Served, says: str, stop: str, finish: str, left: str | None, stream: bool
) -> None:
    answer = await ask(served, CHAT, says, most=200, stop=[stop], stream=stream)

    told = end(CHAT, answer) if stream else answer.json()
    assert why(CHAT, told) == finish
    assert told.get("fairlane") == (None if left is None else {"incomplete_tool_call": {"text": left}})
    if not stream:
        message = told["choices"][0]["message"]
        assert not message["content"]
        for call in message.get("tool_calls", []):
            assert json.loads(call["function"]["arguments"]) == {"city": "Köln"}


async def test_arguments_that_were_sent_stay_sent(served: Served) -> None:
    answer = await ask(served, CHAT, ARGUMENTS, stream=True)

    events = [json.loads(event.data) for event in read_events(answer.content)[:-1]]
    calls = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", [])]
    assert "".join(call["function"].get("arguments", "") for call in calls) == '{"city": "Kö'
