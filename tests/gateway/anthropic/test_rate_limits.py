"""Anthropic's headers on a caller's limits."""

from fairlane.gateway.dialects.anthropic import rate_limits
from fairlane.gateway.dialects.openai.rate_limits import headers as openai_headers
from tests.gateway.openai.test_rate_limits import status


def test_they_tell_the_tightest_limit_and_when_it_is_full() -> None:
    statuses = [status("requests_per_minute", 10, 4), status("tokens_per_minute", 1_000, 10)]

    told = dict(rate_limits.headers(statuses, clock=lambda: 0.0))
    known = dict(openai_headers(statuses))

    for dimension in (b"requests", b"tokens"):
        for figure in (b"limit", b"remaining"):
            ours = known[b"x-ratelimit-%b-%b" % (figure, dimension)]
            assert told[b"anthropic-ratelimit-%b-%b" % (dimension, figure)] == ours
        assert told[b"anthropic-ratelimit-%b-reset" % dimension] == b"1970-01-01T00:00:30Z"


def test_no_limit_has_no_headers() -> None:
    assert rate_limits.headers([]) == []
