"""Custom tools of chats, whose calls hold a text, as OpenAI's SDK reads them."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from openai.types.chat import ChatCompletion, ChatCompletionMessageCustomToolCall

from fairlane.gateway.model_text.tokenizer import TextModel
from tests.support.gateway.served import CHAT, Served, serving, settings
from tests.support.gateway.sse_events import read_events
from tests.support.gateway.tool_models import tool_card

pytestmark = pytest.mark.anyio
CARD = replace(tool_card("Qwen 3"), model="tiny")
MODEL = TextModel(CARD)
HI = {"role": "user", "content": "Change it."}
WEATHER = {"type": "function", "function": {"name": "weather"}}
CHOSEN = {"type": "custom", "custom": {"name": "patch"}}
INPUT = '+ "ü"\n'
CALL = '<tool_call>\n{"name": "patch", "arguments": {"input": "+ \\"ü\\"\\n"}}\n</tool_call>'
FUNCTION_CALL = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'


def patch(**fields: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": "patch", "description": "Change a file", **fields}}


def grammar(syntax: str, definition: str) -> dict[str, Any]:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


@pytest.fixture(scope="module")
async def file_gateway(file_url: str) -> AsyncIterator[Served]:
    async with serving(settings(file_url), card=CARD) as opened:
        yield opened


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant(unknown_fields="refuse")
    return fresh_gateway


async def ask(served: Served, **fields: Any) -> ChatCompletion:
    async with served.sdk() as sdk:
        answer: ChatCompletion = await sdk.chat.completions.create(
            **{"model": "tiny", "messages": [HI], "tools": [patch(), WEATHER], **fields}
        )
    return ChatCompletion.model_validate(answer.model_dump(by_alias=True), strict=True)


def enforced(served: Served) -> str:
    return served.worker.seen[-1].job.grammar


def prompt(served: Served) -> str:
    return MODEL.decode(served.worker.seen[-1].job.prompt)


@pytest.mark.parametrize("form", [None, {"type": "text"}, grammar("lark", "start: /.+/")])
async def test_a_custom_tool_is_called_with_a_text(served: Served, form: object) -> None:
    served.worker.say(f"Well.\n{CALL}\n{FUNCTION_CALL}")
    [choice] = (await ask(served, tools=[patch(format=form), WEATHER])).choices

    first, second = choice.message.tool_calls or []
    assert isinstance(first, ChatCompletionMessageCustomToolCall)
    assert (first.custom.name, first.custom.input) == ("patch", INPUT)
    assert second.type == "function"
    assert (choice.message.content, choice.finish_reason) == ("Well.\n", "tool_calls")


async def test_a_stream_holds_the_input_in_pieces(served: Served) -> None:
    served.worker.say(f"{CALL}\n{FUNCTION_CALL}")
    body = {"model": "tiny", "messages": [HI], "tools": [patch(), WEATHER], "stream": True}
    choices = [
        json.loads(event.data)["choices"][0]
        for event in read_events((await served.post(CHAT, body)).content)
        if event.data != "[DONE]"
    ]

    parts = [part for choice in choices for part in choice["delta"].get("tool_calls", ())]
    first, *rest = [part for part in parts if part["index"] == 0]
    assert first == {"index": 0, "id": first["id"], "type": "custom", "custom": {"name": "patch", "input": ""}}
    assert all(part == {"index": 0, "custom": {"input": part["custom"]["input"]}} for part in rest)
    assert "".join(part["custom"]["input"] for part in rest) == INPUT
    assert len(rest) > 1
    assert {part["function"].get("name") for part in parts if part["index"] == 1} >= {"weather"}
    assert choices[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("choice", "offered"),
    [
        (CHOSEN, {"patch"}),
        ("required", {"patch", "weather"}),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CHOSEN]}}, {"patch"}),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CHOSEN, WEATHER]}},
            {"patch", "weather"},
        ),
    ],
)
async def test_a_custom_tool_may_be_chosen(served: Served, choice: object, offered: set[str]) -> None:
    served.worker.say(CALL)
    answer = await ask(served, tool_choice=choice)

    assert {name for name in ("patch", "weather") if name in enforced(served)} == offered
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "custom"


@pytest.mark.parametrize(
    ("syntax", "definition", "pattern"),
    [
        ("regex", "[0-9]{4}-[0-9]{2}", "[0-9]{4}-[0-9]{2}"),
        ("lark", "start: /[ab]+/", "(?:(?:[ab]+))"),
        ("lark", "start: /[ab]+/ start?", None),
    ],
)
async def test_a_grammar_is_shown_to_the_model_and_enforced(
    served: Served, syntax: str, definition: str, pattern: str | None
) -> None:
    await ask(served, tools=[patch(format=grammar(syntax, definition))], tool_choice=CHOSEN)

    assert definition in prompt(served)
    assert "pattern" not in prompt(served)
    assert ("pattern" in enforced(served)) is (pattern is not None)
    assert pattern is None or f'"pattern": "^(?:{pattern})$"' in enforced(served)


async def test_what_an_answer_holds_may_be_sent_back(served: Served) -> None:
    served.worker.say(CALL)
    message = (await ask(served)).choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "patched"}

    await ask(served, messages=[HI, message, result])

    assert CALL.splitlines()[1] in prompt(served)
    assert "patched" in prompt(served)


AT_FAULT: dict[str, tuple[dict[str, Any], str]] = {
    "no tool": ({"tools": [{"type": "custom"}]}, "tools.[0].custom"),
    "no name": ({"tools": [{"type": "custom", "custom": {}}]}, "tools.[0].custom.name"),
    "an unknown format": ({"tools": [patch(format={"type": "json"})]}, "tools.[0].custom.format.type"),
    "no grammar": ({"tools": [patch(format={"type": "grammar"})]}, "tools.[0].custom.format.grammar"),
    "another syntax": (
        {"tools": [patch(format=grammar("gbnf", "x"))]},
        "tools.[0].custom.format.grammar.syntax",
    ),
    "a wrong expression": ({"tools": [patch(format=grammar("regex", "(a"))]}, "tools.[0].custom.format"),
    "an unknown field": ({"tools": [patch(strict=True)]}, "tools.[0].custom.strict"),
    "two of a name": ({"tools": [patch(), patch()]}, "tools.[1].custom.name"),
    "two kinds of a name": (
        {"tools": [patch(), {"type": "function", "function": {"name": "patch"}}]},
        "tools.[1].function.name",
    ),
    "a choice of no name": ({"tools": [patch()], "tool_choice": {"type": "custom"}}, "tool_choice"),
    "a choice of another": (
        {"tools": [patch()], "tool_choice": {"type": "custom", "custom": {"name": "x"}}},
        "tool_choice",
    ),
}


@pytest.mark.parametrize("case", AT_FAULT)
async def test_what_is_wrong_with_a_custom_tool_is_named(served: Served, case: str) -> None:
    fields, named = AT_FAULT[case]
    answer = await served.post(CHAT, {"model": "tiny", "messages": [HI], **fields})

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == named


async def test_an_engine_without_grammars_takes_custom_tools_without_them(file_url: str) -> None:
    async with serving(settings(file_url), card=replace(CARD, takes_grammars=False)) as opened:
        await opened.tenant()
        body = {"model": "tiny", "messages": [HI], "tools": [patch()]}
        taken = await opened.post(CHAT, body)
        refused = await opened.post(CHAT, body | {"tools": [patch(format=grammar("regex", "a+"))]})

    assert taken.status_code == 200, taken.text
    assert refused.json()["error"]["param"] == "tools.[0].custom.format"
