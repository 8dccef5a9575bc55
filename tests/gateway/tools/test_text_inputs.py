"""Inputs of custom tools: what their calls' arguments come to, however they are cut into pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.dialects.openai.tools import custom_tool
from fairlane.gateway.dialects.tools.deltas import OutputReader
from fairlane.gateway.dialects.tools.output_format import OutputFormat
from tests.support.gateway.read_outputs import WEATHER, Read, read
from tests.support.gateway.tool_models import TOOL_MODELS

PATCH = custom_tool("patch", None, None)
WEATHER_ARGUMENTS = '{"city": "Rom", "days": 1}'


def reader() -> OutputReader:
    return OutputFormat(TOOL_MODELS["Hermes"].template, {}, ()).reader("", (PATCH, WEATHER))


def call(arguments: str, name: str = "patch") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def inputs(text: str, cuts: list[int] | None = None) -> list[str]:
    return [arguments for _, arguments in read(reader(), text, cuts or ()).calls]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ('{"input": "a\\nb"}', "a\nb"),
        ('{ "input":"\\"\\\\\\/\\u00fc" }', '"\\/ü'),
        ('{"input": "\\ud83d\\ude48"}', "🙈"),
        ('{"input": ""}', ""),
        # Not JSON: a lone surrogate, an unknown escape, a line break.
        ('{"input": "\\ud83d!\\ude48"}', "\ufffd!\ufffd"),
        ('{"input": "\\ud83d\\u0041"}', "\ufffdA"),
        ('{"input": "\\ud83d\\n"}', "\ufffd\n"),
        ('{"input": "\\x\\u12"}', "\\x\\u12"),
        ('{"input": "a\nb"}', "a\nb"),
        # Other arguments.
        ('{"input": "a", "other": "b"}', "a"),
        ('{"other": 1, "input": "a"}', "a"),
        ('{"other": 1}', '{"other": 1}'),
        ('{"input": 5}', '{"input": 5}'),
        (f'{{"other": {[0] * 100}}}', f'{{"other": {[0] * 100}}}'),
    ],
)
def test_an_input_is_the_text_that_the_model_gave(arguments: str, found: str) -> None:
    text = call(arguments)

    assert inputs(text) == [found]
    assert inputs(text, list(range(len(text)))) == [found]


@given(st.text(), st.data())
def test_pieces_do_not_change_an_input(text: str, data: st.DataObject) -> None:
    as_ascii = data.draw(st.booleans())
    written = call(json.dumps({"input": text}, ensure_ascii=as_ascii))
    cuts = data.draw(st.lists(st.integers(0, len(written)), max_size=9))

    assert inputs(written, cuts) == [text]


def test_an_input_streams_as_the_model_writes_it() -> None:
    reading = reader()
    reading.push('<tool_call>\n{"name": "patch", "arguments": {"input": "')

    pieces = [reading.push(text).calls[0].arguments for text in ("one", " two\\", "n", "three")]

    assert pieces == ["one", " two", "\n", "three"]


@pytest.mark.parametrize("cut", ['{"input": "a b', '{"input": "a b\\', '{"input": "a b\\ud83'])
def test_a_cut_input_ends_with_the_last_whole_character(cut: str) -> None:
    written = '<tool_call>\n{"name": "patch", "arguments": ' + cut

    assert read(reader(), written, is_cut=True).calls == [("patch", "a b")]


@pytest.mark.parametrize("other", ['{"input": "a"}', '{"other": 1}'])
def test_calls_of_custom_tools_and_functions_follow_each_other(other: str) -> None:
    found = "a" if "input" in other else other
    text = "\n".join([call(other), call(WEATHER_ARGUMENTS, "weather"), call(other), "Done."])

    for cuts in ([], list(range(len(text)))):
        calls = [("patch", found), ("weather", WEATHER_ARGUMENTS), ("patch", found)]
        assert read(reader(), text, cuts) == Read("Done.", "", calls)


@pytest.mark.parametrize("family", TOOL_MODELS)
def test_models_of_all_families_call_custom_tools(family: str) -> None:
    made = OutputFormat(TOOL_MODELS[family].template, {}, ())
    arguments = '{"input": "x = \\"ü\\""}'
    if made.syntax.body == "xml":
        arguments = '<parameter=input>\nx = "ü"\n</parameter>\n'
    text = made.syntax.before + made.syntax.spell("patch", arguments) + made.syntax.after

    assert read(made.reader("", (PATCH,)), text).calls == [("patch", 'x = "ü"')]
