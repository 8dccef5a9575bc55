"""Bounds that every request must keep to."""

from dataclasses import dataclass

from fairlane.gateway.answers.chunks import Rhythm
from fairlane.gateway.http.body_budget import BodyRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What every request must keep to, and how its waiting client is kept informed."""

    room: BodyRoom
    body_timeout_s: float
    write_timeout_s: float
    stream_rhythm: Rhythm
