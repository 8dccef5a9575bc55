"""Reading answers: calls in every syntax, reasoning, and whatever else a model may write."""
# ruff: noqa: RUF001 - DeepSeek's tokens have wide bars in their names

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.gateway.dialects.openai.tools import Tool
from fairlane.gateway.dialects.tools.deltas import OutputReader
from fairlane.gateway.dialects.tools.output_format import OutputFormat
from fairlane.gateway.dialects.tools.syntax import NAME, CallSyntax, syntaxes
from fairlane.gateway.http.json_reader import read_text
from tests.support.counted import calls_of
from tests.support.gateway.read_outputs import TOOLS, Read, read
from tests.support.gateway.tool_models import TOOL_MODELS

families = pytest.mark.parametrize("family", TOOL_MODELS)
ARGUMENTS = {"city": 'Köln }" ]</tool_call>', "days": 3}
JSON_ARGUMENTS = json.dumps(ARGUMENTS, ensure_ascii=False)
TAGS = "<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
TAGGED_ARGUMENTS = '{"city": "Köln", "days": 3}'


def format_of(family: str) -> OutputFormat:
    return OutputFormat(TOOL_MODELS[family].template, {}, ())


def reader_of(family: str, tools: tuple[Tool, ...] = TOOLS, tail: str = "") -> OutputReader:
    return format_of(family).reader(tail, tools)


def syntax_of(family: str) -> CallSyntax:
    return format_of(family).syntax


def is_tagged(family: str) -> bool:
    return syntax_of(family).body == "xml"


def spelled(family: str, *names: str) -> str:
    syntax = syntax_of(family)
    arguments = TAGS if is_tagged(family) else JSON_ARGUMENTS
    return syntax.before + syntax.between.join(syntax.spell(name, arguments) for name in names) + syntax.after


def called(family: str, *names: str) -> list[tuple[str, str]]:
    return [(name, TAGGED_ARGUMENTS if is_tagged(family) else JSON_ARGUMENTS) for name in names]


@families
def test_a_call(family: str) -> None:
    text = spelled(family, "weather")

    assert read(reader_of(family), text) == Read("", "", called(family, "weather"))


@families
def test_several_calls_and_words_around_them(family: str) -> None:
    words = "" if "Llama" in family else "One moment.\n"  # whose calls are the whole answer

    found = read(reader_of(family), f"{words}{spelled(family, 'weather', 'weather', 'weather')}\n ")

    assert found == Read(words, "", called(family, "weather", "weather", "weather"))


@families
def test_words_after_a_call(family: str) -> None:
    found = read(reader_of(family), f"{spelled(family, 'weather')}\n\nThat is it.")

    assert found == Read("That is it.", "", called(family, "weather"))


@families
def test_no_call(family: str) -> None:
    text = '  {"name": "Ann"} <b> [1] I call nobody <too'

    assert read(reader_of(family), text) == Read(text, "", [])


@families
def test_where_no_tool_is_offered_no_call_is_looked_for(family: str) -> None:
    text = spelled(family, "weather")
    content = JSON_ARGUMENTS if syntax_of(family).body == "messages" else text

    assert read(reader_of(family, tools=()), text) == Read(content, "", [])


REASONING = [family for family in TOOL_MODELS if family in ("Qwen 3", "Qwen 3.5", "DeepSeek", "DeepSeek, newer")]


@pytest.mark.parametrize("family", REASONING)
@pytest.mark.parametrize("tools", [TOOLS, ()])
def test_reasoning_is_told_apart(family: str, tools: tuple[Tool, ...]) -> None:
    call = spelled(family, "weather") if tools else "4"
    answer = Read("", "2 + 2…\n", called(family, "weather")) if tools else Read("4", "2 + 2…\n", [])

    assert format_of(family).needs_reader(())
    assert read(reader_of(family, tools), f"<think>\n2 + 2…\n</think>\n\n{call}") == answer
    assert read(reader_of(family, tools, "…<think>\n"), f"2 + 2…\n</think>\n\n{call}") == answer
    assert read(reader_of(family, tools, "<think>\n"), "2 + <think> 2") == Read("", "2 + <think> 2", [])
    assert read(reader_of(family, tools), "In <think> 2") == Read("In <think> 2", "", [])


CALL_OF_GPT = f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{JSON_ARGUMENTS}"
CALLED = [("weather", JSON_ARGUMENTS)]
MESSAGES: dict[str, tuple[str, Read]] = {
    "an answer": ("<|channel|>final<|message|>4<|return|>", Read("4", "", [])),
    "reasoning before it": (
        "<|channel|>analysis<|message|>2 + 2…<|end|><|start|>assistant<|channel|>final<|message|>4",
        Read("4", "2 + 2…", []),
    ),
    "reasoning twice, and words before the answer": (
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>4",
        Read("One moment.\n\n4", "ab", []),
    ),
    "a call": (CALL_OF_GPT, Read("", "", CALLED)),
    "reasoning and words before a call": (
        "<|channel|>analysis<|message|>Where?<|end|><|start|>assistant<|channel|>commentary<|message|>I ask.<|end|>"
        f"<|start|>assistant{CALL_OF_GPT}<|call|>",
        Read("I ask.", "Where?", CALLED),
    ),
    "a call that is named before the channel": (
        f" to=functions.weather<|channel|>commentary json<|message|>{JSON_ARGUMENTS}<|call|>",
        Read("", "", CALLED),
    ),
    "the same after reasoning": (
        "<|channel|>analysis<|message|>Where?<|end|><|start|>assistant to=functions.weather<|channel|>commentary"
        f"<|message|>{JSON_ARGUMENTS}",
        Read("", "Where?", CALLED),
    ),
    "a call in the channel of reasoning": (
        f"<|channel|>analysis to=functions.weather code<|message|>{JSON_ARGUMENTS}<|call|>",
        Read("", "", CALLED),
    ),
    "a function of another namespace": (
        "<|channel|>commentary to=browser.search<|message|>{}<|call|>",
        Read("", "", [("browser.search", "{}")]),
    ),
    "no arguments": ("<|channel|>commentary to=functions.time<|message|><|call|>", Read("", "", [("time", "{}")])),
    "a message to the user": ("<|channel|>commentary to=user<|message|>Hello", Read("Hello", "", [])),
    "a form": ('<|channel|>final <|constrain|>json<|message|>{"a": 1}', Read('{"a": 1}', "", [])),
    "a header that is cut off": ("<|channel|>final<|message|>4<|end|><|start|>assis", Read("4", "", [])),
    "a message that begins where another should end": (
        "<|channel|>analysis<|message|>2 + 2<|channel|>final<|message|>4",
        Read("4", "2 + 2", []),
    ),
    "a header without end": ("<|channel|>" + "final " * 100, Read("final " * 100, "", [])),
    "no messages": ("to=me <|x|> 4", Read("to=me <|x|> 4", "", [])),
    "what could have been a recipient": ("to=me", Read("to=me", "", [])),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_messages_with_headers(case: str) -> None:
    text, expected = MESSAGES[case]

    assert format_of("gpt-oss").needs_reader(())
    assert read(reader_of("gpt-oss"), text) == expected
    assert read(reader_of("gpt-oss"), text, range(len(text))) == expected


def test_a_message_may_begin_in_the_prompt() -> None:
    begun = "<|start|>user<|message|>2 + 2<|end|><|start|>assistant<|channel|>analysis<|message|>"

    assert read(reader_of("gpt-oss", tail=f"{begun}So"), "?<|end|>") == Read("", "?", [])
    assert read(reader_of("gpt-oss", tail=begun.removesuffix("<|message|>")), "<|message|>?") == Read("", "?", [])
    assert read(reader_of("gpt-oss", tail="<|start|>assistant"), "<|message|>4") == Read("4", "", [])


def test_a_model_that_does_not_reason_may_write_its_marks() -> None:
    assert not format_of("Hermes").needs_reader(())
    assert read(reader_of("Hermes"), "<think>2</think>") == Read("<think>2</think>", "", [])


CALL = ("weather", '{"a": 1}')
VARIANTS: dict[str, tuple[str, str, Read]] = {
    "keys in the other order": (
        "Hermes",
        '<tool_call>{"arguments": {"a": 1}, "name": "weather"}</tool_call>',
        Read("", "", [CALL]),
    ),
    "more keys": (
        "Hermes",
        '<tool_call>{"id": "x", "type": "function", "name": "weather", "arguments": {"a": 1}, "n": [1]}</tool_call>',
        Read("", "", [CALL]),
    ),
    "arguments as text": (
        "Hermes",
        '<tool_call>{"name": "weather", "arguments": "{\\"a\\": 1}"}</tool_call>',
        Read("", "", [CALL]),
    ),
    "arguments as text, first": (
        "Hermes",
        '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "weather"}</tool_call>',
        Read("", "", [CALL]),
    ),
    "no arguments": ("Hermes", '<tool_call>{"name": "time"}</tool_call>', Read("", "", [("time", "{}")])),
    "null for arguments": (
        "Hermes",
        '<tool_call>{"name": "time", "arguments": null}</tool_call>',
        Read("", "", [("time", "{}")]),
    ),
    "a list of calls": (
        "Hermes",
        '<tool_call>[{"name": "weather", "arguments": {"a": 1}}, {"name": "time"}]</tool_call>',
        Read("", "", [CALL, ("time", "{}")]),
    ),
    "arguments twice": (
        "Hermes",
        '<tool_call>{"name": "weather", "arguments": {"a": 1}, "arguments": {"b": 2}}</tool_call>',
        Read("", "", [CALL]),
    ),
    "a brace too few": (
        "Hermes",
        '<tool_call>{"name": "weather", "arguments": {"a": 1}</tool_call>',
        Read("", "", [CALL]),
    ),
    "a brace too many": (
        "Hermes",
        '<tool_call>{"name": "weather", "arguments": {"a": 1}}}</tool_call>',
        Read("}", "", [CALL]),
    ),
    "not closed": ("Hermes", '<tool_call>{"name": "weather", "arguments": {"a": 1}}', Read("", "", [CALL])),
    "arguments that are cut off": (
        "Hermes",
        '<tool_call>{"name": "weather", "arguments": {"a": "Kö',
        Read("", "", [("weather", '{"a": "Kö')]),
    ),
    "a name that is cut off": ("Hermes", '<tool_call>{"name": "wea', Read('<tool_call>{"name": "wea', "", [])),
    "cut off behind the name": (
        "Hermes",
        '<tool_call>{"name": "weather", "argu',
        Read("", "", [("weather", "")]),
    ),
    "no JSON": ("Hermes", "<tool_call>weather()</tool_call>", Read("<tool_call>weather()</tool_call>", "", [])),
    "nothing in it": ("Hermes", "<tool_call>\n</tool_call>", Read("<tool_call>\n</tool_call>", "", [])),
    "an empty object": ("Hermes", "<tool_call>{}</tool_call>", Read("<tool_call>{}</tool_call>", "", [])),
    "an empty name": (
        "Hermes",
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        Read('<tool_call>{"name": "", "arguments": {}}</tool_call>', "", []),
    ),
    "a name that is none": (
        "Hermes",
        '<tool_call>{"name": "a b", "arguments": {}}</tool_call>',
        Read('<tool_call>{"name": "a b", "arguments": {}}</tool_call>', "", []),
    ),
    "a mark that is begun twice": (
        "Hermes",
        '<tool_call>\n<tool_call>{"name": "weather", "arguments": {"a": 1}}</tool_call>',
        Read("<tool_call>\n", "", [CALL]),
    ),
    "broken arguments": (
        "Hermes",
        '<tool_call>{"name": "weather", "arguments": {"a": <b>}}</tool_call>',
        Read("<b>}}", "", [("weather", '{"a": ')]),
    ),
    "a name that is not known": (
        "Hermes",
        '<tool_call>{"name": "shell", "arguments": {"a": 1}}</tool_call>',
        Read("", "", [("shell", '{"a": 1}')]),
    ),
    "Llama with its tag": (
        "Llama 3",
        '<|python_tag|>{"name": "weather", "parameters": {"a": 1}}; {"name": "time", "parameters": {}}',
        Read("", "", [CALL, ("time", "{}")]),
    ),
    "Llama, typed": (
        "Llama 3",
        '{"type": "function", "name": "weather", "parameters": {"a": 1}}',
        Read("", "", [CALL]),
    ),
    "Llama's JSON that names no tool": (
        "Llama 3",
        '{"name": "Ann", "parameters": {"a": 1}}',
        Read('{"name": "Ann", "parameters": {"a": 1}}', "", []),
    ),
    "Llama's code": (
        "Llama 3",
        "<|python_tag|>print(1)",
        Read("<|python_tag|>print(1)", "", []),
    ),
    "Mistral, one object": (
        "Mistral",
        '[TOOL_CALLS] {"name": "weather", "arguments": {"a": 1}}',
        Read("", "", [CALL]),
    ),
    "Mistral, the newer form with ids": (
        "Mistral",
        '[TOOL_CALLS]weather[CALL_ID]abc123DEF[ARGS]{"a": 1}[TOOL_CALLS]time[ARGS]{}',
        Read("", "", [CALL, ("time", "{}")]),
    ),
    "Mistral, without a mark for the arguments": ("Mistral", '[TOOL_CALLS]weather{"a": 1}', Read("", "", [CALL])),
    "Mistral, no name": ("Mistral", "[TOOL_CALLS]what is it? {", Read("[TOOL_CALLS]what is it? {", "", [])),
    "a mark that is cut off behind a call": (
        "Hermes",
        f'<tool_call>{{"name": "weather", "arguments": {JSON_ARGUMENTS}}}\n</tool_',
        Read("", "", [("weather", JSON_ARGUMENTS)]),
    ),
    "a mark that is cut off before the next call": (
        "Hermes",
        f'<tool_call>{{"name": "weather", "arguments": {JSON_ARGUMENTS}}}</tool_call>\n<tool',
        Read("", "", [("weather", JSON_ARGUMENTS)]),
    ),
    "DeepSeek, cut off": (
        "DeepSeek",
        "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```js",
        Read("Well.<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```js", "", []),
    ),
    "tags with lines and marks in a value": (
        "Qwen 3.5",
        "<tool_call>\n<function=f>\n<parameter=x>\na\n<b>\n</parameter>\n</function>\n</tool_call>",
        Read("", "", [("f", '{"x": "a\\n<b>"}')]),
    ),
    "tags without a line": (
        "Qwen 3.5",
        "<tool_call><function=weather><parameter=days>3</parameter></function></tool_call>",
        Read("", "", [("weather", '{"days": 3}')]),
    ),
    "tags: JSON all the same": (
        "Qwen 3.5",
        '<tool_call>{"name": "weather", "arguments": {"a": 1}}</tool_call>',
        Read("", "", [CALL]),
    ),
    "tags that are cut off": (
        "Qwen 3.5",
        "<tool_call>\n<function=weather>\n<parameter=city>\nKö",
        Read("<tool_call>\n<function=weather>\n<parameter=city>\nKö", "", []),
    ),
    "a parameter that is not closed": (
        "Qwen 3.5",
        "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</function>\n</tool_call>",
        Read("", "", [("weather", '{"city": "Köln"}')]),
    ),
}


@pytest.mark.parametrize("case", VARIANTS)
def test_what_models_really_write(case: str) -> None:
    family, text, expected = VARIANTS[case]

    assert read(reader_of(family), text) == expected
    assert read(reader_of(family), text, range(len(text))) == expected


def test_arguments_come_as_they_are_written() -> None:
    reader = reader_of("Hermes")

    [begun] = reader.push('<tool_call>{"name": "weather"').calls
    assert (begun.index, begun.name, begun.arguments) == (0, "weather", "")
    assert re.fullmatch("call_[0-9a-zA-Z]{24}", begun.id or "")
    assert reader.push(', "arguments": {"ci').calls[0].arguments == '{"ci'
    assert reader.push('ty": "Kö').calls[0].arguments == 'ty": "Kö'
    assert reader.push('ln"}').calls[0].arguments == 'ln"}'
    assert reader.push("}</tool_call>").calls == ()
    assert reader.end().calls == ()
    assert reader.calls == 1


def test_content_comes_as_it_is_written_but_for_what_could_begin_a_mark() -> None:
    reader = reader_of("Hermes")

    assert [reader.push(text).content for text in ("Hi", " there <", "b> <tool_", "box>")] == [
        "Hi",
        " there ",
        "<b> ",
        "<tool_box>",
    ]


def wild(family: str) -> st.SearchStrategy[str]:
    """Text built of what its syntax is made of, whole, cut and nested."""
    syntax = syntax_of(family)
    call = spelled(family, "weather")
    marks = [*syntax.markers, "<think>", "</think>", "<function=", "<parameter=", "</parameter>", "</function>", ">"]
    pieces = [*marks, *(mark[:-1] for mark in marks), call, call[: len(call) // 2], call[len(call) // 2 :]]
    pieces += ['{"name": "', "weather", '", "arguments": ', "{", "}", "[", "]", '"', "\\", ",", ":", ";", "null", "é"]
    pieces += [" ", "\n", " " * 40, "text", '{"name": "weather", ', '"parameters": {"a": 1}', "function", NAME]
    return st.lists(st.sampled_from(pieces), max_size=12).map("".join)


@families
@pytest.mark.parametrize("tail", ["", "<think>\n"])
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_however_a_text_is_split_it_is_read_alike(family: str, tail: str, data: st.DataObject) -> None:
    text = data.draw(wild(family))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))

    whole = read(reader_of(family, tail=tail), text)

    assert read(reader_of(family, tail=tail), text, cuts) == whole
    assert read(reader_of(family, tail=tail), text, range(len(text))) == whole
    at_once, bit_by_bit = reader_of(family, tail=tail), reader_of(family, tail=tail)
    assert read(at_once, text, is_cut=True) == read(bit_by_bit, text, range(len(text)), is_cut=True)
    assert (at_once.calls, at_once.incomplete) == (bit_by_bit.calls, bit_by_bit.incomplete)


@families
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_nothing_that_is_no_mark_is_lost(family: str, data: st.DataObject) -> None:
    words = data.draw(st.lists(st.text(alphabet="abcé{}[]\"', \n", min_size=1, max_size=9), max_size=6))
    text = spelled(family, "weather").join(words)

    found = read(reader_of(family), text)

    said = found.content + "".join(arguments for _, arguments in found.calls)
    for letter in "abcé":
        assert said.count(letter) >= "".join(words).count(letter)


LONG = 500_000
ENDLESS = {
    "words": "word " * (LONG // 5),
    "blanks": " " * LONG,
    "marks": "<tool_call>" * (LONG // 11),
    "marks that are begun": "<tool_call" * (LONG // 10),
    "a string without end": '<tool_call>{"name": "weather", "arguments": {"a": "' + "x" * LONG,
    "escapes": '<tool_call>{"name": "weather", "arguments": {"a": "' + '\\"' * (LONG // 2),
    "depth": '<tool_call>{"name": "weather", "arguments": ' + "[" * LONG,
    "keys before the name": "<tool_call>{" + '"a": 1, ' * (LONG // 8),
    "calls": '<tool_call>{"name": "time"}' * (LONG // 27),
    "calls in calls": '<tool_call>{"' * (LONG // 13),
    "tags": "<tool_call><function=weather>" + "<parameter=" * (LONG // 11),
    "reasoning": "<think>" + " <" * (LONG // 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDLESS)
def test_a_text_without_end_takes_linear_time(case: str) -> None:
    """A quadratic reader would take minutes for it."""
    reader, text = reader_of("Qwen 3.5" if case == "tags" else "Qwen 3"), ENDLESS[case]

    for start in range(0, len(text), 5):
        reader.push(text[start : start + 5])
    reader.end()


def test_every_syntax_is_of_some_model_here() -> None:
    assert {syntax.name for syntax in syntaxes()} == {model.syntax for model in TOOL_MODELS.values()}


def test_no_mark_is_a_part_of_another() -> None:
    for syntax in syntaxes():
        marks = [*syntax.open, *syntax.close, *syntax.silent]
        assert not [(one, other) for one in marks for other in marks if one != other and one in other]


TYPED = {
    "$defs": {"Days": {"type": "integer"}, "Stop": {"type": "object"}, "Kind": {"enum": ["a", "b"]}},
    "properties": {
        "days": {"$ref": "#/$defs/Days"},
        "stop": {"allOf": [{"$ref": "#/$defs/Stop"}]},
        "kind": {"$ref": "#/$defs/Kind"},
        "mode": {"oneOf": [{"const": "1"}, {"const": "edit"}]},
        "level": {"anyOf": [{"const": 1}, {"const": None}]},
        "loop": {"$ref": "#/properties/loop"},
        "lost": {"$ref": "#/$defs/Lost"},
    },
}


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("days", "3", 3),
        ("stop", '{"city": "Köln"}', {"city": "Köln"}),
        ("kind", "a", "a"),
        ("mode", "1", "1"),
        ("level", "1", 1),
        ("level", "null", None),
        ("loop", "3", "3"),
        ("lost", "3", "3"),
    ],
)
def test_a_value_has_the_type_of_its_schema(name: str, written: str, value: object) -> None:
    reader = reader_of("Qwen 3.5", (Tool(name="weather", parameters=TYPED),))
    text = f"<tool_call>\n<function=weather>\n<parameter={name}>\n{written}\n</parameter>\n</function>\n</tool_call>"

    assert read(reader, text).calls == [("weather", json.dumps({name: value}, ensure_ascii=False))]


def test_a_value_is_tried_once_as_each_type_that_its_schema_lists() -> None:
    schema = {"type": "object", "properties": {"days": {"type": ["integer"] * 500}}}
    reader = reader_of("Qwen 3.5", (Tool(name="weather", parameters=schema),))
    text = "<tool_call>\n<function=weather>\n<parameter=days>\n[1, 2]\n</parameter>\n</function>\n</tool_call>"

    assert calls_of(read_text, lambda: reader.push(text)) == 1
