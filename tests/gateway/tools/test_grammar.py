"""Grammars of calls, as llguidance keeps to them: they lead somewhere, and where they lead is a valid call."""

import functools
import json
import random
from bisect import bisect_left
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer
from msgspec.structs import replace
from tokenizers import Tokenizer

from fairlane.gateway.dialects.grammar.one_of import with_any_of
from fairlane.gateway.dialects.openai.tools import MAX_CALLS, Tool
from fairlane.gateway.model_text.token_stream import TokenStream
from fairlane.gateway.model_text.tokenizer import TextModel
from tests.support.gateway.read_outputs import TIME, TOOLS, WEATHER, Read, read
from tests.support.gateway.tool_models import TOOL_MODELS, tool_card

pytestmark = pytest.mark.slow
families = pytest.mark.parametrize("family", TOOL_MODELS)
marks = pytest.mark.parametrize("special_marks", [True, False], ids=["special", "plain"])
MANY_TOKENS = 3000
CLOSING = ["</think>", "</parameter>", "<|end|>", '"', "}", "]"]
"""What ends a text; chosen often, so that a walk comes to its end."""
LISTS = Tool(
    name="get-it_2",
    parameters={
        "type": "object",
        "properties": {
            "kind": {"type": "string", "enum": ["a b", 'quote " and \\', "é"]},
            "deep": {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}, "required": ["n"]},
            "on": {"type": "boolean"},
            "note": {"type": "string"},
            "ratio": {"type": "number"},
        },
        "required": ["kind", "on"],
        "additionalProperties": False,
    },
)
STRICTER = Tool(
    name="stricter",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "pattern": "^[A-Z]{3}$"}, "any": {"anyOf": [{"type": "null"}]}},
        "required": ["code", "any"],
        "additionalProperties": False,
    },
)


@functools.cache
def model_of(family: str, *, special_marks: bool) -> TextModel:
    return TextModel(tool_card(family, special_marks=special_marks))


@functools.cache
def tokenizer_of(family: str, *, special_marks: bool) -> LLTokenizer:
    card = tool_card(family, special_marks=special_marks)
    return LLTokenizer(card.tokenizer_json, n_vocab=card.vocab_size, eos_token=list(card.eos_token_ids))


@functools.cache
def own_tokenizer(family: str, *, special_marks: bool) -> Tokenizer:
    return Tokenizer.from_str(model_of(family, special_marks=special_marks).card.tokenizer_json)


BITS = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]


def said(family: str, words: str, opening: str = "") -> str:
    """Words as a model writes them, before what opens a call or as the answer."""
    marks = model_of(family, special_marks=True).output_format.syntax.said
    if marks is None:
        return words + opening
    answer, before, after = marks
    return before + words + after + opening if opening else answer + words


class Walk:
    """A model that says whatever the grammar allows."""

    def __init__(self, family: str, grammar: str, seed: int = 0, *, special_marks: bool = True) -> None:
        self.model = model_of(family, special_marks=special_marks)
        tokenizer = tokenizer_of(family, special_marks=special_marks)
        assert LLMatcher.validate_grammar(grammar, tokenizer) == ""
        self.matcher = LLMatcher(tokenizer, grammar)
        self.token_ids: list[int] = []
        self._random = random.Random(seed)
        self._own = own_tokenizer(family, special_marks=special_marks)
        self._closing = [self._own.encode(name, add_special_tokens=False).ids for name in CLOSING]

    def allowed(self) -> list[int]:
        """Return the tokens that may come next, in ascending order."""
        mask = self.matcher.compute_bitmask()
        tokens = [8 * place + bit for place, byte in enumerate(mask) if byte for bit in BITS[byte]]
        return tokens[: bisect_left(tokens, self.model.card.vocab_size)]

    def allows(self, token: int) -> bool:
        return bool(self.matcher.compute_bitmask()[token // 8] >> (token % 8) & 1)

    def say(self, text: str) -> None:
        for token in self._own.encode(text, add_special_tokens=False).ids:
            assert self.allows(token)
            self._take(token)

    def to_the_end(self) -> "Walk":
        while not self.matcher.is_stopped():
            allowed = self.allowed()
            assert allowed
            end = set(self.model.card.eos_token_ids) & set(allowed)
            self._take(self._random.choice(list(end) if end and self._random.random() < 0.5 else allowed))
            if self._random.random() < 0.2:
                self._say_as_far_as_allowed(self._random.choice(self._closing))
            assert len(self.token_ids) < MANY_TOKENS
        assert not self.matcher.is_error()
        return self

    def read(self, tools: tuple[Tool, ...]) -> Read:
        answers = self.model.output_format
        stream = TokenStream(self.model, control_text=answers.needs_control_text)
        text = stream.push(self.token_ids).text + stream.flush().text
        return read(answers.reader("", tools), text, range(0, len(text), 3))

    def _say_as_far_as_allowed(self, token_ids: list[int]) -> None:
        for token in token_ids:
            if self.matcher.is_stopped() or not self.allows(token):
                return
            self._take(token)

    def _take(self, token: int) -> None:
        assert self.matcher.consume_token(token), self.matcher.get_error()
        self.token_ids.append(token)


def arguments_of(calls: list[tuple[str, str]], tools: tuple[Tool, ...]) -> list[Any]:
    """The arguments, each valid by its tool's schema."""
    schemas = {tool.name: tool.parameters for tool in tools}
    found = [json.loads(arguments) for _, arguments in calls]
    for (name, _), arguments in zip(calls, found, strict=True):
        jsonschema.validate(arguments, schemas[name])
    return found


@families
@marks
@pytest.mark.parametrize("parallel", [True, False], ids=["many", "one"])
@pytest.mark.parametrize("seed", range(4))
def test_a_forced_answer_is_calls_and_nothing_else(family: str, special_marks: bool, parallel: bool, seed: int) -> None:
    tools = (*TOOLS, LISTS, STRICTER)
    answers = model_of(family, special_marks=special_marks).output_format

    found = (
        Walk(family, answers.grammar.forced(tools, parallel=parallel), seed, special_marks=special_marks)
        .to_the_end()
        .read(tools)
    )

    assert found.content == ""
    assert len(found.calls) >= 1 if parallel else len(found.calls) == 1
    arguments_of(found.calls, tools)


@families
def test_there_are_so_many_calls_in_an_answer_and_no_more(family: str) -> None:
    answers = model_of(family, special_marks=True).output_format
    syntax = answers.syntax
    call = syntax.spell("time", "" if syntax.body == "xml" else "{}")
    walk = Walk(family, answers.grammar.forced((TIME, WEATHER), parallel=True))

    walk.say(syntax.before + syntax.between.join([call] * MAX_CALLS))
    walk.say(syntax.after)

    assert walk.matcher.is_stopped() or set(walk.allowed()) <= set(walk.model.card.eos_token_ids)
    assert len(walk.read((TIME, WEATHER)).calls) == MAX_CALLS


LISTED = {"type": "object", "properties": {"a": {"type": "integer"}}}
REFERRING: dict[str, dict[str, Any]] = {
    "required, and not listed": {**LISTED, "required": ["b"]},
    "a reference to another argument": {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"$ref": "#/properties/b"}, "minItems": 1},
            "b": {"type": "null"},
        },
        "required": ["a", "b"],
    },
    "a reference to the whole": {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
    },
    "a union of references that exclude each other": {
        **LISTED,
        "properties": {"a": {"oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}]}},
        "required": ["a"],
        "$defs": {
            name: {"type": "object", "properties": {"k": {"const": number}}, "required": ["k"]}
            for number, name in enumerate(("one", "two"))
        },
    },
}


@families
@pytest.mark.parametrize("case", REFERRING)
def test_what_a_schema_refers_to_or_requires_without_listing_it_is_written(family: str, case: str) -> None:
    tool = Tool(name="f", parameters=with_any_of(REFERRING[case]))
    grammar = model_of(family, special_marks=True).output_format.grammar.forced((tool,), parallel=False)

    for seed in range(4):
        found = Walk(family, grammar, seed).to_the_end().read((tool,))
        assert len(arguments_of(found.calls, (tool,))) == 1


@families
@marks
def test_each_tool_can_be_called(family: str, special_marks: bool) -> None:
    answers = model_of(family, special_marks=special_marks).output_format
    for tool in (*TOOLS, LISTS, STRICTER):
        grammar = answers.grammar.forced((tool,), parallel=False)

        found = Walk(family, grammar, special_marks=special_marks).to_the_end().read((tool,))

        assert [name for name, _ in found.calls] == [tool.name]


@families
def test_arguments_that_a_schema_does_not_list_are_only_written_where_it_says_so(family: str) -> None:
    listed = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    answers = model_of(family, special_marks=True).output_format

    def written(parameters: dict[str, Any]) -> set[str]:
        tool = Tool(name="switch", parameters=parameters)
        grammar = answers.grammar.forced((tool,), parallel=False)
        calls = [call for seed in range(8) for call in Walk(family, grammar, seed).to_the_end().read((tool,)).calls]
        return set().union(*arguments_of(calls, (tool,)))

    assert written(listed) == {"on"}
    assert written({**listed, "properties": {}, "required": []}) == set()
    if model_of(family, special_marks=True).output_format.syntax.body != "xml":
        assert written({**listed, "additionalProperties": True}) > {"on"}


@pytest.mark.parametrize("family", ["Qwen 3", "Qwen 3.5", "DeepSeek"])
@marks
def test_a_model_that_was_made_to_reason_ends_that_before_it_calls(family: str, special_marks: bool) -> None:
    model = model_of(family, special_marks=special_marks)
    tail = "<|im_start|>assistant\n<think>\n"
    walk = Walk(
        family, model.output_format.grammar.forced(TOOLS, parallel=False, prompt_tail=tail), special_marks=special_marks
    )

    walk.say("So.\n</think>\n\n")
    walk.to_the_end()

    text = model.output_format.reader(tail, TOOLS)
    said = TokenStream(model, control_text=model.output_format.needs_control_text).push(walk.token_ids).text
    found = read(text, said)
    assert found.reasoning == "So.\n"
    assert len(arguments_of(found.calls, TOOLS)) == 1


STRICT = Tool(name="weather", parameters=WEATHER.parameters, strict=True)


@families
def test_where_no_tool_is_strict_nothing_has_to_be_kept_to(family: str) -> None:
    answers = model_of(family, special_marks=True).output_format

    assert answers.grammar.lenient(TOOLS) is None
    assert answers.grammar.lenient(()) is None
    assert answers.grammar.lenient((), parallel=False) is None


@families
@marks
@pytest.mark.parametrize("seed", range(3))
def test_there_is_one_call_at_most_where_calls_are_not_parallel(family: str, special_marks: bool, seed: int) -> None:
    answers = model_of(family, special_marks=special_marks).output_format
    grammar = answers.grammar.lenient(TOOLS, parallel=False)
    assert grammar is not None
    walk = Walk(family, grammar, seed, special_marks=special_marks)

    walk.say(answers.syntax.before + answers.syntax.spell("time", "\0").partition("\0")[0])
    walk.to_the_end()

    found = walk.read(TOOLS)
    assert (found.content, [name for name, _ in found.calls]) == ("", ["time"])


@families
@marks
def test_a_lenient_answer_may_be_text(family: str, special_marks: bool) -> None:
    grammar = model_of(family, special_marks=special_marks).output_format.grammar.lenient((STRICT, TIME))
    assert grammar is not None
    walk = Walk(family, grammar, special_marks=special_marks)

    walk.say(said(family, "Hello <b> {x} [1]\n"))

    assert set(walk.model.card.eos_token_ids) <= set(walk.allowed())
    assert walk.read((STRICT, TIME)) == Read("Hello <b> {x} [1]\n", "", [])


@families
@marks
@pytest.mark.parametrize("seed", range(4))
def test_a_call_in_a_lenient_answer_keeps_to_a_strict_schema(family: str, special_marks: bool, seed: int) -> None:
    loose = Tool(name="loose", parameters={"type": "object", "properties": {"a": {"type": "no such"}}})
    tools = (STRICT, TIME, loose)
    answers = model_of(family, special_marks=special_marks).output_format
    grammar = answers.grammar.lenient(tools)
    assert grammar is not None
    walk = Walk(family, grammar, seed, special_marks=special_marks)
    opening = answers.syntax.before + answers.syntax.spell("weather", "\0").partition("\0")[0]

    walk.say(opening if answers.syntax.bare else said(family, "One moment. ", opening))
    walk.to_the_end()

    found = walk.read(tools)
    assert found.calls
    for name, arguments in found.calls:
        if name == "weather":
            jsonschema.validate(json.loads(arguments), STRICT.parameters)


def test_gpt_oss_makes_one_call_where_that_ends_its_answer() -> None:
    card = tool_card("gpt-oss")
    end = Tokenizer.from_str(card.tokenizer_json).token_to_id("<|call|>")
    assert end is not None
    card = replace(card, eos_token_ids=(1, end))
    answers = TextModel(card).output_format
    tokenizer = LLTokenizer(card.tokenizer_json, n_vocab=card.vocab_size, eos_token=[1, end])
    own = Tokenizer.from_str(card.tokenizer_json)

    for grammar in (answers.grammar.forced((TIME, WEATHER), parallel=True), answers.grammar.lenient((TIME, STRICT))):
        assert grammar is not None
        matcher = LLMatcher(tokenizer, grammar)
        thought = "<|channel|>analysis<|message|>When?<|end|><|start|>assistant"
        for token in own.encode(thought + answers.syntax.spell("time", "{}"), add_special_tokens=False).ids:
            assert matcher.consume_token(token), matcher.get_error()
        assert matcher.is_stopped()


def test_the_answer_of_gpt_oss_may_have_a_form() -> None:
    card = tool_card("gpt-oss")
    frame = TextModel(card).output_format.grammar.answering((), parallel=True)
    assert frame is not None
    grammar = json.dumps({"grammars": [{"lark_grammar": frame}, {"lark_grammar": 'start: "yes"', "name": "answer"}]})
    walk = Walk("gpt-oss", grammar)

    walk.say("<|channel|>analysis<|message|>Is it?<|end|><|start|>assistant<|channel|>final<|message|>")
    walk.to_the_end()

    assert walk.read(()) == Read("yes", "Is it?", [])


class Scanned(list[str]):
    """A list that counts how often it is searched."""

    searched = 0

    def __contains__(self, name: object) -> bool:
        self.searched += 1
        return super().__contains__(name)


def test_a_tools_required_names_are_not_searched_for_each_of_its_properties() -> None:
    required = Scanned(["p0"] * 100)
    properties = {f"p{number}": {"type": "integer"} for number in range(50)}
    tool = Tool(name="f", parameters={"type": "object", "properties": properties, "required": required})

    TextModel(tool_card("Qwen 3.5")).output_format.grammar.forced([tool], parallel=False)

    assert not required.searched
