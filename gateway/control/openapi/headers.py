"""The headers of requests and responses in the OpenAPI document."""

from collections.abc import Iterable
from typing import Any, get_args

from fairlane.gateway.control.admin.call import IF_MATCH, LONGEST_TAGS, TAGS
from fairlane.gateway.control.admin.operation import Documented
from fairlane.gateway.control.openapi.documented import STREAM
from fairlane.gateway.dialects.openai.request_bodies import MAX_DEADLINE_MS
from fairlane.gateway.errors import TABLE, Code, Retry, is_anthropic
from fairlane.gateway.middleware.idempotency import REPLAYED_HEADER
from fairlane.gateway.middleware.idempotent_run import HEADER as IDEMPOTENCY_HEADER
from fairlane.gateway.middleware.tenant import DEGRADED_HEADER, PROCESSING_HEADER
from fairlane.gateway.request.service_level import (
    CLASS_HEADER,
    DEADLINE_HEADER,
    IGNORED_HEADER,
    LANE_HEADER,
    PROGRESS_HEADER,
    READ_TIMEOUT_HEADER,
    TTFT_HEADERS,
    UNKNOWN_FIELDS_HEADER,
)
from fairlane.quotas.tenants import UnknownFields
from fairlane.scheduler.protocol.lanes import LaneName

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_WHOLE: Json = {"type": "integer", "minimum": 0}
_MS: Json = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_DEADLINE_MS}
_FLAG: Json = {"type": "string", "enum": ["0", "1"]}
_LANE: Json = {"type": "string", "enum": [lane.value for lane in LaneName]}
_UNKNOWN: Json = {"type": "string", "enum": [*get_args(UnknownFields)]}
_ID = "x-request-id"
_KEY: Json = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"}
_CLASS: Json = {"type": "string", "enum": ["guaranteed", "best-effort"]}
_TAGS: Json = {"type": "string", "pattern": rf"^([*]|{TAGS.pattern})$", "maxLength": LONGEST_TAGS}
_TRUE: Json = {"type": "string", "const": "true"}
_FALSE: Json = {"type": "string", "const": "false"}
_LIMIT_TEXT = "{} of the limit on {} with the least remaining"
_FIGURES = (("limit", _WHOLE, "Value"), ("remaining", _WHOLE, "Remaining part"))

_REQUEST = {_ID: (_TEXT, "The caller's id of the request; echoed if it is well-formed")}
_REQUEST_OF_A_MODEL = {
    LANE_HEADER: (_LANE, "The lane to use; overrides `service_tier`, and is refused if the tenant may not use it"),
    DEADLINE_HEADER: (
        _MS,
        "Deadline of the last token in milliseconds from arrival; refused if it cannot be met; as `deadline_ms`",
    ),
    **dict.fromkeys(
        TTFT_HEADERS, (_MS, "Deadline of the first token in milliseconds from arrival; refused if it cannot be met")
    ),
    PROGRESS_HEADER: (_FLAG, "1: a waiting stream sends comments with the reason"),
    UNKNOWN_FIELDS_HEADER: (_UNKNOWN, "`refuse`: unknown fields are an error; overrides the tenant's `unknown_fields`"),
    READ_TIMEOUT_HEADER: (_TEXT, "Seconds that the official SDK waits for a plain answer; ignored if not a number"),
    "traceparent": (_TEXT, "The caller's trace context, which is continued"),
}
_IDEMPOTENCY_KEY = {
    IDEMPOTENCY_HEADER: (
        _KEY,
        "The request runs once: repeated within 24 hours, it joins the first run or replays its answer",
    )
}
_IF_MATCH = {IF_MATCH: (_TAGS, "Change it only if its `ETag` is one of these, or for `*`; else 412")}

_RESPONSE = {_ID: (_TEXT, "The request's id")}
_RESPONSE_OF_A_MODEL = {
    LANE_HEADER: (_LANE, "The lane that served the request"),
    CLASS_HEADER: (_CLASS, "Whether the stated deadline is guaranteed"),
    IGNORED_HEADER: (_TEXT, "Fields of the request that had no effect, such as a `max_tokens` that was cut"),
}
_REPLAYED = {REPLAYED_HEADER: (_TRUE, "The answer is that of an earlier request with the same key")}
_LIMITS = {
    f"x-ratelimit-{figure}-{dimension}": (schema, _LIMIT_TEXT.format(value, dimension))
    for dimension in ("requests", "tokens")
    for figure, schema, value in (*_FIGURES, ("reset", _TEXT, "Time until the refill, such as 1s or 6m0s,"))
}
_ANTHROPIC = {
    "request-id": (_TEXT, "The request's id"),
    **{
        f"anthropic-ratelimit-{dimension}-{figure}": (schema, _LIMIT_TEXT.format(value, dimension))
        for dimension in ("requests", "tokens")
        for figure, schema, value in (*_FIGURES, ("reset", _TEXT, "Time of the refill (RFC 3339)"))
    },
}
_STORES = {
    PROCESSING_HEADER.decode(): (_WHOLE, "Milliseconds from the request's arrival to this header"),
    DEGRADED_HEADER.decode(): (
        _TEXT,
        "Unavailable stores, comma-separated: `quota-store`, `queue-store`; absent: none",
    ),
}
_TAGGED = {"etag": (_TEXT, "The version returned; for a quota, that of its tenant")}
_RETRY_AFTER = {
    "retry-after": (_WHOLE, "Seconds until this request would fit"),
    "retry-after-ms": (_WHOLE, "The same in milliseconds"),
}
_SHOULD_RETRY = {"x-should-retry": (_FALSE, "A retry of the same request cannot succeed")}


def components() -> Json:
    """Return every response header by name."""
    groups = (_RESPONSE, _RESPONSE_OF_A_MODEL, _REPLAYED, _LIMITS, _ANTHROPIC, _STORES, _TAGGED)
    known = {name: header for group in (*groups, _RETRY_AFTER, _SHOULD_RETRY) for name, header in group.items()}
    return {name: {"schema": schema, "description": text} for name, (schema, text) in known.items()}


def of_request(row: Documented) -> list[Json]:
    """Return the request headers of an operation as parameters."""
    known = {
        **_REQUEST,
        **(_REQUEST_OF_A_MODEL if _is_generation(row) else {}),
        **(_IDEMPOTENCY_KEY if _is_idempotent(row) else {}),
        **(_IF_MATCH if row.if_match else {}),
    }
    return [
        {"name": name, "in": "header", "required": False, "schema": schema, "description": text}
        for name, (schema, text) in known.items()
    ]


def of_success(row: Documented) -> Json:
    """Return the headers of an operation's successful response."""
    known = [*(_RESPONSE_OF_A_MODEL if _is_generation(row) else ()), *(_REPLAYED if _is_idempotent(row) else ())]
    known += [IGNORED_HEADER] if _names_ignored(row) else []
    return {**_of_any_response(row), **_refs([*known, *(_TAGGED if row.tagged else ())])}


def of_refusal(row: Documented, codes: Iterable[Code]) -> Json:
    """Return the headers of an operation's error response with one of these codes."""
    rules = {TABLE[code].retry for code in codes}
    with_time = rules & {Retry.LATER, Retry.HOPELESS, Retry.IF_KNOWN}
    hopeless = rules & {Retry.NEVER, Retry.HOPELESS, Retry.IF_KNOWN}
    known = [*(_RETRY_AFTER if with_time else ()), *(_SHOULD_RETRY if hopeless else ())]
    return {**_of_any_response(row), **_refs(known)}


def _of_any_response(row: Documented) -> Json:
    of_tenants = (*_LIMITS, *_STORES) if row.who == "tenant" else ()
    return _refs([*_RESPONSE, *of_tenants, *(_ANTHROPIC if is_anthropic(row.path) else ())])


def _is_generation(row: Documented) -> bool:
    return STREAM in row.answers and row.who == "tenant"


def _names_ignored(row: Documented) -> bool:
    """Return whether an operation without a model's answer names ignored fields."""
    return row.body is not None and row.path.startswith(
        ("/v1/conversations", "/v1/messages/count_tokens", "/v1/responses/input_tokens")
    )


def _is_idempotent(row: Documented) -> bool:
    return "idempotency_conflict" in row.codes


def _refs(names: Iterable[str]) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
