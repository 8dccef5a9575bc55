"""Fields of requests in the OpenAPI document: parameters, and body fields that are accepted at neutral values only."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from gateway.bodies import Neutral

Json = dict[str, Any]
_PATH_FIELD = re.compile(r"{(\w+)}")


def parameters(path: str, query: type[BaseModel] | None) -> list[Json]:
    """What stands in the path and behind the question mark."""
    found: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_FIELD.findall(path)
    ]
    if query is not None:
        schema = query.model_json_schema()
        required = schema.get("required", [])
        found += [
            {"name": name, "in": "query", "required": name in required, "schema": field}
            for name, field in schema.get("properties", {}).items()
        ]
    return found


def with_neutral_fields(schemas: Json, neutral: Mapping[type[BaseModel], Neutral]) -> Json:
    """The schemas with those fields that a body may name, as long as they ask for nothing."""
    extended = dict(schemas)
    for body, known in neutral.items():
        schema = extended[body.__name__]
        fields = {name: _only(values) for name, values in sorted(known.items())}
        extended[body.__name__] = {**schema, "properties": {**schema["properties"], **fields}}
    return extended


def _only(values: tuple[object, ...]) -> Json:
    return {"enum": [None, *values], "description": "Not supported yet: accepted at these values only."}
