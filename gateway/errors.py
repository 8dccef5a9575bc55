"""API errors, and the one table that maps their codes to HTTP responses.

Messages name fields and rules. They contain no content of a request except numbers. Errors of other packages (a
`Denied` of quotas, a `LaneFull` of the queue) are translated where they are caught."""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Literal

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fairlane.quotas.limits import OUTPUT_LIMITS, SPEND_LIMITS, LimitStatus
from fairlane.store.errors import STORE_ERRORS

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
    "unsupported_encoding",
    "websocket_not_supported",
    "upgrade_required",
    "previous_response_not_found",
    "websocket_connection_limit_reached",
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
    """Retry advice in a response's headers."""

    # `x-should-retry: false`. Without it SDKs retry 408, 409 and all 5xx.
    NEVER = "never"
    # `retry-after`; 1 s if the time is not known.
    LATER = "later"
    # The real `retry-after` and `x-should-retry: false`: the wait is too long for a client to block on.
    HOPELESS = "hopeless"
    # LATER if the retry time is known, else NEVER.
    IF_KNOWN = "if known"
    # No header: the client's own rule for the status decides.
    UNSPECIFIED = "unspecified"


@dataclass(frozen=True, slots=True)
class Rule:
    """The HTTP status, error type and retry advice of one code."""

    status: int
    type: str
    retry: Retry


_RULES: Mapping[Rule, tuple[Code, ...]] = {
    Rule(400, "invalid_request_error", Retry.NEVER): (
        "invalid_request_error",
        "context_length_exceeded",
        "request_exceeds_limit",
        "previous_response_not_found",
        "websocket_connection_limit_reached",
    ),
    Rule(401, "invalid_request_error", Retry.NEVER): (
        "invalid_api_key",
        "tenant_deleted",
        "invalid_token",
        "token_expired",
        "wrong_audience",
        "unknown_signing_key",
        "identity_conflict",
    ),
    Rule(401, "invalid_request_error", Retry.LATER): ("token_not_yet_valid",),
    Rule(403, "permission_error", Retry.NEVER): (
        "tenant_not_allowed",
        "lane_not_allowed",
        "model_not_allowed",
        "endpoint_not_allowed",
        "address_not_allowed",
        "origin_not_allowed",
        "role_not_allowed",
        "tenant_suspended",
    ),
    Rule(404, "invalid_request_error", Retry.NEVER): ("model_not_found", "not_found"),
    Rule(405, "invalid_request_error", Retry.NEVER): ("method_not_allowed",),
    Rule(408, "timeout_error", Retry.NEVER): ("request_timeout",),
    Rule(409, "invalid_request_error", Retry.NEVER): (
        "idempotency_conflict",
        "already_exists",
        "tenant_has_children",
        "tenant_not_deleted",
    ),
    Rule(412, "invalid_request_error", Retry.NEVER): ("precondition_failed",),
    Rule(413, "invalid_request_error", Retry.NEVER): ("request_too_large",),
    Rule(415, "invalid_request_error", Retry.NEVER): ("unsupported_encoding",),
    Rule(426, "invalid_request_error", Retry.NEVER): ("websocket_not_supported", "upgrade_required"),
    Rule(431, "invalid_request_error", Retry.NEVER): ("headers_too_large",),
    Rule(429, "rate_limit_error", Retry.LATER): ("rate_limit_exceeded", "concurrency_limit_exceeded"),
    Rule(429, "rate_limit_error", Retry.IF_KNOWN): ("queue_full",),
    Rule(429, "insufficient_quota", Retry.HOPELESS): ("insufficient_quota",),
    Rule(429, "overloaded_error", Retry.LATER): ("overloaded",),
    Rule(429, "overloaded_error", Retry.IF_KNOWN): ("deadline_unattainable",),
    Rule(500, "server_error", Retry.UNSPECIFIED): ("internal_error",),
    Rule(503, "server_error", Retry.LATER): (
        "issuer_unavailable",
        "no_worker",
        "quota_store_unavailable",
        "shutting_down",
        "unavailable",
        "overloaded_memory",
    ),
    Rule(504, "timeout_error", Retry.NEVER): ("deadline_exceeded",),
}
TABLE: Mapping[Code, Rule] = {code: rule for rule, codes in _RULES.items() for code in codes}

# Encodings of request bodies.
ENCODINGS = "gzip", "deflate", "br", "zstd"
ANTHROPIC_PATH = "/v1/messages"
# Sent by Anthropic's clients, which call some of OpenAI's paths too.
ANTHROPIC_VERSION_HEADER = b"anthropic-version"
_SHARED_PATHS = "/v1/files", "/v1/models"
# Anthropic's error types, by status; all others are `invalid_request_error`.
ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}

# A retry time is extended by up to this share, so that rejected clients do not retry simultaneously …
JITTER_SHARE = 0.1
JITTER_MIN_S = 0.05
# … but by at most this much.
JITTER_MAX_S = 5.0


@dataclass(frozen=True, slots=True)
class LimitBlock:
    """The limit that rejected a request, in machine-readable form."""

    name: str
    scope: str
    limit: int
    used: int
    reserved: int
    requested: int
    # Unix time in seconds; None for a limit that does not reset by the clock.
    resets_at: float | None

    @classmethod
    def of(cls, one: LimitStatus, requested: int) -> "LimitBlock":
        return cls(one.name, one.scope, one.limit, one.used, one.reserved, requested, one.resets_at)


class ApiError(Exception):
    """An error response of the API."""

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
        # CPU time spent until the error was found, if measured.
        self.work_s = 0.0
        # Model and prompt tokens of the request, if known at that point.
        self.asked = ("", 0)
        # The message in Anthropic's form, if its clients match other words.
        self.anthropic_message = message
        self.lane = ""

    @property
    def status(self) -> int:
        return TABLE[self.code].status


_BEARER, _ANTHROPIC_KEY = "`Authorization: Bearer <key>`", "`x-api-key: <key>`"
# A missing or invalid key. The reason is withheld. Clients match the first words of OpenAI's message.
invalid_api_key = partial(ApiError, f"Incorrect API key provided: send {_BEARER}.", "invalid_api_key")
# The reason is withheld, so that failed attempts reveal nothing to an attacker.
invalid_token = partial(ApiError, "The token is not valid, or its issuer is not accepted here.", "invalid_token")
identity_conflict = partial(ApiError, "The request names two different identities.", "identity_conflict")
tenant_not_allowed = partial(
    ApiError, "The request names no tenant that this caller may act for.", "tenant_not_allowed"
)
tenant_deleted = partial(ApiError, "The tenant of this request was deleted.", "tenant_deleted")
model_not_found = partial(
    ApiError, "There is no such model here: GET /v1/models lists them.", "model_not_found", "model"
)
fleet_unknown = partial(
    ApiError, "The models could not be read from the store yet.", "quota_store_unavailable", retry_after_s=1.0
)
store_unavailable = partial(ApiError, "The quota store does not answer.", "quota_store_unavailable", retry_after_s=1.0)
overloaded_memory = partial(
    ApiError, "Too many bodies of requests are being read.", "overloaded_memory", retry_after_s=1.0
)
unsupported_encoding = partial(
    ApiError,
    f"The `content-encoding` of a body must be one of {', '.join(ENCODINGS)}.",
    "unsupported_encoding",
    "content-encoding",
)
unavailable = partial(ApiError, "No worker is left that could continue this request.", "unavailable")
# A fault of the gateway. The log has the details under the request's id.
internal_error = partial(
    ApiError, "The gateway failed to serve this request. The request itself is not at fault.", "internal_error"
)


def shown(error: Exception) -> ApiError:
    """Return the error that ends a stream that has started."""
    if isinstance(error, ApiError):
        return error
    return store_unavailable() if isinstance(error, STORE_ERRORS) else internal_error()


def is_anthropic(path: str) -> bool:
    """Return whether a path belongs to Anthropic's API, which has its own error format, below any prefix."""
    return f"{ANTHROPIC_PATH}/" in f"{path}/"


def speaks_anthropic(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a client of Anthropic's API sent these headers."""
    return any(name == ANTHROPIC_VERSION_HEADER for name, _ in headers)


def format_path(path: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the path by which to select the error format for a request to a path."""
    return ANTHROPIC_PATH if path.startswith(_SHARED_PATHS) and speaks_anthropic(headers) else path


def error_body(error: ApiError, path: str = "", request_id: str = "") -> dict[str, object]:
    """Return the JSON of an error, the same for a response and for a stream's `data:` frame.

    `path` selects the error format that clients of that path read."""
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
    is_overload = TABLE[error.code].type == "overloaded_error"
    shown: dict[str, object] = {
        "type": "overloaded_error" if is_overload else ANTHROPIC_TYPES.get(error.status, "invalid_request_error"),
        "message": error.anthropic_message.replace(_BEARER, _ANTHROPIC_KEY),
        "code": error.code,
    }
    if error.param is not None:
        shown["param"] = error.param
    if error.limit is not None:
        shown["limit"] = msgspec.to_builtins(error.limit)
    return shown


def error_headers(error: ApiError, jitter: random.Random) -> dict[str, str]:
    """Return the retry headers that the table prescribes for an error."""
    retry, after_s = TABLE[error.code].retry, error.retry_after_s
    if retry is Retry.UNSPECIFIED:
        return {}
    if retry is Retry.NEVER or (retry is Retry.IF_KNOWN and after_s is None):
        return {"x-should-retry": "false"}
    if retry is Retry.HOPELESS:
        headers = {} if after_s is None else _retry_after(after_s)
        return {**headers, "x-should-retry": "false"}
    after_s = 1.0 if after_s is None else max(after_s, 0.0)
    spread_s = min(max(after_s * JITTER_SHARE, JITTER_MIN_S), JITTER_MAX_S)
    return _retry_after(after_s + jitter.uniform(0.0, spread_s))


def response(error: ApiError, jitter: random.Random | None = None, *, path: str = "", request_id: str = "") -> Response:
    """Return the response to an error before the first byte. `path` is the request's."""
    headers = error_headers(error, jitter or random.Random())
    if error.code == "unsupported_encoding":
        headers["accept-encoding"] = ", ".join(ENCODINGS)
    if error.code == "websocket_not_supported":  # only after a 426 does Codex fall back to POST at once
        headers |= {"upgrade": "HTTP/1.1", "connection": "upgrade"}
    if error.code == "upgrade_required":
        headers |= {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"}
    return Response(
        msgspec.json.encode(error_body(error, path, request_id)),
        status_code=error.status,
        headers=headers,
        media_type="application/json",
    )


def _retry_after(after_s: float) -> dict[str, str]:
    after_ms = max(1, math.ceil(after_s * 1000))
    return {"retry-after": str(max(1, math.ceil(after_ms / 1000))), "retry-after-ms": str(after_ms)}


def invalid(param: str | None, message: str) -> ApiError:
    """Return the error for an invalid request. `param` names the field, if one can be named."""
    return ApiError(message, "invalid_request_error", param)


def context_length(
    context_length: int, prompt_tokens: int | str, max_tokens: int | None, param: str = "max_tokens"
) -> ApiError:
    """Return the error for a prompt and output that exceed the model's context.

    `prompt_tokens` is a count or a description of it; `param` is what the caller should shorten. The messages contain
    the phrases by which clients of either API (Claude Code, LiteLLM) recognise the error and shorten their request."""
    most = f"This model's maximum context length is {context_length} tokens."
    if max_tokens is None:
        message = f"{most} However, your messages resulted in {prompt_tokens} tokens. Please reduce their length."
        of_anthropic = f"prompt is too long: {prompt_tokens} tokens > {context_length} maximum"
    else:
        message = (
            f"{most} However, you requested {prompt_tokens} tokens in the messages and {max_tokens} in the completion."
            " Please reduce the length of either."
        )
        sizes = f"{prompt_tokens} + {max_tokens} > {context_length}"
        of_anthropic = (
            f"input length and `max_tokens` exceed context limit: {sizes}, decrease input length or `max_tokens` and"
            " try again"
        )
    error = ApiError(message, "context_length_exceeded", param)
    error.anthropic_message = of_anthropic
    return error


def not_found(what: str = "resource") -> ApiError:
    """Return the error for a missing path or object. `what` must never come from the caller."""
    return ApiError(f"There is no such {what}.", "not_found")


def wrong_path(right: str) -> ApiError:
    """Return the error for a missing path. `right` is the path that was probably meant; empty if there is none."""
    return ApiError(f"There is no such path: use `{right}`.", "not_found") if right else not_found("path")


def request_too_large(max_bytes: int) -> ApiError:
    """Return the error for a body above the size limit."""
    return ApiError(f"The body is larger than {max_bytes} bytes.", "request_too_large")


def headers_too_large(max_bytes: int) -> ApiError:
    """Return the error for headers above the limit: those of the request, or those of a multipart body."""
    return ApiError(f"The headers are larger than {max_bytes} bytes.", "headers_too_large")


def media_too_large(max_bytes: int) -> ApiError:
    """Return the error for media of one request that do not fit the memory of any."""
    return ApiError(f"The request's images and sounds have more than {max_bytes} bytes in total.", "request_too_large")


def request_timeout(timeout_s: float) -> ApiError:
    """Return the error for a request that did not arrive in time."""
    return ApiError(f"The request did not arrive within {timeout_s:g} s.", "request_timeout")


def body_budget_full(most_bytes: int, held_bytes: int, more: int) -> ApiError:
    """Return the error for a body for which the tenant's share of the body budget has no room."""
    message = f"The bodies of this tenant that are being read may have at most {most_bytes} bytes in total."
    block = LimitBlock("body_bytes", "tenant", most_bytes, held_bytes, 0, more, None)
    return ApiError(message, "concurrency_limit_exceeded", limit=block, retry_after_s=1.0)


Denial = Literal["rate", "concurrency", "quota", "exceeds"]

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
    """Return the error for a request rejected by a limit of its tenant.

    `in_part`: `limit.requested` is only the first part of the output, which is reserved progressively."""
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
    """Translate an error of the router."""
    if error.status_code == 405:
        return ApiError("This path does not support that method.", "method_not_allowed")
    if error.status_code == 404:
        return not_found("path")
    return invalid(None, "The request cannot be understood.") if error.status_code < 500 else internal_error()
