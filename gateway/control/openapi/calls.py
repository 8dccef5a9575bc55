"""The operations of the tenant API, and those that need no key: their inputs, responses and errors."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel

from fairlane.gateway.api import conversations as api
from fairlane.gateway.api import embeddings, tokenize
from fairlane.gateway.api.responses import ItemsQuery, ResponseQuery
from fairlane.gateway.api.tokenize import DetokenizeBody, TokenizeChatBody, TokenizeTextBody
from fairlane.gateway.control.admin.operation import ANY_BODY, JSON, OPERATOR, Documented, Who
from fairlane.gateway.control.admin.views import QuotaView
from fairlane.gateway.control.openapi import answers
from fairlane.gateway.dialects.anthropic import batches as message_batches
from fairlane.gateway.dialects.anthropic.request_bodies import (
    NEUTRAL_MESSAGES,
    NEUTRAL_PROMPT,
    MessagesBody,
    PromptBody,
)
from fairlane.gateway.dialects.openai import batches, conversations
from fairlane.gateway.dialects.openai.batches import UploadForm
from fairlane.gateway.dialects.openai.compaction import NEUTRAL_COMPACTION, CompactBody
from fairlane.gateway.dialects.openai.embeddings import NEUTRAL_EMBEDDINGS, EmbeddingsBody
from fairlane.gateway.dialects.openai.neutral import NEUTRAL_CHAT, NEUTRAL_COMPLETION, Neutral
from fairlane.gateway.dialects.openai.request_bodies import ChatBody, CompletionBody
from fairlane.gateway.dialects.openai.response_body import NEUTRAL_RESPONSE, InputTokensBody, ResponseBody
from fairlane.gateway.dialects.openai.response_items import GivenItem
from fairlane.gateway.errors import ANTHROPIC_PATH, Code
from fairlane.gateway.insight.request_records.views import RequestDetail

STREAM, TEXT, HTML = "text/event-stream", "text/plain", "text/html"
FORM, BYTES = "multipart/form-data", "application/octet-stream"

# Errors of the HTTP layer, before authentication.
ANY_REQUEST: tuple[Code, ...] = ("invalid_request_error", "method_not_allowed", "headers_too_large")
_ANY_TENANT: tuple[Code, ...] = (
    "invalid_api_key", "invalid_token", "token_expired", "token_not_yet_valid", "wrong_audience", "unknown_signing_key",
    "identity_conflict", "tenant_not_allowed", "endpoint_not_allowed", "address_not_allowed", "tenant_suspended",
    "tenant_deleted", "issuer_unavailable", "quota_store_unavailable", "shutting_down",
)  # fmt: skip
# Errors of calls that read a model's prompt, but generate nothing.
_PROMPT: tuple[Code, ...] = (
    "context_length_exceeded", "model_not_allowed", "model_not_found", "rate_limit_exceeded",
    "concurrency_limit_exceeded", "internal_error",
)  # fmt: skip
_GENERATION: tuple[Code, ...] = (
    *_PROMPT, "request_exceeds_limit", "lane_not_allowed", "queue_full", "insufficient_quota", "overloaded",
    "deadline_unattainable", "no_worker", "unavailable", "deadline_exceeded", "idempotency_conflict",
)  # fmt: skip
_UPLOAD: tuple[Code, ...] = ("request_exceeds_limit", "concurrency_limit_exceeded", "unavailable")
_CHANGES: tuple[Code, ...] = ("request_exceeds_limit", "concurrency_limit_exceeded")
_BATCH: tuple[Code, ...] = (*_UPLOAD, "lane_not_allowed", "rate_limit_exceeded", "idempotency_conflict")

# Fields that a body may contain at their neutral values only.
NEUTRAL: Mapping[type[BaseModel], Neutral] = {
    ChatBody: NEUTRAL_CHAT,
    TokenizeChatBody: NEUTRAL_CHAT,
    CompletionBody: NEUTRAL_COMPLETION,
    MessagesBody: NEUTRAL_MESSAGES,
    PromptBody: NEUTRAL_PROMPT,
    ResponseBody: NEUTRAL_RESPONSE,
    InputTokensBody: NEUTRAL_RESPONSE,
    CompactBody: NEUTRAL_COMPACTION,
    EmbeddingsBody: NEUTRAL_EMBEDDINGS,
}


def _call(
    call: str,
    name: str,
    summary: str,
    answer: object,
    *codes: Code,
    who: Who = "tenant",
    body: Any = None,  # noqa: ANN401 - a type or a union of types
    query: type[BaseModel] | None = None,
) -> Documented:
    method, path = call.split()
    known = [*codes]
    if who == "tenant":
        known += [*_ANY_TENANT, *(ANY_BODY if body else ())]
    if "{" in path and "model_not_found" not in codes:
        known.append("not_found")
    return Documented(
        method=method,
        path=path,
        name=name,
        summary=summary,
        who=who,
        query=query,
        body=body,
        answers=answer if isinstance(answer, dict) else {JSON: answer},
        codes=tuple(known),
    )


def _message_batches() -> Iterator[Documented]:
    path, one = f"{ANTHROPIC_PATH}/batches", f"{ANTHROPIC_PATH}/batches/{{message_batch}}"
    batch = message_batches.MessageBatchObject
    yield _call(
        f"POST {path}",
        "create_message_batch",
        "Create a Message Batch: answer every request within 24 hours, on the throughput lane",
        batch,
        *_BATCH,
        body=message_batches.MessageBatchBody,
    )
    yield _call(
        f"GET {path}",
        "list_message_batches",
        "List the tenant's Message Batches, newest first",
        message_batches.MessageBatchList,
        query=message_batches.MessageBatchesQuery,
    )
    yield _call(f"GET {one}", "get_message_batch", "Return a Message Batch and its progress", batch)
    yield _call(f"POST {one}/cancel", "cancel_message_batch", "Cancel a Message Batch", batch)
    summary = "Delete an ended Message Batch with its requests and results"
    yield _call(f"DELETE {one}", "delete_message_batch", summary, message_batches.DeletedMessageBatch, "unavailable")
    summary = "Return the results of an ended Message Batch as JSON lines"
    yield _call(f"GET {one}/results", "get_message_batch_results", summary, {BYTES: str}, "unavailable")


def _conversations() -> Iterator[Documented]:
    one, item_list = conversations.ConversationObject, conversations.ConversationItemList
    items, item = api.ITEMS_PATH, api.ITEM_PATH
    yield _call(
        f"POST {api.PATH}",
        "create_conversation",
        "Store a conversation, to which responses can be added",
        one,
        "request_exceeds_limit",
        body=conversations.ConversationBody,
    )
    yield _call(f"GET {api.ONE_PATH}", "get_conversation", "Return a stored conversation", one)
    yield _call(
        f"POST {api.ONE_PATH}",
        "change_conversation",
        "Replace a conversation's metadata",
        one,
        *_CHANGES,
        body=conversations.ConversationChange,
    )
    deleted = conversations.DeletedConversation
    yield _call(f"DELETE {api.ONE_PATH}", "delete_conversation", "Delete a conversation with its items", deleted)
    yield _call(
        f"POST {items}",
        "create_conversation_items",
        "Add items to a conversation",
        item_list,
        *_CHANGES,
        body=conversations.ConversationItems,
    )
    summary = "List the items of a conversation"
    yield _call(f"GET {items}", "list_conversation_items", summary, item_list, query=ItemsQuery)
    yield _call(f"GET {item}", "get_conversation_item", "Return an item of a conversation", GivenItem)
    summary = "Delete an item of a conversation, and return the conversation"
    yield _call(f"DELETE {item}", "delete_conversation_item", summary, one, *_CHANGES)


TENANT_API: tuple[Documented, ...] = (
    _call(
        "POST /v1/chat/completions",
        "create_chat_completion",
        "Answer a conversation, whole or as a stream",
        {JSON: answers.ChatCompletion, STREAM: answers.ChatCompletionChunk},
        *_GENERATION,
        body=ChatBody,
    ),
    _call(
        "POST /v1/completions",
        "create_completion",
        "Continue a text, whole or as a stream",
        dict.fromkeys((JSON, STREAM), answers.Completion),
        *_GENERATION,
        body=CompletionBody,
    ),
    _call(
        f"POST {ANTHROPIC_PATH}",
        "create_message",
        "Answer a conversation in Anthropic's format, whole or as a stream",
        {JSON: answers.AnthropicMessage, STREAM: str},
        *_GENERATION,
        body=MessagesBody,
    ),
    _call(
        f"POST {ANTHROPIC_PATH}/count_tokens",
        "count_message_tokens",
        "Count the tokens of a message's prompt; nothing is charged",
        answers.PromptTokens,
        *_PROMPT,
        body=PromptBody,
    ),
    *_message_batches(),
    *_conversations(),
    _call(
        "POST /v1/responses",
        "create_response",
        "Answer a conversation of items, whole or as a stream of events",
        {JSON: answers.ResponseObject, STREAM: str},
        *(*_GENERATION, "not_found"),
        body=ResponseBody,
    ),
    _call(
        "POST /v1/responses/input_tokens",
        "count_response_input_tokens",
        "Count the tokens of a response's prompt; nothing is charged",
        answers.InputTokens,
        *(*_PROMPT, "not_found"),
        body=InputTokensBody,
    ),
    _call(
        "POST /v1/responses/compact",
        "compact_response",
        "Compact a conversation: the model summarizes it",
        answers.Compaction,
        *(*_GENERATION, "not_found"),
        body=CompactBody,
    ),
    _call(
        "GET /v1/responses/{response_id}",
        "get_response",
        "Return a stored response",
        answers.ResponseObject,
        query=ResponseQuery,
    ),
    _call("DELETE /v1/responses/{response_id}", "delete_response", "Delete a stored response", batches.DeletedObject),
    _call(
        "GET /v1/responses/{response_id}/input_items",
        "list_response_input_items",
        "List the input items of a stored response",
        answers.InputItemList,
        query=ItemsQuery,
    ),
    _call(
        "GET /v1/models",
        "list_models",
        "List the models that the key may use; with `anthropic-version`, in Anthropic's format",
        answers.ModelList,
    ),
    _call("GET /v1/models/{model}", "get_model", "Return a model", answers.ModelObject, "model_not_found"),
    _call(
        f"POST {tokenize.TOKENIZE_PATH}",
        "tokenize",
        "Count the tokens of a text or a conversation; nothing is charged",
        answers.TokenCount,
        *_PROMPT,
        body=TokenizeTextBody | TokenizeChatBody,
    ),
    _call(
        f"POST {tokenize.DETOKENIZE_PATH}",
        "detokenize",
        "Return the text of tokens; nothing is charged",
        dict[str, str],
        *_PROMPT,
        body=DetokenizeBody,
    ),
    _call(
        f"POST {embeddings.PATH}",
        "create_embeddings",
        "Return a vector for each input; 400 for a model that generates text",
        answers.Embeddings,
        *_GENERATION,
        body=EmbeddingsBody,
    ),
    _call(
        "GET /v1/limits",
        "get_limits",
        "Return the limits of the calling key and its tenant, with their current use",
        QuotaView,
    ),
    _call(
        "GET /v1/requests/{request}",
        "get_own_request",
        "Return the record of one of the tenant's requests, by its `x-request-id` or its answer's id",
        RequestDetail,
    ),
    _call(
        "POST /v1/files",
        "upload_file",
        "Upload a file of requests for a batch",
        batches.FileObject,
        *_UPLOAD,
        body=UploadForm,
    ),
    _call("GET /v1/files", "list_files", "List the tenant's files", batches.FileList, query=batches.FilesQuery),
    _call("GET /v1/files/{file}", "get_file", "Return a file's metadata", batches.FileObject),
    _call(
        "DELETE /v1/files/{file}",
        "delete_file",
        "Delete a file, unless an open batch reads it",
        batches.DeletedObject,
        "unavailable",
    ),
    _call("GET /v1/files/{file}/content", "get_file_content", "Return a file's contents", {BYTES: str}, "unavailable"),
    _call(
        "POST /v1/batches",
        "create_batch",
        "Create a batch: answer every line of a file within a window, on the throughput lane",
        batches.BatchObject,
        *_BATCH,
        body=batches.BatchBody,
    ),
    _call(
        "GET /v1/batches",
        "list_batches",
        "List the tenant's batches, newest first",
        batches.BatchList,
        query=batches.BatchesQuery,
    ),
    _call("GET /v1/batches/{batch}", "get_batch", "Return a batch and its progress", batches.BatchObject),
    _call(
        "POST /v1/batches/{batch}/cancel",
        "cancel_batch",
        "Cancel a batch; its output file keeps the lines answered so far",
        batches.BatchObject,
    ),
)
_open = partial(_call, who="anyone")
_METRICS = "Return metrics in Prometheus' text format; the metrics port needs no key"
_READY = "Check that requests can be served; if not, return what is missing"
_UNREADY: tuple[Code, ...] = ("no_worker", "quota_store_unavailable", "shutting_down")
OPEN_CALLS: tuple[Documented, ...] = (
    _call("GET /metrics", "get_metrics", _METRICS, {TEXT: str}, *OPERATOR, who="admin"),
    _open("GET /openapi.json", "get_openapi", "This document", dict[str, Any]),
    _open("GET /version", "get_version", "Return the gateway's release", dict[str, str]),
    _open("GET /healthz", "is_alive", "Check that the process is alive", {TEXT: str}),
    _open("GET /health", "is_healthy", "Check that the process is alive", {TEXT: str}),
    _open("GET /ping", "ping", "Check that the process is alive", {TEXT: str}),
    _open("GET /readyz", "is_ready", _READY, {TEXT: str}, *_UNREADY),
    _open("GET /docs", "open_docs", "This document as a page", {HTML: str}),
    _open("GET /", "open_console", "The operators' console", {HTML: str}),
)
