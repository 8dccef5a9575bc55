"""`GET /openapi.json`: the whole HTTP surface as one OpenAPI 3.1 document, made from the models that check requests,
the shapes that answers have, and two tables of operations: the admin API's own, and the one below.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from types import UnionType
from typing import Any, Literal, get_args

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
from fairlane.gateway.anthropic.wire import NEUTRAL_MESSAGES, NEUTRAL_PROMPT, MessagesBody, PromptBody
from fairlane.gateway.api import tokenize
from fairlane.gateway.api.responses import ItemsQuery, ResponseQuery
from fairlane.gateway.api.tokenize import DetokenizeBody, EmbeddingsBody, TokenizeChatBody, TokenizeTextBody
from fairlane.gateway.errors import ANTHROPIC_PATH, TABLE, Code, is_anthropic
from fairlane.gateway.openai import batches as openai_batches
from fairlane.gateway.openai.batches import UploadForm
from fairlane.gateway.openai.neutral import NEUTRAL_CHAT, NEUTRAL_COMPLETION, Neutral
from fairlane.gateway.openai.response_body import NEUTRAL_RESPONSE, ResponseBody
from fairlane.gateway.openai.wire import ChatBody, CompletionBody, GenerationBody
from fairlane.gateway.openapi import anthropic as anthropic_schemas
from fairlane.gateway.openapi import responses as response_schemas
from fairlane.gateway.openapi import schemas as openapi_schemas
from fairlane.gateway.openapi.examples import ANSWERS, BODIES, ERROR
from fairlane.gateway.openapi.refine import query_schema, refined, with_neutral_fields
from fairlane.quotas.tenants import TENANT_ID

Json = dict[str, Any]
_PATH_FIELD = re.compile(r"{(\w+)}")
_PATH_SCHEMAS: dict[str, Json] = {"tenant": {"pattern": TENANT_ID.pattern, "maxLength": 63}}


def parameters(path: str, query: type[BaseModel] | None) -> list[Json]:
    """What stands in the path and behind the question mark."""
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
        schema = query.model_json_schema()
        required = schema.get("required", [])
        found += [
            _query_parameter(name, query_schema(told), required=name in required)
            for name, told in schema.get("properties", {}).items()
        ]
    return found


def _query_parameter(name: str, schema: Json, *, required: bool) -> Json:
    described = {"description": schema.pop("description")} if "description" in schema else {}
    return {"name": name, "in": "query", "required": required, "schema": schema, **described}


Who = Literal["tenant", "admin", "anyone"]
_ERRORS = openapi_schemas.Error, anthropic_schemas.AnthropicError
"""Ours, and Anthropic's."""
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
_ANY_REQUEST: tuple[Code, ...] = ("invalid_request_error", "method_not_allowed", "headers_too_large")
"""What HTTP itself can have wrong, before anybody looks at who sends it."""
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


_OF_A_CARD: tuple[Code, ...] = (
    *_ANY_TENANT,
    *_ANY_BODY,
    "context_length_exceeded",
    "concurrency_limit_exceeded",
    "rate_limit_exceeded",
    "model_not_allowed",
    "model_not_found",
    "internal_error",
)
_TAGS: Mapping[Who, str] = {
    "tenant": "What applications call, each with a key of its tenant",
    "admin": "What operators call, with the admin key",
    "anyone": "What anyone may ask",
}
_COUNTING: tuple[Code, ...] = (
    *_ANY_TENANT,
    *_ANY_BODY,
    "invalid_request_error",
    "context_length_exceeded",
    "model_not_allowed",
    "model_not_found",
    "rate_limit_exceeded",
    "concurrency_limit_exceeded",
    "internal_error",
)
_KEPT: tuple[Code, ...] = (*_ANY_TENANT, "invalid_request_error", "not_found")
_SECURITY: Json = {
    "tenant": {"type": "http", "scheme": "bearer", "description": "An API key: fl-<public id>-<secret>"},
    "tenant_key": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "The same, as Anthropic has it",
    },
    "admin": {"type": "http", "scheme": "bearer", "description": "The operators' admin key"},
}
_NEEDS: dict[Who, list[Json]] = {
    "tenant": [{"tenant": []}, {"tenant_key": []}],
    "admin": [{"admin": []}],
    "anyone": [],
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
    body: Any = None
    """A model, a union of such, or a TypedDict that is sent as a form."""
    neutral: Neutral = field(default_factory=dict)
    status: int = 200
    answers: Mapping[str, Any]
    """Media type → type of the answer; of a stream: of what each event holds. Empty: it is always refused."""
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
        answers={JSON: openapi_schemas.ChatCompletion, STREAM: openapi_schemas.ChatCompletionChunk},
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
        answers={JSON: openapi_schemas.Completion, STREAM: openapi_schemas.CompletionChunk},
        codes=_GENERATION,
    ),
    Documented(
        method="POST",
        path=ANTHROPIC_PATH,
        name="create_message",
        summary="Answer a conversation in Anthropic's words, whole or as a stream",
        who="tenant",
        body=MessagesBody,
        neutral=NEUTRAL_MESSAGES,
        answers={JSON: anthropic_schemas.AnthropicMessage, STREAM: str},
        codes=_GENERATION,
    ),
    Documented(
        method="POST",
        path=f"{ANTHROPIC_PATH}/count_tokens",
        name="count_message_tokens",
        summary="Count the tokens of a message's prompt; nothing is charged",
        who="tenant",
        body=PromptBody,
        neutral=NEUTRAL_PROMPT,
        answers={JSON: anthropic_schemas.TokenCount},
        codes=_COUNTING,
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
        summary="List the models that the key may use; with `anthropic-version`, in Anthropic's words",
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
        method="POST",
        path=tokenize.TOKENIZE_PATH,
        name="tokenize",
        summary="Count the tokens of a text or a conversation; nothing is charged",
        who="tenant",
        body=TokenizeTextBody | TokenizeChatBody,
        neutral=NEUTRAL_CHAT,
        answers={JSON: openapi_schemas.TokenCount},
        codes=_OF_A_CARD,
    ),
    Documented(
        method="POST",
        path=tokenize.DETOKENIZE_PATH,
        name="detokenize",
        summary="Say what tokens stand for; nothing is charged",
        who="tenant",
        body=DetokenizeBody,
        answers={JSON: openapi_schemas.DetokenizedText},
        codes=_OF_A_CARD,
    ),
    Documented(
        method="POST",
        path=tokenize.EMBEDDINGS_PATH,
        name="create_embeddings",
        summary="Refused with the reason: no model that is served makes embeddings",
        who="tenant",
        body=EmbeddingsBody,
        answers={},
        codes=_OF_A_CARD,
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
OPENAPI = Documented(
    method="GET",
    path="/openapi.json",
    name="get_openapi",
    summary="This document",
    who="anyone",
    answers={JSON: Json},
)
VERSION = Documented(
    method="GET",
    path="/version",
    name="get_version",
    summary="Say which release answers",
    who="anyone",
    answers={JSON: openapi_schemas.VersionView},
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
        ("/ping", "ping", "The same", TEXT, ()),
        ("/readyz", "is_ready", "Say whether a request would be served, and what is missing", TEXT, _UNREADY),
        ("/docs", "open_docs", "This document as a page", HTML, ()),
        ("/", "open_console", "The operators' console", HTML, ()),
    )
)


def operations() -> list[Documented]:
    """Every operation, the admin API's among them."""
    of_admin = [(admin.PREFIX, admin.OPERATIONS), (openai_admin.PREFIX, openai_admin.OPERATIONS)]
    documented = [_documented(prefix, operation) for prefix, rows in of_admin for operation in rows]
    return [*TENANT_API, *BATCH_API, *documented, METRICS, OPENAPI, VERSION, *OPEN_CALLS]


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
        "tags": [{"name": name, "description": said} for name, said in _TAGS.items()],
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
    bodies: list[Any] = [row.body for row in rows if row.body is not None]
    wanted: list[tuple[Any, Literal["validation", "serialization"], TypeAdapter[Any]]] = [
        *((shape, "serialization", TypeAdapter(shape)) for shape in dict.fromkeys([*shapes, *_ERRORS])),
        *((body, "validation", TypeAdapter(body)) for body in dict.fromkeys(bodies)),
    ]
    places, defined = TypeAdapter.json_schemas(wanted, ref_template=REF)
    named = {shape: schema for (shape, _), schema in places.items()}
    neutral = {body: row.neutral for row in rows for body in get_args(row.body) or (row.body,) if _generates(body)}
    schemas = refined(with_neutral_fields(defined["$defs"], neutral))
    schemas[openapi_schemas.Error.__name__]["examples"] = [ERROR]
    return schemas, named


def _generates(body: object) -> bool:
    """Whether a body has fields for what is not served yet."""
    return isinstance(body, type) and issubclass(body, GenerationBody)


def _operation(row: Documented, named: Mapping[Any, Json]) -> Json:
    shown: Json = {"operationId": row.name, "summary": row.summary, "tags": [row.who]}
    of_a_model = STREAM in row.answers
    asked = openapi_schemas.asked(of_a_model=of_a_model, if_match=row.if_match)
    shown["parameters"] = [*parameters(row.path, row.query), *asked]
    if row.body is not None:
        shown["requestBody"] = {
            "required": _must_be_sent(row.body),
            "content": {FORM if row.body is UploadForm else JSON: {"schema": named[row.body], **_example(BODIES, row)}},
        }
    content = {kind: {"schema": _answer_schema(kind, shape, named)} for kind, shape in row.answers.items()}
    if JSON in content:
        content[JSON] |= _example(ANSWERS, row)
    told = openapi_schemas.told(row.who, row.path, of_a_model=of_a_model, tagged=row.tagged)
    done = {"description": "Done", "headers": told, "content": content}
    shown["responses"] = {**({str(row.status): done} if row.answers else {}), **_refusals(row, named)}
    shown["security"] = _NEEDS[row.who]
    return shown


def _must_be_sent(body: type[BaseModel] | UnionType) -> bool:
    """Whether a call without a body is refused: an empty object is what it stands for."""
    kinds = get_args(body) or (body,)
    models = [kind for kind in kinds if issubclass(kind, BaseModel)]  # the others are forms
    return all(any(field.is_required() for field in kind.model_fields.values()) for kind in models)


def _example(known: Mapping[str, Mapping[str, Any]], row: Documented) -> Json:
    return {"example": known[row.name]} if row.name in known else {}


def _answer_schema(kind: str, shape: Any, named: Mapping[Any, Json]) -> Json:  # noqa: ANN401 - any type
    """What a body holds; of a stream: its events, one after the other, as OpenAPI has it for sequential media."""
    schema = named.get(shape, {"type": "string"})
    if kind != STREAM:
        return schema
    inside = (
        {} if shape is str else {"contentMediaType": JSON, "contentSchema": {"anyOf": [schema, {"const": "[DONE]"}]}}
    )
    data = {"type": "string", "description": "The event as JSON; `[DONE]` ends a whole stream", **inside}
    name = {"type": "string", "description": "The event's name, where it has one"}
    return {"type": "array", "items": {"type": "object", "properties": {"data": data, "event": name}}}


def _refusals(row: Documented, named: Mapping[Any, Json]) -> Json:
    """One answer per status, which says its codes."""
    by_status: dict[int, list[Code]] = defaultdict(list)
    for code in dict.fromkeys((*_ANY_REQUEST, *row.codes)):
        by_status[TABLE[code].status].append(code)
    content = {JSON: {"schema": named[_ERRORS[is_anthropic(row.path)]]}}
    return {
        str(status): {
            "description": " | ".join(sorted(said)),
            "headers": {**openapi_schemas.told(row.who, row.path), **openapi_schemas.of_refusals(said)},
            "content": content,
        }
        for status, said in sorted(by_status.items())
    }
