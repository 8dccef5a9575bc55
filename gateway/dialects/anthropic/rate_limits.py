"""The caller's limits in Anthropic's response headers."""

import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from fairlane.gateway.dialects.openai.rate_limits import DIMENSIONS, tightest
from fairlane.quotas.limits import LimitStatus

_PREFIXES = tuple(b"anthropic-ratelimit-" + dimension for dimension in DIMENSIONS)


def headers(statuses: Sequence[LimitStatus], *, clock: Callable[[], float] = time.time) -> list[tuple[bytes, bytes]]:
    """Return `anthropic-ratelimit-{requests,tokens}-{limit,remaining,reset}` for the bucket with the least remaining,
    per dimension; reset is the time at which it is full."""
    result: list[tuple[bytes, bytes]] = []
    for prefix, found in zip(_PREFIXES, tightest(statuses), strict=True):
        if found is not None:
            full = datetime.fromtimestamp(math.ceil(clock() + max(found.reset_after_s, 0.0)), UTC)
            result.append((prefix + b"-limit", b"%d" % found.limit))
            result.append((prefix + b"-remaining", b"%d" % found.remaining))
            result.append((prefix + b"-reset", full.strftime("%Y-%m-%dT%H:%M:%SZ").encode()))
    return result
