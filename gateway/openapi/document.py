"""`GET /openapi.json`: the whole HTTP surface as one OpenAPI 3.1 document, made from the models that check requests,
the shapes that answers have, and two tables of operations: the admin API's own, and the one below.

Fields of requests in the OpenAPI document: parameters, and body fields that are accepted at neutral values only.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairlane.gateway.admin import routes as admin
from fairlane.gateway.admin.inputs import Nothing
from fairlane.gateway.admin.openai import routes as openai_admin
from fairlane.gateway.admin.router import Operation
from fairlane.gateway.admin.views import QuotaView
from fairlane.gateway.api.responses import ItemsQuery, ResponseQuery
from fairlane.gateway.errors import TABLE, Code
from fairlane.gateway.openai import batches as openai_batches
from fairlane.gateway.openai.batches import UploadForm
from fairlane.gateway.openai.neutral import NEUTRAL_CHAT, NEUTRAL_COMPLETION, Neutral
from fairlane.gateway.openai.response_body import NEUTRAL_RESPONSE, ResponseBody
from fairlane.gateway.openai.wire import ChatBody, CompletionBody
from fairlane.gateway.openapi import responses as response_schemas
from fairlane.gateway.openapi import schemas as openapi_schemas

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


Who = Literal["tenant", "admin", "anyone"]
JSON, STREAM, TEXT, HTML = "application/json", "text/event-stream", "text/plain", "text/html"
FORM, BYTES = "multipart/form-data", "application/octet-stream"
REF = "#/components/schemas/{model}"

_ANY_TENANT: tuple[Code, ...] = (
    "invalid_api_key",
    "endpoint_not_allowed",
    "address_not_allowed",
    "tenant_suspended",
    "quota_store_unavailable",
    "shutting_down",
)
_OPERATOR: tuple[Code, ...] = ("invalid_api_key", "rate_limit_exceeded", "quota_store_unavailable")
_ANY_ADMIN: tuple[Code, ...] = ("invalid_request_error", *_OPERATOR)
_BY_SESSION: tuple[Code, ...] = ("origin_not_allowed",)
"""Of what changes something."""
_ANY_BODY: tuple[Code, ...] = ("request_timeout", "request_too_large", "overloaded_memory")
_GENERATION: tuple[Code, ...] = (
    *_ANY_TENANT,
    *_ANY_BODY,
    "invalid_request_error",
    "context_length_exceeded",
    "request_exceeds_limit",
    "lane_not_allowed",
    "model_not_allowed",
    "model_not_found",
    "rate_limit_exceeded",
    "concurrency_limit_exceeded",
    "queue_full",
    "insufficient_quota",
    "overloaded",
    "deadline_unattainable",
    "internal_error",
    "no_worker",
    "unavailable",
    "deadline_exceeded",
    "idempotency_conflict",
)


_KEPT: tuple[Code, ...] = (*_ANY_TENANT, "invalid_request_error", "not_found")

_SECURITY: Json = {
    "tenant": {"type": "http", "scheme": "bearer", "description": "An API key: fl-<public id>-<secret>"},
    "admin": {"type": "http", "scheme": "bearer", "description": "The operators' admin key"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """One operation as the document shows it."""

    method: str
    path: str
    name: str
    summary: str
    who: Who
    query: type[BaseModel] | None = None
    body: type[Any] | None = None
    """A model, or a TypedDict that is sent as a form."""
    neutral: Neutral = field(default_factory=dict)
    status: int = 200
    answers: Mapping[str, Any]
    """Media type → type of the answer."""
    codes: tuple[Code, ...] = ()
    tagged: bool = False
    """Answers with an `ETag`."""
    if_match: bool = False
    """Honours `If-Match`."""


TENANT_API: tuple[Documented, ...] = (
    Documented(
        method="POST",
        path="/v1/chat/completions",
        name="create_chat_completion",
        summary="Answer a conversation, whole or as a stream",
        who="tenant",
        body=ChatBody,
        neutral=NEUTRAL_CHAT,
        answers={JSON: openapi_schemas.ChatCompletion, STREAM: str},
        codes=_GENERATION,
    ),
    Documented(
        method="POST",
        path="/v1/completions",
        name="create_completion",
        summary="Go on with a text, whole or as a stream",
        who="tenant",
        body=CompletionBody,
        neutral=NEUTRAL_COMPLETION,
        answers={JSON: openapi_schemas.Completion, STREAM: str},
        codes=_GENERATION,
    ),
    Documented(
        method="POST",
        path="/v1/responses",
        name="create_response",
        summary="Answer a conversation of items, whole or as a stream of events",
        who="tenant",
        body=ResponseBody,
        neutral=NEUTRAL_RESPONSE,
        answers={JSON: response_schemas.ResponseObject, STREAM: str},
        codes=(*_GENERATION, "not_found"),
    ),
    Documented(
        method="GET",
        path="/v1/responses/{response_id}",
        name="get_response",
        summary="Show a response that was kept",
        who="tenant",
        query=ResponseQuery,
        answers={JSON: response_schemas.ResponseObject},
        codes=_KEPT,
    ),
    Documented(
        method="DELETE",
        path="/v1/responses/{response_id}",
        name="delete_response",
        summary="Forget a response that was kept",
        who="tenant",
        answers={JSON: response_schemas.DeletedResponse},
        codes=(*_ANY_TENANT, "not_found"),
    ),
    Documented(
        method="GET",
        path="/v1/responses/{response_id}/input_items",
        name="list_response_input_items",
        summary="List what a kept response answers",
        who="tenant",
        query=ItemsQuery,
        answers={JSON: response_schemas.InputItemList},
        codes=_KEPT,
    ),
    Documented(
        method="GET",
        path="/v1/models",
        name="list_models",
        summary="List the models that the key may use",
        who="tenant",
        answers={JSON: openapi_schemas.ModelList},
        codes=_ANY_TENANT,
    ),
    Documented(
        method="GET",
        path="/v1/models/{model}",
        name="get_model",
        summary="Show a model",
        who="tenant",
        answers={JSON: openapi_schemas.ModelObject},
        codes=(*_ANY_TENANT, "model_not_found"),
    ),
    Documented(
        method="GET",
        path="/v1/limits",
        name="get_limits",
        summary="Show the limits of the calling key and its tenant as they stand",
        who="tenant",
        answers={JSON: QuotaView},
        codes=_ANY_TENANT,
    ),
)
_FILES: tuple[Code, ...] = (*_ANY_TENANT, "invalid_request_error", "not_found")
BATCH_API: tuple[Documented, ...] = (
    Documented(
        method="POST",
        path="/v1/files",
        name="upload_file",
        summary="Keep a file of requests for a batch",
        who="tenant",
        body=UploadForm,
        answers={JSON: openai_batches.FileObject},
        codes=(
            *_ANY_TENANT,
            *_ANY_BODY,
            "invalid_request_error",
            "request_exceeds_limit",
            "concurrency_limit_exceeded",
            "unavailable",
        ),
    ),
    Documented(
        method="GET",
        path="/v1/files",
        name="list_files",
        summary="List the tenant's files",
        who="tenant",
        query=openai_batches.FilesQuery,
        answers={JSON: openai_batches.FileList},
        codes=(*_ANY_TENANT, "invalid_request_error"),
    ),
    Documented(
        method="GET",
        path="/v1/files/{file}",
        name="get_file",
        summary="Show a file",
        who="tenant",
        answers={JSON: openai_batches.FileObject},
        codes=(*_ANY_TENANT, "not_found"),
    ),
    Documented(
        method="DELETE",
        path="/v1/files/{file}",
        name="delete_file",
        summary="Delete a file that no open batch reads",
        who="tenant",
        answers={JSON: openai_batches.FileDeleted},
        codes=(*_FILES, "unavailable"),
    ),
    Documented(
        method="GET",
        path="/v1/files/{file}/content",
        name="get_file_content",
        summary="Fetch a file's bytes",
        who="tenant",
        answers={BYTES: str},
        codes=(*_ANY_TENANT, "not_found", "unavailable"),
    ),
    Documented(
        method="POST",
        path="/v1/batches",
        name="create_batch",
        summary="Answer every line of a file within a window, on the throughput lane",
        who="tenant",
        body=openai_batches.BatchBody,
        answers={JSON: openai_batches.BatchObject},
        codes=(
            *_ANY_TENANT,
            *_ANY_BODY,
            "invalid_request_error",
            "request_exceeds_limit",
            "lane_not_allowed",
            "rate_limit_exceeded",
            "concurrency_limit_exceeded",
            "unavailable",
        ),
    ),
    Documented(
        method="GET",
        path="/v1/batches",
        name="list_batches",
        summary="List the tenant's batches, the newest first",
        who="tenant",
        query=openai_batches.BatchesQuery,
        answers={JSON: openai_batches.BatchList},
        codes=(*_ANY_TENANT, "invalid_request_error"),
    ),
    Documented(
        method="GET",
        path="/v1/batches/{batch}",
        name="get_batch",
        summary="Show a batch and how far it is",
        who="tenant",
        answers={JSON: openai_batches.BatchObject},
        codes=(*_ANY_TENANT, "not_found"),
    ),
    Documented(
        method="POST",
        path="/v1/batches/{batch}/cancel",
        name="cancel_batch",
        summary="End a batch: lines that were answered stay in its output file",
        who="tenant",
        answers={JSON: openai_batches.BatchObject},
        codes=_FILES,
    ),
)
_UNREADY: tuple[Code, ...] = ("no_worker", "quota_store_unavailable", "shutting_down")
METRICS = Documented(
    method="GET",
    path="/metrics",
    name="get_metrics",
    summary="Metrics in Prometheus' text format; without a key on the metrics' own port",
    who="admin",
    answers={TEXT: str},
    codes=_OPERATOR,
)
OPEN_CALLS: tuple[Documented, ...] = tuple(
    Documented(method="GET", path=path, name=name, summary=summary, who="anyone", answers={kind: str}, codes=codes)
    for path, name, summary, kind, codes in (
        ("/healthz", "is_alive", "Say that the process lives", TEXT, ()),
        ("/health", "is_healthy", "The same", TEXT, ()),
        ("/readyz", "is_ready", "Say whether a request would be served, and what is missing", TEXT, _UNREADY),
        ("/openapi.json", "get_openapi", "This document", JSON, ()),
        ("/", "open_console", "The operators' console", HTML, ()),
    )
)


def operations() -> list[Documented]:
    """Every operation, the admin API's among them."""
    of_admin = [(admin.PREFIX, admin.OPERATIONS), (openai_admin.PREFIX, openai_admin.OPERATIONS)]
    documented = [_documented(prefix, operation) for prefix, rows in of_admin for operation in rows]
    return [*TENANT_API, *BATCH_API, *documented, METRICS, *OPEN_CALLS]


def route() -> Route:
    """`GET /openapi.json`."""
    return Route("/openapi.json", _serve, methods=["GET"])


async def _serve(_: Request) -> Response:
    return Response(_encoded(), media_type=JSON)


@functools.cache
def _encoded() -> bytes:
    return msgspec.json.encode(document())


def document() -> Json:
    """The document, made afresh."""
    rows = operations()
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
        "servers": [{"url": "/"}],
        "paths": dict(paths),
        "components": {
            "schemas": schemas,
            "headers": openapi_schemas.components(),
            "securitySchemes": _SECURITY,
        },
    }


def _documented(prefix: str, operation: Operation[Any]) -> Documented:
    """A row of an admin API's table."""
    asked = None if operation.input is Nothing else operation.input
    has_body = operation.method != "GET"
    by_path: tuple[Code, ...] = ("not_found",) if "{" in operation.path else ()
    by_tag: tuple[Code, ...] = ("precondition_failed",) if operation.honours_tags else ()
    return Documented(
        method=operation.method,
        path=prefix + operation.path,
        name=operation.name,
        summary=operation.summary,
        who="admin",
        query=None if has_body else asked,
        body=asked if has_body else None,
        status=operation.status,
        answers=dict.fromkeys(operation.media, operation.answer),
        codes=(*_ANY_ADMIN, *by_path, *by_tag, *operation.codes, *((*_ANY_BODY, *_BY_SESSION) if has_body else ())),
        tagged=operation.tagged and operation.method != "DELETE",
        if_match=operation.honours_tags,
    )


def _schemas(rows: Iterable[Documented]) -> tuple[Json, dict[Any, Json]]:
    """All components, and where each type stands among them."""
    shapes = [shape for row in rows for shape in row.answers.values() if shape is not str]
    bodies = [row.body for row in rows if row.body is not None]
    wanted: list[tuple[Any, Literal["validation", "serialization"], TypeAdapter[Any]]] = [
        *((shape, "serialization", TypeAdapter(shape)) for shape in dict.fromkeys([*shapes, openapi_schemas.Error])),
        *((body, "validation", TypeAdapter(body)) for body in dict.fromkeys(bodies)),
    ]
    places, defined = TypeAdapter.json_schemas(wanted, ref_template=REF)
    named = {shape: schema for (shape, _), schema in places.items()}
    return with_neutral_fields(defined["$defs"], {row.body: row.neutral for row in rows if row.body}), named


def _operation(row: Documented, named: Mapping[Any, Json]) -> Json:
    shown: Json = {"operationId": row.name, "summary": row.summary, "tags": [row.who]}
    of_a_model = STREAM in row.answers
    asked = openapi_schemas.asked(of_a_model=of_a_model, if_match=row.if_match)
    shown["parameters"] = [*parameters(row.path, row.query), *asked]
    if row.body is not None:
        kind = FORM if row.body is UploadForm else JSON
        shown["requestBody"] = {"required": True, "content": {kind: {"schema": named[row.body]}}}
    content = {kind: {"schema": named.get(shape, {"type": "string"})} for kind, shape in row.answers.items()}
    told = openapi_schemas.told(row.who, of_a_model=of_a_model, tagged=row.tagged)
    done = {"description": "Done", "headers": told, "content": content}
    shown["responses"] = {str(row.status): done, **_refusals(row, named)}
    shown["security"] = [] if row.who == "anyone" else [{row.who: []}]
    return shown


def _refusals(row: Documented, named: Mapping[Any, Json]) -> Json:
    """One answer per status, which says its codes."""
    by_status: dict[int, list[Code]] = defaultdict(list)
    for code in row.codes:
        by_status[TABLE[code].status].append(code)
    content = {JSON: {"schema": named[openapi_schemas.Error]}}
    return {
        str(status): {
            "description": " | ".join(sorted(said)),
            "headers": {**openapi_schemas.told(row.who), **openapi_schemas.of_refusals(said)},
            "content": content,
        }
        for status, said in sorted(by_status.items())
    }
