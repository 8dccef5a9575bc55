"""What an answer says of the caller's limits: OpenAI's six headers, and the object at `GET /v1/limits`."""

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from quotas.store import LimitStatus

_DIMENSIONS = {
    b"requests": ("requests_per_minute",),
    b"tokens": (
        "tokens_per_minute",
        "input_tokens_per_minute",
        "output_tokens_per_minute",
        "tokens_per_day",
        "tokens_per_month",
    ),
}

Waiting = Callable[[str], Awaitable[int]]
"""How many requests of a tenant wait: what its `queued_requests` bounds."""


def headers(statuses: Iterable[LimitStatus]) -> list[tuple[bytes, bytes]]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}` of the bucket with the least remaining, per dimension.

    A dimension without a limit has no headers; a limit in shadow refuses nothing and is not told.
    """
    told: list[tuple[bytes, bytes]] = []
    enforced = [status for status in statuses if not status.shadow]
    for dimension, names in _DIMENSIONS.items():
        buckets = [status for status in enforced if status.name in names]
        if buckets:
            tightest = min(buckets, key=lambda status: (status.remaining, -status.reset_after_s))
            told += [
                (b"x-ratelimit-limit-" + dimension, b"%d" % tightest.limit),
                (b"x-ratelimit-remaining-" + dimension, b"%d" % tightest.remaining),
                (b"x-ratelimit-reset-" + dimension, duration(tightest.reset_after_s).encode()),
            ]
    return told


def duration(seconds: float) -> str:
    """As OpenAI writes it: `120ms`, `1s`, `6m0s`, `24h0m0s`."""
    if seconds < 1:
        ms = math.ceil(max(seconds, 0.0) * 1000)
        return f"{ms}ms" if 0 < ms < 1000 else "1s" if ms else "0s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{rest}s"


async def with_queue(statuses: Sequence[LimitStatus], tenant: str, waiting: Waiting) -> list[LimitStatus]:
    """The same, `queued_requests` with what waits as used: the queue is asked only where the tenant has that limit."""
    queued = [status for status in statuses if (status.name, status.scope) == ("queued_requests", "tenant")]
    if not queued:
        return list(statuses)
    used = await waiting(tenant)
    return [msgspec.structs.replace(status, used=used) if status in queued else status for status in statuses]


def as_json(statuses: Sequence[LimitStatus]) -> dict[str, object]:
    """The quota object: of a limit that both tenant and key have, the one with the least remaining."""
    limits: dict[str, LimitStatus] = {}
    for status in statuses:
        if status.name not in limits or status.remaining < limits[status.name].remaining:
            limits[status.name] = status
    return {
        "limits": {
            name: {
                "limit": status.limit,
                "used": status.used,
                "reserved": status.reserved,
                "remaining": status.remaining,
                "resets_at": status.resets_at,
                "scope": status.scope,
            }
            for name, status in limits.items()
        }
    }
