"""Unions that are written as `anyOf`: those that mean the same, and no others."""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field
from referencing.exceptions import Unresolvable

from fairlane.gateway.dialects.grammar.one_of import with_any_of
from tests.support.counted import bytecodes, calls_of

scalars = st.sampled_from([None, True, False, 0, 1, 1.0, 0.5, 2, "a", "b", ""])
names = st.sampled_from(["k", "l"])
listing = st.builds(lambda value: {"const": value}, scalars) | st.builds(
    lambda values: {"enum": values}, st.lists(scalars, min_size=1, max_size=3)
)
kinds = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object", ["null", "object"]])
references = st.sampled_from([{"$ref": f"#/$defs/{name}"} for name in ("x", "y", "z", "no", "")])


def objects(value: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of objects with a few properties."""
    return st.fixed_dictionaries(
        {"properties": st.dictionaries(names, value, max_size=2)},
        optional={
            "type": st.just("object"),
            "required": st.lists(names, max_size=2),
            "additionalProperties": st.booleans(),
            "const": scalars,
            "$id": st.just("urn:x"),
        },
    )


plain = listing | st.builds(lambda kind: {"type": kind}, kinds) | st.booleans() | references
branches = st.recursive(
    plain | objects(plain),
    lambda inner: objects(inner) | st.builds(lambda each: {"oneOf": each}, st.lists(inner, min_size=1, max_size=3)),
    max_leaves=6,
)
unions = st.fixed_dictionaries(
    {"oneOf": st.lists(branches, min_size=1, max_size=4)},
    optional={
        "anyOf": st.lists(branches, min_size=1, max_size=2),
        "required": st.lists(names, max_size=1),
        "$defs": st.fixed_dictionaries({name: listing | objects(listing) | references for name in ("x", "y", "z")}),
    },
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)


def is_kept_to(schema: Any, value: object) -> object:
    """Whether a value keeps to a schema; the kind of error where that cannot be said."""
    try:
        return bool(Draft202012Validator(schema).is_valid(value))
    except (Unresolvable, RecursionError) as error:  # a reference that leads nowhere, or to itself
        return type(error).__name__


@given(schema=unions, tried=st.lists(values, min_size=1, max_size=6))
def test_a_value_keeps_to_the_one_as_to_the_other(schema: dict[str, Any], tried: list[object]) -> None:
    before = json.dumps(schema)
    rewritten = with_any_of(schema)

    assert json.dumps(schema) == before
    for value in tried:
        found = is_kept_to(schema, value)
        if isinstance(found, bool):
            assert is_kept_to(rewritten, value) == found


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog", "wolf"]


class Pet(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


DEFINITIONS = {"cat": object_of(kind={"const": 1}), "dog": object_of(kind={"const": 2})}


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "null"}, {"type": "string"}, {"type": "number"}]},
        {"oneOf": [{"const": 1}, {"enum": [2, 3]}, {"const": "1"}]},
        {"oneOf": [object_of(a={}, kind={"const": 1}), object_of(a={}, kind={"enum": [True, 2]})]},
        {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}, {"type": "null"}], "$defs": DEFINITIONS},
    ],
)
def test_branches_that_exclude_each_other_are_any_of(schema: dict[str, Any]) -> None:
    assert with_any_of(schema) == {"anyOf" if name == "oneOf" else name: value for name, value in schema.items()}


def test_pydantics_discriminated_unions_are_any_of() -> None:
    pet = with_any_of(Pet.model_json_schema())["properties"]["pet"]

    assert ("anyOf" in pet, "oneOf" in pet) == (True, False)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"oneOf": [{"const": 1}, {"const": 1.0}]},
        {"oneOf": [{"const": [1]}, {"const": [1.0]}]},
        {"oneOf": [{"type": "object"}, {}]},
        {"oneOf": [{"properties": {"k": {"const": 1}}}, {"properties": {"k": {"const": 2}}}]},
        {"oneOf": [{**object_of(k={"const": n}), "required": []} for n in range(2)]},
        {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/cat"}], "$defs": DEFINITIONS},
        {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"oneOf": [{"type": "null"}, {"type": "string"}], "anyOf": [{"type": "string"}]},
        {"oneOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/oneOf/0"}}]},
        {"properties": {"oneOf": {"const": {"oneOf": [{"type": "null"}, {"type": "string"}]}}}},
        {"oneOf": 5},
    ],
)
def test_everything_else_stays_as_it_is(schema: dict[str, Any]) -> None:
    assert with_any_of(schema) == schema


def test_a_hostile_schema_takes_linear_time() -> None:
    names = [f"k{number}" for number in range(300)]
    tree: dict[str, Any] = {}
    for _ in range(200):
        tree = {"oneOf": [tree, {"type": "null"}]}
    wide = {"oneOf": [object_of(**{name: {"enum": [*range(40)]} for name in names[:20]}) for _ in names]}

    assert with_any_of({"anyOf": [tree, wide]})["anyOf"][1] == wide


def shared(definition: dict[str, Any], branches: int) -> dict[str, Any]:
    """A union whose branches all refer to one definition."""
    return {"$defs": {"a": definition}, "oneOf": [{"$ref": "#/$defs/a"}] * branches}


LARGE: dict[str, Callable[[int], dict[str, Any]]] = {
    "types": lambda size: {"type": ["string"] * size},
    "required": lambda size: {"type": "object", "required": [f"k{number}" for number in range(size)]},
    "references": lambda size: {"$ref": "#/$defs/" + "b/" * size},
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_large_definition_is_read_once_however_many_branches_refer_to_it(kind: str) -> None:
    small, large = (shared(LARGE[kind](size), size) for size in (50, 400))

    assert bytecodes(lambda: with_any_of(large)) < 12 * bytecodes(lambda: with_any_of(small))
    assert calls_of(unquote, lambda: with_any_of(large)) <= 2
