"""What a tenant or key may use, and the arithmetic that decides one request: pure, and the oracle of the Lua scripts.

A limit compares `used + reserved + amount` with its figure. `used` is what was charged in its window, `reserved`
what running requests may still be charged; a reserved token counts in every window until it is charged.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from fairlane.quotas import field_checks
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.windows import Totals, Window

LARGEST = 10**15
"""Largest figure of a limit; sums of two stay exact in the scripts' doubles. Of money: a million of the currency."""

WindowName = Literal["minute", "day", "month", "live", "request"]
Kind = Literal["rate", "concurrency", "quota", "exceeds"]
Place = tuple[int, str]
"""Since when a reservation is paused, in ms of the store's clock, and its id: the order in which paused reservations
go on.
"""
Scope = Literal["tenant", "key", "model_lane", "parent"]
"""Whose limit it is; `model_lane`: the tenant's, of one model, one lane or both."""


class LimitsError(FieldError):
    """A limit that does not exist, or a figure that no limit can have."""


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """What a request's tokens cost, in nano-units (billionths) of the installation's currency per token: whole
    numbers, so that every charge is one, and nothing is ever rounded."""

    input: int = 0
    cached: int = 0
    """Of a prompt token that a cache held; never more than `input`."""
    output: int = 0

    def spend(self, prompt: int, cached: int, output: int) -> int:
        """What tokens cost. `cached`: of the prompt."""
        return (prompt - cached) * self.input + cached * self.cached + output * self.output


FREE = Prices()


@dataclass(frozen=True, slots=True)
class LimitRule:
    """What one limit counts, and for how long."""

    name: str
    window: WindowName
    counts: tuple[str, ...]
    """Fields of a `Totals` (and of a `Demand`) that are added up."""
    kind: Kind

    @property
    def is_spend(self) -> bool:
        return self.counts == ("spend",)

    def output_weight(self, prices: Prices) -> int:
        """What it counts of one more output token: nothing where it does not count output, or output is free."""
        return prices.output if self.is_spend else int("output" in self.counts)

    def input_weight(self, prices: Prices) -> int:
        """The same of a prompt token."""
        return prices.input if self.is_spend else int("input" in self.counts)


RULES: tuple[LimitRule, ...] = (  # the same table stands in lua/rules.lua
    LimitRule("requests_per_minute", "minute", ("requests",), "rate"),
    LimitRule("tokens_per_minute", "minute", ("input", "output"), "rate"),
    LimitRule("input_tokens_per_minute", "minute", ("input",), "rate"),
    LimitRule("output_tokens_per_minute", "minute", ("output",), "rate"),
    LimitRule("tokens_per_day", "day", ("input", "output"), "quota"),
    LimitRule("tokens_per_month", "month", ("input", "output"), "quota"),
    LimitRule("concurrent_requests", "live", ("requests",), "concurrency"),
    LimitRule("queued_requests", "request", (), "exceeds"),  # enforced by the queue, which knows the depth
    LimitRule("max_prompt_tokens", "request", ("prompt",), "exceeds"),
    LimitRule("max_output_tokens", "request", ("ceiling",), "exceeds"),
    LimitRule("spend_per_day", "day", ("spend",), "quota"),
    LimitRule("spend_per_month", "month", ("spend",), "quota"),
)
SPEND_LIMITS = tuple(rule.name for rule in RULES if rule.is_spend)
"""Those of money, in nano-units of the currency."""
OUTPUT_LIMITS = frozenset(rule.name for rule in RULES if {"output", "ceiling", "spend"} & set(rule.counts))
"""Those that a longer answer comes nearer to."""
CALENDAR: tuple[WindowName, ...] = ("day", "month")
"""Windows for which lines of batches count, too."""
BATCH_LIMIT = "enqueued_batch_tokens"
"""What a tenant's, and a key's, batches may still come to together. Whoever takes a batch on looks at it, and no other
request does: the scripts do not know it."""
LIMIT_NAMES: tuple[str, ...] = (*(rule.name for rule in RULES), BATCH_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one tenant or key; None: none. `max_…` is of each prompt, of each choice."""

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
    spend_per_day: int | None = None
    spend_per_month: int | None = None
    enqueued_batch_tokens: int | None = None

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


LARGEST_LIMITS_BY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsBy:
    """Limits of a tenant's work with one model, in one lane, or both."""

    model: str = ""
    """Empty: any."""
    lane: str = ""
    """Empty: any."""
    limits: Limits = Limits()

    @classmethod
    def parse_all(cls, value: object, lanes: Collection[str]) -> "tuple[LimitsBy, ...]":
        """Those that a JSON list states; null is none. Raises FieldError naming the field."""
        if not isinstance(value, list | tuple | None) or len(value or ()) > LARGEST_LIMITS_BY:
            raise FieldError("limits_by", f"must be a list of at most {LARGEST_LIMITS_BY} objects")
        found = [cls._parse(item, f"limits_by.{number}", lanes) for number, item in enumerate(value or ())]
        if len({(each.model, each.lane) for each in found}) < len(found):
            raise FieldError("limits_by", "must name each model and lane once")
        return tuple(found)

    @classmethod
    def _parse(cls, value: object, name: str, lanes: Collection[str]) -> "LimitsBy":
        stated = field_checks.document(value, name, ("model", "lane", "limits"))
        model, lane = stated.get("model"), stated.get("lane")
        if model is None and lane is None:
            raise FieldError(name, "must name a model, a lane or both")
        try:
            limits = Limits.parse(stated.get("limits"))
        except LimitsError as error:
            raise FieldError(f"{name}.{error.field}", error.rule) from None
        for whole in ("queued_requests", BATCH_LIMIT):
            if getattr(limits, whole) is not None:
                raise FieldError(f"{name}.limits.{whole}", "counts for a tenant as a whole")
        return cls(
            model="" if model is None else field_checks.text(model, f"{name}.model"),
            lane="" if lane is None else field_checks.one_of(lane, f"{name}.lane", lanes),
            limits=limits,
        )


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
        return max(0, self.limit - self.used - self.reserved)


def limit_status(
    name: str, scope: Scope, limit: int, used: int, reserved: int, ends_ms: int | None, now_ms: int, *, shadow: bool
) -> LimitStatus:
    """A limit whose window is empty again at `ends_ms`; None: it has no window."""
    resets_at, reset_after_s = (None, 0.0) if ends_ms is None else (ends_ms / 1e3, (ends_ms - now_ms) / 1e3)
    return LimitStatus(
        name=name,
        scope=scope,
        limit=limit,
        used=used,
        reserved=reserved,
        resets_at=resets_at,
        reset_after_s=reset_after_s,
        shadow=shadow,
    )


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request takes: itself, its prompts, the longest of them, and its output per choice and in all."""

    input: int
    ceiling: int
    """The most that one choice may come to."""
    choice: int
    """Output tokens per choice that are held from the beginning."""
    choices: int
    requests: int = 1
    longest: int | None = None
    """None: there is one prompt."""
    stated: bool = True
    """The caller has asked for the ceiling: where that can never fit, nothing does."""
    start: int = 0
    """Output tokens that the longest choice begins with; `choice` comes on top."""
    owed: int = 0
    """Output tokens beside those that are held too: that others lag behind it, and begun ones that nobody has paid."""
    is_cut: bool = False
    """Where little is left it holds less output, at least a token per choice; else it fits whole or not at all."""
    prices: Prices = FREE

    @property
    def prompt(self) -> int:
        return self.input if self.longest is None else self.longest

    @property
    def output(self) -> int:
        return self.choice * self.choices + self.owed

    @property
    def spend(self) -> int:
        """As if no cache held anything of its prompts."""
        return self.prices.spend(self.input, 0, self.output)

    def amount(self, rule: LimitRule) -> int:
        """What the rule counts of what it holds at first."""
        return sum(getattr(self, field) for field in rule.counts)

    def most(self, rule: LimitRule) -> int:
        """What the rule counts of all that was asked for."""
        later = max(0, self.ceiling - self.start - self.choice) * self.choices
        return self.amount(rule) + (later * rule.output_weight(self.prices) if self.stated else 0)

    def uncut(self, rule: LimitRule) -> tuple[int, int]:
        """Amount and most by a limit in shadow, which has not cut it: the least that it would have been cut to."""
        choice, ceiling = min(1, self.choice) if self.is_cut else self.choice, self.ceiling if self.stated else 1
        least = dataclasses.replace(self, choice=choice, ceiling=ceiling).amount(rule)
        return least, self.most(rule) if self.stated else least


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One scope's limits and figures at one moment."""

    scope: Scope
    limits: Limits
    shadow: frozenset[str]
    windows: Mapping[WindowName, Window]
    held: Totals
    """Tokens reserved and not yet charged."""
    held_by_batches: Totals = dataclasses.field(default_factory=Totals)
    """The same of lines of batches, which count for days and months alone."""
    paused: Sequence[Place] = ()
    """Reservations that wait for this level's minute to have room, the one that has waited longest first."""

    def rules(self) -> Iterator[tuple[LimitRule, int]]:
        """Each rule that has a limit here, with its figure."""
        for rule in RULES:
            figure: int | None = getattr(self.limits, rule.name)
            if figure is not None:
                yield rule, figure

    def used(self, rule: LimitRule) -> int:
        """What was charged in the rule's window."""
        window = self.windows.get(rule.window)
        return 0 if window is None else window.totals.count(rule.counts)

    def reserved(self, rule: LimitRule) -> int:
        """What running requests may still be charged."""
        held = 0 if rule.window == "request" else self.held.count(rule.counts)
        return held + (self.held_by_batches.count(rule.counts) if rule.window in CALENDAR else 0)

    def for_batch(self) -> "Level":
        """The level as a line of a batch meets it: its minute and its running requests are there for people."""
        met = {rule.name for rule in RULES if rule.window in (*CALENDAR, "request")}
        limits = Limits(**{name: figure for name, figure in self.limits.as_dict().items() if name in met})
        return dataclasses.replace(self, limits=limits, paused=())

    def status(self, rule: LimitRule, figure: int, now_ms: int) -> LimitStatus:
        used, reserved = self.used(rule), self.reserved(rule)
        window = self.windows.get(rule.window)
        full_ms = None if window is None else window.ends_ms
        if window is not None and full_ms is not None and rule.window == "minute":
            full_ms = now_ms + window.length_ms if reserved else full_ms if used else now_ms
        shadow = rule.name in self.shadow
        return limit_status(rule.name, self.scope, figure, used, reserved, full_ms, now_ms, shadow=shadow)


def statuses(levels: Iterable[Level], now_ms: int) -> tuple[LimitStatus, ...]:
    """Every limit that is set, level by level."""
    return tuple(level.status(rule, figure, now_ms) for level in levels for rule, figure in level.rules())
