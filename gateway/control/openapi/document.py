"""`GET /openapi.json`: the whole HTTP surface as one OpenAPI 3.1 document.

It is built from the models that validate requests, the shapes of responses, and the tables of operations."""

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any, Literal, get_args

import msgspec
from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairlane.gateway.control.admin.operation import JSON, Documented, Who
from fairlane.gateway.control.admin.routes import OPERATIONS
from fairlane.gateway.control.openapi import headers
from fairlane.gateway.control.openapi.answers import AnthropicError, Error
from fairlane.gateway.control.openapi.calls import NEUTRAL, OPEN_CALLS, TENANT_API
from fairlane.gateway.control.openapi.documented import ANY_REQUEST, FORM, STREAM
from fairlane.gateway.control.openapi.examples import BODIES
from fairlane.gateway.control.openapi.refine import Untitled, query_schema, refined, with_neutral_fields
from fairlane.gateway.errors import TABLE, Code, is_anthropic
from fairlane.quotas.tenants import TENANT_ID

Json = dict[str, Any]
_PATH_FIELD = re.compile(r"{(\w+)}")
_PATH_SCHEMAS: dict[str, Json] = {"tenant": {"pattern": TENANT_ID.pattern, "maxLength": 63}}


def parameters(path: str, query: type[BaseModel] | None) -> list[Json]:
    """Return the parameters of path and query."""
    found: list[Json] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, **_PATH_SCHEMAS.get(name, {})},
            "description": f"Id of the {name.replace('_', ' ')}",
        }
        for name in _PATH_FIELD.findall(path)
    ]
    if query is not None:
        schema = query.model_json_schema(schema_generator=Untitled)
        required = schema.get("required", [])
        found += [
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "description": known.pop("description"),
                "schema": query_schema(known),
            }
            for name, known in schema.get("properties", {}).items()
        ]
    return found


_ERRORS = Error, AnthropicError
_TAGS: Mapping[Who, str] = {
    "tenant": "Calls of applications, with a tenant's key",
    "admin": "Calls of operators, with the admin key or a token",
    "anyone": "Calls without a key",
}
_SECURITY: Json = {
    "tenant": {"type": "http", "scheme": "bearer", "description": "An API key: fl-<public id>-<secret>"},
    "tenant_key": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "The same key in Anthropic's header",
    },
    "tenant_azure_key": {
        "type": "apiKey",
        "in": "header",
        "name": "api-key",
        "description": "The same key in Azure's header",
    },
    "admin": {"type": "http", "scheme": "bearer", "description": "The admin key, or an operator token"},
}
_NEEDS: dict[Who, list[Json]] = {
    "tenant": [{"tenant": []}, {"tenant_key": []}, {"tenant_azure_key": []}],
    "admin": [{"admin": []}],
    "anyone": [],
}


def route(root_path: str = "") -> Route:
    """Return the route of `GET /openapi.json`."""

    async def serve(_: Request) -> Response:
        return Response(_encoded(root_path), media_type=JSON)

    return Route("/openapi.json", serve, methods=["GET"])


@functools.cache
def _encoded(root_path: str) -> bytes:
    return msgspec.json.encode(document(root_path))


def document(root_path: str = "") -> Json:
    """Build the document. `root_path`: the prefix of all paths."""
    rows = [*TENANT_API, *OPERATIONS, *OPEN_CALLS]
    schemas, named = _schemas(rows)
    paths: dict[str, Json] = defaultdict(dict)
    for row in rows:
        paths[row.path][row.method.lower()] = _operation(row, named)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Fairlane",
            "version": metadata.version("fairlane"),
            "summary": "Multi-tenant LLM serving on two lanes, with exact budgets",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": root_path or "/"}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": dict(paths),
        "components": {"schemas": schemas, "headers": headers.components(), "securitySchemes": _SECURITY},
    }


def _schemas(rows: Iterable[Documented]) -> tuple[Json, dict[Any, Json]]:
    shapes = [shape for row in rows for shape in row.answers.values() if shape is not str]
    bodies: list[Any] = [row.body for row in rows if row.body is not None]
    wanted: list[tuple[Any, Literal["validation"], TypeAdapter[Any]]] = [
        (shape, "validation", TypeAdapter(shape)) for shape in dict.fromkeys([*shapes, *_ERRORS, *bodies])
    ]
    places, defined = TypeAdapter.json_schemas(
        wanted, ref_template="#/components/schemas/{model}", schema_generator=Untitled
    )
    named = {shape: schema for (shape, _), schema in places.items()}
    return refined(with_neutral_fields(defined["$defs"], NEUTRAL)), named


def _operation(row: Documented, named: Mapping[Any, Json]) -> Json:
    shown: Json = {"operationId": row.name, "summary": row.summary, "tags": [row.who]}
    if row.role:
        shown["description"] = f"Requires the operator role `{row.role}` or a higher one."
    shown["parameters"] = [*parameters(row.path, row.query), *headers.of_request(row)]
    if row.body is not None:
        shown["requestBody"] = _body(row, named)
    content = {kind: {"schema": _answer_schema(kind, shape, named)} for kind, shape in row.answers.items()}
    done = {"description": "Done", "headers": headers.of_success(row), "content": content}
    shown["responses"] = {str(row.status): done, **_refusals(row, named)}
    shown["security"] = _NEEDS[row.who]
    return shown


def _body(row: Documented, named: Mapping[Any, Json]) -> Json:
    models = [kind for kind in get_args(row.body) or (row.body,) if issubclass(kind, BaseModel)]
    content: Json = {"schema": named[row.body]}
    if row.name in BODIES:
        content["example"] = BODIES[row.name]
    return {
        # A missing body is read as an empty object; the gateway refuses a missing form.
        "required": all(any(field.is_required() for field in kind.model_fields.values()) for kind in models),
        "content": {JSON if models else FORM: content},
    }


def _answer_schema(kind: str, shape: Any, named: Mapping[Any, Json]) -> Json:  # noqa: ANN401 - any type
    schema = named.get(shape, {"type": "string"})
    if kind != STREAM:
        return schema
    inside: Json = {"type": "string"}
    if shape is not str:
        event = {"type": "string", "contentMediaType": JSON, "contentSchema": schema}
        inside = {"anyOf": [{"type": "string", "const": "[DONE]"}, event]}
    data = {"description": "The event as JSON; `[DONE]` ends a complete stream", **inside}
    name = {"type": "string", "description": "The event's name, if any"}
    return {"type": "object", "properties": {"data": data, "event": name}}


def _refusals(row: Documented, named: Mapping[Any, Json]) -> Json:
    by_status: dict[int, list[Code]] = defaultdict(list)
    for code in dict.fromkeys((*ANY_REQUEST, *row.codes)):
        by_status[TABLE[code].status].append(code)
    content = {JSON: {"schema": named[_ERRORS[is_anthropic(row.path)]]}}
    return {
        str(status): {
            "description": " | ".join(sorted(codes)),
            "headers": headers.of_refusal(row, codes),
            "content": content,
        }
        for status, codes in sorted(by_status.items())
    }
