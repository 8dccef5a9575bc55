"""Answers read by a `response_template` that came with the model, through transformers' own parser."""

import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from transformers.utils.chat_parsing import parse_response

from fairlane.gateway.dialects.grammar.checker import GrammarChecker
from fairlane.gateway.dialects.openai.chat_requests import parse_chat
from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.dialects.openai.tools import Tool
from fairlane.gateway.dialects.tools.output_format import OutputFormat
from fairlane.gateway.dialects.tools.template_reader import MAX_REGION_CHARS, ResponseTemplate
from fairlane.gateway.errors import ApiError
from fairlane.gateway.model_text.token_stream import TokenStream
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline.constraints import grammar_of
from tests.support.gateway.read_outputs import TOOLS, Read, read
from tests.support.gateway.tool_models import TOOL_MODELS, tool_card

pytestmark = pytest.mark.slow
"""transformers is imported."""
START = "<|im_start|>assistant\n"
FUNCTION = {"type": "function", "function": "{content}"}
TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": START,
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open_pattern": r"\s*<call>",
            "close": "</call>",
            "content": "json",
            "repeats": True,
            "transform": FUNCTION,
        },
        "content": {"close_pattern": r"<\|im_end\|>"},
    },
}
NAMED = {
    "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\n]+)>",
    "close_pattern": r"</function>\s*</tool_call>",
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
    "repeats": True,
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
}


def template(**fields: Any) -> str:
    return json.dumps({**TEMPLATE, "fields": {**TEMPLATE["fields"], **fields}})


def told(text: str, *, tail: str = START, tools: tuple[Tool, ...] = TOOLS, source: str | None = None) -> Read:
    return read(ResponseTemplate(source or template()).reader(tail, tools), text)


CALL = '<call>{"name": "weather", "arguments": {"city": "Köln"}}</call>'
CASES: dict[str, tuple[str, Read]] = {
    "content": ("Hi there.", Read("Hi there.", "", [])),
    "a call": (CALL, Read("", "", [("weather", '{"city": "Köln"}')])),
    "more": (
        f"One moment.\n{CALL}\n{CALL} ",
        Read("One moment.", "", [("weather", '{"city": "Köln"}')] * 2),
    ),
    "reasoning": ("<think>\nhm</think>\n\nYes.", Read("Yes.", "hm", [])),
    "broken JSON": ("<call>{no}</call>", Read("{no}", "", [])),
    "JSON that is no call": ("<call>[1]</call><call>{}</call>", Read("[1]{}", "", [])),
    "cut off": ('Well. <call>{"name": "wea', Read('Well.{"name": "wea', "", [])),
    "arguments as text": (
        '<call>{"name": "time", "arguments": "{}"}</call>',
        Read("", "", [("time", "{}")]),
    ),
    "no arguments": ('<call>{"name": "time"}</call>', Read("", "", [("time", "{}")])),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_template_makes_of_an_answer(case: str) -> None:
    text, expected = CASES[case]

    assert told(text) == expected


def test_what_the_prompt_has_written_of_the_answer_counts() -> None:
    assert told("hm</think>Yes.", tail=f"<think>{START}<think>\n") == Read("Yes.", "hm", [])
    assert told("hm</think>Yes.", tail="no start <think>") == Read("hm</think>Yes.", "", [])


def test_arguments_are_cast_by_the_tools_schema() -> None:
    text = "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"

    assert told(text, source=template(tool_calls=NAMED)).calls == [("weather", '{"days": 3}')]


def test_without_tools_a_call_is_content() -> None:
    assert told(CALL, tools=()).content == CALL.removeprefix("<call>").removesuffix("</call>")


def test_nothing_of_an_answer_is_in_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        told("<call>{secret}</call><call>secret")

    assert "secret" not in caplog.text


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_however_a_text_is_split_it_is_read_alike(data: st.DataObject) -> None:
    pieces = [CALL, CALL[:20], "<call>", "</call>", "<think>", "</think>", "<|im_end|>", "<cal", "{}", " ", "\n", "é"]
    text = data.draw(st.lists(st.sampled_from(pieces), max_size=10).map("".join))
    compiled = ResponseTemplate(template())

    whole = read(compiled.reader(START, TOOLS), text)

    assert read(compiled.reader(START, TOOLS), text, range(len(text))) == whole


@given(words=st.lists(st.sampled_from(["Hi", " there", "<think>hm</think>", CALL, "\n"]), max_size=6))
@settings(max_examples=50, deadline=None)
def test_calls_and_reasoning_are_what_transformers_finds(words: list[str]) -> None:
    text = "".join(words)

    found, theirs = told(text), parse_response(text, TEMPLATE, prefix="", tools=[tool.as_json() for tool in TOOLS])

    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in theirs.get("tool_calls", [])]
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == calls
    assert theirs.get("reasoning_content", "") in found.reasoning


@pytest.mark.parametrize(
    "text",
    ["word " * 100_000, " " * 500_000, "<call>" + "x" * 500_000, "<call" * 100_000, "<call>{</call>" * 35_000],
    ids=["words", "blanks", "a call without end", "marks that are begun", "broken calls"],
)
def test_a_text_without_end_takes_linear_time(text: str) -> None:
    """A quadratic reader would take minutes for it."""
    reader = ResponseTemplate(template()).reader(START, TOOLS)

    deltas = [reader.push(text[start : start + 5]) for start in range(0, len(text), 5)]

    assert reader.end() is not None
    assert all(not delta.calls for delta in deltas)


def test_a_call_that_is_too_long_is_content() -> None:
    text = "<call>" + "x" * (MAX_REGION_CHARS + 1)

    assert told(text).content == text.removeprefix("<call>")


def test_a_models_own_template_wins() -> None:
    answers = OutputFormat(TOOL_MODELS["Llama 3"].template, {}, (), template())

    assert read(answers.reader(START, TOOLS), CALL).calls == [("weather", '{"city": "Köln"}')]
    assert answers.needs_reader(())
    assert not answers.grammar.can_force
    assert answers.grammar.lenient([replace(TOOLS[0], strict=True)]) is None


def test_a_template_that_reads_a_known_syntax_can_be_forced() -> None:
    known = template(
        tool_calls={**TEMPLATE["fields"]["tool_calls"], "open_pattern": r"<tool_call>", "close": "</tool_call>"}
    )
    answers = OutputFormat("", {}, (), known)

    assert answers.grammar.can_force
    assert answers.syntax.name == "hermes"
    assert OutputFormat("", {}, (), template(tool_calls=NAMED)).syntax.name == "qwen3.5"


@pytest.mark.parametrize(
    "source", ["", "[]", "{}", '{"fields": {"content": {}}}', template(content={"open_pattern": "("})]
)
def test_a_template_that_cannot_be_used_costs_nothing(source: str) -> None:
    answers = OutputFormat(TOOL_MODELS["Hermes"].template, {}, (), source)

    assert answers.grammar.can_force
    assert answers.syntax.name == "hermes"


def test_a_model_card_brings_its_template_and_special_tokens_are_shown_to_it() -> None:
    card = replace(
        tool_card("Llama 3"),
        response_template=template(
            tool_calls={
                **NAMED,
                "open_pattern": r"<\|python_tag\|><function=(?P<name>\w+)>",
                "close_pattern": "</function>",
            }
        ),
    )
    model = TextModel(card)
    [tag] = [token for token in range(card.vocab_size) if model.token_text(token) == "<|python_tag|>"]

    stream = TokenStream(model, control_text=model.output_format.needs_control_text)
    text = stream.push([tag, *model.encode("<function=f></function>"), *card.eos_token_ids]).text

    assert text == "<|python_tag|><function=f></function>"
    tail = model.tail(model.chat_prompt([Turn(role="user", content="Hi")]))
    assert read(model.output_format.reader(tail, TOOLS), text).calls == [("f", "{}")]


@pytest.mark.anyio
async def test_a_model_that_writes_calls_nobody_knows_how_cannot_be_made_to() -> None:
    model = TextModel(replace(tool_card("Hermes"), response_template=template()))
    tool = {"type": "function", "function": {"name": "f"}}
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "tool_choice": "required"}
    checker = GrammarChecker()

    with pytest.raises(ApiError, match="cannot be made to call") as refused:
        await grammar_of(parse_chat(json.dumps(asked).encode()), model, (1,), checker, "acme")

    await checker.aclose()
    assert refused.value.param == "tool_choice"


CUT: dict[str, tuple[str, str, str | None, int]] = {
    "in a mark": ("Well. <cal", "Well.", " <cal", 0),
    "after a mark": ("Well. <call>", "Well.", " <call>", 0),
    "in a name": ('Well. <call>{"name": "wea', "Well.", ' <call>{"name": "wea', 0),
    "in arguments": (f'{CALL}<call>{{"name": "time", "arg', "", '<call>{"name": "time", "arg', 1),
    "in the closing mark": (CALL[:-3], "", None, 1),
    "behind a call": (CALL, "", None, 1),
    "in words": ("Well. ", "Well. ", None, 0),
}


@pytest.mark.parametrize("case", CUT)
def test_a_call_that_a_cut_left_incomplete_is_no_content(case: str) -> None:
    text, content, incomplete, calls = CUT[case]
    reader = ResponseTemplate(template()).reader(START, TOOLS)

    deltas = [*map(reader.push, text), reader.end(is_cut=True)]

    assert "".join(delta.content for delta in deltas) == content
    assert (reader.incomplete, reader.calls) == (incomplete, calls)


def test_tags_without_their_end_are_no_call() -> None:
    reader = ResponseTemplate(template(tool_calls=NAMED)).reader(START, TOOLS)
    text = "<tool_call><function=weather><parameter=days>3"

    deltas = [reader.push(text), reader.end(is_cut=True)]

    assert (reader.incomplete, reader.calls, deltas[0].content, deltas[1].content) == (text, 0, "", "")
