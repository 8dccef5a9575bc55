"""The output that a request gets of its limits, at first and later: the oracle of sizing.lua.

A running request for which a level's minute had no room is paused and takes precedence: the level grants nothing to
others until it has received a whole quantum. The others retry once the minute has room for one token of each."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fairlane.quotas.limits import Demand, Level, LimitRule, Place, Prices, is_paced
from fairlane.quotas.windows import MINUTE, Totals

# A quantum is at most this fraction of the smallest minute limit, so that one request does not hold it all.
SHARE = 8
# When to retry if only other requests' reservations are in the way.
BLOCKED_MS = MINUTE.length_ms // 120


@dataclass(frozen=True, slots=True)
class Grant:
    """The additional output granted to a running request."""

    tokens: int
    # The limit that leaves less than a token per choice; a spent one takes precedence. Empty if there is none.
    limited_by: str = ""
    # That limit can never grant more: it is a spent day or month, or the maximum of a choice.
    spent: bool = False
    # When to ask again if less than a quantum was granted.
    retry_after_ms: int = 0
    # Levels whose minute is in the way.
    binding: tuple[Level, ...] = ()


def sized(levels: Sequence[Level], demand: Demand, quantum: int | None) -> Demand:
    """Return the demand with the output to hold first: a quantum per choice, or everything at once. If the caller has
    not stated its output, it is cut to what the limits leave, at least one token per choice."""
    if not demand.stated:
        demand = dataclasses.replace(demand, ceiling=max(1, largest(levels, demand.ceiling, choices=1)))
    left = choice = max(0, demand.ceiling - demand.start) if demand.choices else 0
    is_cut = quantum is not None or not demand.stated
    if (
        left
        and quantum is not None
        and any(rule.output_weight(demand.prices) for level in levels for rule, _ in level.rules())
    ):
        choice = min(choice, portion(levels, quantum, demand.choices))
    if left and is_cut:
        metering = _outputs(levels, demand.prices)
        rooms = [_room(*each, demand.input, demand.prices) - demand.extra for each in metering]
        choice = max(1, min([choice, *(room // demand.choices for room in rooms)]))
    ceiling = demand.start + choice if quantum is None else demand.ceiling
    return dataclasses.replace(demand, choice=choice, ceiling=ceiling, is_cut=is_cut)


def largest(levels: Iterable[Level], most: int, *, choices: int, ended: int = 0) -> int:
    """Return how many of `most` output tokens the per-choice limits leave; `ended`: tokens of finished choices."""
    figures = (figure for _, rule, figure in _metering(levels) if "ceiling" in rule.counts)
    return min([most, *(ended + figure * choices for figure in figures)])


def portion(levels: Iterable[Level], quantum: int, choices: int) -> int:
    """Return the output tokens per choice to grant at a time."""
    minutes = [figure for _, rule, figure in _metering(levels) if is_paced(rule)]
    return max(1, min([quantum, *(figure // SHARE // choices for figure in minutes)]))


def grant(
    levels: Iterable[Level], wanted: int, unit: int, own: Totals, prices: Prices, place: Place | None, now_ms: int
) -> Grant:
    """Return the output that a running request gets of `wanted` tokens, in multiples of `unit`. `own` is what it holds
    and has not used, `place` its place among the paused reservations; None if it is not paused."""
    got, full, spent, binding, retry_ms = wanted, "", "", [], 0
    for level, rule, figure in _outputs(levels, prices):
        room = _room(level, rule, figure, 0, prices)
        is_behind = is_paced(rule) and bool(level.paused) and (place is None or level.paused[0] < place)
        got = min(got, 0 if is_behind else max(0, room))
        if room >= unit and not is_behind:
            continue
        full = full or rule.name
        if rule.window == "minute":
            binding.append(level)
            missing = unit - room + (_before(level, place) if is_behind else 0)
            frees_ms = level.windows["minute"].frees_ms(missing, rule.counts) or now_ms
            retry_ms = max(retry_ms, frees_ms - now_ms if missing > 0 else BLOCKED_MS)
        elif figure - level.used(rule) - (own.spend if rule.is_spend else own.output) < unit * rule.output_weight(
            prices
        ):
            spent = spent or rule.name
        else:
            retry_ms = max(retry_ms, BLOCKED_MS)
    return Grant(got - got % unit, spent or full, bool(spent), retry_ms, tuple(binding))


def _metering(levels: Iterable[Level]) -> Iterator[tuple[Level, LimitRule, int]]:
    return (
        (level, rule, figure) for level in levels for rule, figure in level.rules() if rule.name not in level.shadow
    )


def _outputs(levels: Iterable[Level], prices: Prices) -> Iterator[tuple[Level, LimitRule, int]]:
    return (each for each in _metering(levels) if each[1].output_weight(prices))


def _before(level: Level, place: Place | None) -> int:
    return sum(place is None or since_ms < place[0] for since_ms, _ in level.paused)


def _room(level: Level, rule: LimitRule, figure: int, prompt: int, prices: Prices) -> int:
    """Return the output tokens that a rule has room for in addition to a prompt."""
    room = figure - level.used(rule) - level.reserved(rule) - prompt * rule.input_weight(prices)
    return room // rule.output_weight(prices)
