"""The six headers, and how long a wait is written."""

import msgspec
import pytest

from fairlane.gateway.dialects.openai.rate_limits import as_json, duration, headers
from fairlane.quotas.limits import LimitStatus


def status(name: str, limit: int, used: int, reset_after_s: float = 30.0, shadow: bool = False) -> LimitStatus:
    return LimitStatus(
        name=name,
        scope="tenant",
        limit=limit,
        used=used,
        reserved=0,
        resets_at=1_800_000_000.0,
        reset_after_s=reset_after_s,
        shadow=shadow,
    )


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, "0s"),
        (0.0004, "1ms"),
        (0.12, "120ms"),
        (0.9999, "1s"),
        (1.0, "1s"),
        (59.2, "1m0s"),
        (360.0, "6m0s"),
        (3_600.0, "1h0m0s"),
        (86_399.5, "24h0m0s"),
    ],
)
def test_times_are_written_as_openai_writes_them(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_the_bucket_with_the_least_remaining_is_told() -> None:
    told = dict(
        headers(
            [
                status("requests_per_minute", 60, 10),
                status("tokens_per_minute", 1_000, 900),
                status("tokens_per_day", 10_000, 9_950, 7_200.0),
                status("max_prompt_tokens", 5, 0),
            ]
        )
    )

    assert told == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"50",
        b"x-ratelimit-reset-requests": b"30s",
        b"x-ratelimit-limit-tokens": b"10000",
        b"x-ratelimit-remaining-tokens": b"50",
        b"x-ratelimit-reset-tokens": b"2h0m0s",
    }


def test_what_has_no_limit_or_only_a_shadow_of_one_is_not_told() -> None:
    assert headers([]) == []
    assert headers([status("requests_per_minute", 60, 60, shadow=True)]) == []


def test_the_quota_object_has_a_limit_in_shadow_only_where_no_other_binds() -> None:
    shadowed, real = status("tokens_per_day", 50, 50, shadow=True), status("tokens_per_day", 100, 10)

    for told in (as_json([shadowed, real]), as_json([real, shadowed])):
        assert told["limits"]["tokens_per_day"]["limit"] == 100  # type: ignore[index]
    assert as_json([shadowed])["limits"]["tokens_per_day"]["shadow"] is True  # type: ignore[index]


def test_the_queue_of_a_tenant_above_binds_nobody_below() -> None:
    own, above = status("queued_requests", 5, 0), status("queued_requests", 2, 0)
    above = msgspec.structs.replace(above, scope="parent")

    assert as_json([own, above])["limits"]["queued_requests"]["limit"] == 5  # type: ignore[index]
    assert as_json([above]) == {"limits": {}}


def test_the_quota_object_has_the_tighter_of_two_limits_of_a_name() -> None:
    told = as_json([status("tokens_per_day", 100, 10), status("tokens_per_day", 50, 45)])

    assert told == {
        "limits": {
            "tokens_per_day": {
                "limit": 50,
                "used": 45,
                "reserved": 0,
                "remaining": 5,
                "resets_at": 1_800_000_000.0,
                "scope": "tenant",
                "shadow": False,
            }
        }
    }
