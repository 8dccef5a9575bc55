"""Schemas as libraries write them: what forbids nothing is dropped, and what remains allows the same values."""

import json
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from pydantic import BaseModel, Field

from fairlane.gateway.dialects.grammar.check_process import Check, SampleVocabulary
from fairlane.gateway.dialects.grammar.enforce import enforceable
from fairlane.gateway.dialects.grammar.simplify import FORMATS, MOST_REFERENCES_CHARS, simplified
from fairlane.gateway.dialects.grammar.structure import Structure
from tests.support.counted import bytecodes

TEXT = {"type": "string"}
LOOKAHEAD = {"type": "string", "pattern": "^b+(?!a)b$"}


def with_a(schema: object, **keywords: object) -> dict[str, Any]:
    """An object with one property."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], **keywords}


@cache
def check() -> Check:
    return Check()


@cache
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(SampleVocabulary()))


def allows(schema: object, *values: object) -> list[bool]:
    """Whether the grammar of a schema can write each value."""
    result = check().run(Structure("json_schema", json.dumps(schema), "schema"))
    assert result.fault == ""
    found = []
    for value in values:
        matcher, text = LLMatcher(tokenizer(), result.grammar, log_level=0), json.dumps(value).encode()
        found.append(matcher.try_consume_tokens([*text]) == len(text) and matcher.is_accepting())
    return found


NEUTRAL: dict[str, dict[str, Any]] = {
    "notes": {"title": "A", "examples": [1], "deprecated": True, "readOnly": True, "$comment": "c", "default": 1},
    "notes of content": {"contentEncoding": "base64", "contentMediaType": "text/plain", "contentSchema": {"not": {}}},
    "OpenAPI": {"nullable": True, "example": 1, "xml": {}, "discriminator": {"propertyName": "k"}, "x-order": 1},
    "MCP": {"annotations": {"readOnlyHint": True}, "_meta": {"not": {}}},
    "a dialect of its own": {"$schema": "https://spec.openapis.org/oas/3.1/dialect/base"},
    "a dialect's other address": {"$schema": "https://json-schema.org/draft-07/schema#"},
    "no address": {"$id": "My Schema"},
    "an anchor": {"$anchor": "a", "$dynamicAnchor": "b", "$recursiveAnchor": True, "$vocabulary": {"c": True}},
    "nulls": dict.fromkeys(["type", "enum", "items", "pattern", "minimum", "$ref", "properties", "required", "anyOf"]),
    "no limits": {"minItems": 0, "minLength": 0, "minProperties": 0, "required": []},
    "empty lists": {"allOf": [], "anyOf": [], "oneOf": []},
    "any type": {"type": "any"},
    "no type": {"type": []},
    "a flag of OpenAPI 2": {"required": False},
    "items that may repeat": {"uniqueItems": False},
    "one item": {"uniqueItems": True, "maxItems": 1},
    "Zod's record": {"propertyNames": {"type": "string"}},
    "any name": {"propertyNames": {"$ref": "#/$defs/name"}, "$defs": {"name": {"anyOf": [TEXT, {"type": "number"}]}}},
    "no dependency": {"dependentRequired": {}, "dependentSchemas": {}, "dependencies": {}},
    "met dependencies": {"dependentRequired": {"b": []}, "dependentSchemas": {"b": {"title": "B"}}},
    "older dependencies": {"dependencies": {"b": [], "c": {}, "d": True}},
    "nothing unevaluated": {"unevaluatedProperties": True, "unevaluatedItems": {}},
    "everything evaluated": {"additionalProperties": {}, "unevaluatedProperties": False},
    "additional items": {"items": {}, "additionalItems": False},
    "not never": {"not": False},
    "not not any": {"not": {"not": {}}},
    "if without then": {"if": {"const": 1}},
    "then without if": {"then": {"const": 1}, "else": {"const": 1}},
    "if, and then anything": {"if": {"const": 1}, "then": {}, "else": True},
    "nothing contained": {"contains": {"const": 1}, "minContains": 0},
    "contains without a schema": {"minContains": 3, "maxContains": 4},
    **{f"format {name}": {"format": name} for name in ("int64", "binary", "password", "regex", "cuid2", "", "unknown")},
    "a format that is no text": {"format": 1},
}


@pytest.mark.parametrize("keywords", NEUTRAL.values(), ids=NEUTRAL)
def test_keywords_that_forbid_nothing_are_dropped(keywords: dict[str, Any]) -> None:
    values = [{"a": 1}, {"b": "x"}, [], [1, 1]]
    if "maxItems" in keywords:
        values.pop()

    assert all(allows(keywords, *values))
    assert all(allows({"$defs": keywords.get("$defs", {}), "anyOf": [keywords]}, *values))
    assert simplified(with_a(keywords)).keys() == {"type", "properties", "required"}


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Records(BaseModel):
    colours: dict[Colour, int] = {}
    words: dict[Literal["x"], bool] = {}
    named: dict[str, int] = Field({}, json_schema_extra={"propertyNames": {"minLength": 2}})


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    friend: Annotated[Union[Cat, "Dog"], Field(discriminator="kind")] | None = None


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


RECORD = {"type": "object", "propertyNames": {"type": "string", "enum": ["x", "y"]}, "additionalProperties": TEXT}
EQUIVALENT: dict[str, tuple[dict[str, Any], list[object], list[object]]] = {
    "pydantic's records": (
        Records.model_json_schema(),
        [{"colours": {"red": 1}}, {"words": {"x": True}}, {"named": {"ab": 1}}],
        [{"colours": {"green": 1}}, {"colours": {"red": "1"}}, {"words": {"y": True}}, {"named": {"a": 1}}],
    ),
    "Zod's record of an enum": ({**RECORD, "required": ["x"]}, [{"x": "1"}, {"x": "", "y": ""}], [{}, {"z": "1"}]),
    "a record of a few": ({**RECORD, "properties": {"x": {"const": 1}, "z": {}}}, [{"x": 1}], [{"x": "1"}, {"z": 1}]),
    "a record of a pattern": ({"propertyNames": {"pattern": "^a+$"}}, [{"aa": 1}, 1], [{"b": 1}]),
    "Zod's never": (with_a(TEXT, properties={"a": TEXT, "b": {"not": {}}}), [{"a": ""}], [{"a": "", "b": 1}]),
    "an optional branch": ({"anyOf": [{"not": {}}, TEXT]}, [""], [1, None]),
    "nothing else": (with_a(TEXT, unevaluatedProperties=False), [{"a": ""}], [{"a": "", "b": 1}]),
    "nothing else than all parts": (
        {"allOf": [with_a(TEXT), {"$ref": "#/$defs/b"}], "unevaluatedProperties": False, "properties": {"c": TEXT},
         "$defs": {"b": {"properties": {"b": TEXT}, "required": ["b"]}}},
        [{"a": "", "b": ""}, {"a": "", "b": "", "c": ""}],
        [{"a": ""}, {"a": "", "b": "", "d": ""}, {"a": "", "b": "", "c": 1}],
    ),
    "pydantic's union of tags with defaults": (
        Owner.model_json_schema(),
        [{"pet": {"kind": "cat", "lives": 9}}, {"pet": {"kind": "dog", "friend": {"kind": "dog", "friend": None}}}],
        [{"pet": {"lives": 9}}, {"pet": {"kind": "bird"}}],
    ),
    "a tuple": ({"type": "array", "prefixItems": [TEXT], "unevaluatedItems": False}, [[""]], [["", 1], [1]]),
    "an older tuple": ({"type": "array", "prefixItems": [TEXT], "additionalItems": True}, [["", 1]], [[1]]),
    "a constant null": ({"const": None}, [None], [1]),
    "definitions elsewhere": (
        with_a({"$ref": "#/components/x"}, components={"x": {"propertyNames": TEXT, "additionalProperties": TEXT}}),
        [{"a": {"b": ""}}],
        [{"a": {"b": 1}}],
    ),
    "a reference to a keyword": (
        {"properties": {"a": {"$ref": "#/properties/b/title"}, "b": {"title": TEXT}}},
        [{"a": ""}],
        [{"a": 1}],
    ),
    "a reference by address": (
        {"$id": "https://a/b", "$ref": "https://a/b#/$defs/c", "$defs": {"c": TEXT}}, [""], [1],
    ),
    "a reference within an address": (
        {"items": {"$id": "https://a/b", "$ref": "#/$defs/c", "$defs": {"c": TEXT}}, "$defs": {"c": {}}}, [[""]], [[1]],
    ),
    "branches that can be enforced": ({"anyOf": [{"type": "number"}, LOOKAHEAD]}, [1], ["b", None]),
    "exclusive branches that can": ({"oneOf": [{"type": "number"}, LOOKAHEAD]}, [1], ["b", None]),
    "branches by reference": (
        {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": with_a(LOOKAHEAD), "b": with_a(TEXT)}},
        [{"a": "x"}],
        [{"a": 1}],
    ),
    "branches within branches": (
        {"items": {"anyOf": [{"anyOf": [LOOKAHEAD, {"not": TEXT}]}, {"type": "number"}]}}, [[1]], [["b"]],
    ),
    "lookaheads": (
        with_a({"type": "string", "pattern": r"^(?=.*[A-Z])(?!.*\.\.)(?![0-9]+$).{3,}$"}),
        [{"a": "aB."}], [{"a": "B."}, {"a": "ab."}, {"a": "aB.."}, {"a": 1}],
    ),
    "listed properties": (with_a(TEXT, title="A"), [{"a": "x"}], [{"a": "x", "b": 1}]),
    "listed properties and others": (with_a(TEXT, additionalProperties=True), [{"a": "x", "b": 1}], [{"b": 1}]),
    "one that is not listed": ({"properties": {"a": TEXT}, "required": ["b"]}, [{"a": "x", "b": 1}], [{"a": "x"}]),
    "a format": ({"format": "date", "type": "string"}, ["2026-01-02"], ["x"]),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "valid", "invalid"), EQUIVALENT.values(), ids=EQUIVALENT)
def test_what_remains_is_enforced(schema: dict[str, Any], valid: list[object], invalid: list[object]) -> None:
    assert allows(schema, *valid) == [True] * len(valid)
    assert allows(schema, *invalid) == [False] * len(invalid)


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "array", "uniqueItems": True}, {"type": "null"}]},
        {"anyOf": [LOOKAHEAD, {"not": {}}]},
        {"oneOf": [LOOKAHEAD, TEXT]},
        {"oneOf": [with_a({"anyOf": [LOOKAHEAD, {"const": 1}]}), with_a({"const": 1}, additionalProperties=False)]},
        {"anyOf": [LOOKAHEAD, TEXT], "properties": {"a": {"$ref": "#/anyOf/1"}}},
    ],
)
def test_a_union_is_refused_if_it_needs_a_branch_that_cannot_be_enforced(schema: dict[str, Any]) -> None:
    assert check().run(Structure("json_schema", json.dumps(schema), "schema")).fault


def test_the_known_formats_are_those_that_the_grammar_enforces() -> None:
    for name in FORMATS:
        grammar = LLMatcher.grammar_from_json_schema({"type": "string", "format": name}, overrides={"lenient": False})
        is_wrong, _ = LLMatcher.validate_grammar_with_warnings(grammar)
        assert not is_wrong
        assert simplified({"format": name}) == {"format": name}


scalars = st.sampled_from([None, True, 0, 1, "a", "bb", ""])
names = st.sampled_from(["a", "bb", "c"])
inner = st.sampled_from([True, False, {}, TEXT, {"type": "number"}, {"not": {}}, {"const": "a"}, {"title": "A"}])
schemas = st.recursive(
    inner,
    lambda each: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(names, each, max_size=2),
            "additionalProperties": each,
            "propertyNames": each | st.sampled_from([{"enum": ["a", "c"]}, {"minLength": 2}, {"pattern": "^a"}]),
            "required": st.lists(names, max_size=1),
            "items": each,
            "prefixItems": st.lists(each, max_size=1),
            "additionalItems": each,
            "uniqueItems": st.booleans(),
            "not": each,
            "if": each,
            "then": each,
            "else": each,
            "allOf": st.lists(each | st.builds(with_a, each), max_size=2),
            "unevaluatedProperties": each,
            "unevaluatedItems": each,
            "dependentRequired": st.dictionaries(names, st.lists(names, max_size=1), max_size=1),
            "dependentSchemas": st.dictionaries(names, each, max_size=1),
            "contains": each,
            "minContains": st.integers(0, 1),
        },
    ),
    max_leaves=6,
)
values = st.recursive(
    scalars,
    lambda each: st.lists(each, max_size=2) | st.dictionaries(names, each, max_size=2),
    max_leaves=5,
)


@given(schema=schemas.filter(lambda each: isinstance(each, dict)), tried=st.lists(values, min_size=1, max_size=6))
def test_a_simplified_schema_allows_the_same(schema: dict[str, Any], tried: list[object]) -> None:
    before = json.dumps(schema)
    found = simplified(schema)

    assert json.dumps(schema) == before
    for value in tried:
        assert Draft202012Validator(found).is_valid(value) == Draft202012Validator(schema).is_valid(value)


def test_a_hostile_schema_does_not_grow_much() -> None:
    tree: dict[str, Any] = {}
    for _ in range(300):
        tree = {"propertyNames": {"enum": ["a", "b", "c", "d"]}, "additionalProperties": tree}

    assert len(json.dumps(simplified(tree))) < 300 * MOST_REFERENCES_CHARS


def test_a_hostile_union_is_searched_in_linear_time() -> None:
    def searched(branches: int) -> int:
        union = {"anyOf": [*({"not": {"const": number}} for number in range(branches)), {"type": "number"}]}
        return bytecodes(lambda: enforceable(union, lambda each: "not" if "not" in json.dumps(each) else ""))

    assert searched(400) < 12 * searched(50)


def test_a_hostile_reference_is_followed_in_linear_time() -> None:
    def followed(parts: int) -> int:
        schema = {"b": {"$ref": "#" + "/a" * 1_000}, "unevaluatedProperties": False, "allOf": [{"$ref": "#/b"}] * parts}
        return bytecodes(lambda: simplified(schema))

    assert followed(100) < 4 * followed(5)
