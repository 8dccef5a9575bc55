"""The terms of a request: lane, tier and deadlines. Pure."""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import cast, get_args

import msgspec

from fairlane.gateway.dialects.openai.request_bodies import MAX_DEADLINE_MS
from fairlane.gateway.dialects.openai.requests import GenerationRequest
from fairlane.gateway.errors import ApiError, invalid
from fairlane.quotas.api_keys import Identity
from fairlane.quotas.tenants import UnknownFields
from fairlane.scheduler.protocol.lanes import Lane, LaneName

LANE_HEADER = "x-fairlane-lane"
DEADLINE_HEADER = "x-fairlane-deadline-ms"
# Our own header takes precedence over llm-d's.
TTFT_HEADERS = ("x-fairlane-ttft-ms", "x-llm-d-slo-ttft-ms")
READ_TIMEOUT_HEADER = "x-stainless-read-timeout"
PROGRESS_HEADER = "x-fairlane-progress"
UNKNOWN_FIELDS_HEADER = "x-fairlane-unknown-fields"
CLASS_HEADER = "x-fairlane-class"
# Names the fields of a request that had no effect.
IGNORED_HEADER = "x-fairlane-ignored"

_HEARD = {
    name.encode(): name
    for name in (
        LANE_HEADER,
        DEADLINE_HEADER,
        *TTFT_HEADERS,
        READ_TIMEOUT_HEADER,
        PROGRESS_HEADER,
        UNKNOWN_FIELDS_HEADER,
    )
}
# Tiers that select a lane. All others use the tenant's default lane.
_TIERS: Mapping[str, LaneName] = {
    "priority": LaneName.LATENCY,
    "fast": LaneName.LATENCY,
    "flex": LaneName.THROUGHPUT,
}
_GRANTED: Mapping[LaneName, str] = {LaneName.LATENCY: "priority", LaneName.THROUGHPUT: "flex"}


class ServiceLevel(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The terms of one request. Durations count from its arrival."""

    lane: Lane
    # Tier in the response: `priority` or `flex` if requested and granted, else `default`.
    service_tier: str
    deadline_ms: float | None
    hard_ttft_ms: float | None
    # Maximum wait in the queue: the lane's, unless a deadline is stated; or the client's own read timeout.
    max_wait_ms: float
    # For a line of a batch: the rest of the batch's window. It sets the order, and rejects nothing.
    batch_due_ms: float | None = None
    # The stream reports its wait in comments. Opt-in, because not every client skips comments.
    tells_progress: bool = False

    @property
    def ttft_ms(self) -> float:
        """Due time of the first token: as stated, else the lane's target, or the batch's window."""
        if self.hard_ttft_ms is None and self.deadline_ms is None:
            return self.lane.ttft_ms if self.batch_due_ms is None else self.batch_due_ms
        return min(ms for ms in (self.hard_ttft_ms, self.deadline_ms) if ms is not None)

    def due_in(self, batch_due_ms: float) -> "ServiceLevel":
        return msgspec.structs.replace(self, batch_due_ms=batch_due_ms, max_wait_ms=batch_due_ms)


def agree(
    request: GenerationRequest,
    headers: Iterable[tuple[bytes, bytes]],
    identity: Identity,
    lanes: Mapping[LaneName, Lane],
) -> ServiceLevel:
    """Return the terms of one request. `headers` are the ASGI scope's. Raises ApiError for an invalid header."""
    given = _given(headers)
    name = _lane(request, given.get(LANE_HEADER), identity)
    lane = lanes[name]
    asked = _TIERS.get(request.service_tier or "")
    tier = _GRANTED[name] if asked == name else "default"
    if not given and request.deadline_ms is None:
        return ServiceLevel(
            lane=lane, service_tier=tier, deadline_ms=None, hard_ttft_ms=None, max_wait_ms=lane.max_wait_ms
        )
    stated = [ms for ms in (request.deadline_ms, _milliseconds(given, DEADLINE_HEADER)) if ms is not None]
    ttft = [ms for ms in (_milliseconds(given, header) for header in TTFT_HEADERS) if ms is not None]
    return ServiceLevel(
        lane=lane,
        service_tier=tier,
        deadline_ms=min(stated, default=None),
        hard_ttft_ms=ttft[0] if ttft else None,
        max_wait_ms=min(
            math.inf if stated or ttft else lane.max_wait_ms, math.inf if request.stream else _patience_ms(given)
        ),
        tells_progress=asks_progress(headers),
    )


def asks_progress(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a stream should report its wait in comments. Raises ApiError for an invalid value."""
    value = _given(headers).get(PROGRESS_HEADER, "0")
    if value not in ("0", "1"):
        raise invalid(PROGRESS_HEADER, f"`{PROGRESS_HEADER}` must be 1 or 0.")
    return value == "1"


def unknown_fields(headers: Iterable[tuple[bytes, bytes]]) -> UnknownFields | None:
    """Return what the caller wants done with unknown fields, if it says so. Raises ApiError for an invalid value."""
    value = _given(headers).get(UNKNOWN_FIELDS_HEADER)
    if value is not None and value not in get_args(UnknownFields):
        raise invalid(UNKNOWN_FIELDS_HEADER, f"`{UNKNOWN_FIELDS_HEADER}` must be ignore or refuse.")
    return cast("UnknownFields | None", value)


def _given(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {_HEARD[name]: value.decode("latin-1").strip() for name, value in headers if name in _HEARD}


def may_use_lane(identity: Identity, lane: LaneName) -> bool:
    """Return whether both tenant and key allow a lane."""
    return lane in _allowed(identity.tenant.lanes, identity.key.scopes.lanes)


def _lane(request: GenerationRequest, header: str | None, identity: Identity) -> LaneName:
    allowed = _allowed(identity.tenant.lanes, identity.key.scopes.lanes)
    if header is not None:
        if header not in set(LaneName):
            raise invalid(LANE_HEADER, f"`{LANE_HEADER}` must be one of {', '.join(LaneName)}.")
        if header not in allowed:
            raise ApiError(f"This key may not use the lane {header}.", "lane_not_allowed", LANE_HEADER)
        return LaneName(header)
    asked = _TIERS.get(request.service_tier or "")
    if asked in allowed:
        return asked
    if not allowed:
        raise ApiError("This key may not use any of its tenant's lanes.", "lane_not_allowed")
    return _default(allowed, identity.tenant.default_lane)


@lru_cache(maxsize=64)  # few distinct values, and every request needs one
def _allowed(tenants: tuple[str, ...], keys: tuple[str, ...] | None) -> tuple[LaneName, ...]:
    return tuple(name for name in LaneName if name in tenants and (keys is None or name in keys))


@lru_cache(maxsize=64)  # as above
def _default(allowed: tuple[LaneName, ...], lane: str) -> LaneName:
    return LaneName(lane) if lane in allowed else allowed[0]


def _milliseconds(given: Mapping[str, str], header: str) -> float | None:
    if header not in given:
        return None
    value = _number(given[header])
    if value is None or not 0 < value <= MAX_DEADLINE_MS:
        raise invalid(header, f"`{header}` must be a number of milliseconds over 0 and at most {MAX_DEADLINE_MS:.0f}.")
    return value


def _patience_ms(given: Mapping[str, str]) -> float:
    """Return the official SDK's read timeout. The SDK always sends it, so invalid values are ignored."""
    value = _number(given.get(READ_TIMEOUT_HEADER, ""))
    return value * 1e3 if value is not None and value > 0 else math.inf


def _number(text: str) -> float | None:
    try:
        value = math.nan if "_" in text else float(text)  # only Python accepts 1_000
    except ValueError:
        return None
    return value if math.isfinite(value) else None
