"""Binary layout of a level's limits and figures in the store, as in records.lua: little-endian doubles.

A level's *card* holds what operators configure: its state, a number, its limits. Its *figures* hold what requests
change: open reservations, the sliding minute, the day and the month."""

import json
import struct
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple, get_args

from fairlane.quotas.limits import RULES, SPEND_LIMITS, LimitRule, Limits, LimitStatus, Scope
from fairlane.quotas.windows import Slicing

ACTIVE, SUSPENDED, DELETED, REVOKED = 1, 2, 3, 4
STATES = {"active": ACTIVE, "suspended": SUSPENDED, "deleted": DELETED, "revoked": REVOKED}
FIGURES = struct.Struct("<21d")
# Indices into the figures; HELD and MINUTE have three each: requests, prompt and output tokens.
HELD, AT, MINUTE, DAY_SUM, MONTH_SUM, DAY_ENDS, MONTH_ENDS = 0, 3, 7, 13, 14, 17, 18
_BATCH = struct.Struct("<3d")
_SLICE_BYTES = 32
# Index of batch lines' reservations, stored only if there are any: requests, prompt and output tokens.
_BATCH_AT = FIGURES.size // 8
# Index of money, stored after those if there is any: reserved, today's and this month's.
_SPEND_AT = _BATCH_AT + 3
_CARD = struct.Struct("<13d")
_SPEND_CARD = struct.Struct("<2d")
# Flag in the shadow mask, above the bits of the limits: limits of money follow the others.
_WITH_SPEND = 1 << 20
_SPEND_LIMITS = len(SPEND_LIMITS)
_MASK = struct.Struct("<d")
# Offset of the part of a card that is the same for many keys: the shadow mask and all figures.
_LIMITED_FROM = 16
_FIELDS = {"requests": 0, "input": 1, "output": 2}
_SUMS = {"day": DAY_SUM, "month": MONTH_SUM, "live": HELD}
_SPENT = {"day": _SPEND_AT + 1, "month": _SPEND_AT + 2}
_ENDS = {"day": DAY_ENDS, "month": MONTH_ENDS}
_SCOPES: dict[bytes, Scope] = {scope.encode(): scope for scope in get_args(Scope)}


class _Places(NamedTuple):
    used: tuple[int, ...]
    reserved: tuple[int, ...]
    # Index of the end of its window, if the calendar defines one.
    ends: int | None


class _Limit(NamedTuple):
    rule: LimitRule
    places: _Places
    figure: int
    shadow: bool


def tenant_card(
    state: str,
    limits: Limits,
    shadow: Collection[str] = (),
    by: Sequence[tuple[str, str]] = (),
    parents: Sequence[str] = (),
) -> bytes:
    """Pack a tenant's card. `by`: models and lanes that have their own limits; `parents`: accounts, nearest first."""
    tail = json.dumps([list(by), list(parents)]) if by or parents else ""
    return _card(STATES[state], 0, limits, shadow) + tail.encode()


def model_lane_card(limits: Limits, shadow: Collection[str] = ()) -> bytes:
    """Pack the card of a tenant's limits for one model, one lane, or both."""
    return _card(ACTIVE, 0, limits, shadow)


def key_card(state: str, expires_ms: int | None, limits: Limits, tenant: str) -> bytes:
    """Pack an API key's card."""
    return _card(STATES[state], expires_ms or 0, limits, ()) + tenant.encode()


def statuses(reply: Sequence[bytes], now_ms: int, slicing: Slicing) -> tuple[LimitStatus, ...]:
    """Unpack every limit that is set from a script's reply, which has scope, card and figures of each level."""
    found: tuple[LimitStatus, ...] = ()
    for number in range(0, len(reply), 3):
        scope, card, figures = _SCOPES[reply[number]], reply[number + 1], _figures(reply[number + 2])
        with_spend = _MASK.unpack_from(card, _LIMITED_FROM)[0] >= _WITH_SPEND
        limits = _limits_of(card[_LIMITED_FROM : _CARD.size + (_SPEND_CARD.size if with_spend else 0)])
        for rule, places, limit, shadow in limits:
            used = reserved = 0.0
            for at in places.used:  # neither `sum` nor `append`: every reply of the store has many limits
                used += figures[at]
            for at in places.reserved:
                reserved += figures[at]
            ends_ms = None if places.ends is None else int(figures[places.ends])
            if rule.window == "minute" and reserved:
                ends_ms = now_ms + slicing.length_ms
            elif rule.window == "minute":
                ends_ms = slicing.expires_ms(int(figures[AT])) if used else now_ms
            status = LimitStatus(
                name=rule.name,
                scope=scope,
                limit=limit,
                used=int(used),
                reserved=int(reserved),
                resets_at=None if ends_ms is None else ends_ms / 1e3,
                reset_after_s=0.0 if ends_ms is None else (ends_ms - now_ms) / 1e3,
                shadow=shadow,
            )
            found += (status,)
    return found


def _figures(stored: bytes) -> tuple[float, ...]:
    batch = spend = (0.0, 0.0, 0.0)
    extra = (len(stored) - FIGURES.size) % _SLICE_BYTES
    if extra:
        batch = _BATCH.unpack_from(stored, FIGURES.size)
        if extra != _BATCH.size:
            spend = _BATCH.unpack_from(stored, FIGURES.size + _BATCH.size)
    return (*FIGURES.unpack_from(stored), *batch, *spend)


@lru_cache(maxsize=4096)  # cards rarely change, and come with each reply
def _limits_of(limited: bytes) -> tuple[_Limit, ...]:
    mask, *figures = struct.unpack(f"<{len(limited) // 8}d", limited)
    shadow = int(mask)
    return tuple(
        _Limit(rule, _PLACES[rule.name], int(figure), bool(shadow >> place & 1))
        for place, (rule, figure) in enumerate(zip(RULES, figures, strict=False))  # money limits are optional
        if figure >= 0
    )


def _places(rule: LimitRule) -> _Places:
    if rule.window == "request":
        return _Places((), (), None)
    if rule.is_spend:
        return _Places((_SPENT[rule.window],), (_SPEND_AT,), _ENDS[rule.window])
    used = [MINUTE + _FIELDS[name] for name in rule.counts] if rule.window == "minute" else [_SUMS[rule.window]]
    reserved = [HELD + _FIELDS[name] for name in rule.counts if name != "requests"]
    of_batches = [_BATCH_AT + _FIELDS[name] for name in rule.counts] if rule.window in _ENDS else []
    return _Places(tuple(used), (*reserved, *of_batches), _ENDS.get(rule.window))


_PLACES = {rule.name: _places(rule) for rule in RULES}


def _card(state: int, number: int, limits: Limits, shadow: Collection[str]) -> bytes:
    mask = sum(1 << place for place, rule in enumerate(RULES) if rule.name in shadow)
    figures = [-1 if figure is None else figure for figure in (getattr(limits, rule.name) for rule in RULES)]
    tokens, money = figures[:-_SPEND_LIMITS], figures[-_SPEND_LIMITS:]
    if max(money) < 0:
        return _CARD.pack(state, number, mask, *tokens)
    return _CARD.pack(state, number, mask | _WITH_SPEND, *tokens) + _SPEND_CARD.pack(*money)
