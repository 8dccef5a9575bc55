"""Output that a limit or a stop string cuts inside a call, at each of its characters."""

import json
from itertools import pairwise

import pytest

from fairlane.gateway.answers.message import AssistantMessage, assembled
from fairlane.gateway.dialects.tools.deltas import OutputReader
from fairlane.gateway.dialects.tools.output_format import OutputFormat
from tests.support.gateway.read_outputs import TOOLS
from tests.support.gateway.tool_models import TOOL_MODELS

FAMILIES = {name: OutputFormat(model.template, {}, ()) for name, model in TOOL_MODELS.items()}
WORDS = "One < two.\n"
ARGUMENTS = {"city": 'Köln }" ]</tool_call>', "days": 3}
TAGS = "<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
families = pytest.mark.parametrize("family", FAMILIES)


def cut_off(
    family: str, text: str, *, is_cut: bool = True, in_pieces: bool = True
) -> tuple[AssistantMessage, OutputReader]:
    """What is left of a text, and its reader. Calls that no longer count are left out."""
    reader = FAMILIES[family].reader("", TOOLS)
    places = [*range(len(text)), len(text)] if in_pieces else [0, len(text)]
    deltas = [reader.push(text[start:end]) for start, end in pairwise(places)]
    return assembled(reader, [*deltas, reader.end(is_cut=is_cut)]), reader


def call_of(family: str) -> str:
    syntax = FAMILIES[family].syntax
    written = TAGS if syntax.body == "xml" else json.dumps(ARGUMENTS, ensure_ascii=False)
    return syntax.before + syntax.between.join(syntax.spell("weather", written) for _ in range(2)) + syntax.after


@pytest.mark.parametrize("in_pieces", [True, False])
@families
def test_no_part_of_a_call_is_content_and_no_call_has_broken_arguments(family: str, in_pieces: bool) -> None:
    call = call_of(family)
    found: list[tuple[int, str | None]] = []
    for end in range(1, len(call) + 1):
        message, reader = cut_off(family, call[:end], in_pieces=in_pieces)
        assert message.content.strip(" ;") == ""
        assert all(isinstance(json.loads(made.arguments), dict) for made in message.calls)
        assert reader.incomplete is None or call[:end].endswith(reader.incomplete)
        found.append((reader.calls, reader.incomplete))

    counts = [calls for calls, _ in found]
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2}
    assert all(incomplete for calls, incomplete in found[call.index("weather") :] if calls == 0)
    assert max(len(incomplete or "") for _, incomplete in found) > len(json.dumps(ARGUMENTS)) // 2


@pytest.mark.parametrize("in_pieces", [True, False])
@pytest.mark.parametrize("family", ["Hermes", "Qwen 3.5", "Mistral", "Mistral, newer", "DeepSeek, newer"])
def test_words_before_a_cut_call_stay(family: str, in_pieces: bool) -> None:
    call = call_of(family)

    for end in range(1, len(call)):
        message, _ = cut_off(family, WORDS + call[:end], in_pieces=in_pieces)
        assert message.content == WORDS


@families
def test_a_natural_end_leaves_what_is_no_call_as_content(family: str) -> None:
    for text in ("a <", "a <tool", "a [TOOL"):
        message, reader = cut_off(family, text, is_cut=False)
        assert (message.content, reader.incomplete) == (text, None)


@pytest.mark.parametrize(
    ("text", "content", "incomplete"),
    [
        ('{"city": "Kö', '{"city": "Kö', None),
        ('{"name": "Ann", "age": 3', '{"name": "Ann", "age": 3', None),
        ('{"id": 1, "text": "Wei', '{"id": 1, "text": "Wei', None),
        ('\n{"name": "wea', "", '\n{"name": "wea'),
        ('{"name": "weather", "para', "", '{"name": "weather", "para'),
        ('{"name": "weather", "parameters": {"days": 3', "", '{"name": "weather", "parameters": {"days": 3'),
        ("Hello {", "Hello {", None),
    ],
)
@pytest.mark.parametrize("in_pieces", [True, False])
def test_without_a_mark_only_what_begins_like_a_call_is_one(
    text: str, content: str, incomplete: str | None, in_pieces: bool
) -> None:
    message, reader = cut_off("Llama 3", text, in_pieces=in_pieces)

    assert (message.content, reader.incomplete, message.calls) == (content, incomplete, [])


@pytest.mark.parametrize("text", ["<tool_call>weather(", "<tool_call>{}</tool_call> a", "<b"])
def test_what_cannot_become_a_call_stays_content(text: str) -> None:
    message, reader = cut_off("Hermes", text)

    assert (message.content, reader.incomplete) == (text, None)
