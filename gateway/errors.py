"""All that a caller can be told went wrong, and the one table to HTTP.

    Exception
    └── ApiError            one answer: message, code, param, limit, retry time
         └── raised everywhere at the edge; made by the functions below, answered by `response`

A message names fields and rules and holds no content of a request, nothing longer than a number.
Causes in other packages (a `Denied` of quotas, a `LaneFull` of the queue) are translated where they are caught.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fairlane.quotas.limits import OUTPUT_LIMITS, SPEND_LIMITS, LimitStatus

Code = Literal[
    "invalid_request_error",
    "context_length_exceeded",
    "request_exceeds_limit",
    "invalid_api_key",
    "invalid_token",
    "token_expired",
    "token_not_yet_valid",
    "wrong_audience",
    "unknown_signing_key",
    "identity_conflict",
    "tenant_not_allowed",
    "lane_not_allowed",
    "model_not_allowed",
    "endpoint_not_allowed",
    "address_not_allowed",
    "origin_not_allowed",
    "role_not_allowed",
    "tenant_suspended",
    "tenant_deleted",
    "model_not_found",
    "not_found",
    "method_not_allowed",
    "request_timeout",
    "idempotency_conflict",
    "already_exists",
    "tenant_has_children",
    "tenant_not_deleted",
    "precondition_failed",
    "request_too_large",
    "websocket_not_supported",
    "headers_too_large",
    "rate_limit_exceeded",
    "concurrency_limit_exceeded",
    "queue_full",
    "insufficient_quota",
    "overloaded",
    "deadline_unattainable",
    "internal_error",
    "no_worker",
    "issuer_unavailable",
    "quota_store_unavailable",
    "shutting_down",
    "unavailable",
    "overloaded_memory",
    "deadline_exceeded",
]


class Retry(Enum):
    """What an answer says about sending the same request again."""

    NEVER = "never"
    """`x-should-retry: false`: the SDKs would otherwise repeat 408, 409 and all 5xx."""
    LATER = "later"
    """`retry-after`; 1 s where the cause knows no time."""
    HOPELESS = "hopeless"
    """The true `retry-after`, and `x-should-retry: false`: no client should sit and wait for it."""
    IF_KNOWN = "if known"
    """As LATER where a later start helps, else as NEVER."""
    UNSAID = "unsaid"
    """Neither header: the client's own rule for the status decides."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one code is answered."""

    status: int
    type: str
    """OpenAI's word for the family."""
    retry: Retry


TABLE: Mapping[Code, Rule] = {
    "invalid_request_error": Rule(400, "invalid_request_error", Retry.NEVER),
    "context_length_exceeded": Rule(400, "invalid_request_error", Retry.NEVER),
    "request_exceeds_limit": Rule(400, "invalid_request_error", Retry.NEVER),
    "invalid_api_key": Rule(401, "invalid_request_error", Retry.NEVER),
    "tenant_deleted": Rule(401, "invalid_request_error", Retry.NEVER),
    "invalid_token": Rule(401, "invalid_request_error", Retry.NEVER),
    "token_expired": Rule(401, "invalid_request_error", Retry.NEVER),
    "token_not_yet_valid": Rule(401, "invalid_request_error", Retry.LATER),
    "wrong_audience": Rule(401, "invalid_request_error", Retry.NEVER),
    "unknown_signing_key": Rule(401, "invalid_request_error", Retry.NEVER),
    "identity_conflict": Rule(401, "invalid_request_error", Retry.NEVER),
    "tenant_not_allowed": Rule(403, "permission_error", Retry.NEVER),
    "lane_not_allowed": Rule(403, "permission_error", Retry.NEVER),
    "model_not_allowed": Rule(403, "permission_error", Retry.NEVER),
    "endpoint_not_allowed": Rule(403, "permission_error", Retry.NEVER),
    "address_not_allowed": Rule(403, "permission_error", Retry.NEVER),
    "origin_not_allowed": Rule(403, "permission_error", Retry.NEVER),
    "role_not_allowed": Rule(403, "permission_error", Retry.NEVER),
    "tenant_suspended": Rule(403, "permission_error", Retry.NEVER),
    "model_not_found": Rule(404, "invalid_request_error", Retry.NEVER),
    "not_found": Rule(404, "invalid_request_error", Retry.NEVER),
    "method_not_allowed": Rule(405, "invalid_request_error", Retry.NEVER),
    "request_timeout": Rule(408, "timeout_error", Retry.NEVER),
    "idempotency_conflict": Rule(409, "invalid_request_error", Retry.NEVER),
    "already_exists": Rule(409, "invalid_request_error", Retry.NEVER),
    "tenant_has_children": Rule(409, "invalid_request_error", Retry.NEVER),
    "tenant_not_deleted": Rule(409, "invalid_request_error", Retry.NEVER),
    "precondition_failed": Rule(412, "invalid_request_error", Retry.NEVER),
    "request_too_large": Rule(413, "invalid_request_error", Retry.NEVER),
    "websocket_not_supported": Rule(426, "invalid_request_error", Retry.NEVER),
    "headers_too_large": Rule(431, "invalid_request_error", Retry.NEVER),
    "rate_limit_exceeded": Rule(429, "rate_limit_error", Retry.LATER),
    "concurrency_limit_exceeded": Rule(429, "rate_limit_error", Retry.LATER),
    "queue_full": Rule(429, "rate_limit_error", Retry.LATER),
    "insufficient_quota": Rule(429, "insufficient_quota", Retry.HOPELESS),
    "overloaded": Rule(429, "overloaded_error", Retry.LATER),
    "deadline_unattainable": Rule(429, "overloaded_error", Retry.IF_KNOWN),
    "internal_error": Rule(500, "server_error", Retry.UNSAID),
    "issuer_unavailable": Rule(503, "server_error", Retry.LATER),
    "no_worker": Rule(503, "server_error", Retry.LATER),
    "quota_store_unavailable": Rule(503, "server_error", Retry.LATER),
    "shutting_down": Rule(503, "server_error", Retry.LATER),
    "unavailable": Rule(503, "server_error", Retry.LATER),
    "overloaded_memory": Rule(503, "server_error", Retry.LATER),
    "deadline_exceeded": Rule(504, "timeout_error", Retry.NEVER),
}

ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "invalid_request_error",
    412: "invalid_request_error",
    413: "request_too_large",
    426: "invalid_request_error",
    429: "rate_limit_error",
    431: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's words for the families, by status."""

JITTER_SHARE = 0.1
"""A retry time grows by up to this share, so that refused clients do not come back all at once…"""
JITTER_MIN_S = 0.05
JITTER_MAX_S = 5.0
"""…but by no more than this."""


@dataclass(frozen=True, slots=True)
class LimitBlock:
    """The limit that was the cause, for machines to read."""

    name: str
    scope: str
    limit: int
    used: int
    reserved: int
    requested: int
    resets_at: float | None
    """Unix time in seconds; None for what does not reset by the clock."""

    @classmethod
    def of(cls, one: LimitStatus, requested: int) -> "LimitBlock":
        """A limit as it stands, and what was asked of it."""
        return cls(one.name, one.scope, one.limit, one.used, one.reserved, requested, one.resets_at)


class ApiError(Exception):
    """One refusal, as the caller will read it."""

    def __init__(
        self,
        message: str,
        code: Code,
        param: str | None = None,
        limit: LimitBlock | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.work_s = 0.0
        """Processor time that finding it out took, where that was measured."""
        self.asked = ("", 0)
        """Model and prompt tokens of the request, where they were known when it was refused."""
        self.lane = ""
        """Of the request, where admission refused it; else empty."""

    @property
    def status(self) -> int:
        """The HTTP status of its code."""
        return TABLE[self.code].status


def is_anthropic(path: str) -> bool:
    """Whether a path is of Anthropic's API, whose errors have another form."""
    return path == ANTHROPIC_PATH or path.startswith(ANTHROPIC_PATH + "/")


def error_body(error: ApiError, path: str = "", request_id: str = "") -> dict[str, object]:
    """The JSON of an error, the same in a plain answer and in a stream's `data:` frame, in the form that clients of the
    request's path read."""
    if is_anthropic(path):
        return {"type": "error", "error": _anthropic_error(error), "request_id": request_id or None}
    shown: dict[str, object] = {
        "message": error.message,
        "type": TABLE[error.code].type,
        "param": error.param,
        "code": error.code,
    }
    if error.limit is not None:
        shown["limit"] = msgspec.to_builtins(error.limit)
    return {"error": shown}


def _anthropic_error(error: ApiError) -> dict[str, object]:
    """Anthropic's type and the message; beside them what our own clients look for."""
    is_overload = TABLE[error.code].type == "overloaded_error"
    shown: dict[str, object] = {
        "type": "overloaded_error" if is_overload else _ANTHROPIC_TYPES[error.status],
        "message": error.message,
        "code": error.code,
    }
    if error.param is not None:
        shown["param"] = error.param
    if error.limit is not None:
        shown["limit"] = msgspec.to_builtins(error.limit)
    return shown


def error_headers(error: ApiError, jitter: random.Random) -> dict[str, str]:
    """The retry headers that the table prescribes for an error."""
    retry, after_s = TABLE[error.code].retry, error.retry_after_s
    if retry is Retry.UNSAID:
        return {}
    if retry is Retry.NEVER or (retry is Retry.IF_KNOWN and after_s is None):
        return {"x-should-retry": "false"}
    if retry is Retry.HOPELESS:
        headers = {} if after_s is None else _retry_after(after_s)
        return {**headers, "x-should-retry": "false"}
    return _retry_after(_jittered(1.0 if after_s is None else after_s, jitter))


def response(error: ApiError, jitter: random.Random | None = None, *, path: str = "", request_id: str = "") -> Response:
    """The whole answer to an error that came before the first byte. `path`: of the request."""
    return Response(
        msgspec.json.encode(error_body(error, path, request_id)),
        status_code=error.status,
        headers=error_headers(error, jitter or random.Random()),
        media_type="application/json",
    )


def _jittered(after_s: float, jitter: random.Random) -> float:
    spread_s = min(max(after_s * JITTER_SHARE, JITTER_MIN_S), JITTER_MAX_S)
    return max(after_s, 0.0) + jitter.uniform(0.0, spread_s)


def _retry_after(after_s: float) -> dict[str, str]:
    after_ms = max(1, math.ceil(after_s * 1000))
    return {"retry-after": str(max(1, math.ceil(after_ms / 1000))), "retry-after-ms": str(after_ms)}


def invalid(param: str | None, message: str) -> ApiError:
    """The request is wrong; `param` names the field, None where no field can be named."""
    return ApiError(message, "invalid_request_error", param)


def context_length(
    context_length: int, prompt_tokens: int | str, max_tokens: int | None, param: str = "max_tokens"
) -> ApiError:
    """Prompt and output together do not fit the model's context. `prompt_tokens`: how many, or what is known of it;
    `param`: what the caller should shorten."""
    asked = f"{prompt_tokens} in the prompt" + ("" if max_tokens is None else f", {max_tokens} in the completion")
    message = (
        f"This model's maximum context length is {context_length} tokens, and this request asks for more: {asked}."
    )
    return ApiError(message, "context_length_exceeded", param)


def invalid_api_key() -> ApiError:
    """No key, or none that works; why is not told. Clients tell it from other refusals by OpenAI's own first words."""
    return ApiError("Incorrect API key provided: send `Authorization: Bearer <key>`.", "invalid_api_key")


def tenant_deleted() -> ApiError:
    """The tenant was deleted after this request was let in."""
    return ApiError("The tenant of this request was deleted.", "tenant_deleted")


def invalid_token() -> ApiError:
    """A token that proves nothing; why is not told: who forges one learns nothing by trying."""
    return ApiError("This is no valid token of an issuer that is accepted here.", "invalid_token")


def identity_conflict() -> ApiError:
    """One request in the name of two: whose it is, is not chosen for the caller."""
    return ApiError("The request names two different identities.", "identity_conflict")


def tenant_not_allowed() -> ApiError:
    """Who is recognised may not come as the tenant that is named, or names none."""
    return ApiError("The request is of no tenant that this caller may come as.", "tenant_not_allowed")


def model_not_found() -> ApiError:
    """No worker has ever announced this model, or the caller may not know of it."""
    return ApiError("There is no such model.", "model_not_found", "model")


def fleet_unknown() -> ApiError:
    """Which models there are was not read yet, or not lately."""
    return ApiError("The store has not said which models there are.", "quota_store_unavailable", retry_after_s=1.0)


def not_found(what: str = "resource") -> ApiError:
    """The path or the object it names does not exist. `what`: a word of ours."""
    return ApiError(f"There is no such {what}.", "not_found")


def request_too_large(max_bytes: int) -> ApiError:
    """The body is over the limit."""
    return ApiError(f"The body is larger than {max_bytes} bytes.", "request_too_large")


def headers_too_large(max_bytes: int) -> ApiError:
    """The request line and headers, or what stands between the parts of a body, are over the limit."""
    return ApiError(f"The headers are larger than {max_bytes} bytes.", "headers_too_large")


def websocket_not_supported() -> ApiError:
    """The client asks for a WebSocket where only a POST is served."""
    message = "WebSockets are not served here: send a POST, with `stream: true` for server-sent events."
    return ApiError(message, "websocket_not_supported")


def request_timeout(timeout_s: float) -> ApiError:
    """The client was too slow in sending."""
    return ApiError(f"The request did not arrive within {timeout_s:g} s.", "request_timeout")


def body_budget_full(most_bytes: int, held_bytes: int, more: int) -> ApiError:
    """The tenant's bodies that are on their way or looked at are as many bytes as they may be."""
    message = f"Bodies of this tenant's requests that are being read may hold {most_bytes} bytes at a time."
    block = LimitBlock("body_bytes", "tenant", most_bytes, held_bytes, 0, more, None)
    return ApiError(message, "concurrency_limit_exceeded", limit=block, retry_after_s=1.0)


def overloaded_memory() -> ApiError:
    """The process holds as many bytes of bodies as it may."""
    return ApiError("Too many bodies of requests are being read here.", "overloaded_memory", retry_after_s=1.0)


def store_unavailable() -> ApiError:
    """The store does not answer in time."""
    return ApiError("The quota store does not answer.", "quota_store_unavailable", retry_after_s=1.0)


def unavailable() -> ApiError:
    """The workers that could have gone on with a request went, and nobody took their place in time."""
    return ApiError("All workers that could go on with this request are gone.", "unavailable")


def internal_error() -> ApiError:
    """Our own fault; the log has the rest under the request's id."""
    return ApiError("Something went wrong here. Nothing in the request explains it.", "internal_error")


Denial = Literal["rate", "concurrency", "quota", "exceeds"]
"""In which way a tenant's limit refused."""

_DENIALS: Mapping[Denial, Code] = {
    "rate": "rate_limit_exceeded",
    "concurrency": "concurrency_limit_exceeded",
    "quota": "insufficient_quota",
    "exceeds": "request_exceeds_limit",
}
_WHOSE = {"parent": "the tenant above this one", "model_lane": "this tenant's model and lane"}


def limit_denied(
    kind: Denial,
    limit: LimitBlock,
    retry_after_s: float | None,
    param: str | None = None,
    *,
    in_part: bool = False,
) -> ApiError:
    """A limit of the tenant's own refuses. `in_part`: of the output, what is asked for is only the beginning."""
    unit = " billionths of the currency" if limit.name in SPEND_LIMITS else ""
    begins = " to begin with" if in_part and kind != "exceeds" and limit.name in OUTPUT_LIMITS else ""
    wanted = (
        f"{limit.requested} asked for{begins}, {limit.used} used and {limit.reserved} reserved of {limit.limit}{unit}"
    )
    whose = _WHOSE.get(limit.scope, f"this {limit.scope}")
    message = f"The limit {limit.name} of {whose} refuses the request: {wanted}."
    if kind == "rate" and limit.used + limit.reserved + limit.requested <= limit.limit:
        message += " It would fit, but an answer that this limit has paused goes first."
    return ApiError(message, _DENIALS[kind], param, limit, retry_after_s)


def of_http_exception(error: HTTPException) -> ApiError:
    """What the router refuses, in our words."""
    if error.status_code == 405:
        return ApiError("This path does not take that method.", "method_not_allowed")
    if error.status_code == 404:
        return not_found("path")
    return invalid(None, "The request cannot be understood.") if error.status_code < 500 else internal_error()
