"""Limits of tenants and keys, and the arithmetic that admits one request: pure, and the oracle of the Lua scripts.

A limit compares `used + reserved + amount` with its figure. `used` is what was charged in its window; `reserved` is
what running requests may still be charged, and counts in every window until it is charged."""

import dataclasses
import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from fairlane.quotas import field_checks
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.windows import MINUTE, Totals, Window

# Largest figure of a limit, so that sums of two stay exact in the scripts' doubles; 10**6 currency units for money.
LARGEST = 10**15

# `live`: requests that are not settled.
WindowName = Literal["minute", "day", "month", "live", "request"]
Kind = Literal["rate", "concurrency", "quota", "exceeds"]
# When a reservation was paused, in ms of the store's clock, and its id: the order in which paused reservations resume.
Place = tuple[int, str]
# The owner of a limit; `model_lane`: the tenant's, for one model, one lane or both.
Scope = Literal["tenant", "key", "model_lane", "parent"]


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices in nano-units (billionths) of the currency per token: whole numbers, so that every charge is exact."""

    input: int = 0
    # Per cached prompt token; never more than `input`.
    cached: int = 0
    output: int = 0

    def spend(self, prompt: int, cached: int, output: int) -> int:
        """Return the cost of tokens; `cached` is the cached part of `prompt`."""
        return (prompt - cached) * self.input + cached * self.cached + output * self.output


FREE = Prices()


@dataclass(frozen=True, slots=True)
class LimitRule:
    """The definition of one limit: what it counts, and over which window."""

    name: str
    window: WindowName
    # Fields of `Totals` and `Demand` to sum.
    counts: tuple[str, ...]
    kind: Kind

    @property
    def is_spend(self) -> bool:
        return self.counts == ("spend",)

    def output_weight(self, prices: Prices) -> int:
        """Return how much one more output token counts; 0 where output does not count or is free."""
        return prices.output if self.is_spend else int("output" in self.counts)

    def input_weight(self, prices: Prices) -> int:
        return prices.input if self.is_spend else int("input" in self.counts)


RULES: tuple[LimitRule, ...] = (  # lua/lib/records.lua has the same table
    LimitRule("requests_per_minute", "minute", ("requests",), "rate"),
    LimitRule("tokens_per_minute", "minute", ("input", "output"), "rate"),
    LimitRule("input_tokens_per_minute", "minute", ("input",), "rate"),
    LimitRule("output_tokens_per_minute", "minute", ("output",), "rate"),
    LimitRule("tokens_per_day", "day", ("input", "output"), "quota"),
    LimitRule("tokens_per_month", "month", ("input", "output"), "quota"),
    LimitRule("concurrent_requests", "live", ("requests",), "concurrency"),
    LimitRule("queued_requests", "request", (), "exceeds"),  # enforced by the queue, which knows its depth
    LimitRule("max_prompt_tokens", "request", ("prompt",), "exceeds"),
    LimitRule("max_output_tokens", "request", ("ceiling",), "exceeds"),
    LimitRule("spend_per_day", "day", ("spend",), "quota"),
    LimitRule("spend_per_month", "month", ("spend",), "quota"),
)
# Figures in nano-units of the currency.
SPEND_LIMITS = tuple(rule.name for rule in RULES if rule.is_spend)
# Limits that longer outputs use up.
OUTPUT_LIMITS = frozenset(rule.name for rule in RULES if {"output", "ceiling", "spend"} & set(rule.counts))
CALENDAR: tuple[WindowName, ...] = ("day", "month")
# Limits the tokens of unfinished batches together. It is checked when a batch is created; the scripts do not know it.
BATCH_LIMIT = "enqueued_batch_tokens"
LIMIT_NAMES: tuple[str, ...] = (*(rule.name for rule in RULES), BATCH_LIMIT)


def unknown_limit(name: str) -> FieldError:
    """Return the error for a limit that does not exist, with the names that it may stand for."""
    named = name[:64]
    names = difflib.get_close_matches(named, LIMIT_NAMES) or LIMIT_NAMES
    return FieldError(f"limits.{named}", f"no such limit: use {' or '.join(names)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one tenant or key; None means no limit. `max_…` apply to each prompt and each choice."""

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
        return cls().merged(document)

    def merged(self, document: object) -> "Limits":
        """Return these limits updated by a JSON object; null removes a limit. Raises FieldError."""
        if not isinstance(document, Mapping):
            raise FieldError("limits", "must be an object of limit names and whole numbers")
        for name, figure in document.items():
            if name not in LIMIT_NAMES:
                raise unknown_limit(str(name))
            if figure is not None and (type(figure) is not int or not 0 <= figure <= LARGEST):
                raise FieldError(f"limits.{name}", f"must be a whole number from 0 to {LARGEST}, or null")
        return dataclasses.replace(self, **document)

    def as_dict(self) -> dict[str, int]:
        figures = ((name, getattr(self, name)) for name in LIMIT_NAMES)
        return {name: figure for name, figure in figures if figure is not None}


LARGEST_LIMITS_BY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsBy:
    """A tenant's limits for one model, one lane, or both."""

    # Empty matches any.
    model: str = ""
    lane: str = ""
    limits: Limits = Limits()

    @classmethod
    def parse_all(cls, value: object, lanes: Collection[str]) -> "tuple[LimitsBy, ...]":
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
        except FieldError as error:
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
    """The current state of one limit; the scripts write its fields in this order."""

    name: str
    scope: Scope
    limit: int
    used: int
    reserved: int
    # Epoch seconds by the store's clock when the window is expected to be empty again; None if it has no window.
    resets_at: float | None
    # Seconds until `resets_at`; the whole minute while tokens are reserved in a minute window.
    reset_after_s: float
    # Counted and reported, but never refuses a request.
    shadow: bool = False

    @property
    def remaining(self) -> int:
        left = self.limit - self.used - self.reserved
        return left if left > 0 else 0  # faster than `max`: every response reads it several times


@dataclass(frozen=True, slots=True)
class Demand:
    """The amounts that one request takes from limits."""

    input: int
    ceiling: int
    # Output tokens per choice to hold first.
    choice: int
    choices: int
    requests: int = 1
    # Tokens of the longest prompt; None if there is only one prompt.
    longest: int | None = None
    # The caller asked for `ceiling`, so a ceiling that can never fit refuses the request.
    stated: bool = True
    # Output tokens that the longest choice resumes from; `choice` is added to them.
    start: int = 0
    # Output tokens to hold in addition: those that other choices lag behind, and published ones that were not paid.
    extra: int = 0
    # Output may be cut to what is left, at least one token per choice.
    is_cut: bool = False
    prices: Prices = FREE

    @property
    def prompt(self) -> int:
        return self.input if self.longest is None else self.longest

    @property
    def output(self) -> int:
        return self.choice * self.choices + self.extra

    @property
    def spend(self) -> int:
        return self.prices.spend(self.input, 0, self.output)

    def amount(self, rule: LimitRule) -> int:
        return sum(getattr(self, field) for field in rule.counts)

    def most(self, rule: LimitRule) -> int:
        later = max(0, self.ceiling - self.start - self.choice) * self.choices
        return self.amount(rule) + (later * rule.output_weight(self.prices) if self.stated else 0)

    def uncut(self, rule: LimitRule) -> tuple[int, int]:
        """Return amount and most for a limit in shadow, which has not cut the demand: the least possible cut."""
        choice, ceiling = min(1, self.choice) if self.is_cut else self.choice, self.ceiling if self.stated else 1
        least = dataclasses.replace(self, choice=choice, ceiling=ceiling).amount(rule)
        return least, self.most(rule) if self.stated else least


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The limits and figures of one scope at one moment."""

    scope: Scope
    limits: Limits
    shadow: frozenset[str]
    windows: Mapping[WindowName, Window]
    # Tokens reserved and not yet charged.
    held: Totals
    # Reserved by batch lines, which only count for days and months.
    held_by_batches: Totals = dataclasses.field(default_factory=Totals)
    # Reservations waiting for room in this level's minute, longest wait first.
    paused: Sequence[Place] = ()

    def rules(self) -> Iterator[tuple[LimitRule, int]]:
        for rule in RULES:
            figure: int | None = getattr(self.limits, rule.name)
            if figure is not None:
                yield rule, figure

    def used(self, rule: LimitRule) -> int:
        window = self.windows.get(rule.window)
        return 0 if window is None else window.totals.count(rule.counts)

    def reserved(self, rule: LimitRule) -> int:
        held = 0 if rule.window == "request" else self.held.count(rule.counts)
        return held + (self.held_by_batches.count(rule.counts) if rule.window in CALENDAR else 0)

    def for_batch(self) -> "Level":
        """Return the level for a batch line: minute and concurrency limits are reserved for interactive requests."""
        met = {rule.name for rule in RULES if rule.window in (*CALENDAR, "request")}
        limits = Limits(**{name: figure for name, figure in self.limits.as_dict().items() if name in met})
        return dataclasses.replace(self, limits=limits, paused=())

    def status(self, rule: LimitRule, figure: int, now_ms: int) -> LimitStatus:
        used, reserved = self.used(rule), self.reserved(rule)
        window = self.windows.get(rule.window)
        ends_ms = None if window is None else window.ends_ms
        if window is not None and ends_ms is not None and rule.window == "minute":
            ends_ms = now_ms + MINUTE.length_ms if reserved else ends_ms if used else now_ms
        return LimitStatus(
            name=rule.name,
            scope=self.scope,
            limit=figure,
            used=used,
            reserved=reserved,
            resets_at=None if ends_ms is None else ends_ms / 1e3,
            reset_after_s=0.0 if ends_ms is None else (ends_ms - now_ms) / 1e3,
            shadow=rule.name in self.shadow,
        )


def statuses(levels: Iterable[Level], now_ms: int) -> tuple[LimitStatus, ...]:
    """Return the status of every limit that is set, level by level."""
    return tuple(level.status(rule, figure, now_ms) for level in levels for rule, figure in level.rules())


def is_paced(rule: LimitRule) -> bool:
    """Return whether running requests pause at this limit."""
    return rule.window == "minute" and "output" in rule.counts


@dataclass(frozen=True, slots=True)
class LimitRefusal:
    """A limit that a request does not fit, and when it would."""

    status: LimitStatus
    requested: int
    # None if waiting does not help by itself: a running request must end, or it can never fit.
    retry_after_s: float | None
    kind: Kind

    @property
    def weight(self) -> tuple[int, float]:
        """Rank of a refusal: those that can never fit first, then by retry time."""
        return (1 if self.kind == "exceeds" else 0), self.retry_after_s or 0.0


def refusals(levels: Iterable[Level], demand: Demand, now_ms: int) -> list[LimitRefusal]:
    """Return every limit that the demand does not fit, those in shadow included."""
    found = []
    for level in levels:
        for rule, figure in level.rules():
            is_shadow = rule.name in level.shadow
            amount, most = demand.uncut(rule) if is_shadow else (demand.amount(rule), demand.most(rule))
            excess = level.used(rule) + level.reserved(rule) + amount - figure
            if level.paused and is_paced(rule) and not is_shadow:
                excess = max(1, excess)
            if most > figure:
                found.append(LimitRefusal(level.status(rule, figure, now_ms), most, None, "exceeds"))
            elif excess > 0 and amount > 0:
                retry_s = _retry_s(level, rule, excess, now_ms)
                found.append(LimitRefusal(level.status(rule, figure, now_ms), amount, retry_s, rule.kind))
    return found


def most_severe(found: Sequence[LimitRefusal]) -> LimitRefusal | None:
    """Return the refusal to report: the first with the highest weight that is not in shadow."""
    binding = [refusal for refusal in found if not refusal.status.shadow]
    return max(binding, key=lambda refusal: refusal.weight, default=None)


def _retry_s(level: Level, rule: LimitRule, excess: int, now_ms: int) -> float | None:
    window = level.windows[rule.window]
    fits_ms = window.frees_ms(excess, rule.counts)
    return None if fits_ms is None else (fits_ms - now_ms) / 1e3
