"""Bounds of every generation request."""

from dataclasses import dataclass

from fairlane.gateway.answers.chunks import KeepAliveSchedule
from fairlane.gateway.http.body_budget import BodyRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of every generation request, and the keep-alive schedule of a waiting stream."""

    room: BodyRoom
    body_timeout_s: float
    write_timeout_s: float
    stream_schedule: KeepAliveSchedule
