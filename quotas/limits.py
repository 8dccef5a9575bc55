"""What a tenant or key may use, and the arithmetic that decides one request: pure, and the oracle of the Lua scripts.

A limit compares `used + reserved + amount` with its figure. `used` is what was charged in its window, `reserved`
what running requests may still be charged; a reserved token counts in every window until it is charged.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from quotas.fields import FieldError
from quotas.windows import MINUTE_MS, Totals, Window

LARGEST = 10**15
"""Largest figure of a limit; sums of two stay exact in the scripts' doubles."""

WindowName = Literal["minute", "day", "month", "live", "request"]
Kind = Literal["rate", "concurrency", "quota", "exceeds"]
Scope = Literal["tenant", "key"]


class LimitsError(FieldError):
    """A limit that does not exist, or a figure that no limit can have."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What one limit counts, and for how long."""

    name: str
    window: WindowName
    counts: tuple[str, ...]
    """Fields of a `Totals` (and of a `Demand`) that are added up."""
    kind: Kind


RULES: tuple[Rule, ...] = (  # the same table stands in lua/levels.lua
    Rule("requests_per_minute", "minute", ("requests",), "rate"),
    Rule("tokens_per_minute", "minute", ("input", "output"), "rate"),
    Rule("input_tokens_per_minute", "minute", ("input",), "rate"),
    Rule("output_tokens_per_minute", "minute", ("output",), "rate"),
    Rule("tokens_per_day", "day", ("input", "output"), "quota"),
    Rule("tokens_per_month", "month", ("input", "output"), "quota"),
    Rule("concurrent_requests", "live", ("requests",), "concurrency"),
    Rule("queued_requests", "request", (), "exceeds"),  # enforced by the queue, which knows the depth
    Rule("max_prompt_tokens", "request", ("prompt",), "exceeds"),
    Rule("max_output_tokens", "request", ("choice",), "exceeds"),
)
LIMIT_NAMES: tuple[str, ...] = tuple(rule.name for rule in RULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one tenant or key; None: none. The last two are of each prompt and of each choice."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    concurrent_requests: int | None = None
    queued_requests: int | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None

    @classmethod
    def parse(cls, document: object) -> "Limits":
        """The limits that a JSON object states; null is none. Raises LimitsError naming the field."""
        return cls().merged(document)

    def merged(self, document: object) -> "Limits":
        """These limits with the document's in their place; null takes one away. Raises LimitsError."""
        if not isinstance(document, Mapping):
            raise LimitsError("limits", "must be an object of limit names and whole numbers")
        for name, figure in document.items():
            if name not in LIMIT_NAMES:
                raise LimitsError(f"limits.{str(name)[:64]}", "no such limit")
            if figure is not None and (type(figure) is not int or not 0 <= figure <= LARGEST):
                raise LimitsError(f"limits.{name}", f"must be a whole number from 0 to {LARGEST}, or null")
        return dataclasses.replace(self, **document)

    def as_dict(self) -> dict[str, int]:
        """The limits that are set, in the order of LIMIT_NAMES."""
        figures = ((name, getattr(self, name)) for name in LIMIT_NAMES)
        return {name: figure for name, figure in figures if figure is not None}


class LimitStatus(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One limit as it stands; the scripts write its fields in this order."""

    name: str
    scope: Scope
    limit: int
    used: int
    reserved: int
    resets_at: float | None
    """Epoch seconds by the store's clock when the window is empty again, as far as is known; None: no window."""
    reset_after_s: float
    """The same from now: time to full. While tokens are reserved in a minute window, its whole length."""
    shadow: bool = False
    """Counted and reported, never refused."""

    @property
    def remaining(self) -> int:
        """What a new request could still take."""
        return max(0, self.limit - self.used - self.reserved)


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request takes: itself, its prompts, the longest of them, and its output per choice and in all."""

    input: int
    choice: int
    choices: int
    requests: int = 1
    longest: int | None = None
    """None: there is one prompt."""

    @property
    def prompt(self) -> int:
        """Tokens of the longest prompt."""
        return self.input if self.longest is None else self.longest

    @property
    def output(self) -> int:
        """Output tokens of all choices."""
        return self.choice * self.choices

    def amount(self, rule: Rule) -> int:
        """What the rule counts of it."""
        return sum(getattr(self, field) for field in rule.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One scope's limits and figures at one moment."""

    scope: Scope
    limits: Limits
    shadow: frozenset[str]
    windows: Mapping[WindowName, Window]
    held: Totals
    """Tokens reserved and not yet charged."""

    def rules(self) -> Iterator[tuple[Rule, int]]:
        """Each rule that has a limit here, with its figure."""
        for rule in RULES:
            figure: int | None = getattr(self.limits, rule.name)
            if figure is not None:
                yield rule, figure

    def used(self, rule: Rule) -> int:
        """What was charged in the rule's window."""
        window = self.windows.get(rule.window)
        return 0 if window is None else window.totals.count(rule.counts)

    def reserved(self, rule: Rule) -> int:
        """What running requests may still be charged."""
        return 0 if rule.window == "request" else self.held.count(rule.counts)

    def status(self, rule: Rule, figure: int, now_ms: int) -> LimitStatus:
        """The limit as it stands."""
        used, reserved = self.used(rule), self.reserved(rule)
        window = self.windows.get(rule.window)
        full_ms = None if window is None or window.ends_ms is None else window.ends_ms
        if full_ms is not None and rule.window == "minute":
            full_ms = now_ms + MINUTE_MS if reserved else full_ms if used else now_ms
        return LimitStatus(
            name=rule.name,
            scope=self.scope,
            limit=figure,
            used=used,
            reserved=reserved,
            resets_at=None if full_ms is None else full_ms / 1e3,
            reset_after_s=0.0 if full_ms is None else (full_ms - now_ms) / 1e3,
            shadow=rule.name in self.shadow,
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request does not fit, and when it would."""

    status: LimitStatus
    requested: int
    retry_after_s: float | None
    """None where no time helps by itself: a running request has to end, or it can never fit."""
    kind: Kind

    @property
    def weight(self) -> tuple[int, float]:
        """Of several refusals the heaviest is told: what can never fit, else what takes longest."""
        return (1 if self.kind == "exceeds" else 0), self.retry_after_s or 0.0


def statuses(levels: Iterable[Level], now_ms: int) -> tuple[LimitStatus, ...]:
    """Every limit that is set, level by level."""
    return tuple(level.status(rule, figure, now_ms) for level in levels for rule, figure in level.rules())


def cut_to_room(levels: Iterable[Level], demand: Demand) -> Demand:
    """The demand with its output cut to what the limits leave, at least one token per choice."""
    choice = demand.choice
    for level in levels:
        for rule, figure in level.rules():
            if rule.name in level.shadow or not {"output", "choice"} & set(rule.counts):
                continue
            room = figure - level.used(rule) - level.reserved(rule)
            room -= demand.input if "input" in rule.counts else 0
            choice = min(choice, room if "choice" in rule.counts else room // demand.choices)
    return dataclasses.replace(demand, choice=max(1, choice))


def refusals(levels: Iterable[Level], demand: Demand, now_ms: int) -> list[Refusal]:
    """Every limit that this demand does not fit, those in shadow too."""
    found = []
    for level in levels:
        for rule, figure in level.rules():
            amount = demand.amount(rule)
            excess = level.used(rule) + level.reserved(rule) + amount - figure
            if amount > figure:
                found.append(Refusal(level.status(rule, figure, now_ms), amount, None, "exceeds"))
            elif excess > 0 and amount > 0:
                retry_s = _retry_s(level, rule, excess, now_ms)
                found.append(Refusal(level.status(rule, figure, now_ms), amount, retry_s, rule.kind))
    return found


def heaviest(found: Sequence[Refusal]) -> Refusal | None:
    """The refusal to tell: the first of the heaviest that are not in shadow."""
    binding = [refusal for refusal in found if not refusal.status.shadow]
    return max(binding, key=lambda refusal: refusal.weight, default=None)


def _retry_s(level: Level, rule: Rule, excess: int, now_ms: int) -> float | None:
    window = level.windows[rule.window]
    fits_ms = window.frees_ms(excess, rule.counts)
    return None if fits_ms is None else (fits_ms - now_ms) / 1e3
