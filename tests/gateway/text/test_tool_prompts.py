"""What a model reads of tools and of its earlier calls: by its own template, or in a system turn."""

import functools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tokenizers import Tokenizer

from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.dialects.openai.tools import Tool, ToolCall
from fairlane.gateway.errors import ApiError
from fairlane.gateway.model_text.tokenizer import TextModel
from tests.support.gateway.cards import CHATML
from tests.support.gateway.tool_models import TOOL_MODELS, tool_card

families = pytest.mark.parametrize("family", TOOL_MODELS)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "description": "Where"}}}
WEATHER = Tool(name="weather", description="Tells the weather", parameters=PARAMETERS)
ASKED = Turn(role="user", content="Weather?")


def call(arguments: str = '{"city": "Köln", "days": 3}', name: str = "weather", id: str = "call_1") -> ToolCall:  # noqa: A002
    return ToolCall(name=name, arguments=arguments, id=id)


TURNS = [
    ASKED,
    Turn(role="assistant", content=None, tool_calls=(call(),)),
    Turn(role="tool", content="rain", tool_call_id="call_1"),
]


@functools.cache
def model_of(family: str, *, special_marks: bool = True) -> TextModel:
    return TextModel(tool_card(family, special_marks=special_marks))


def text_of(family: str, turns: list[Turn], *tools: Tool) -> str:
    prompt = model_of(family).chat_prompt(turns, tools)
    tokenizer = Tokenizer.from_str(tool_card(family).tokenizer_json)
    text: str = tokenizer.decode(list(prompt), skip_special_tokens=False)
    return text


@families
def test_the_model_is_told_of_tools(family: str) -> None:
    text = text_of(family, [ASKED], WEATHER)

    assert "Tells the weather" in text
    assert text.index("weather") < text.index("Weather?")
    assert "Tells the weather" not in text_of(family, [ASKED])


@families
def test_a_model_is_known_by_its_template(family: str) -> None:
    assert model_of(family).output_format.syntax.name == TOOL_MODELS[family].syntax


@families
def test_the_model_reads_its_earlier_calls_and_their_results(family: str) -> None:
    text = text_of(family, TURNS, WEATHER)

    assert text.index("Weather?") < text.rindex("Köln") < text.index("rain")
    if family != "Qwen 3.5":  # which writes a tag for each argument
        assert json.dumps({"city": "Köln", "days": 3}, ensure_ascii=False) in text
    if "DeepSeek" in family:
        assert "{'" not in text


def test_words_of_a_template_are_no_fields_that_it_reads() -> None:
    words = "{# tool_calls, 'tool' #}thinking, tool_calls and 'tool'\n{% if thinking %}{% endif %}"
    model = TextModel(replace(tool_card("no tools"), chat_template=words + "{{ messages | tojson }}"))
    turns = [replace(TURNS[1], reasoning="Clouds.") if turn is TURNS[1] else turn for turn in TURNS]

    text = Tokenizer.from_str(model.card.tokenizer_json).decode(list(model.chat_prompt(turns)))
    told = json.loads(text[text.index("[") :])

    assert [message["role"] for message in told] == ["user", "assistant", "user"]
    assert '"city": "Köln"' in told[1]["content"]
    assert told[1]["reasoning_content"] == "Clouds."


def test_where_there_is_no_system_turn_the_user_tells_of_tools() -> None:
    strict = "{% if messages[0].role != 'user' %}{{ raise_exception('Users begin') }}{% endif %}" + CHATML
    model = TextModel(replace(tool_card("no tools"), chat_template=strict))

    text = Tokenizer.from_str(model.card.tokenizer_json).decode(list(model.chat_prompt(TURNS, [WEATHER])))

    assert text.index("Tells the weather") < text.index("Weather?")


FUSSY = {
    "content is text": "{% if m.content.split('a') %}{{ m.content }}{% endif %}",
    "content would be told": "{{ m.content }}",
    "arguments are text": "{{ m.content or '' }}"
    "{% if m.tool_calls and not m.tool_calls[0].function.arguments is string %}{{ raise_exception('No') }}{% endif %}",
}


@pytest.mark.parametrize("case", FUSSY)
def test_calls_are_handed_over_as_a_template_takes_them(case: str) -> None:
    source = (
        "{% for m in messages %}"
        + FUSSY[case]
        + (
            "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% set a = c.function.arguments %}"
            "{{ a if a is string else a | tojson }}{% endfor %}{% endfor %}{% set roles = ['tool'] %}"
        )
    )
    model = TextModel(replace(tool_card("no tools"), chat_template=source))

    assert model.tail(model.chat_prompt(TURNS)).endswith('weather{"city": "Köln", "days": 3}rain')


def test_a_template_that_tells_of_no_tools_gets_them_in_a_system_turn() -> None:
    turns = [
        Turn(role="system", content="Be kind."),
        *TURNS,
        Turn(role="tool", content="wind", tool_call_id="x"),
        ASKED,
    ]

    text = text_of("no tools", turns, WEATHER)

    assert text.startswith("<|im_start|>system\nBe kind.\n\nYou may call")
    assert json.dumps(WEATHER.as_json()) in text
    assert '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city"' in text
    assert (
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nwind\n</tool_response><|im_end|>"
        in text
    )
    assert text.count("<|im_start|>system") == 1


def test_reasoning_is_handed_to_a_template_that_reads_it() -> None:
    turns = [ASKED, Turn(role="assistant", content="Rain.", reasoning="Clouds."), ASKED]

    assert "<think>\nClouds.\n</think>\n\nRain." in text_of("Qwen 3", turns)
    assert "Clouds" not in text_of("Hermes", turns)


def test_ids_become_as_short_as_a_template_wants_them_and_still_match() -> None:
    turns = [
        ASKED,
        Turn(role="assistant", content=None, tool_calls=(call(id="call_1"), call(id="abcdefghi"))),
        Turn(role="tool", content="rain", tool_call_id="call_1"),
        Turn(role="tool", content="wind", tool_call_id="abcdefghi"),
    ]

    text = text_of("Mistral", turns)

    calls, _, results = text.partition("[TOOL_RESULTS]")
    short = json.loads(calls.partition("[TOOL_CALLS]")[2].partition("</s>")[0])[0]["id"]
    assert len(short) == 9
    assert f'"call_id": "{short}"' in results
    assert '"call_id": "abcdefghi"' in results


def test_calls_and_results_without_ids_still_match() -> None:
    calls = tuple([replace(call(name=name), id=None) for name in ("one", "two")])
    results = [Turn(role="function", content="wind", name="one"), Turn(role="tool", content="rain", tool_call_id="")]

    text = text_of("Mistral", [ASKED, Turn(role="assistant", content=None, tool_calls=calls), *results, *results[1:]])

    told, _, found = text.partition("[TOOL_RESULTS]")
    ids = [each["id"] for each in json.loads(told.partition("[TOOL_CALLS]")[2].partition("</s>")[0])]
    assert len({*ids}) == 2
    assert [found.index(each) for each in ids] == sorted(found.index(each) for each in ids)


def test_a_result_has_the_name_of_what_was_called() -> None:
    source = "{% for m in messages %}{{ m.name }};{% endfor %}{% set known = ['tool', 'tool_calls'] %}"
    model = TextModel(replace(tool_card("Hermes"), chat_template=source))

    prompt = model.chat_prompt([*TURNS, Turn(role="function", content="noon", name="time")])

    assert model.tail(prompt).startswith(";;weather;time;")


def test_a_templates_own_refusal_is_told() -> None:
    model = TextModel(replace(tool_card("no tools"), chat_template="{{ raise_exception('Nothing is taken') }}"))

    with pytest.raises(ApiError, match="Nothing is taken") as refused:
        model.chat_prompt(TURNS)

    assert refused.value.param == "messages"


def test_broken_arguments_of_an_earlier_call_are_told_as_they_are() -> None:
    broken = Turn(role="assistant", content=None, tool_calls=(call(arguments='{"city": "Kö'),))

    assert '"Kö' in text_of("Mistral, newer", [ASKED, broken])


def test_broken_arguments_are_one_argument_where_a_template_wants_an_object() -> None:
    broken = Turn(role="assistant", content=None, tool_calls=(call(arguments='{"city": "Kö'),))

    assert '<parameter=arguments>\n{"city": "Kö\n</parameter>' in text_of("Qwen 3.5", [ASKED, broken, TURNS[2]])


def test_gpt_oss_reads_reasoning_as_its_template_takes_it() -> None:
    calls = (call(),)
    thought = Turn(role="assistant", content=None, reasoning="Clouds?", tool_calls=calls)
    both = Turn(role="assistant", content="One moment.", reasoning="Clouds?", tool_calls=calls)

    assert "<|channel|>analysis<|message|>Clouds?<|end|>" in text_of("gpt-oss", [ASKED, thought, TURNS[2]])
    assert "<|channel|>analysis<|message|>One moment.<|end|>" in text_of("gpt-oss", [ASKED, both, TURNS[2]])


def test_the_tail_of_a_prompt_shows_what_the_template_wrote_of_the_answer() -> None:
    model = model_of("Qwen 3.5")

    assert model.tail(model.chat_prompt([ASKED])).endswith("<|im_start|>assistant\n<think>\n")


def wicked(family: str) -> st.SearchStrategy[str]:
    model = TOOL_MODELS[family]
    names = [*model.special, *model.marks]
    return st.lists(
        st.sampled_from([*names, *(name[1:] for name in names), "a", '"', "\n"]), min_size=1, max_size=5
    ).map("".join)


def conversation(text: str) -> tuple[list[Turn], list[Tool]]:
    schema = {"type": "object", "properties": {f"p{text}": {"type": "string", "description": text, "enum": [text]}}}
    arguments = json.dumps({f"p{text}": text, "list": [text, {text: [text]}]})
    turns = [
        Turn(role="user", content=text),
        Turn(
            role="assistant",
            content=None,
            tool_calls=(call(arguments, name=f"f{text}", id=f"c{text}"),),
            reasoning=text,
        ),
        Turn(role="tool", content=text, tool_call_id=f"c{text}", name=text),
    ]
    return turns, [Tool(name="f", description=text, parameters=schema)]


@families
@pytest.mark.parametrize("special_marks", [True, False])
@given(data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_in_tools_and_calls_becomes_a_control_token(
    family: str, special_marks: bool, data: st.DataObject
) -> None:
    model = model_of(family, special_marks=special_marks)
    tokenizer = Tokenizer.from_str(model.card.tokenizer_json)
    wanted = [
        *TOOL_MODELS[family].special,
        *(mark for mark in TOOL_MODELS[family].marks if mark in (model.card.chat_template or "")),
    ]
    control = {tokenizer.token_to_id(name) for name in wanted}
    text = data.draw(wicked(family))

    turns, tools = conversation(text)
    prompt = model.chat_prompt(turns, tools)

    harmless = model.chat_prompt(*conversation("a"))
    assert [token for token in prompt if token in control] == [token for token in harmless if token in control]
