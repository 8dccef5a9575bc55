"""Windows over which usage counts: a sliding minute in slices of 250 ms, and the calendar's days and months.

Pure: time is an argument, in epoch ms of the store's clock. If the clock steps back, slices in the future count as
current. The minute at t is the slices t div 250 - 240 … t div 250: 60 seconds, and at most 250 ms more."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property, lru_cache
from zoneinfo import ZoneInfo

MOST_SLICES = 240
# Years for which a zone's offsets are stored; later years use the last offset.
FIRST_YEAR, LAST_YEAR = 2025, 2060


@dataclass(slots=True)
class Totals:
    """A sum of usage."""

    requests: int = 0
    input: int = 0
    output: int = 0
    # Nano-units of the currency.
    spend: int = 0

    def add(self, other: "Totals") -> None:
        self.requests += other.requests
        self.input += other.input
        self.output += other.output
        self.spend += other.spend

    def count(self, fields: Iterable[str]) -> int:
        return sum(getattr(self, name, 0) for name in fields)


@dataclass(frozen=True, slots=True)
class FixedWindow:
    """A day, a month, or the running requests, whose usage expires at one moment or not by itself."""

    totals: Totals
    # When all current usage has expired; None if it does not expire by itself.
    ends_ms: int | None

    def frees_ms(self, amount: int, fields: tuple[str, ...]) -> int | None:
        return self.ends_ms


@dataclass(frozen=True)
class Slicing:
    """The length of the scripts' sliding minute, which benchmarks shorten, and its slices."""

    length_ms: int = 60_000

    @cached_property
    def slice_ms(self) -> int:
        return max(1, self.length_ms // MOST_SLICES)

    @cached_property
    def slices(self) -> int:
        """Slices per length; windows look at one more, so that they are never shorter."""
        return -(-self.length_ms // self.slice_ms)

    def expires_ms(self, number: int) -> int:
        return (number + self.slices + 1) * self.slice_ms


MINUTE = Slicing()


@dataclass(frozen=True, slots=True)
class MinuteView:
    """A sliding minute at one moment."""

    slices: dict[int, Totals]
    now_ms: int

    @property
    def totals(self) -> Totals:
        total = Totals()
        for part in self.slices.values():
            total.add(part)
        return total

    @property
    def ends_ms(self) -> int:
        return MINUTE.expires_ms(max(self.slices)) if self.slices else self.now_ms

    def frees_ms(self, amount: int, fields: tuple[str, ...]) -> int:
        """Return when enough slices have expired; a whole minute if reserved tokens are in the way."""
        for number in sorted(self.slices):
            amount -= self.slices[number].count(fields)
            if amount <= 0:
                return MINUTE.expires_ms(number)
        return self.now_ms + MINUTE.length_ms


# Usage in one window at one moment.
Window = FixedWindow | MinuteView


@dataclass(slots=True)
class Minute:
    """The slices of one sliding minute."""

    slices: dict[int, Totals] = field(default_factory=dict)

    def at(self, now_ms: int) -> MinuteView:
        current = now_ms // MINUTE.slice_ms
        seen: dict[int, Totals] = {}
        for number, part in self.slices.items():
            if number >= current - MINUTE.slices:
                seen.setdefault(min(number, current), Totals()).add(part)
        return MinuteView(seen, now_ms)

    def slide(self, now_ms: int) -> None:
        """Drop expired slices, and date slices now that a stepped-back clock left in the future."""
        self.slices = self.at(now_ms).slices

    def add(self, now_ms: int, usage: Totals) -> int:
        """Count usage now; return its slice, for `uncount`."""
        self.slide(now_ms)
        current = now_ms // MINUTE.slice_ms
        self.slices.setdefault(current, Totals()).add(usage)
        return current

    def uncount(self, now_ms: int, number: int, requests: int = 1) -> None:
        """Take back requests counted in a slice, or as many as it still has."""
        self.slide(now_ms)
        held = self.slices.get(min(number, now_ms // MINUTE.slice_ms))
        if held is not None:
            held.requests -= min(requests, held.requests)


@dataclass(frozen=True, slots=True)
class Calendar:
    """The day and month of one zone at one moment."""

    today: date
    day_begins_ms: int
    day_ends_ms: int
    month_ends_ms: int

    @property
    def month(self) -> str:
        return self.today.strftime("%Y-%m")


def calendar_at(now_ms: int, timezone: str) -> Calendar:
    """Return the calendar of a zone (an IANA name)."""
    zone = ZoneInfo(timezone)
    today = datetime.fromtimestamp(now_ms // 1000, zone).date()
    next_month = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
    tomorrow = today + timedelta(days=1)
    return Calendar(today, _midnight_ms(today, zone), _midnight_ms(tomorrow, zone), _midnight_ms(next_month, zone))


@lru_cache(maxsize=1024)
def zone_table(timezone: str) -> tuple[int, ...]:
    """Return a zone as the scripts read it: start and offset of each period in ms, `(start, offset, start, offset, …)`.

    The first start is 0. Raises `zoneinfo.ZoneInfoNotFoundError` or ValueError for an unknown zone."""
    zone = ZoneInfo(timezone)
    at = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
    offset = at.astimezone(zone).utcoffset() or timedelta(0)
    table = [0, _ms(offset)]
    while at.year <= LAST_YEAR:
        at += timedelta(days=1)
        following = at.astimezone(zone).utcoffset() or timedelta(0)
        if following != offset:
            table += [_change_ms(zone, at, following), _ms(following)]
            offset = following
    return tuple(table)


def _change_ms(zone: ZoneInfo, after: datetime, following: timedelta) -> int:
    """Return the second at which an offset began, at most a day before `after`."""
    low, high = int(after.timestamp()) - 86_400, int(after.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        changed = datetime.fromtimestamp(middle, zone).utcoffset() == following
        low, high = (low, middle) if changed else (middle, high)
    return high * 1000


def _midnight_ms(day: date, zone: ZoneInfo) -> int:
    return int(datetime.combine(day, time.min, zone).timestamp()) * 1000


def _ms(offset: timedelta) -> int:
    return offset // timedelta(milliseconds=1)
