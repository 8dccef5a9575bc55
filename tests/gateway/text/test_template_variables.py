"""What a request sets of a chat template: reasoning, effort, documents and other variables."""

from typing import Any

import pytest
from msgspec.structs import replace

from fairlane.gateway.dialects.openai.rendering import USUAL_RENDERING, EffortWord, Rendering, with_effort
from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.errors import ApiError
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.model_text.variable_names import USUAL_VARIABLES
from tests.support.gateway.tool_models import tool_card

ASKED = [Turn(role="user", content="Hi")]
TURNS = "{% for m in messages %}{{ m.content }}{% endfor %}"
QWEN = TURNS + "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
DEEPSEEK = (
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    + TURNS
    + ("{% if thinking %}<think>{% else %}</think>{% endif %}")
)
EFFORT = TURNS + "<think>{{ reasoning_effort | default('usual') }}"
BUDGET = TURNS + "<think>{{ thinking_budget | default('usual') }}"
ALWAYS = TURNS + "<think>"
NEVER = TURNS
PICKY = TURNS + (
    "{% if reasoning_effort is defined and reasoning_effort not in ['low', 'high'] %}"
    "{{ raise_exception('No such effort') }}{% endif %}{{ reasoning_effort }}"
)
DOCUMENTS = "{% for d in documents or [] %}[{{ d.title }}]{% endfor %}" + TURNS


def model_of(source: str) -> TextModel:
    return TextModel(replace(tool_card("Qwen 3"), chat_template=source), variables=USUAL_VARIABLES)


def shown(source: str, asked: Rendering) -> tuple[str, list[str]]:
    """The prompt after the message, and the fields without an effect."""
    model = model_of(source)
    return model.tail(model.chat_prompt(ASKED, (), asked)).removeprefix("Hi"), list(model.unread(asked))


def effort(word: EffortWord) -> Rendering:
    return with_effort(USUAL_RENDERING, word, "reasoning_effort")


def variables(**values: Any) -> Rendering:
    return Rendering(variables=values)


THOUGHT = Rendering(reasons=True, reasons_param="thinking")
UNTHOUGHT = Rendering(reasons=False, reasons_param="thinking")


@pytest.mark.parametrize(
    ("source", "asked", "prompt", "ignored"),
    [
        (QWEN, USUAL_RENDERING, "", []),
        (QWEN, effort("none"), "<think></think>", []),
        (QWEN, effort("medium"), "", []),
        (QWEN, effort("high"), "", ["reasoning_effort"]),
        (QWEN, UNTHOUGHT, "<think></think>", []),
        (QWEN, variables(enable_thinking=False), "<think></think>", []),
        (QWEN, variables(enable_thinking=False, flavour=1), "<think></think>", ["chat_template_kwargs.flavour"]),
        (QWEN, with_effort(variables(enable_thinking=True), "none", "reasoning_effort"), "", []),
        (DEEPSEEK, USUAL_RENDERING, "</think>", []),
        (DEEPSEEK, THOUGHT, "<think>", []),
        (DEEPSEEK, effort("low"), "<think>", ["reasoning_effort"]),
        (DEEPSEEK, effort("none"), "</think>", []),
        (EFFORT, effort("none"), "<think>none", []),
        (EFFORT, effort("xhigh"), "<think>xhigh", []),
        (EFFORT, variables(reasoning_effort="high"), "<think>high", []),
        (EFFORT, UNTHOUGHT, "<think>usual", ["thinking"]),
        (BUDGET, UNTHOUGHT, "<think>0", []),
        (BUDGET, effort("none"), "<think>0", []),
        (BUDGET, effort("high"), "<think>usual", ["reasoning_effort"]),
        (BUDGET, with_effort(variables(thinking_budget=512), "none", "reasoning_effort"), "<think>512", []),
        (ALWAYS, effort("none"), "<think>", ["reasoning_effort"]),
        (ALWAYS, UNTHOUGHT, "<think>", ["thinking"]),
        (ALWAYS, THOUGHT, "<think>", []),
        (NEVER, effort("none"), "", []),
        (NEVER, UNTHOUGHT, "", []),
        (NEVER, variables(tools=1), "", ["chat_template_kwargs.tools"]),
        (PICKY, effort("low"), "low", []),
    ],
)  # fmt: skip
def test_what_a_template_reads_is_set_and_the_rest_is_named(
    source: str, asked: Rendering, prompt: str, ignored: list[str]
) -> None:
    assert shown(source, asked) == (prompt, ignored)


def test_documents_are_shown() -> None:
    model = model_of(DOCUMENTS)

    prompt = model.chat_prompt(ASKED, (), Rendering(documents=({"title": "A<think>"}, {"title": "B"})))

    assert model.spelled_out(prompt) == "[A<think>][B]Hi"


@pytest.mark.parametrize(
    ("source", "asked", "param"),
    [
        (TURNS, variables(messages=[]), "chat_template_kwargs.messages"),
        (TURNS + "{{ secret }}", variables(secret=1), "chat_template_kwargs.secret"),
        (TURNS, Rendering(documents=({"title": "A"},)), "documents"),
        (PICKY, effort("none"), "reasoning_effort"),
        (PICKY, with_effort(USUAL_RENDERING, "max", "reasoning.effort"), "reasoning.effort"),
        (
            TURNS + "{% if enable_thinking %}{{ enable_thinking.x.y }}{% endif %}",
            variables(enable_thinking=1),
            "chat_template_kwargs",
        ),
    ],
)
def test_what_a_template_does_not_take_is_refused_by_its_name(source: str, asked: Rendering, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        model_of(source).chat_prompt(ASKED, (), asked)

    assert refused.value.param == param


def test_a_variables_text_is_the_callers() -> None:
    model = model_of(TURNS + "<think>{{ model_identity }}")

    prompt = model.chat_prompt(ASKED, (), variables(model_identity="<think>"))

    assert model.spelled_out(prompt) == "Hi<think><think>"
    assert prompt.count(model.chat_prompt(ASKED)[-1]) == 1


@pytest.mark.parametrize(
    ("source", "content", "prompt"),
    [
        ("{% for m in messages %}<{{ m.content }}>{% endfor %}", "Well, ", "<Hi><Well, "),
        ("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", " Well, ", "<Hi><Well,"),
        ("{% for m in messages %}<{{ m.content | trim }}>\n{% endfor %}", "  ", "<Hi>\n<"),
        ("{% for m in messages %}<{{ m.content }}>{% endfor %}{{ messages[-1].content }}!", "Well", "<Hi><Well >Well"),
        ("{% for m in messages %}{{ '\n' ~ m.content }}{% endfor %}", "", "\nHi\n"),
    ],
)
def test_a_continued_message_ends_the_prompt(source: str, content: str, prompt: str) -> None:
    model = model_of(source)
    turns = [*ASKED, Turn(role="assistant", content=content)]

    assert model.spelled_out(model.chat_prompt(turns, (), Rendering(continues=True))) == prompt


def test_a_message_that_the_template_leaves_out_cannot_be_continued() -> None:
    with pytest.raises(ApiError, match="does not show the last message"):
        model_of("{{ messages[0].content }}").chat_prompt([*ASKED, *ASKED], (), Rendering(continues=True))
