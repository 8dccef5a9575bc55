"""The caller's limits: OpenAI's six response headers, and the object at `GET /v1/limits`."""

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from fairlane.quotas.limits import LimitStatus

DIMENSIONS = b"requests", b"tokens"
# The headers of each dimension; they report its tightest limit.
_NAMES = [[b"x-ratelimit-%s-%s" % (part, name) for part in (b"limit", b"remaining", b"reset")] for name in DIMENSIONS]
_PLACES = {
    "requests_per_minute": 0,
    "tokens_per_minute": 1,
    "input_tokens_per_minute": 1,
    "output_tokens_per_minute": 1,
    "tokens_per_day": 1,
    "tokens_per_month": 1,
}
QUEUED_SCOPES = ("tenant", "key")
_SHOWN = ("limit", "used", "reserved", "remaining", "resets_at", "scope", "shadow")

# Returns the number of a tenant's waiting requests, which `queued_requests` bounds.
Waiting = Callable[[str], Awaitable[int]]


def headers(statuses: Sequence[LimitStatus]) -> list[tuple[bytes, bytes]]:
    """Return `x-ratelimit-{limit,remaining,reset}-{requests,tokens}` for the bucket with the least remaining, per
    dimension that has a limit."""
    result: list[tuple[bytes, bytes]] = []
    for (limit, remaining, reset), found in zip(_NAMES, tightest(statuses), strict=True):
        if found is not None:
            result += (
                (limit, b"%d" % found.limit),
                (remaining, b"%d" % found.remaining),
                (reset, duration(found.reset_after_s).encode()),
            )
    return result


def tightest(statuses: Sequence[LimitStatus]) -> list[LimitStatus | None]:
    """Return the limit with the least remaining for each dimension, without limits in shadow, which refuse nothing."""
    found: list[LimitStatus | None] = [None, None]
    least = [(math.inf, 0.0), (math.inf, 0.0)]
    for status in statuses:
        if status.shadow or status.name not in _PLACES:
            continue
        place, tightness = _PLACES[status.name], (status.remaining, -status.reset_after_s)
        if tightness < least[place]:
            found[place], least[place] = status, tightness
    return found


def duration(seconds: float) -> str:
    """Format a duration as OpenAI does: `120ms`, `1s`, `6m0s`, `24h0m0s`."""
    if seconds < 1:
        ms = math.ceil(max(seconds, 0.0) * 1000)
        return f"{ms}ms" if 0 < ms < 1000 else "1s" if ms else "0s"
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole}s"
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}h{minutes}m{whole % 60}s" if hours else f"{minutes}m{whole % 60}s"


async def with_queue(statuses: Sequence[LimitStatus], tenant: str, waiting: Waiting) -> list[LimitStatus]:
    """Return the statuses with the queue's depth as used `queued_requests`; the queue is asked only if there is that
    limit."""
    bounds = queued_limits(statuses)
    if not bounds:
        return list(statuses)
    used = await waiting(tenant)
    return [msgspec.structs.replace(each, used=used) if each in bounds else each for each in statuses]


def queued_limits(statuses: Iterable[LimitStatus]) -> list[LimitStatus]:
    """Return the limits on this tenant's queued requests: those of its parents count only their own requests."""
    return [status for status in statuses if status.name == "queued_requests" and status.scope in QUEUED_SCOPES]


def as_json(statuses: Sequence[LimitStatus]) -> dict[str, object]:
    """Return the quota object; of a limit on several levels, the binding one: not in shadow, least remaining."""
    limits: dict[str, LimitStatus] = {}
    for status in statuses:
        if status.name == "queued_requests" and status.scope not in QUEUED_SCOPES:
            continue
        if status.name not in limits or _binding(status) < _binding(limits[status.name]):
            limits[status.name] = status
    return {"limits": {name: {field: getattr(status, field) for field in _SHOWN} for name, status in limits.items()}}


def _binding(status: LimitStatus) -> tuple[bool, int]:
    return status.shadow, status.remaining
