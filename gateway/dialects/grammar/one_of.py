"""Rewrites `oneOf` as `anyOf` if no value can match two of its branches, so that the two keywords are equivalent.

llguidance detects some such unions itself, but neither unions of numbers nor references without OpenAPI's
`discriminator`. A schema that is not understood is assumed to match any value. No step recurses, and time is linear in
the schema."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from fairlane.gateway.dialects.grammar.schema_tree import DEFINITIONS, NAMED, is_base, pointed, subschemas

_KINDS: Mapping[str, frozenset[str]] = {
    **{kind: frozenset({kind}) for kind in ("null", "boolean", "string", "array", "object", "integer")},
    "number": frozenset({"integer", "fraction"}),
}
_EVERY_KIND = frozenset().union(*_KINDS.values())
_MOST_STEPS = 8
# Values of one property that can identify a branch.
_MOST_LISTED = 32
_MOST_PROPERTIES = 4
# Schemas that require more properties are not distinguished by them.
_MOST_REQUIRED = 256
_ANYTHING: Mapping[str, Any] = {}

Value = tuple[str, object]


def with_any_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema, or an equivalent one with some `oneOf` rewritten as `anyOf`."""
    text = json.dumps(schema, ensure_ascii=False)
    if '"oneOf"' not in text or "/oneOf" in text:  # the rewrite would break a reference into a union
        return schema
    root: dict[str, Any] = json.loads(text)
    unions = _Unions(root)
    for each in _schemas(root):
        branches = each.get("oneOf")
        if "anyOf" in each or not isinstance(branches, list):
            continue
        if unions.exclude_each_other(branches) or unions.discriminated(branches, each.get("discriminator")):
            each["anyOf"] = each.pop("oneOf")
            each.pop("discriminator", None)  # llguidance allows no references to itself next to it
    return root


def _schemas(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    waiting: list[object] = [root]
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, dict) and (schema is root or not is_base(schema)):
            yield schema
            waiting += (each for _, each in subschemas(schema, (*NAMED, *DEFINITIONS)))


class _Unions:
    """Compares branches of unions within one schema. Caches each definition by identity, which the schema keeps
    alive."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._referred = cache(partial(pointed, root))
        self._kinds_of, self._required_of = _remembered(_kinds), _remembered(_required)

    def exclude_each_other(self, branches: Iterable[object]) -> bool:
        by_kind: dict[str, list[Mapping[str, Any]]] = {}
        for branch in branches:
            schema = self._target(branch)
            for kind in self._kinds_of(schema):
                by_kind.setdefault(kind, []).append(schema)
        return all(len(schemas) < 2 or self._are_distinct(kind, schemas) for kind, schemas in by_kind.items())

    def discriminated(self, branches: Sequence[object], discriminator: object) -> bool:
        """Make the branches exclude each other by requiring the property that an OpenAPI `discriminator` names, as
        pydantic does of its input even if the property has a default. Return False if that does not suffice."""
        name = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
        schemas = [schema for schema in map(self._target, branches) if isinstance(schema, dict)]
        if not isinstance(name, str) or not all(self._kinds_of(schema) == {"object"} for schema in schemas):
            return False
        if not _differ(_listed(self._target(_property(schema, name))) for schema in schemas):
            return False
        for schema in schemas:
            schema["required"] = [*dict.fromkeys([*(schema.get("required") or ()), name])]
        return True

    def _are_distinct(self, kind: str, schemas: Sequence[Mapping[str, Any]]) -> bool:
        if _differ(map(_listed, schemas)):
            return True
        if kind != "object":
            return False
        required = frozenset.intersection(*map(self._required_of, schemas))
        return any(
            _differ(_listed(self._target(_property(schema, name))) for schema in schemas)
            for name in sorted(required)[:_MOST_PROPERTIES]
        )

    def _target(self, schema: object) -> Mapping[str, Any]:
        """Return a schema that is at least as wide: the target of a reference, without keywords next to the
        reference."""
        for _ in range(_MOST_STEPS):
            if not isinstance(schema, dict) or (schema is not self._root and is_base(schema)):
                return _ANYTHING
            if "$ref" not in schema:
                return schema
            reference = schema["$ref"]
            schema = self._referred(reference) if isinstance(reference, str) else None
        return _ANYTHING


def _remembered(find: Callable[[Mapping[str, Any]], frozenset[str]]) -> Callable[[Mapping[str, Any]], frozenset[str]]:
    found: dict[int, frozenset[str]] = {}

    def remembered(schema: Mapping[str, Any]) -> frozenset[str]:
        if id(schema) not in found:
            found[id(schema)] = find(schema)
        return found[id(schema)]

    return remembered


def _differ(listed: Iterable[frozenset[Value] | None]) -> bool:
    seen: set[Value] = set()
    for values in listed:
        if values is None or not seen.isdisjoint(values):
            return False
        seen |= values
    return True


def _kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    listed, stated = _listed(schema), schema.get("type")
    if listed is not None:
        return frozenset(kind for kind, _ in listed)
    names = stated if isinstance(stated, list) else [stated]
    return frozenset().union(*(_KINDS.get(name if isinstance(name, str) else "", _EVERY_KIND) for name in names))


def _listed(schema: Mapping[str, Any]) -> frozenset[Value] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or len(values) > _MOST_LISTED:
        return None
    return None if any(isinstance(value, list | dict) for value in values) else frozenset(map(_value, values))


def _value(plain: object) -> Value:
    """Return the value with its kind: in Python True equals 1, and in JSON Schema 1.0 is an integer."""
    match plain:
        case None:
            return "null", None
        case bool():
            return "boolean", plain
        case str():
            return "string", plain
        case float() if not plain.is_integer():
            return "fraction", plain
        case _:
            return "integer", plain


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    names = schema.get("required")
    if not isinstance(names, list) or len(names) > _MOST_REQUIRED:
        return frozenset()
    return frozenset(name for name in names if isinstance(name, str))


def _property(schema: Mapping[str, Any], name: str) -> object:
    properties = schema.get("properties")
    return properties.get(name) if isinstance(properties, dict) else None
