"""The arithmetic of windows, and that Lua and Python agree on every zone's calendar."""

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
import redis
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.quotas.scripts import LUA
from fairlane.quotas.windows import MINUTE, Minute, Totals, calendar_at, zone_table
from tests.support.store import topology

MINUTE_MS, SLICE_MS = MINUTE.length_ms, MINUTE.slice_ms

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "America/Havana",  # changes at midnight
    "Asia/Kathmandu",
    "Asia/Beirut",  # changes at midnight
    "Africa/Casablanca",
    "Africa/Cairo",
    "Australia/Lord_Howe",  # half an hour
    "Pacific/Chatham",
    "Pacific/Kiritimati",
    "Etc/GMT+12",
)
YEARS = st.integers(
    int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000), int(datetime(2059, 1, 1, tzinfo=UTC).timestamp() * 1000)
)


def ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp()) * 1000


@given(
    events=st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 9)), max_size=60),
    until_ms=st.integers(0, 120_000),
)
def test_a_minute_counts_all_of_the_last_sixty_seconds_and_nothing_older_than_a_slice_more(
    events: list[tuple[int, int]], until_ms: int
) -> None:
    minute = Minute()
    events.sort()
    for at_ms, tokens in events:
        minute.add(at_ms, Totals(input=tokens))
    now_ms = max([at_ms for at_ms, _ in events], default=0) + until_ms

    counted = minute.at(now_ms).totals.input

    surely = sum(tokens for at_ms, tokens in events if at_ms > now_ms - MINUTE_MS)
    at_most = sum(tokens for at_ms, tokens in events if at_ms > now_ms - MINUTE_MS - SLICE_MS)
    assert surely <= counted <= at_most


@given(
    events=st.lists(st.tuples(st.integers(0, 60_000), st.integers(1, 9)), min_size=1, max_size=40),
    amount=st.integers(1, 400),
)
def test_so_much_has_left_when_it_is_said_to_and_not_a_millisecond_before(
    events: list[tuple[int, int]], amount: int
) -> None:
    minute = Minute()
    for at_ms, tokens in sorted(events):
        minute.add(at_ms, Totals(output=tokens))
    view = minute.at(60_000)
    held = view.totals.output

    frees_ms = view.frees_ms(amount, ("input", "output"))

    if amount > held:
        assert frees_ms == 60_000 + MINUTE_MS
    else:
        assert held - minute.at(frees_ms).totals.output >= amount
        assert held - minute.at(frees_ms - 1).totals.output < amount


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=30))
def test_however_the_clock_steps_a_minute_keeps_at_most_its_slices_and_empties_in_the_end(steps: list[int]) -> None:
    minute = Minute()
    now_ms = 10**12
    for step in steps:
        now_ms += step
        minute.add(now_ms, Totals(requests=1))
        assert len(minute.slices) <= 241
        assert minute.at(now_ms).totals.requests >= 1

    assert minute.at(now_ms + MINUTE_MS + SLICE_MS).totals.requests == 0


def test_uncounting_what_has_left_takes_nothing_from_what_has_not() -> None:
    minute = Minute()
    old = minute.add(0, Totals(requests=1))
    minute.add(70_000, Totals(requests=1))

    minute.uncount(70_000, old)

    assert minute.at(70_000).totals.requests == 1


def test_looking_changes_nothing() -> None:
    minute = Minute()
    minute.add(0, Totals(requests=1))

    minute.at(10**9)

    assert minute.at(1).totals.requests == 1


@pytest.mark.parametrize(
    ("timezone", "now", "today", "day_ends", "month_ends"),
    [
        ("UTC", "2026-11-21T10:00:00Z", "2026-11-21", "2026-11-22T00:00:00Z", "2026-12-01T00:00:00Z"),
        ("UTC", "2026-12-31T23:59:59Z", "2026-12-31", "2027-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("UTC", "2028-02-29T00:00:00Z", "2028-02-29", "2028-03-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ("Asia/Tokyo", "2026-11-30T15:00:00Z", "2026-12-01", "2026-12-01T15:00:00Z", "2026-12-31T15:00:00Z"),
        # Days of 23 and 25 hours.
        ("Europe/Berlin", "2026-03-28T23:30:00Z", "2026-03-29", "2026-03-29T22:00:00Z", "2026-03-31T22:00:00Z"),
        ("Europe/Berlin", "2026-10-24T22:30:00Z", "2026-10-25", "2026-10-25T23:00:00Z", "2026-10-31T23:00:00Z"),
    ],
)
def test_days_and_months_are_those_of_the_zone(
    timezone: str, now: str, today: str, day_ends: str, month_ends: str
) -> None:
    calendar = calendar_at(ms(now), timezone)

    assert calendar.today == date.fromisoformat(today)
    assert (calendar.day_ends_ms, calendar.month_ends_ms) == (ms(day_ends), ms(month_ends))


@pytest.mark.parametrize("timezone", ZONES)
def test_a_stored_zone_has_the_offset_of_every_hour(timezone: str) -> None:
    table = zone_table(timezone)
    zone = ZoneInfo(timezone)
    starts_ms, offsets_ms = table[::2], table[1::2]

    at = datetime(2026, 1, 1, tzinfo=UTC)
    while at.year < 2029:
        offset_ms = offsets_ms[bisect_right(starts_ms, at.timestamp() * 1000) - 1]
        assert at.astimezone(zone).utcoffset() == timedelta(milliseconds=offset_ms)
        at += timedelta(hours=1)


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "europe berlin"])
def test_a_zone_that_does_not_exist_is_an_error(name: str) -> None:
    with pytest.raises((ZoneInfoNotFoundError, ValueError)):
        zone_table(name)


def test_a_zone_without_changes_is_one_period() -> None:
    assert zone_table("UTC") == (0, 0)
    assert zone_table("Asia/Kolkata") == (0, 19_800_000)


@given(now_ms=YEARS, timezone=st.sampled_from(ZONES))
@example(now_ms=ms("2026-10-31T04:30:00Z"), timezone="America/Havana")
@example(now_ms=ms("2026-11-01T04:30:00Z"), timezone="America/Havana")
@example(now_ms=ms("2026-03-28T21:59:59Z"), timezone="Asia/Beirut")
@example(now_ms=ms("2026-10-24T20:59:59Z"), timezone="Asia/Beirut")
@settings(deadline=None, max_examples=300)
def test_the_scripts_find_the_same_days_as_the_standard_library(
    lua_calendar: "LuaCalendar", now_ms: int, timezone: str
) -> None:
    agrees_with_the_standard_library(lua_calendar, now_ms, timezone)


@pytest.mark.parametrize("timezone", ["America/Havana", "America/Nuuk", "Asia/Beirut", "Africa/Cairo"])
def test_days_are_found_around_each_change_of_a_zone_that_changes_near_midnight(
    lua_calendar: "LuaCalendar", timezone: str
) -> None:
    hour, day = 3_600_000, 86_400_000
    for changed_ms in [start for start in zone_table(timezone)[::2] if start > ms("2026-01-01T00:00:00Z")][:8]:
        for later_ms in (-day, -2 * hour, -hour - 1, -hour, -1, 0, hour // 2, hour - 1, hour, 2 * hour, day):
            agrees_with_the_standard_library(lua_calendar, changed_ms + later_ms, timezone)


def agrees_with_the_standard_library(lua_calendar: "LuaCalendar", now_ms: int, timezone: str) -> None:
    expected = calendar_at(now_ms, timezone)

    day, begins_ms, ends_ms, month_ends_ms = lua_calendar(now_ms, timezone)

    assert day == int(f"{expected.today:%Y%m%d}")
    assert (ends_ms, month_ends_ms) == (expected.day_ends_ms, expected.month_ends_ms)
    assert begins_ms <= now_ms
    assert calendar_at(begins_ms, timezone).today == expected.today != calendar_at(begins_ms - 1, timezone).today


class LuaCalendar:
    """calendar.lua, asked directly."""

    def __init__(self, url: str) -> None:
        self._client = redis.from_url(topology.one_server(url), decode_responses=True)
        source = LUA["calendar"]
        answer = "local c = calendar_at(cjson.decode(ARGV[2]), tonumber(ARGV[1]))\n"
        self._script = f"{source}\n{answer} return {{c.number, c.begins, c.ends, c.month_ends}}"

    def __call__(self, now_ms: int, timezone: str) -> tuple[int, int, int, int]:
        reply = self._client.eval(self._script, 0, now_ms, str(list(zone_table(timezone))))
        number, begins_ms, ends_ms, month_ends_ms = reply
        return number, begins_ms, ends_ms, month_ends_ms

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="session")
def lua_calendar(valkey: EmbeddedStore) -> Iterator["LuaCalendar"]:
    calendar = LuaCalendar(valkey.url)
    yield calendar
    calendar.close()
