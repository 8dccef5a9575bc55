"""The budgets' benchmark: its worker heeds grants, its verdicts, and its smallest parts for real."""

import itertools

import pytest

from benchmarks.common.report import summary
from benchmarks.gateway.instant import Row
from benchmarks.quotas.crowd import Share
from benchmarks.quotas.drive import drive
from benchmarks.quotas.rates import BUDGET, FEW, FLAT_CONCURRENCY, LEAST, MANY, Load, Turn, Turns, lines, loads, table
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Finished, Job, Lease, Paused, TokenDelta

pytestmark = pytest.mark.anyio
TEXT = [7] * 9


def turn(store_us: float) -> Turn:
    answer = {"operations": 1_000, "seconds": 1.0, "client_s": 0.1, "p50_ms": 1.0, "p99_ms": 2.0}
    return Turn(answer, store_us * 1_000 / 1e6)


def turns(*, budget: float, least: float, many: float) -> Turns:
    found = {load: [turn(budget if load.kind == BUDGET else least)] for load in loads(has_peers=False)}
    of_many = {BUDGET: many, LEAST: least}
    return found | {Load(kind, MANY, FLAT_CONCURRENCY): [turn(store_us)] for kind, store_us in of_many.items()}


def row(max_tokens: int, granted: int) -> Row:
    job = Job(
        job_id="f1",
        gateway_id="g1",
        tenant="t1",
        lane=LaneName.LATENCY,
        prompt=(5,),
        max_tokens=max_tokens,
        granted_until=granted,
        ttft_ms=1.0,
        tpot_ms=1.0,
    )
    return Row(Lease(job=job, epoch=1, arrived_ms_ago=0.0), granted)


def test_its_worker_stops_at_the_end_of_a_grant_and_says_so() -> None:
    one = row(max_tokens=9, granted=2)

    first, second = one.step(TEXT), one.step(TEXT)

    assert [type(event) for event in first.events] == [TokenDelta]
    assert [type(event) for event in second.events] == [TokenDelta, Paused]
    assert not one.can_step
    one.granted = 3
    assert one.can_step


def test_its_worker_ends_an_answer_with_its_last_token() -> None:
    publication = row(max_tokens=1, granted=1).step(TEXT)

    assert [type(event) for event in publication.events] == [TokenDelta, Finished]
    assert publication.ends is not None


def test_a_share_is_what_came_of_what_was_allowed() -> None:
    assert Share.of([0.0] * 90 + [2_000.0] * 100, 2_000, 2) == Share(100, 0.95)


@pytest.mark.parametrize(("budget", "many", "met"), [(20.0, 22.0, [True, True]), (21.0, 24.0, [False, False])])
def test_its_verdicts_are_by_what_the_store_spends(budget: float, many: float, met: list[bool]) -> None:
    found = turns(budget=budget, least=10.0, many=many)

    judged = lines(found, 1)

    assert [line.met for line in judged] == met
    assert judged[0].value == pytest.approx(10.0 / budget)
    assert judged[1].value == pytest.approx(many / budget)
    assert judged[1].how.endswith("one key for each tenant, 1.00")
    assert table(found).row_count == len(found)
    assert summary(judged).row_count == 2


def test_peers_take_part_in_every_load_where_they_are() -> None:
    alone, together = loads(has_peers=False), loads(has_peers=True)

    assert {load.kind for load in alone} == {BUDGET, LEAST}
    assert len(together) == 3 * len(alone)
    assert Load(BUDGET, FEW, FLAT_CONCURRENCY) in alone


async def test_a_drive_goes_round_all_tenants_and_counts_each_operation() -> None:
    seen: list[int] = []

    async def operate(number: int, tenant: int) -> None:
        seen.append(tenant)

    answer = await drive(operate, itertools.count(), tenants=10, concurrency=10, seconds=0.0)

    assert answer["operations"] == 10
    assert sorted(seen) == list(range(10))
    assert answer["p50_ms"] <= answer["p99_ms"]
