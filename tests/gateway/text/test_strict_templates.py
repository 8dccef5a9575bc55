"""Conversations that a strict template rejects as they are: merged and moved until it takes them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.dialects.openai.tools import Tool, ToolCall
from fairlane.gateway.model_text.tokenizer import TextModel
from tests.support.gateway.families import STRICT_TEMPLATES, prompt_text, strict_model
from tests.support.gateway.tool_models import TOOL_MODELS, tool_card

strict = pytest.mark.parametrize("name", STRICT_TEMPLATES)


def user(text: str) -> Turn:
    return Turn(role="user", content=text)


def said(text: str | None, *ids: str) -> Turn:
    calls = tuple([ToolCall(name="look", arguments="{}", id=each) for each in ids])
    return Turn(role="assistant", content=text, tool_calls=calls)


def system(text: str) -> Turn:
    return Turn(role="system", content=text)


def result(text: str, id: str) -> Turn:  # noqa: A002
    return Turn(role="tool", content=text, tool_call_id=id)


def read(name: str, *turns: Turn) -> str:
    model = strict_model(name)
    return prompt_text(model, model.chat_prompt(turns))


@strict
def test_what_a_template_takes_is_unchanged(name: str) -> None:
    assert read(name, user("a"), said("b"), user("c")) == "[INST]a[/INST]b</s>[INST]c[/INST]"


@strict
def test_a_first_turn_as_codex_sends_it(name: str) -> None:
    text = read(name, Turn(role="developer", content="Mind."), user("environment"), user("Hello"))

    assert text.replace("[INST]", "").replace("\n\n", "") == "Mind.environmentHello[/INST]"
    assert text.count("[INST]") == 1


@strict
def test_system_messages_repeated_and_late(name: str) -> None:
    text = read(name, system("One."), system("Two."), user("a"), said("b"), system("Late."), user("c"))

    assert text.index("One.\n\nTwo.") < text.index("a[/INST]b</s>")
    assert text.endswith("</s>[INST]<system>\nLate.\n</system>\nc[/INST]")


@strict
def test_turns_of_one_role_become_one_and_the_user_begins(name: str) -> None:
    text = read(name, said("a"), said("b"), user("c"), user("d"), said(""), user("e"))

    assert text == "[INST][/INST]a\n\nb</s>[INST]c\n\nd\n\ne[/INST]"


@strict
def test_a_reminder_next_to_a_result(name: str) -> None:
    text = read(name, user("a"), said(None, "aaaaaaaaa"), result("rain", "aaaaaaaaa"), user("Mind."))

    assert text.index("look") < text.index("rain") < text.index("Mind.")
    assert text.count("[INST]") + text.count("[TOOL_RESULTS]") == 2


@strict
def test_a_result_without_a_call_is_the_users(name: str) -> None:
    text = read(name, said("a"), result("rain", "aaaaaaaaa"), user("b"))

    assert text == "[INST][/INST]a</s>[INST]<tool_response>\nrain\n</tool_response>\n\nb[/INST]"


@strict
def test_a_call_may_have_no_result(name: str) -> None:
    text = read(name, user("Hi."), said("Well.", "aaaaaaaaa"), user("Stop."), said("Yes."), user("Go."))

    words = ["[INST]Hi.", "look", *(["[no result]"] if name == "Mistral" else []), "Stop.", "Yes.</s>", "[INST]Go."]
    assert sorted(map(text.index, words)) == [*map(text.index, words)]


@strict
def test_text_before_calls_is_in_their_turn(name: str) -> None:
    turns = [
        user("Hi."),
        said("Well."),
        said(None, "aaaaaaaaa"),
        result("rain", "aaaaaaaaa"),
        user("Go."),
        said("Yes."),
    ]
    text = read(name, *turns, user("Go on."))

    words = ["[INST]Hi.[/INST]Well.", "look", "rain", "Go.", "Yes.</s>", "Go on."]
    assert sorted(map(text.index, words)) == [*map(text.index, words)]


def test_results_that_come_late_follow_their_calls() -> None:
    turns = [user("Hi."), user("Hi."), said(None, "aaaaaaaaa"), said("Well."), result("rain", "aaaaaaaaa"), user("Go.")]
    text = read("Mistral", *turns)

    words = ["[INST]Hi.", "look", "[TOOL_RESULTS]rain[/TOOL_RESULTS]", "Well.</s>", "[INST]Go."]
    assert sorted(map(text.index, words)) == [*map(text.index, words)]
    assert "[no result]" not in text


@strict
def test_of_nothing_a_prompt_is_made_too(name: str) -> None:
    assert read(name, said("")) == "[INST][/INST]"


def test_calls_made_together_follow_each_other_where_a_turn_holds_one() -> None:
    model = TextModel(tool_card("Llama 3"))
    turns = [
        user("a"),
        said("Look.", "1", "2", "3"),
        result("two", "2"),
        result("one", "1"),
        result("x", "?"),
        user("b"),
    ]

    text = prompt_text(model, model.chat_prompt(turns))

    order = [text.index(word) for word in ('"one"', '"two"', '"x"', "\n\nb")]
    assert order == sorted(order)
    assert text.count('"look"') == 3


_ids = st.sampled_from([None, "1", "2", "abcdefghi"])
_calls = st.builds(ToolCall, name=st.sampled_from(["look", ""]), arguments=st.sampled_from(["{}", "", "x"]), id=_ids)
_turns = st.lists(
    st.builds(Turn, role=st.sampled_from(["user", "system", "developer"]), content=st.sampled_from(["a", ""]))
    | st.builds(Turn, role=st.sampled_from(["tool", "function"]), content=st.just("a"), tool_call_id=_ids)
    | st.builds(
        Turn,
        role=st.just("assistant"),
        content=st.sampled_from(["a", ""]),
        tool_calls=st.lists(_calls, max_size=2).map(tuple),
        reasoning=st.sampled_from([None, "hm"]),
    ),
    min_size=1,
    max_size=7,
)
MODELS = [*map(strict_model, STRICT_TEMPLATES), *(TextModel(tool_card(name)) for name in TOOL_MODELS)]
LOOK = Tool(name="look", parameters={"type": "object", "properties": {}})


@given(_turns, st.sampled_from(MODELS), st.sampled_from([[], [LOOK]]))
@settings(max_examples=200, deadline=None)
def test_no_conversation_is_refused(turns: list[Turn], model: TextModel, tools: list[Tool]) -> None:
    model.chat_prompt(turns, tools)
