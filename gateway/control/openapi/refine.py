"""Adapts pydantic's schemas to client generators.

Generators ignore an enumeration without a type. Those for TypeScript make a property with a default required."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from fairlane.gateway.control.openapi.descriptions import PROPERTIES
from fairlane.gateway.dialects.openai.neutral import HintValues, Neutral

Json = dict[str, Any]
_SCALARS: Mapping[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}


class Untitled(GenerateJsonSchema):
    """Generates schemas whose properties have no titles, which would only repeat their names."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def refined(schemas: Mapping[str, Json]) -> Json:
    """Return every component with a description for each property, and without defaults, which descriptions state."""
    for name, schema in schemas.items():
        schema.pop("title", None)
        for field, known in schema.get("properties", {}).items():
            known.pop("default", None)
            text = PROPERTIES.get(f"{name}.{field}") or PROPERTIES.get(field)
            if text is not None:
                known.setdefault("description", text)
    return dict(schemas)


def with_neutral_fields(schemas: Json, neutral: Mapping[type[BaseModel], Neutral]) -> Json:
    """Add the fields that a body may contain at their neutral values only."""
    extended = dict(schemas)
    for body, known in neutral.items():
        schema = extended[body.__name__]
        fields = {name: _only(values) for name, values in sorted(known.items())}
        extended[body.__name__] = {**schema, "properties": {**schema["properties"], **fields}}
    return extended


def query_schema(schema: Json) -> Json:
    """Convert a parameter's schema: an absent parameter means null in a body."""
    kept = dict(schema)
    choices = [choice for choice in kept.pop("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) > 1:
        kept["anyOf"] = choices
    elif choices:
        kept = {**choices[0], **kept}
    if kept.get("default") is None:
        kept.pop("default", None)
    return kept


def _only(values: tuple[object, ...]) -> Json:
    if isinstance(values, HintValues):
        return {"description": "A hint: ignored, and named in `x-fairlane-ignored`."}
    texts = [value for value in values if isinstance(value, str)]
    others = [value for value in values if not isinstance(value, str)]
    choices = [_constant(value) for value in others if not (value is True and False in others)]
    if {True, False} <= {value for value in others if isinstance(value, bool)}:
        choices = [{"type": "boolean"}]
    if texts:
        choices.append({"type": "string", "enum": texts})
    choices.append({"type": "null"})
    return {"anyOf": choices, "description": "Not supported yet: accepted at these values only."}


def _constant(value: object) -> Json:
    if type(value) in _SCALARS:
        return {"type": _SCALARS[type(value)], "const": value}
    match value:
        case []:
            return {"type": "array", "items": {}, "maxItems": 0}
        case [only]:
            return {"type": "array", "items": _constant(only), "minItems": 1, "maxItems": 1}
        case dict():
            fields = {name: _constant(inner) for name, inner in value.items()}
            return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        case _:
            raise TypeError(f"no schema for a neutral value of the type {type(value).__name__}")
