"""The documentation of one operation, and the errors that groups of operations share."""

from typing import Any

from pydantic import BaseModel

from fairlane.gateway.control.admin.operation import ANY_BODY, JSON, Documented, Who
from fairlane.gateway.errors import Code

STREAM, TEXT, HTML = "text/event-stream", "text/plain", "text/html"
FORM, BYTES = "multipart/form-data", "application/octet-stream"

# Errors of the HTTP layer, before authentication.
ANY_REQUEST: tuple[Code, ...] = ("invalid_request_error", "method_not_allowed", "headers_too_large")
ANY_TENANT: tuple[Code, ...] = (
    "invalid_api_key", "invalid_token", "token_expired", "token_not_yet_valid", "wrong_audience", "unknown_signing_key",
    "identity_conflict", "tenant_not_allowed", "endpoint_not_allowed", "address_not_allowed", "tenant_suspended",
    "tenant_deleted", "issuer_unavailable", "quota_store_unavailable", "shutting_down",
)  # fmt: skip
# Errors of calls that read a model's prompt, but generate nothing.
PROMPT: tuple[Code, ...] = (
    "context_length_exceeded", "model_not_allowed", "model_not_found", "rate_limit_exceeded",
    "concurrency_limit_exceeded", "internal_error",
)  # fmt: skip
GENERATION: tuple[Code, ...] = (
    *PROMPT, "request_exceeds_limit", "lane_not_allowed", "queue_full", "insufficient_quota", "overloaded",
    "deadline_unattainable", "no_worker", "unavailable", "deadline_exceeded", "idempotency_conflict",
)  # fmt: skip
UPLOAD: tuple[Code, ...] = ("request_exceeds_limit", "concurrency_limit_exceeded", "unavailable")
CHANGES: tuple[Code, ...] = ("request_exceeds_limit", "concurrency_limit_exceeded")
BATCH: tuple[Code, ...] = (*UPLOAD, "lane_not_allowed", "rate_limit_exceeded", "idempotency_conflict")


def documented(
    call: str,
    name: str,
    summary: str,
    answer: object,
    *codes: Code,
    who: Who = "tenant",
    body: Any = None,  # noqa: ANN401 - a type or a union of types
    query: type[BaseModel] | None = None,
    status: int = 200,
) -> Documented:
    """Return an operation of `call` (method and path). `codes`: its errors in addition to those of every operation."""
    method, path = call.split()
    known = [*codes]
    if who == "tenant":
        known += [*ANY_TENANT, *(ANY_BODY if body else ())]
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
        status=status,
        answers=answer if isinstance(answer, dict) else {JSON: answer},
        codes=tuple(known),
    )
