"""What an answer says of the caller's limits: OpenAI's six headers, and the object at `GET /v1/limits`."""

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from fairlane.quotas.limits import LimitStatus


def _names(dimension: bytes) -> tuple[bytes, bytes, bytes]:
    return b"x-ratelimit-limit-" + dimension, b"x-ratelimit-remaining-" + dimension, b"x-ratelimit-reset-" + dimension


DIMENSIONS = b"requests", b"tokens"
_NAMES = tuple(_names(dimension) for dimension in DIMENSIONS)
"""The headers that tell the tightest of the limits that count the same."""
_PLACES = {
    "requests_per_minute": 0,
    "tokens_per_minute": 1,
    "input_tokens_per_minute": 1,
    "output_tokens_per_minute": 1,
    "tokens_per_day": 1,
    "tokens_per_month": 1,
}
"""Of limits among these dimensions."""
QUEUED_SCOPES = ("tenant", "key")

Waiting = Callable[[str], Awaitable[int]]
"""How many requests of a tenant wait: what its `queued_requests` bounds."""


def headers(statuses: Sequence[LimitStatus]) -> list[tuple[bytes, bytes]]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}` of the bucket with the least remaining, per dimension.

    A dimension without a limit has no headers.
    """
    told: list[tuple[bytes, bytes]] = []
    for (limit, remaining, reset), found in zip(_NAMES, tightest(statuses), strict=True):
        if found is not None:
            told.append((limit, b"%d" % found.limit))
            told.append((remaining, b"%d" % found.remaining))
            told.append((reset, duration(found.reset_after_s).encode()))
    return told


def tightest(statuses: Sequence[LimitStatus]) -> list[LimitStatus | None]:
    """For each dimension the limit with the least remaining, if it has any; one in shadow refuses nothing and is not
    told."""
    found: list[LimitStatus | None] = [None] * len(DIMENSIONS)
    for status in statuses:
        place = _PLACES.get(status.name)
        if place is None or status.shadow:
            continue
        other = found[place]
        if other is None or _tightness(status) < _tightness(other):
            found[place] = status
    return found


def _tightness(status: LimitStatus) -> tuple[int, float]:
    return status.remaining, -status.reset_after_s


def duration(seconds: float) -> str:
    """As OpenAI writes it: `120ms`, `1s`, `6m0s`, `24h0m0s`."""
    if seconds < 1:
        ms = math.ceil(max(seconds, 0.0) * 1000)
        return f"{ms}ms" if 0 < ms < 1000 else "1s" if ms else "0s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{rest}s"


async def with_queue(statuses: Sequence[LimitStatus], tenant: str, waiting: Waiting) -> list[LimitStatus]:
    """The same, `queued_requests` with what waits as used: the queue is asked only where the request has that limit."""
    bounds = queued_limits(statuses)
    if not bounds:
        return list(statuses)
    used = await waiting(tenant)
    return [msgspec.structs.replace(each, used=used) if each in bounds else each for each in statuses]


def queued_limits(statuses: Iterable[LimitStatus]) -> list[LimitStatus]:
    """Those that bound what this tenant has in the queue: `queued_requests` of those above counts their own requests
    only."""
    return [status for status in statuses if status.name == "queued_requests" and status.scope in QUEUED_SCOPES]


def as_json(statuses: Sequence[LimitStatus]) -> dict[str, object]:
    """The quota object: of a limit that several levels have, the one that binds: not in shadow, least remaining."""
    limits: dict[str, LimitStatus] = {}
    for status in statuses:
        if status.name == "queued_requests" and status.scope not in QUEUED_SCOPES:
            continue
        if status.name not in limits or _binding(status) < _binding(limits[status.name]):
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
                "shadow": status.shadow,
            }
            for name, status in limits.items()
        }
    }


def _binding(status: LimitStatus) -> tuple[bool, int]:
    return status.shadow, status.remaining
