"""A fleet in virtual time: what a chat takes of the store, and what several shards share."""

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.shards import Rivals, home_of
from fairlane.scheduler.simulation.fleet.admission import Gateways
from fairlane.scheduler.simulation.fleet.control_plane import FleetShape
from fairlane.scheduler.simulation.fleet.figures import FleetMeter, FleetSummary
from fairlane.scheduler.simulation.fleet.fleet import Fleet
from fairlane.scheduler.simulation.fleet.rows_worker import RowsShape
from fairlane.scheduler.simulation.fleet.store_cores import Call, StoreTimes
from fairlane.scheduler.simulation.workload import Arrival, Record
from tests.support.scheduler.simulated import arrival

KIND = RowsShape(rows=8, step_ms=10.0, step_tokens=8_000)
TIMES = StoreTimes.parse("reserve=1000,put=2000,turn=3000,settle=1000,renew=10,beat=10")
SLOW = StoreTimes.parse("reserve=83,put=190,turn=210+49,settle=82,renew=44+0.4,beat=34")
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 1.0, "e": 2.0, "f": 4.0}


def shape(workers: int = 2, shards: int = 1, **options: object) -> FleetShape:
    options = {"times": SLOW} | options
    return FleetShape(workers=workers, shards=shards, gateways=2, kind=KIND, **options)  # type: ignore[arg-type]


def flood(seconds: float, per_s: float, *, hard_ttft_ms: float | None = None) -> Iterator[Arrival]:
    """More than the workers can serve, from tenants of unequal weights; some is in the lane above."""
    draws, at_ms, number = random.Random(1), 0.0, 0
    while (at_ms := at_ms + draws.expovariate(per_s / 1e3)) < 1e3 * seconds:
        number += 1
        [tenant], is_first = draws.choices([*WEIGHTS], [*WEIGHTS.values()]), draws.random() < 0.2
        one = arrival(
            f"r{number}",
            at_ms,
            tenant=tenant,
            lane=LaneName.LATENCY if is_first else LaneName.THROUGHPUT,
            prompt=2_000,
            output=draws.randint(1, 30),
            max_tokens=32,
            weight=WEIGHTS[tenant],
        )
        yield Arrival(
            **{name: getattr(one, name) for name in Arrival.__slots__}
            | {"hard_ttft_ms": hard_ttft_ms if is_first else None}
        )


def played(fleet_shape: FleetShape, arrivals: Iterator[Arrival], admission: Gateways | None = None) -> FleetSummary:
    meter = FleetMeter()
    fleet = Fleet(arrivals, fleet_shape, observers=[meter], admission=admission)
    fleet.run()
    return meter.summarize(fleet, admission.guaranteed if admission else ())


def test_a_chat_takes_its_calls_its_links_and_its_steps() -> None:
    fleet = Fleet([arrival("a", 5.0, prompt=8, output=3)], shape(times=TIMES, link_ms=0.5))

    record = fleet.run()["a"]

    assert record.outcome is Outcome.FINISHED
    # reserve and put with two links each, the step of the prompt, and the link to the gateway
    assert record.ttft_ms == pytest.approx(1.0 + 1.0 + 2.0 + 1.0 + 10.0 + 0.5)
    assert record.tpot_ms == pytest.approx(10.0)
    assert (record.tokens, record.late_tokens, record.computed) == (3, 0, 11)
    assert [fleet.cores[0].calls[call] for call in (Call.PUT, Call.TURN)] == [1, 1]
    assert [fleet.budget_cores[0].calls[call] for call in (Call.RESERVE, Call.SETTLE)] == [1, 1]


def test_tokens_later_than_the_envelope_are_counted() -> None:
    in_time, late = (arrival(name, output=4, ttft_ms=1e3, tpot_ms=tpot) for name, tpot in (("a", 10.0), ("b", 9.0)))
    tight = arrival("c", output=4, ttft_ms=1.0, tpot_ms=9.0)

    records = Fleet([in_time, late, tight], shape()).run()

    assert [record.late_tokens for record in records.values()] == [0, 0, 4]


def test_every_chat_ends_once_and_the_same_seed_gives_the_same_records() -> None:
    runs = [Fleet(flood(3.0, 100.0), shape(shards=3), seed=1) for _ in range(2)]

    first, again = (fleet.run() for fleet in runs)

    assert first == again
    assert {record.outcome for record in first.values()} == {Outcome.FINISHED}
    for fleet in runs:
        assert fleet.rows_used == 0
        assert sum(queue.queued for queue in fleet.queues) == 0
        assert all(member.rows.offered.total() == KIND.rows for member in fleet._members)


def test_calls_beyond_what_a_core_can_run_wait() -> None:
    slow, fast = (played(shape(times=StoreTimes.parse(us)), flood(3.0, 100.0)) for us in ("put=8000,turn=8000", "10"))

    assert slow.busiest.utilisation > 0.9
    assert slow.busiest.wait_p99_ms > 100.0
    assert fast.busiest.utilisation < 0.05
    assert fast.busiest.wait_p99_ms < 1.0


def test_tenants_of_several_shards_are_served_by_weight() -> None:
    assert {home_of(tenant, 2) for tenant in WEIGHTS} == {0, 1}

    summary = played(shape(workers=8, shards=2), flood(6.0, 600.0))

    found = summary.fairness["throughput"]
    assert found.tenants == len(WEIGHTS)
    assert found.deviation < 0.05
    assert summary.starved_tenants == 0
    assert summary.rows_used > 0.95


def test_they_are_not_where_workers_leave_room_in_the_shard_that_had_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rivals, "choose", lambda self, home, other, now_ms: home)

    summary = played(shape(workers=8, shards=2), flood(6.0, 600.0))

    assert summary.fairness["throughput"].deviation > 0.1


def test_service_that_nobody_had_to_wait_for_is_not_compared() -> None:
    """One tenant has the workers to itself; from 14 s on, all ask for twice their share."""
    tenants = [f"tenant-{number}" for number in range(8)]
    alone = [(14_200.0 * number / 350, tenants[0]) for number in range(350)]
    burst = [(14_200.0, tenant) for tenant in tenants for _ in range(20)]
    flood = [(14_200.0 + 25.0 * number, tenants[number % 8]) for number in range(1_112)]
    arrivals = (
        arrival(f"r{number}", at_ms, tenant=tenant, prompt=100, output=40, max_tokens=40, lane=LaneName.THROUGHPUT)
        for number, (at_ms, tenant) in enumerate(alone + burst + flood)
    )

    found = played(shape(workers=1), arrivals).fairness["throughput"]

    assert found.tenants == len(tenants)
    assert found.deviation < 0.05


def test_service_counts_when_it_is_computed_not_when_it_is_reported() -> None:
    """Workers report every two seconds, observers look each second."""
    seen: list[float] = []

    class Observer:
        def look(self, fleet: Fleet, now_ms: float) -> None:
            seen.append(fleet.served()[LaneName.LATENCY, "acme"])

        def ended(self, record: Record) -> None:
            pass

    Fleet([arrival("a", prompt=100, output=400, max_tokens=400)], shape(workers=1), observers=[Observer()]).run()

    assert [after - before for before, after in pairwise(seen[:4])] == [2 * 100] * 3


def test_chats_of_workers_that_die_go_on_elsewhere() -> None:
    fleet = Fleet(flood(4.0, 300.0), shape(workers=8, shards=2, deaths_per_min=40.0), seed=2)

    records = fleet.run()

    assert fleet.deaths > 1
    assert {record.outcome for record in records.values()} == {Outcome.FINISHED}
    assert all(record.tokens == record.arrival.output_tokens for record in records.values())
    resumed = [records[job_id] for job_id, done in fleet.interrupted.items() if done.tokens]
    assert resumed
    # their tokens were prompts to the next worker
    assert all(one.computed > 2 * one.arrival.prompt_tokens + one.tokens for one in resumed)
    # and nobody was charged for the same token twice
    arrivals = [record.arrival for record in records.values()]
    assert sum(fleet.service.values()) == sum(one.prompt_tokens + 2 * one.output_tokens for one in arrivals)


def test_guarantees_that_a_death_broke_are_counted_apart() -> None:
    admission = Gateways(2, 8, KIND)
    fleet_shape = shape(workers=8, shards=2, deaths_per_min=40.0)

    summary = played(fleet_shape, flood(4.0, 400.0, hard_ttft_ms=500.0), admission)

    assert summary.deaths > 1
    assert summary.broken_by_death > 0
    assert summary.broken == 0


def test_a_tenant_alone_gets_the_rows_that_other_shards_do_not_use() -> None:
    alone = (arrival(f"r{number}", 0.1 * number, prompt=20, output=20, max_tokens=32) for number in range(3_000))

    summary = played(shape(workers=4, shards=4), alone)

    # with a quarter of the rows it would take four times as long
    assert summary.requests.duration_s < 1.2 * 3_000 * 0.2 / (4 * KIND.rows)


def test_guarantees_hold_with_several_gateways_and_shards() -> None:
    admission = Gateways(2, 8, KIND)

    summary = played(shape(workers=8, shards=2), flood(3.0, 500.0, hard_ttft_ms=500.0), admission)

    assert summary.guaranteed > 200
    assert summary.broken == 0


def test_a_tenant_that_no_row_is_free_for_starves() -> None:
    long = arrival("long", prompt=1, output=3_000, max_tokens=3_000, tenant="first")
    rows = RowsShape(rows=1, step_ms=10.0, step_tokens=1_000)
    meter = FleetMeter()
    fleet = Fleet([long, arrival("late", 1.0, tenant="second")], FleetShape(workers=1, kind=rows), observers=[meter])

    fleet.run()

    assert meter.summarize(fleet).starved_tenants == 1
