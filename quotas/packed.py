"""How a level's limits and figures are packed in the store, as figures.lua has them: all doubles, little-endian.

A level's *card* is what operators wrote: its state, a number, its limits. Its *figures* are what requests changed: what
flights in the air hold, the sliding minute, the day and the month.
"""

import json
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence

from quotas.limits import LIMIT_NAMES, RULES, Limits, LimitStatus, Rule, Scope
from quotas.windows import Slicing

ACTIVE, SUSPENDED, DELETED, REVOKED = 1, 2, 3, 4
"""States."""
STATES = {"active": ACTIVE, "suspended": SUSPENDED, "deleted": DELETED, "revoked": REVOKED}
FIGURES = struct.Struct("<21d")
HELD, AT, MINUTE, DAY_SUM, MONTH_SUM, DAY_ENDS, MONTH_ENDS = 0, 3, 7, 13, 14, 17, 18
"""Places among the figures; what is held and the minute have three: requests, prompt and output tokens."""
_CARD = struct.Struct("<13d")
_SHADOW, _LIMITS = 2, 3
_FIELDS = {"requests": 0, "input": 1, "output": 2}
_SUMS = {"day": DAY_SUM, "month": MONTH_SUM, "live": HELD}
_ENDS = {"day": DAY_ENDS, "month": MONTH_ENDS}


def tenant_card(
    state: str,
    timezone: str,
    limits: Limits,
    shadow: Collection[str] = (),
    by: Sequence[tuple[str, str]] = (),
    parents: Sequence[str] = (),
) -> bytes:
    """Of a tenant. `by`: models and lanes with limits of their own; `parents`: nearest first."""
    tail = json.dumps([list(by), list(parents)]) if by or parents else ""
    return _card(STATES[state], zlib.crc32(timezone.encode()), limits, shadow) + tail.encode()


def model_lane_card(limits: Limits, shadow: Collection[str] = ()) -> bytes:
    """Of a tenant's work with one model, in one lane, or both."""
    return _card(ACTIVE, 0, limits, shadow)


def key_card(state: str, expires_ms: int | None, limits: Limits, tenant: str) -> bytes:
    """Of an API key."""
    return _card(STATES[state], expires_ms or 0, limits, ()) + tenant.encode()


def statuses(reply: Sequence[bytes], now_ms: int, slicing: Slicing) -> Iterator[LimitStatus]:
    """Every limit that is set, level by level, of a script's reply: scope, card and figures of each."""
    for number in range(0, len(reply), 3):
        scope: Scope = reply[number].decode()  # type: ignore[assignment] # the scripts know no others
        card, figures = _CARD.unpack_from(reply[number + 1]), FIGURES.unpack_from(reply[number + 2])
        shadow = int(card[_SHADOW])
        for place, rule in enumerate(RULES):
            if (figure := card[_LIMITS + place]) >= 0:
                yield _status(rule, scope, int(figure), figures, now_ms, slicing, bool(shadow >> place & 1))


def _status(
    rule: Rule, scope: Scope, limit: int, figures: tuple[float, ...], now_ms: int, slicing: Slicing, shadow: bool
) -> LimitStatus:
    used, reserved, ends_ms = 0.0, 0.0, None
    if rule.window == "minute":
        used = sum([figures[MINUTE + _FIELDS[name]] for name in rule.counts])
    elif rule.window != "request":
        used = figures[_SUMS[rule.window]]
    if rule.window != "request":
        reserved = sum([figures[HELD + _FIELDS[name]] for name in rule.counts if name != "requests"])
    if rule.window == "minute":
        full_ms = slicing.left_ms(int(figures[AT])) if used else now_ms
        ends_ms = now_ms + slicing.length_ms if reserved else full_ms
    elif rule.window in _ENDS:
        ends_ms = int(figures[_ENDS[rule.window]])
    return LimitStatus(
        name=rule.name,
        scope=scope,
        limit=limit,
        used=int(used),
        reserved=int(reserved),
        resets_at=None if ends_ms is None else ends_ms / 1e3,
        reset_after_s=0.0 if ends_ms is None else (ends_ms - now_ms) / 1e3,
        shadow=shadow,
    )


def _card(state: int, number: int, limits: Limits, shadow: Collection[str]) -> bytes:
    mask = sum(1 << place for place, name in enumerate(LIMIT_NAMES) if name in shadow)
    figures = (getattr(limits, name) for name in LIMIT_NAMES)
    return _CARD.pack(state, number, mask, *(-1 if figure is None else figure for figure in figures))
