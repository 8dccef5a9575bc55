"""Rewrites a schema in keywords that llguidance knows: drops what forbids nothing, and replaces some by equivalents.

Dropped are annotations, unknown keywords, unknown formats, null values except of `const`, and neutral values such as
`uniqueItems: false`. A keyword through which a reference leads stays, as do identifiers that references need."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

from fairlane.gateway.dialects.grammar.lookahead import without_lookaheads
from fairlane.gateway.dialects.grammar.schema_tree import (
    DEFINITIONS,
    NAMED,
    ONE,
    SEVERAL,
    Place,
    Schema,
    is_base,
    places,
    pointed,
    pointer,
    pointer_steps,
)

# Formats that llguidance enforces. Others are annotations.
FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"})
_IDENTIFIERS = frozenset({"$schema", "$id", "id"})
_KEYWORDS = _IDENTIFIERS | {*ONE, *SEVERAL, *NAMED, *DEFINITIONS, "$ref", "$dynamicRef", "$recursiveRef", "$anchor"}
_KEYWORDS |= {"type", "enum", "const", "required", "dependentRequired", "format", "pattern", "uniqueItems"}
_KEYWORDS |= {"discriminator"}  # of OpenAPI, which `one_of.py` reads
_KEYWORDS |= {f"{limit}{name}" for limit in ("min", "max") for name in ("Length", "Items", "Contains", "Properties")}
_KEYWORDS |= {"multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
# Keywords that apply other schemas to the same value.
_IN_PLACE = frozenset(
    {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "contains", "dependentSchemas"}
)
_UNEVALUATED = {"unevaluatedItems": "items", "unevaluatedProperties": "additionalProperties"}
# Keywords of a schema of an object that only lists properties.
_LISTING = frozenset({"type", "properties", "required", *DEFINITIONS})
_MOST_STEPS = 8
# Of references that replace one list of property names.
MOST_REFERENCES_CHARS = 16 * 1024
# Returns the schema that another one only refers to, or itself.
Target = Callable[[object], object]


def simplified(schema: Mapping[str, Any]) -> Schema:
    """Return an equivalent schema, as a copy."""
    root: Schema = json.loads(json.dumps(schema, ensure_ascii=False))
    kept, target = _kept(root), _targets(root)
    for place in reversed(places(root, enters_bases=_IDENTIFIERS.isdisjoint(kept))):  # a schema after those in it
        each = place.schema
        for name, value in [*each.items()]:
            is_noted = name not in _KEYWORDS or name in _IDENTIFIERS or (value is None and name != "const")
            if is_noted and name not in kept:
                del each[name]
        for name, is_neutral in _NEUTRAL.items():
            if name in each and name not in kept and is_neutral(each[name], each, target):
                del each[name]
        if kept.isdisjoint(_REPLACED):
            _replace(place, target)
    return root


def closed(schema: Schema) -> Schema:
    """Return the schema of an object without properties that it does not list, if it lists all that it requires."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not schema.keys() <= _LISTING:
        return schema
    lists_all = all(isinstance(name, str) and name in properties for name in _listed(schema.get("required")))
    return {**schema, "additionalProperties": False} if lists_all else schema


def _kept(root: Schema) -> frozenset[str]:
    """Return names that references of the schema contain, and those of identifiers if they determine a target."""
    references, has_bases = [], False
    for each in _objects(root):
        reference = each.get("$ref")
        references += [reference] if isinstance(reference, str) else []
        has_bases = has_bases or (each is not root and is_base(each))
    steps = {step for reference in references for step in pointer_steps(reference)}
    are_local = all(reference.startswith("#") for reference in references)
    return frozenset(steps | (_IDENTIFIERS if references and (has_bases or not are_local) else set()))


def _objects(root: Schema) -> Iterator[Schema]:
    waiting: list[object] = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def is_any(schema: object) -> bool:
    """Return whether a simplified schema allows every value."""
    return schema is True or (isinstance(schema, dict) and schema.keys() <= {*DEFINITIONS, "$anchor"})


def is_never(schema: object) -> bool:
    """Return whether a simplified schema allows no value by an explicit `false`."""
    return schema is False or (isinstance(schema, dict) and False in _listed(schema.get("allOf")))


def _targets(root: Schema) -> Target:
    """Return the function that finds targets in `root`, in linear time however many schemas refer to one."""
    found = cache(partial(pointed, root))

    def target(schema: object) -> object:
        for _ in range(_MOST_STEPS):
            if not isinstance(schema, dict) or schema.keys() != {"$ref"}:
                break
            reference = schema["$ref"]
            schema = found(reference) if isinstance(reference, str) else None
        return schema

    return target


def _allows_strings(schema: object, target: Target) -> bool:
    schema = target(schema)
    if isinstance(schema, dict) and schema.keys() == {"type"}:
        return schema["type"] == "string" or "string" in _listed(schema["type"])
    if isinstance(schema, dict) and schema.keys() == {"anyOf"}:
        return {"type": "string"} in _listed(schema["anyOf"])
    return is_any(schema)


def _is_met(dependency: object, schema: Schema) -> bool:
    """Return whether a dependency of a property asks for nothing else than the schema does."""
    if isinstance(dependency, list):
        required = _listed(schema.get("required"))
        return all(name in required for name in dependency)
    return is_any(dependency)


def _are_met(dependencies: object, schema: Schema, _: Target) -> bool:
    return isinstance(dependencies, dict) and all(_is_met(each, schema) for each in dependencies.values())


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# Returns whether a keyword's value forbids nothing, from the value, its schema and what finds targets.
_IsNeutral = Callable[[Any, Schema, Target], bool]
_NEUTRAL: Mapping[str, _IsNeutral] = {
    "type": lambda value, *_: value in ("any", []),
    "format": lambda value, *_: not isinstance(value, str) or value not in FORMATS,
    "uniqueItems": lambda value, schema, _: value is False or schema.get("maxItems") in (0, 1),
    "required": lambda value, *_: value is False,
    "propertyNames": lambda value, _, target: _allows_strings(value, target),
    "not": lambda value, *_: is_never(value),
    "then": lambda value, schema, _: "if" not in schema or is_any(value),
    "else": lambda value, schema, _: "if" not in schema or is_any(value),
    "if": lambda _, schema, __: "then" not in schema and "else" not in schema,
    "dependentRequired": _are_met,
    "dependentSchemas": _are_met,
    "dependencies": _are_met,
    "contains": lambda _, schema, __: schema.get("minContains") == 0 and "maxContains" not in schema,
    "minContains": lambda _, schema, __: "contains" not in schema,
    "maxContains": lambda _, schema, __: "contains" not in schema,
    # llguidance takes it as a sign that `prefixItems` are meant by an older draft, which does not know them.
    "additionalItems": lambda _, schema, __: not isinstance(schema.get("items"), list),
    "unevaluatedItems": lambda value, schema, _: is_any(value) or isinstance(schema.get("items"), bool | dict),
    "unevaluatedProperties": lambda value, schema, _: is_any(value) or "additionalProperties" in schema,
    "allOf": lambda value, *_: value == [],
    "anyOf": lambda value, *_: value == [],
    "oneOf": lambda value, *_: value == [],
    "discriminator": lambda _, schema, __: "oneOf" not in schema,
}
_REPLACED = frozenset(
    {"not", "pattern", "additionalProperties", "propertyNames", "unevaluatedItems", "unevaluatedProperties"}
)


def _replace(place: Place, target: Target) -> None:
    """Replace keywords that llguidance does not know by equivalents that it does."""
    schema = place.schema
    if is_any(schema.get("not")):
        del schema["not"]
        schema["allOf"] = [*_listed(schema.get("allOf")), False]
    patterns = without_lookaheads(schema["pattern"]) if isinstance(schema.get("pattern"), str) else None
    if patterns:
        del schema["pattern"]
        schema["allOf"] = [*_listed(schema.get("allOf")), *({"pattern": each} for each in patterns)]
    if schema.get("unevaluatedProperties") is False and _IN_PLACE & schema.keys() == {"allOf"}:
        _list_evaluated(schema, target)
    if _IN_PLACE.isdisjoint(schema):
        for unevaluated, additional in _UNEVALUATED.items():
            if unevaluated in schema:
                schema[additional] = schema.pop(unevaluated)
    if "propertyNames" in schema and "patternProperties" not in schema:
        _replace_names(place, target)


def _list_evaluated(schema: Schema, target: Target) -> None:
    """Replace `unevaluatedProperties: false` if all parts of the schema list their properties."""
    parts, own = [target(each) for each in _listed(schema["allOf"])], schema.get("properties", {})
    listed: dict[str, Any] = {}
    for part in parts:
        if not isinstance(part, dict) or not part.keys() <= {"type", "properties", "required"}:
            return
        listed |= dict.fromkeys(part.get("properties", {}), True)
    if "patternProperties" not in schema and isinstance(own, dict):
        del schema["unevaluatedProperties"]
        schema["properties"] = {**listed, **own}
        schema["additionalProperties"] = False


def _replace_names(place: Place, target: Target) -> None:
    """Replace `propertyNames` by properties if it lists them, or by `patternProperties` if it describes them."""
    schema = place.schema
    allowed, properties = target(schema["propertyNames"]), schema.get("properties", {})
    if not isinstance(allowed, dict) or not isinstance(properties, dict):
        return
    rules = {name: rule for name, rule in allowed.items() if (name, rule) != ("type", "string")}
    names = [rules["const"]] if rules.keys() == {"const"} else _listed(rules.get("enum")) if len(rules) == 1 else []
    values = schema.get("additionalProperties", True)
    if names:
        if isinstance(values, dict):  # stated once, however many names there are
            reference = pointer((*place.path, "$defs", "additionalProperties"))
            if len(reference) * len(names) > MOST_REFERENCES_CHARS:
                return
            schema.setdefault("$defs", {})["additionalProperties"] = values
            values = {"$ref": reference}
        listed = {name: rule for name, rule in properties.items() if name in names}
        schema["properties"] = {
            **listed,
            **{name: values for name in names if isinstance(name, str) and name not in listed},
        }
    elif properties:
        return
    elif rules.keys() == {"pattern"} and isinstance(rules["pattern"], str):
        schema["patternProperties"] = {rules["pattern"]: values}
    elif rules.keys() <= {"minLength", "maxLength"} and all(type(length) is int for length in rules.values()):
        lengths = f"{rules.get('minLength', 0)},{rules.get('maxLength', '')}"
        schema["patternProperties"] = {rf"^[\s\S]{{{lengths}}}$": values}
    else:
        return
    del schema["propertyNames"]
    schema["additionalProperties"] = False
