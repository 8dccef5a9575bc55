"""The operations of the tenant API, and those that need no key: their inputs, responses and errors."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel

from fairlane.gateway.api import embeddings, scores, tokenize
from fairlane.gateway.api.responses import ItemsQuery, ResponseQuery
from fairlane.gateway.api.tokenize import DetokenizeBody, TokenizeChatBody, TokenizeTextBody
from fairlane.gateway.control.admin.operation import JSON, OPERATOR, Documented
from fairlane.gateway.control.admin.views import QuotaView
from fairlane.gateway.control.openapi import answers
from fairlane.gateway.control.openapi.documented import GENERATION, HTML, PROMPT, STREAM, TEXT, documented
from fairlane.gateway.control.openapi.self_service_calls import self_service_calls
from fairlane.gateway.control.openapi.stored_calls import stored_calls
from fairlane.gateway.dialects.anthropic.request_bodies import (
    NEUTRAL_MESSAGES,
    NEUTRAL_PROMPT,
    MessagesBody,
    PromptBody,
)
from fairlane.gateway.dialects.openai import batches
from fairlane.gateway.dialects.openai.compaction import NEUTRAL_COMPACTION, CompactBody
from fairlane.gateway.dialects.openai.neutral import NEUTRAL_CHAT, NEUTRAL_COMPLETION, Neutral
from fairlane.gateway.dialects.openai.request_bodies import ChatBody, CompletionBody
from fairlane.gateway.dialects.openai.response_body import NEUTRAL_RESPONSE, InputTokensBody, ResponseBody
from fairlane.gateway.dialects.pooling.embeddings import NEUTRAL_EMBEDDINGS, EmbeddingsBody, PoolingBody
from fairlane.gateway.dialects.pooling.scores import NEUTRAL_SCORES, RerankBody, ScoreBody
from fairlane.gateway.errors import ANTHROPIC_PATH, Code
from fairlane.gateway.insight.request_records.views import RequestDetail

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
    PoolingBody: NEUTRAL_EMBEDDINGS,
    RerankBody: NEUTRAL_SCORES,
    ScoreBody: NEUTRAL_SCORES,
}


def _aliased(
    paths: Sequence[str], names: Sequence[str], summary: str, answer: object, body: type[BaseModel]
) -> Iterator[Documented]:
    """Yield one call under all its paths."""
    for path, name in zip(paths, names, strict=True):
        description = summary if path == paths[0] else f"The same as `POST {paths[0]}`"
        yield documented(f"POST {path}", name, description, answer, *GENERATION, body=body)


TENANT_API: tuple[Documented, ...] = (
    documented(
        "POST /v1/chat/completions",
        "create_chat_completion",
        "Answer a conversation, whole or as a stream",
        {JSON: answers.ChatCompletion, STREAM: answers.ChatCompletionChunk},
        *GENERATION,
        body=ChatBody,
    ),
    documented(
        "POST /v1/completions",
        "create_completion",
        "Continue a text, whole or as a stream",
        dict.fromkeys((JSON, STREAM), answers.Completion),
        *GENERATION,
        body=CompletionBody,
    ),
    documented(
        f"POST {ANTHROPIC_PATH}",
        "create_message",
        "Answer a conversation in Anthropic's format, whole or as a stream",
        {JSON: answers.AnthropicMessage, STREAM: str},
        *GENERATION,
        body=MessagesBody,
    ),
    documented(
        f"POST {ANTHROPIC_PATH}/count_tokens",
        "count_message_tokens",
        "Count the tokens of a message's prompt; nothing is charged",
        answers.PromptTokens,
        *PROMPT,
        body=PromptBody,
    ),
    documented(
        "POST /v1/responses",
        "create_response",
        "Answer a conversation of items, whole or as a stream of events",
        {JSON: answers.ResponseObject, STREAM: str},
        *(*GENERATION, "not_found"),
        body=ResponseBody,
    ),
    documented(
        "GET /v1/responses",
        "connect_responses",
        "Open a WebSocket, each message of which creates a response",
        {},
        "upgrade_required",
        status=101,
    ),
    documented(
        "POST /v1/responses/input_tokens",
        "count_response_input_tokens",
        "Count the tokens of a response's prompt; nothing is charged",
        answers.InputTokens,
        *(*PROMPT, "not_found"),
        body=InputTokensBody,
    ),
    documented(
        "POST /v1/responses/compact",
        "compact_response",
        "Compact a conversation: the model summarizes it",
        answers.Compaction,
        *(*GENERATION, "not_found"),
        body=CompactBody,
    ),
    documented(
        "GET /v1/responses/{response_id}",
        "get_response",
        "Return a stored response",
        answers.ResponseObject,
        query=ResponseQuery,
    ),
    documented(
        "DELETE /v1/responses/{response_id}", "delete_response", "Delete a stored response", batches.DeletedObject
    ),
    documented(
        "GET /v1/responses/{response_id}/input_items",
        "list_response_input_items",
        "List the input items of a stored response",
        answers.InputItemList,
        query=ItemsQuery,
    ),
    documented(
        "GET /v1/models",
        "list_models",
        "List the models that the key may use; with `anthropic-version`, in Anthropic's format",
        answers.ModelList,
    ),
    documented("GET /v1/models/{model}", "get_model", "Return a model", answers.ModelObject, "model_not_found"),
    documented(
        f"POST {tokenize.TOKENIZE_PATH}",
        "tokenize",
        "Count the tokens of a text or a conversation; nothing is charged",
        answers.TokenCount,
        *PROMPT,
        body=TokenizeTextBody | TokenizeChatBody,
    ),
    documented(
        f"POST {tokenize.DETOKENIZE_PATH}",
        "detokenize",
        "Return the text of tokens; nothing is charged",
        dict[str, str],
        *PROMPT,
        body=DetokenizeBody,
    ),
    documented(
        f"POST {embeddings.PATH}",
        "create_embeddings",
        "Return a vector for each input; 400 for a model that generates text",
        answers.Embeddings,
        *GENERATION,
        body=EmbeddingsBody,
    ),
    documented(
        f"POST {embeddings.POOLING_PATH}",
        "pool",
        "Return a vector for each input, in vLLM's form",
        answers.PooledList,
        *GENERATION,
        body=PoolingBody,
    ),
    *_aliased(
        scores.SCORE_PATHS,
        ("score", "score_unversioned"),
        "Return a score for each pair of texts; 400 for a model that does not score pairs",
        answers.Scores,
        ScoreBody,
    ),
    *_aliased(
        scores.RERANK_PATHS,
        ("rerank", "rerank_unversioned", "rerank_v2"),
        "Order documents by their relevance to a query; 400 for a model that does not score pairs",
        answers.Ranking,
        RerankBody,
    ),
    documented(
        "GET /v1/limits",
        "get_limits",
        "Return the limits of the calling key and its tenant, with their current use",
        QuotaView,
    ),
    documented(
        "GET /v1/requests/{request}",
        "get_own_request",
        "Return the record of one of the tenant's requests, by its `x-request-id` or its answer's id",
        RequestDetail,
    ),
    *self_service_calls(),
    *stored_calls(),
)
_open = partial(documented, who="anyone")
_METRICS = "Return metrics in Prometheus' text format; the metrics port needs no key"
_READY = "Check that requests can be served; if not, return what is missing"
_UNREADY: tuple[Code, ...] = ("no_worker", "quota_store_unavailable", "shutting_down")
OPEN_CALLS: tuple[Documented, ...] = (
    documented("GET /metrics", "get_metrics", _METRICS, {TEXT: str}, *OPERATOR, who="admin"),
    _open("GET /openapi.json", "get_openapi", "This document", dict[str, Any]),
    _open("GET /version", "get_version", "Return the gateway's release", dict[str, str]),
    _open("GET /healthz", "is_alive", "Check that the process is alive", {TEXT: str}),
    _open("GET /health", "is_healthy", "Check that the process is alive", {TEXT: str}),
    _open("GET /ping", "ping", "Check that the process is alive", {TEXT: str}),
    _open("GET /readyz", "is_ready", _READY, {TEXT: str}, *_UNREADY),
    _open("GET /docs", "open_docs", "This document as a page", {HTML: str}),
    _open("GET /portal", "open_portal", "The tenants' portal", {HTML: str}),
    _open("GET /", "open_console", "The operators' console", {HTML: str}),
)
