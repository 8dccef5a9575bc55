"""The operations of the tenant API and of the open calls: their inputs, responses and errors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from fairlane.gateway.api import embeddings, tokenize
from fairlane.gateway.api.responses import ItemsQuery, ResponseQuery
from fairlane.gateway.api.tokenize import DetokenizeBody, TokenizeChatBody, TokenizeTextBody
from fairlane.gateway.control.admin.views import QuotaView
from fairlane.gateway.control.openapi import anthropic as anthropic_schemas
from fairlane.gateway.control.openapi import responses as response_schemas
from fairlane.gateway.control.openapi import schemas as openapi_schemas
from fairlane.gateway.dialects.anthropic.wire import NEUTRAL_MESSAGES, NEUTRAL_PROMPT, MessagesBody, PromptBody
from fairlane.gateway.dialects.openai import batches as openai_batches
from fairlane.gateway.dialects.openai.batches import UploadForm
from fairlane.gateway.dialects.openai.compaction import NEUTRAL_COMPACTION, CompactBody
from fairlane.gateway.dialects.openai.embeddings import NEUTRAL_EMBEDDINGS, EmbeddingsBody
from fairlane.gateway.dialects.openai.neutral import NEUTRAL_CHAT, NEUTRAL_COMPLETION, Neutral
from fairlane.gateway.dialects.openai.response_body import NEUTRAL_RESPONSE, ResponseBody
from fairlane.gateway.dialects.openai.wire import ChatBody, CompletionBody
from fairlane.gateway.errors import ANTHROPIC_PATH, Code
from fairlane.gateway.insight.request_records.views import RequestDetail

Json = dict[str, Any]
Who = Literal["tenant", "admin", "anyone"]
JSON, STREAM, TEXT, HTML = "application/json", "text/event-stream", "text/plain", "text/html"
FORM, BYTES = "multipart/form-data", "application/octet-stream"
REF = "#/components/schemas/{model}"


_ANY_TENANT: tuple[Code, ...] = (
    "invalid_api_key",
    "invalid_token",
    "token_expired",
    "token_not_yet_valid",
    "wrong_audience",
    "unknown_signing_key",
    "identity_conflict",
    "tenant_not_allowed",
    "endpoint_not_allowed",
    "address_not_allowed",
    "tenant_suspended",
    "tenant_deleted",
    "issuer_unavailable",
    "quota_store_unavailable",
    "shutting_down",
)
_OPERATOR: tuple[Code, ...] = ("invalid_api_key", "rate_limit_exceeded", "quota_store_unavailable", "role_not_allowed")
ANY_ADMIN: tuple[Code, ...] = ("invalid_request_error", *_OPERATOR)
# Errors of calls with a body.
BY_SESSION: tuple[Code, ...] = ("origin_not_allowed",)
# Errors of the HTTP layer, before authentication.
ANY_REQUEST: tuple[Code, ...] = ("invalid_request_error", "method_not_allowed", "headers_too_large")
ANY_BODY: tuple[Code, ...] = ("request_timeout", "request_too_large", "overloaded_memory")
_GENERATION: tuple[Code, ...] = (
    *_ANY_TENANT,
    *ANY_BODY,
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
    *ANY_BODY,
    "context_length_exceeded",
    "concurrency_limit_exceeded",
    "rate_limit_exceeded",
    "model_not_allowed",
    "model_not_found",
    "internal_error",
)
_COUNTING: tuple[Code, ...] = (
    *_ANY_TENANT,
    *ANY_BODY,
    "invalid_request_error",
    "context_length_exceeded",
    "model_not_allowed",
    "model_not_found",
    "rate_limit_exceeded",
    "concurrency_limit_exceeded",
    "internal_error",
)
_CHECKED: tuple[Code, ...] = (*_ANY_TENANT, "invalid_request_error")
_FOUND: tuple[Code, ...] = (*_ANY_TENANT, "not_found")
_FOUND_AND_CHECKED: tuple[Code, ...] = (*_CHECKED, "not_found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """One operation of the document."""

    method: str
    path: str
    name: str
    summary: str
    who: Who
    query: type[BaseModel] | None = None
    # A model, a union of models, or a TypedDict that is sent as a form.
    body: Any = None
    neutral: Neutral = field(default_factory=dict)
    status: int = 200
    # Content type → type of the response; for a stream, of each event's data. Empty: it is always refused.
    answers: Mapping[str, Any]
    codes: tuple[Code, ...] = ()
    # The response has an `ETag`.
    tagged: bool = False
    # `If-Match` is honoured.
    if_match: bool = False
    # The lowest operator role that may call it; empty: any role, or not an operator's call.
    role: str = ""


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
        summary="Continue a text, whole or as a stream",
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
        summary="Answer a conversation in Anthropic's format, whole or as a stream",
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
        method="POST",
        path="/v1/responses/compact",
        name="compact_response",
        summary="Compact a conversation: the model summarizes it",
        who="tenant",
        body=CompactBody,
        neutral=NEUTRAL_COMPACTION,
        answers={JSON: response_schemas.Compaction},
        codes=(*_GENERATION, "not_found"),
    ),
    Documented(
        method="GET",
        path="/v1/responses/{response_id}",
        name="get_response",
        summary="Return a stored response",
        who="tenant",
        query=ResponseQuery,
        answers={JSON: response_schemas.ResponseObject},
        codes=_FOUND_AND_CHECKED,
    ),
    Documented(
        method="DELETE",
        path="/v1/responses/{response_id}",
        name="delete_response",
        summary="Delete a stored response",
        who="tenant",
        answers={JSON: response_schemas.DeletedResponse},
        codes=_FOUND,
    ),
    Documented(
        method="GET",
        path="/v1/responses/{response_id}/input_items",
        name="list_response_input_items",
        summary="List the input items of a stored response",
        who="tenant",
        query=ItemsQuery,
        answers={JSON: response_schemas.InputItemList},
        codes=_FOUND_AND_CHECKED,
    ),
    Documented(
        method="GET",
        path="/v1/models",
        name="list_models",
        summary="List the models that the key may use; with `anthropic-version`, in Anthropic's format",
        who="tenant",
        answers={JSON: openapi_schemas.ModelList},
        codes=_ANY_TENANT,
    ),
    Documented(
        method="GET",
        path="/v1/models/{model}",
        name="get_model",
        summary="Return a model",
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
        summary="Return the text of tokens; nothing is charged",
        who="tenant",
        body=DetokenizeBody,
        answers={JSON: openapi_schemas.DetokenizedText},
        codes=_OF_A_CARD,
    ),
    Documented(
        method="POST",
        path=embeddings.PATH,
        name="create_embeddings",
        summary="Return a vector for each input; 400 for a model that generates text",
        who="tenant",
        body=EmbeddingsBody,
        neutral=NEUTRAL_EMBEDDINGS,
        answers={JSON: openapi_schemas.Embeddings},
        codes=_GENERATION,
    ),
    Documented(
        method="GET",
        path="/v1/limits",
        name="get_limits",
        summary="Return the limits of the calling key and its tenant, with their current use",
        who="tenant",
        answers={JSON: QuotaView},
        codes=_ANY_TENANT,
    ),
    Documented(
        method="GET",
        path="/v1/requests/{request}",
        name="get_own_request",
        summary="Return the record of one of the tenant's requests, by its `x-request-id` or its answer's id",
        who="tenant",
        answers={JSON: RequestDetail},
        codes=_FOUND,
    ),
)
BATCH_API: tuple[Documented, ...] = (
    Documented(
        method="POST",
        path="/v1/files",
        name="upload_file",
        summary="Upload a file of requests for a batch",
        who="tenant",
        body=UploadForm,
        answers={JSON: openai_batches.FileObject},
        codes=(
            *_ANY_TENANT,
            *ANY_BODY,
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
        codes=_CHECKED,
    ),
    Documented(
        method="GET",
        path="/v1/files/{file}",
        name="get_file",
        summary="Return a file's metadata",
        who="tenant",
        answers={JSON: openai_batches.FileObject},
        codes=_FOUND,
    ),
    Documented(
        method="DELETE",
        path="/v1/files/{file}",
        name="delete_file",
        summary="Delete a file, unless an open batch reads it",
        who="tenant",
        answers={JSON: openai_batches.FileDeleted},
        codes=(*_FOUND_AND_CHECKED, "unavailable"),
    ),
    Documented(
        method="GET",
        path="/v1/files/{file}/content",
        name="get_file_content",
        summary="Return a file's contents",
        who="tenant",
        answers={BYTES: str},
        codes=(*_FOUND, "unavailable"),
    ),
    Documented(
        method="POST",
        path="/v1/batches",
        name="create_batch",
        summary="Create a batch: answer every line of a file within a window, on the throughput lane",
        who="tenant",
        body=openai_batches.BatchBody,
        answers={JSON: openai_batches.BatchObject},
        codes=(
            *_ANY_TENANT,
            *ANY_BODY,
            "invalid_request_error",
            "request_exceeds_limit",
            "lane_not_allowed",
            "rate_limit_exceeded",
            "concurrency_limit_exceeded",
            "unavailable",
            "idempotency_conflict",
        ),
    ),
    Documented(
        method="GET",
        path="/v1/batches",
        name="list_batches",
        summary="List the tenant's batches, newest first",
        who="tenant",
        query=openai_batches.BatchesQuery,
        answers={JSON: openai_batches.BatchList},
        codes=_CHECKED,
    ),
    Documented(
        method="GET",
        path="/v1/batches/{batch}",
        name="get_batch",
        summary="Return a batch and its progress",
        who="tenant",
        answers={JSON: openai_batches.BatchObject},
        codes=_FOUND,
    ),
    Documented(
        method="POST",
        path="/v1/batches/{batch}/cancel",
        name="cancel_batch",
        summary="Cancel a batch; its output file keeps the lines answered so far",
        who="tenant",
        answers={JSON: openai_batches.BatchObject},
        codes=_FOUND_AND_CHECKED,
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
    summary="Return the gateway's release",
    who="anyone",
    answers={JSON: openapi_schemas.VersionView},
)
_UNREADY: tuple[Code, ...] = ("no_worker", "quota_store_unavailable", "shutting_down")
METRICS = Documented(
    method="GET",
    path="/metrics",
    name="get_metrics",
    summary="Return metrics in Prometheus' text format; the metrics port needs no key",
    who="admin",
    answers={TEXT: str},
    codes=_OPERATOR,
)
OPEN_CALLS: tuple[Documented, ...] = tuple(
    Documented(method="GET", path=path, name=name, summary=summary, who="anyone", answers={kind: str}, codes=codes)
    for path, name, summary, kind, codes in (
        ("/healthz", "is_alive", "Check that the process is alive", TEXT, ()),
        ("/health", "is_healthy", "Check that the process is alive", TEXT, ()),
        ("/ping", "ping", "Check that the process is alive", TEXT, ()),
        ("/readyz", "is_ready", "Check that requests can be served; if not, return what is missing", TEXT, _UNREADY),
        ("/docs", "open_docs", "This document as a page", HTML, ()),
        ("/", "open_console", "The operators' console", HTML, ()),
    )
)
