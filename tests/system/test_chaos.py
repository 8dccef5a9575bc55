"""A bounded form of `python -m tests.system.chaos`; and, thorough, a scarce budget that adds up to the token."""

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.support.system.appended import Account
from tests.support.system.chaos import Received, World
from tests.system.chaos.clients import Kind, Request, Try
from tests.system.chaos.faults import Strike
from tests.system.chaos.invariants import Books, compare
from tests.system.chaos.members import continuation, next_token
from tests.system.chaos.run import Case, run

pytestmark = [pytest.mark.system, pytest.mark.anyio]

SHORT = Case(
    seed=3,
    seconds=1.0,
    clients=6,
    pause_s=(0.4, 0.4),
    first=("kill gateway and worker", "cut link one way", "fail over"),
    longest=32,
    reservation_lease_s=1.0,
)
LONG = Case(seed=4, seconds=120.0)
SCHEDULES = int(os.environ.get("FAIRLANE_TEST_SCHEDULES", "2"))
"""Of the thorough cases; more of them on a machine of one's own: FAIRLANE_TEST_SCHEDULES=200."""
PER_STORE = 20
"""A store that lives much longer rewrites its file, which then no longer says what happened."""
SEED = int(os.environ.get("FAIRLANE_TEST_SEED", "7"))
AMPLE, SCARCE = 10**7, 1_500
QUANTUM = 16 * 4
"""Output tokens of the first reservation: of two prompts with two choices each."""


async def lives(directory: Path, schedules: int, seed: int, limit: int) -> tuple[Account, list[Received]]:
    """What became of one tenant's budget, and what its clients got for it."""
    with World(directory, random.Random(seed)) as world:
        await world.ready()
        world.key = await world.tenant("acme", limits={"tokens_per_month": limit})
        for _ in range(schedules):
            await world.schedule()
            await world.ready()
        await world.landed()
    return Account("acme", limit).follow(directory), world.received


def least(received: Received) -> int:
    """Tokens that are charged at least. If a gateway and a worker die together, those since the last extension of the
    reservation are not, which are at most as many as before it."""
    return received.tokens if received.deaths < 2 else max(0, received.tokens // 2 - QUANTUM)


@pytest.mark.parametrize(
    "case", [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.thorough)]
)
async def test_streams_and_books_are_exact_whatever_fails(tmp_path: Path, case: Case) -> None:
    report = await run(tmp_path, case)

    assert report.violations == []
    assert report.faults.total() >= 3
    assert any(end.endswith(" whole") for end in report.ends)


def test_a_lost_doubled_or_foreign_token_changes_all_that_follow() -> None:
    whole = continuation([5, 6], 0, 160)
    assert whole == [next_token([5, 6, *whole[:place]], 0) for place in range(160)]
    assert max(Counter(whole).values()) < 10
    for changed in (whole[:80] + whole[81:], whole[:80] + whole[79:], continuation([5, 6], 1, 160)):
        assert sum(one == other for one, other in zip(changed[80:], whole[80:], strict=False)) < 10


DEATHS = [Strike("kill gateway1 and worker2", 10.0, ("gateway1", "worker2"))]


@pytest.mark.parametrize(
    ("kind", "ends", "charged", "strikes", "is_wrong"),
    [
        (Kind.ONCE, ["whole"], 40, [], False),
        (Kind.ONCE, ["whole"], 39, [], True),
        (Kind.ONCE, ["whole"], 41, [], True),
        (Kind.ONCE, ["cut"], 19, [], True),
        (Kind.ONCE, ["cut"], 10, DEATHS, False),
        (Kind.ONCE, ["cut"], 41, DEATHS, True),
        (Kind.LEAVER, ["left"], 24, [], False),
        (Kind.LEAVER, ["left"], 19, [], True),
        (Kind.PATIENT, ["cut", "whole"], 40, DEATHS, False),
        (Kind.PATIENT, ["cut", "whole"], 40 + 300, DEATHS, True),
        (Kind.ONCE, ["internal_error"], 20, [], True),
        (Kind.ONCE, ["internal_error"], 0, [Strike("fail over", 10.0, loses_writes=True)], False),
    ],
)
def test_a_wrong_charge_is_seen(
    kind: Kind, ends: list[str], charged: int, strikes: list[Strike], is_wrong: bool
) -> None:
    request, violations = Request(1, kind, [5], 1, 40, streams=True), list[str]()
    for number, end in enumerate(ends):
        received = 40 if end == "whole" else 20
        request.tries.append(Try(1, 9.0, f"booking{number}", received, end, 11.0))

    compare(request, {"booking0": charged}, strikes, Books(), violations.append)

    assert bool(violations) == is_wrong


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("schedules", "limit"),
    [
        pytest.param(SCHEDULES, AMPLE, id="ample"),
        pytest.param(SCHEDULES, SCARCE, id="scarce"),
    ],
)
async def test_what_was_charged_is_what_was_delivered_whoever_is_killed(
    tmp_path: Path, schedules: int, limit: int
) -> None:
    for first in range(0, schedules, PER_STORE):
        directory = tmp_path / str(first)
        directory.mkdir()
        account, received = await lives(directory, min(PER_STORE, schedules - first), SEED + first + limit, limit)

        entries = account.ledger.values()
        charged = {booking: int(entry["output_tokens"]) for booking, entry in account.ledger.items()}
        whole = {each.booking: each.tokens for each in received if each.is_whole and each.booking}
        assert whole == {booking: charged.get(booking) for booking in whole}
        assert [each for each in received if charged.get(each.booking, 0) < least(each)] == []
        assert whole
        assert account.spent == sum(int(entry["prompt_tokens"]) + int(entry["output_tokens"]) for entry in entries)
        assert account.worst <= limit
