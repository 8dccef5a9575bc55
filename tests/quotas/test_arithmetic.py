"""A lease's arithmetic in tables: every call early, late, twice, under a clock that jumps; each figure by hand.

A job has 10 prompt tokens and holds 64 output tokens at a time. A row is a call, its answer, and all figures then.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import pytest

from fairlane.quotas.limits import Limits
from fairlane.quotas.store import TOMBSTONE_MS, AlreadySettled, Charge, Need
from tests.support.quotas.house import START_MS, House, ask, charge

pytestmark = pytest.mark.anyio

SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
MIDNIGHT = 14 * HOUR
"""From START_MS, 10:00 UTC on November 21st, to the end of that day…"""
DECEMBER = MIDNIGHT + 9 * DAY
"""…and of that month."""
LARGE = 10_000


class Figures(NamedTuple):
    """What one tenant's limits show."""

    requests: int
    minute: int
    day: int
    month: int
    reserved: int
    live: int


NOTHING = Figures(0, 0, 0, 0, 0, 0)
HELD = Figures(1, 0, 0, 0, 74, 1)
"""Ten prompt tokens and the first quantum."""

Answer = int | bool | Literal["settled"]


@dataclass(frozen=True)
class Row:
    """One call at one moment (ms from START_MS), its answer, and the figures after it."""

    at: int
    call: "Call"
    answer: Answer
    then: Figures


@dataclass(frozen=True)
class Reserve:
    """Answers with the output tokens held."""


@dataclass(frozen=True)
class Extend:
    """So many were published, of so many that the caller knows to be held; answers with the tokens held since."""

    published: int
    known: int


@dataclass(frozen=True)
class Settle:
    """With so many output tokens; None: as a request that never ran. Answers whether it was the first."""

    output: int | None


Call = Reserve | Extend | Settle


async def called(house: House, tenant: str, call: Call) -> Answer:
    try:
        match call:
            case Reserve():
                asked = ask(root=tenant, tenant=tenant, max_output_tokens=1_000, quantum=64, explicit_max=False)
                return (await house.store.reserve(asked)).granted_tokens
            case Extend(published, known):
                need = Need(published=published, prompt_tokens=10, known=known, most=1_000, quantum=64)
                return (await house.store.extend(tenant, "f1", need)).granted_tokens
            case Settle(output):
                final = Charge.refund() if output is None else charge(output)
                return (await house.store.settle(tenant, "f1", final)).first
    except AlreadySettled:
        return "settled"


async def figures(house: House, tenant: str) -> Figures:
    found = {status.name: status for status in await house.store.statuses(tenant, tenant)}
    tokens = [found[f"tokens_per_{window}"] for window in ("minute", "day", "month")]
    assert len({status.reserved for status in tokens}) == 1
    minute, day, month = (status.used for status in tokens)
    requests, live = found["requests_per_minute"].used, found["concurrent_requests"].used
    return Figures(requests, minute, day, month, tokens[0].reserved, live)


REPEATS = {
    "a settle that comes again": [
        Row(0, Reserve(), 64, HELD),
        Row(0, Settle(30), True, Figures(1, 40, 40, 40, 0, 0)),
        Row(0, Settle(30), False, Figures(1, 40, 40, 40, 0, 0)),
        Row(0, Settle(999), False, Figures(1, 40, 40, 40, 0, 0)),
        Row(0, Settle(None), False, Figures(1, 40, 40, 40, 0, 0)),
    ],
    "a reserve that comes again": [
        Row(0, Reserve(), 64, HELD),
        Row(SECOND, Reserve(), 64, HELD),
        Row(SECOND, Settle(1), True, Figures(1, 11, 11, 11, 0, 0)),
        Row(SECOND, Reserve(), "settled", Figures(1, 11, 11, 11, 0, 0)),
    ],
    "a settle after its mark was forgotten": [
        Row(0, Reserve(), 64, HELD),
        Row(0, Settle(30), True, Figures(1, 40, 40, 40, 0, 0)),
        Row(TOMBSTONE_MS + SECOND, Settle(30), False, Figures(0, 0, 40, 40, 0, 0)),
        Row(TOMBSTONE_MS + SECOND, Reserve(), "settled", Figures(0, 0, 40, 40, 0, 0)),
    ],
    "a settle before its reserve": [
        Row(0, Settle(None), False, NOTHING),
        Row(0, Reserve(), "settled", NOTHING),
        Row(0, Extend(1, 64), "settled", NOTHING),
    ],
    "a charge before its reserve": [
        Row(0, Settle(30), False, NOTHING),
        Row(SECOND, Reserve(), "settled", NOTHING),
        Row(SECOND, Settle(30), False, NOTHING),
    ],
    "an extend before its reserve": [
        Row(0, Extend(1, 64), "settled", NOTHING),
        Row(0, Reserve(), 64, HELD),
    ],
    "an extend after its settle": [
        Row(0, Reserve(), 64, HELD),
        Row(0, Settle(30), True, Figures(1, 40, 40, 40, 0, 0)),
        Row(0, Extend(60, 64), "settled", Figures(1, 40, 40, 40, 0, 0)),
    ],
    "an extend that comes again": [
        Row(0, Reserve(), 64, HELD),
        Row(0, Extend(40, 64), 128, Figures(1, 50, 50, 50, 88, 1)),
        Row(0, Extend(40, 64), 128, Figures(1, 50, 50, 50, 88, 1)),
        Row(0, Extend(100, 128), 192, Figures(1, 110, 110, 110, 92, 1)),
        Row(0, Extend(40, 64), 192, Figures(1, 110, 110, 110, 92, 1)),
        Row(0, Settle(130), True, Figures(1, 140, 140, 140, 0, 0)),
    ],
    "a published figure that goes backwards": [
        Row(0, Reserve(), 64, HELD),
        Row(0, Extend(40, 64), 128, Figures(1, 50, 50, 50, 88, 1)),
        Row(0, Extend(20, 128), 192, Figures(1, 50, 50, 50, 152, 1)),
        Row(0, Extend(0, 128), 192, Figures(1, 50, 50, 50, 152, 1)),
        Row(0, Settle(30), True, Figures(1, 50, 50, 50, 0, 0)),
    ],
    "a published figure beyond what is held": [
        Row(0, Reserve(), 64, HELD),
        Row(0, Extend(500, 64), 128, Figures(1, 74, 74, 74, 64, 1)),
        Row(0, Extend(500, 128), 192, Figures(1, 138, 138, 138, 64, 1)),
        Row(0, Settle(500), True, Figures(1, 510, 510, 510, 0, 0)),
    ],
    "a refund": [
        Row(0, Reserve(), 64, HELD),
        Row(0, Settle(None), True, NOTHING),
        Row(0, Settle(30), False, NOTHING),
    ],
    "a refund of what was charged and published": [
        Row(0, Reserve(), 64, HELD),
        Row(0, Extend(40, 64), 128, Figures(1, 50, 50, 50, 88, 1)),
        Row(0, Settle(None), True, Figures(1, 50, 50, 50, 0, 0)),
        Row(0, Settle(None), False, Figures(1, 50, 50, 50, 0, 0)),
    ],
    "a settle with more than was ever held": [
        Row(0, Reserve(), 64, HELD),
        Row(0, Settle(5_000), True, Figures(1, 5_010, 5_010, 5_010, 0, 0)),
    ],
}

EDGES = {
    "tokens leave the minute after those that came before them": [
        Row(0, Reserve(), 64, HELD),
        Row(59_999, Extend(40, 64), 128, Figures(1, 50, 50, 50, 88, 1)),  # slice from 59,750
        Row(60_249, Extend(40, 64), 128, Figures(1, 50, 50, 50, 88, 1)),
        Row(60_250, Settle(50), True, Figures(0, 60, 60, 60, 0, 0)),  # the request's slice, the first, has left
        Row(119_999, Settle(50), False, Figures(0, 60, 60, 60, 0, 0)),
        Row(120_249, Settle(50), False, Figures(0, 10, 60, 60, 0, 0)),
        Row(120_499, Settle(50), False, Figures(0, 10, 60, 60, 0, 0)),
        Row(120_500, Settle(50), False, Figures(0, 0, 60, 60, 0, 0)),
    ],
    "what is held leaves no minute": [
        Row(0, Reserve(), 64, HELD),
        Row(10 * 60 * SECOND, Extend(0, 64), 128, Figures(0, 10, 10, 10, 128, 1)),
        Row(20 * 60 * SECOND, Settle(64), True, Figures(0, 64, 74, 74, 0, 0)),
    ],
    "tokens count in the day in which they came": [
        Row(MIDNIGHT - SECOND, Reserve(), 64, HELD),
        Row(MIDNIGHT - 1, Extend(40, 64), 128, Figures(1, 50, 50, 50, 88, 1)),
        Row(MIDNIGHT, Extend(70, 128), 192, Figures(1, 80, 30, 80, 122, 1)),
        Row(MIDNIGHT, Settle(75), True, Figures(1, 85, 35, 85, 0, 0)),
        Row(MIDNIGHT - 1, Settle(75), False, Figures(1, 85, 50, 85, 0, 0)),
    ],
    "tokens count in the month in which they came": [
        Row(DECEMBER - SECOND, Reserve(), 64, HELD),
        Row(DECEMBER - 1, Extend(40, 64), 128, Figures(1, 50, 50, 50, 88, 1)),
        Row(DECEMBER, Extend(70, 128), 192, Figures(1, 80, 30, 30, 122, 1)),
        Row(DECEMBER, Settle(75), True, Figures(1, 85, 35, 35, 0, 0)),
        Row(DECEMBER - 1, Settle(75), False, Figures(1, 85, 50, 50, 0, 0)),
    ],
    "a refund over midnight counts nowhere": [
        Row(MIDNIGHT - 1, Reserve(), 64, HELD),
        Row(MIDNIGHT, Settle(None), True, NOTHING),
        Row(MIDNIGHT - 1, Settle(None), False, NOTHING),
    ],
}

CLOCKS = {
    "a clock that steps back before an extend": [
        Row(0, Reserve(), 64, HELD),
        Row(-5 * SECOND, Extend(40, 64), 128, Figures(1, 50, 50, 50, 88, 1)),
        Row(-5 * SECOND, Settle(50), True, Figures(1, 60, 60, 60, 0, 0)),
        Row(55_249, Settle(50), False, Figures(1, 60, 60, 60, 0, 0)),
        Row(55_250, Settle(50), False, Figures(0, 0, 60, 60, 0, 0)),  # all of it was dated at the step
    ],
    "a clock that steps back before a settle": [
        Row(0, Reserve(), 64, HELD),
        Row(0, Extend(40, 64), 128, Figures(1, 50, 50, 50, 88, 1)),
        Row(-HOUR, Settle(64), True, Figures(1, 74, 74, 74, 0, 0)),
    ],
    "a clock that steps back over midnight": [
        Row(MIDNIGHT, Reserve(), 64, HELD),
        Row(MIDNIGHT - SECOND, Extend(40, 64), 128, Figures(1, 50, 50, 50, 88, 1)),
        Row(MIDNIGHT + SECOND, Settle(60), True, Figures(1, 70, 20, 70, 0, 0)),
    ],
    "a clock that leaps a day ahead and comes back": [
        Row(0, Reserve(), 64, HELD),
        Row(DAY, Extend(40, 64), 128, Figures(0, 50, 50, 50, 88, 1)),
        Row(0, Settle(50), True, Figures(0, 60, 10, 60, 0, 0)),
        Row(60_250, Settle(50), False, Figures(0, 0, 10, 60, 0, 0)),
    ],
    "a clock that leaps beyond the mark of a settled reservation": [
        Row(0, Reserve(), 64, HELD),
        Row(0, Settle(20), True, Figures(1, 30, 30, 30, 0, 0)),
        Row(2 * HOUR, Settle(20), False, Figures(0, 0, 30, 30, 0, 0)),
        Row(2 * HOUR, Extend(64, 64), "settled", Figures(0, 0, 30, 30, 0, 0)),
    ],
    "a clock that leaps ahead between reserve and settle": [
        Row(0, Reserve(), 64, HELD),
        Row(40 * DAY, Settle(20), True, Figures(0, 30, 30, 30, 0, 0)),
        Row(0, Settle(20), False, Figures(0, 30, 0, 0, 0, 0)),
    ],
}


@pytest.mark.parametrize("table", [REPEATS, EDGES, CLOCKS], ids=["repeats", "edges", "clocks"])
async def test_every_figure_is_as_counted_by_hand(house: House, table: dict[str, list[Row]]) -> None:
    limits = Limits(
        requests_per_minute=100,
        tokens_per_minute=LARGE,
        tokens_per_day=LARGE,
        tokens_per_month=LARGE,
        concurrent_requests=100,
    )
    for case, rows in table.items():
        tenant = case.replace(" ", "-")
        await house.tenant(limits, tenant=tenant)
        for number, row in enumerate(rows):
            await house.set_clock(START_MS + row.at)
            answer = await called(house, tenant, row.call)
            assert (answer, await figures(house, tenant)) == (row.answer, row.then), (case, number)
