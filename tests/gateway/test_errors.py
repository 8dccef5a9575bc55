"""Errors: the table of the contract, bodies, and when to retry."""

import json
import random
from typing import get_args

import pytest
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException

from fairlane.gateway import errors
from fairlane.gateway.control.openapi.answers import AnthropicError
from fairlane.gateway.errors import TABLE, ApiError, Code, Denial, LimitBlock, Retry

CONTRACT: dict[int, set[Code]] = {
    400: {
        "invalid_request_error",
        "context_length_exceeded",
        "request_exceeds_limit",
        "previous_response_not_found",
        "websocket_connection_limit_reached",
    },
    401: {
        "invalid_api_key",
        "tenant_deleted",
        "invalid_token",
        "token_expired",
        "token_not_yet_valid",
        "wrong_audience",
        "unknown_signing_key",
        "identity_conflict",
    },
    403: {
        "tenant_not_allowed",
        "lane_not_allowed",
        "model_not_allowed",
        "endpoint_not_allowed",
        "address_not_allowed",
        "origin_not_allowed",
        "role_not_allowed",
        "tenant_suspended",
    },
    404: {"model_not_found", "not_found"},
    405: {"method_not_allowed"},
    408: {"request_timeout"},
    409: {"idempotency_conflict", "already_exists", "tenant_has_children", "tenant_not_deleted"},
    412: {"precondition_failed"},
    413: {"request_too_large"},
    415: {"unsupported_encoding"},
    426: {"websocket_not_supported", "upgrade_required"},
    429: {
        "rate_limit_exceeded",
        "concurrency_limit_exceeded",
        "queue_full",
        "insufficient_quota",
        "overloaded",
        "deadline_unattainable",
    },
    431: {"headers_too_large"},
    500: {"internal_error"},
    503: {
        "no_worker",
        "issuer_unavailable",
        "quota_store_unavailable",
        "shutting_down",
        "unavailable",
        "overloaded_memory",
    },
    504: {"deadline_exceeded"},
}
NOT_WORTH_REPEATING: set[int] = {400, 401, 403, 404, 405, 408, 409, 412, 413, 415, 431, 504}
LIMIT = LimitBlock("tokens_per_minute", "tenant", 100, 60, 30, 20, None)


def headers(code: Code, retry_after_s: float | None = None, seed: int = 1) -> dict[str, str]:
    return errors.error_headers(ApiError("no", code, retry_after_s=retry_after_s), random.Random(seed))


def test_every_code_has_the_contracts_status() -> None:
    assert {code: rule.status for code, rule in TABLE.items()} == {
        code: status for status, codes in CONTRACT.items() for code in codes
    }
    assert set(get_args(Code)) == set(TABLE)


MAY_BE_REPEATED: set[Code] = {"token_not_yet_valid"}
"""It only comes too early."""


@pytest.mark.parametrize(
    "code",
    [code for code, rule in TABLE.items() if rule.status in NOT_WORTH_REPEATING and code not in MAY_BE_REPEATED],
)
def test_what_is_wrong_is_not_worth_repeating(code: Code) -> None:
    assert headers(code, retry_after_s=3.0) == {"x-should-retry": "false"}


@pytest.mark.parametrize("code", [code for code, rule in TABLE.items() if rule.retry is Retry.LATER])
def test_what_passes_says_when_and_leaves_the_choice_to_the_client(code: Code) -> None:
    told = headers(code, retry_after_s=2.0)

    assert set(told) == {"retry-after", "retry-after-ms"}
    assert 2000 <= int(told["retry-after-ms"]) <= 2201
    assert told["retry-after"] == "3"


def test_no_known_time_means_a_second() -> None:
    assert headers("overloaded")["retry-after"] == "2"
    assert 1000 <= int(headers("overloaded")["retry-after-ms"]) <= 1101


@pytest.mark.parametrize("after_s", [-5.0, 0.0, 0.0004, 0.2, 59.99, 86_400.0])
def test_retry_after_is_whole_seconds_of_at_least_one_and_never_too_early(after_s: float) -> None:
    for seed in range(50):
        told = headers("rate_limit_exceeded", after_s, seed)
        assert int(told["retry-after"]) >= 1
        assert int(told["retry-after"]) * 1000 >= int(told["retry-after-ms"]) >= max(1, after_s * 1000)
        assert int(told["retry-after-ms"]) <= max(after_s, 0) * 1100 + 51


def test_jitter_spreads_clients_and_is_the_callers_to_seed() -> None:
    times = {headers("overloaded", 10.0, seed)["retry-after-ms"] for seed in range(20)}

    assert len(times) == 20
    assert headers("overloaded", 10.0, 7) == headers("overloaded", 10.0, 7)


def test_jitter_of_a_long_wait_is_short() -> None:
    assert all(int(headers("overloaded", 3600.0, seed)["retry-after"]) <= 3606 for seed in range(20))


def test_a_spent_quota_says_the_true_time_and_not_to_wait_for_it() -> None:
    told = headers("insufficient_quota", 7200.0)

    assert told == {"retry-after": "7200", "retry-after-ms": "7200000", "x-should-retry": "false"}
    assert headers("insufficient_quota") == {"x-should-retry": "false"}


def test_an_unattainable_deadline_is_worth_repeating_only_where_a_later_start_helps() -> None:
    assert "retry-after" in headers("deadline_unattainable", 2.0)
    assert "x-should-retry" not in headers("deadline_unattainable", 2.0)
    assert headers("deadline_unattainable") == {"x-should-retry": "false"}


def test_our_own_fault_leaves_the_clients_rule_to_decide() -> None:
    assert headers("internal_error") == {}


def test_the_body_has_openais_four_keys() -> None:
    body = errors.error_body(errors.invalid("temperature", "`temperature` must be a number."))

    assert body == {
        "error": {
            "message": "`temperature` must be a number.",
            "type": "invalid_request_error",
            "param": "temperature",
            "code": "invalid_request_error",
        }
    }


def test_a_limit_that_was_the_cause_stands_in_the_body() -> None:
    refused = errors.limit_denied("rate", LIMIT, 12.0)

    answer = errors.response(refused, random.Random(1))

    assert answer.status_code == 429
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["retry-after"]) in (12, 13, 14)
    assert json.loads(bytes(answer.body))["error"]["limit"] == {
        "name": "tokens_per_minute",
        "scope": "tenant",
        "limit": 100,
        "used": 60,
        "reserved": 30,
        "requested": 20,
        "resets_at": None,
    }


@pytest.mark.parametrize(("used", "is_behind"), [(60, False), (50, True)])
def test_what_would_fit_is_refused_for_an_answer_that_is_paused(used: int, is_behind: bool) -> None:
    limit = LimitBlock("tokens_per_minute", "tenant", 100, used, 30, 20, None)

    assert ("paused goes first" in str(errors.limit_denied("rate", limit, 1.0).message)) is is_behind


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("rate", "rate_limit_exceeded"),
        ("concurrency", "concurrency_limit_exceeded"),
        ("quota", "insufficient_quota"),
        ("exceeds", "request_exceeds_limit"),
    ],
)
def test_each_kind_of_denial_has_its_code(kind: Denial, code: Code) -> None:
    assert errors.limit_denied(kind, LIMIT, None).code == code


def test_an_error_without_jitter_given_is_answered_too() -> None:
    assert "retry-after" in errors.response(ApiError("full", "rate_limit_exceeded")).headers


def test_context_length_says_the_numbers_and_names_what_to_shorten() -> None:
    refused = errors.context_length(2048, 2000, 100)

    assert (refused.code, refused.param, refused.status) == ("context_length_exceeded", "max_tokens", 400)
    assert all(number in refused.message for number in ("2048", "2000", "100"))
    assert errors.context_length(2048, 3000, None, param="messages").param == "messages"


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "not_found"), (405, "method_not_allowed"), (400, "invalid_request_error"), (500, "internal_error")],
)
def test_what_the_router_refuses_is_told_in_our_words(status: int, code: Code) -> None:
    told = errors.of_http_exception(HTTPException(status, detail="secret"))

    assert told.code == code
    assert "secret" not in told.message


def test_the_small_ones() -> None:
    assert errors.invalid_api_key().status == 401
    assert (errors.model_not_found().status, errors.model_not_found().param) == (404, "model")
    assert errors.not_found("batch").message == "There is no such batch."
    assert errors.request_too_large(10).status == 413
    assert errors.headers_too_large(10).status == 431
    assert errors.request_timeout(2.5).message == "The request did not arrive within 2.5 s."
    assert errors.internal_error().status == 500


@pytest.mark.parametrize("code", TABLE)
def test_every_code_has_its_form_on_anthropics_paths(code: Code) -> None:
    error = ApiError("no", code, "field", LIMIT)

    body = errors.error_body(error, "/v1/messages/count_tokens", "req_1")

    shape = TypeAdapter(AnthropicError).validate_json(json.dumps(body), strict=True)
    assert (body["type"], body["request_id"]) == ("error", "req_1")
    assert (shape["error"]["code"], shape["error"].get("param"), shape["error"]["message"]) == (code, "field", "no")
    assert errors.error_body(error, "/v1/messagesx") == errors.error_body(error)
