"""Figures of a run: worked out by hand for small ones, and written as JSON."""

import json
import random
from collections import Counter

import msgspec
import pytest

from fairlane.scheduler.planner.steps import Produced, Row, SeqId, StepOutcome, StepPlan
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.simulation.results import ServiceMeter, attained, attained_mean_tpot, spread, summarize
from fairlane.scheduler.simulation.simulate import SimulatedStep
from fairlane.scheduler.simulation.workload import Arrival, Record
from tests.support.scheduler.simulated import arrival, simulation


def record(
    job_id: str = "a",
    *,
    outcome: Outcome | None = Outcome.FINISHED,
    times_ms: tuple[float, ...] = (),
    **fields: float,
) -> Record:
    """A request that came at 0, whose tokens came at these times."""
    made = Record(arrival(job_id, **{"ttft_ms": 100.0, "tpot_ms": 10.0, **fields}))  # type: ignore[arg-type]
    for index, time_ms in enumerate(times_ms):
        made.produced(index, time_ms)
    made.outcome, made.end_ms = outcome, times_ms[-1] if times_ms else 50.0
    return made


@pytest.mark.parametrize(
    ("one", "kept", "strictly"),
    [
        (record(times_ms=(100.0,)), True, True),
        (record(times_ms=(101.0,)), False, False),
        (record(times_ms=(100.0, 110.0, 120.0)), True, True),
        (
            record(times_ms=(20.0, 60.0, 120.0)),
            True,
            False,
        ),  # early at first: the envelope allows what the mean does not
        (record(times_ms=(20.0, 60.0, 121.0)), False, False),
        (record(times_ms=(20.0, 30.0), outcome=Outcome.EXPIRED), False, False),
        (record(times_ms=(20.0, 30.0), outcome=None), False, False),
        (record(outcome=Outcome.REJECTED), False, False),
    ],
)
def test_what_keeps_a_promise(one: Record, kept: bool, strictly: bool) -> None:
    assert (attained(one), attained_mean_tpot(one)) == (kept, strictly)


def test_percentiles_are_figures_that_occurred() -> None:
    found = spread(float(value) for value in range(1_000, 0, -1))

    assert found is not None
    assert (found.count, found.mean, found.most) == (1_000, 500.5, 1_000.0)
    assert (found.p50, found.p95, found.p99, found.p999) == (500.0, 950.0, 990.0, 999.0)
    assert spread([]) is None
    assert spread([7.0]) == type(found)(1, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0)


def test_refusals_and_what_never_ended_are_misses() -> None:
    records = [
        record("a", times_ms=(50.0, 60.0)),
        record("b", times_ms=(200.0, 1_000.0)),
        record("c", outcome=Outcome.REJECTED),
        record("d", outcome=None),
    ]

    summary = summarize(records)

    total = summary.total
    assert (total.requests, total.attained) == (4, 0.25)
    assert total.outcomes == {"finished": 2, "rejected": 1}
    assert (total.late_tokens, total.output_tokens, total.attained_tokens) == (0.5, 4, 2)
    assert (summary.duration_s, summary.goodput_requests_per_s, summary.goodput_tokens_per_s) == (1.0, 1.0, 2.0)
    assert (summary.output_tokens_per_s, summary.tokens_per_s) == (4.0, 4.0 + 2 * 8)
    assert total.ttft_ms is not None
    assert (total.ttft_ms.count, total.ttft_ms.most) == (2, 200.0)
    assert total.tpot_ms is not None
    assert total.tpot_ms.most == 800.0


def test_groups_are_by_lane_tier_and_tenant() -> None:
    one, other = record("a", times_ms=(5.0,)), record("b", outcome=Outcome.REJECTED)
    other.arrival = arrival("b", tenant="zeta", lane=LaneName.THROUGHPUT)

    summary = summarize([one, other])

    assert {name: group.attained for name, group in summary.lanes.items()} == {"latency": 1.0, "throughput": 0.0}
    assert {name: group.requests for name, group in summary.tenants.items()} == {"acme": 1, "zeta": 1}
    assert list(summary.tiers) == ["gold"]


def test_nothing_at_all_has_a_summary() -> None:
    summary = summarize([])

    assert (summary.duration_s, summary.total.requests, summary.total.attained) == (0.0, 0, 0.0)


def test_a_summary_is_written_as_json() -> None:
    meter = ServiceMeter()
    records = simulation(
        [arrival("a"), arrival("b", 5.0, lane=LaneName.THROUGHPUT)], workers=1, observers=[meter]
    ).run()

    document = json.loads(msgspec.json.encode(summarize(records.values(), meter)))

    assert document["total"]["outcomes"] == {"finished": 2}
    assert document["lanes"]["latency"]["ttft_ms"]["count"] == 1
    assert document["service"] == {"acme": 2 * (8 + 2.0 * 4)}
    assert sum(document["service_curve"]["acme"]) == document["service"]["acme"]


def step(
    ended_ms: float, *rows: tuple[str, int, int], out: int = 0, copy_ms: float = 0.0, worker: int = 0
) -> SimulatedStep:
    """A step of 10 ms; rows are (job, first position, tokens), and the first yields `out` tokens."""
    made = tuple(
        Row(SeqId(job_id, 0), (0,) * count, first, (), samples=False, output_index=0) for job_id, first, count in rows
    )
    produced = tuple(Produced(made[0].seq, index, 0, None) for index in range(out))
    return SimulatedStep(
        worker, ended_ms - 10.0, ended_ms, StepPlan(number=1, rows=made), StepOutcome(produced=produced), 10.0, copy_ms
    )


def meter_of(*tenants: str, weight: float = 1.0) -> ServiceMeter:
    """A meter to which each tenant's requests, `<tenant>1` and `<tenant>2`, have come; prompts of 8."""
    meter = ServiceMeter(bucket_ms=100.0)
    for tenant in tenants:
        for number in (1, 2):
            meter.arrived(arrival(f"{tenant}{number}", tenant=tenant, weight=weight), 0.0)
    return meter


def test_service_counts_prompts_once_and_outputs_twice() -> None:
    meter = meter_of("a", "b")

    meter.stepped(step(10.0, ("a1", 0, 8), ("b1", 0, 4), out=1))
    meter.stepped(step(20.0, ("a1", 8, 1), out=1))
    meter.stepped(step(130.0, ("b1", 0, 6)))  # from the start again, and two beyond

    assert meter.service == {"a": 8 + 2 * 2.0, "b": 6.0}
    assert meter.curve == {"a": [12.0], "b": [4.0, 2.0]}
    assert (meter.computed_tokens, meter.recomputed_tokens) == (8 + 4 + 1 + 6, 4)


def test_an_output_computed_again_serves_nobody() -> None:
    meter = meter_of("a")

    meter.stepped(step(10.0, ("a1", 0, 10)))  # eight of the prompt, two of the output
    meter.stepped(step(20.0, ("a1", 0, 11)))

    assert meter.service == {"a": 8.0}
    assert meter.recomputed_tokens == 10


def test_the_tax_is_recomputed_over_computed_tokens_where_nothing_is_swapped() -> None:
    meter = meter_of("a")
    meter.stepped(step(10.0, ("a1", 0, 6)))
    meter.stepped(step(20.0, ("a1", 0, 8)))

    assert meter.tax == pytest.approx(6 / 14)


def test_the_tax_of_copies_is_their_time() -> None:
    meter = meter_of("a")
    meter.stepped(step(10.0, ("a1", 0, 8), copy_ms=2.5))

    assert meter.tax == pytest.approx(2.5 / 12.5)
    assert ServiceMeter().tax == 0.0


def test_the_gap_grows_while_both_have_work_waiting() -> None:
    meter = meter_of("a", "b")

    meter.stepped(step(10.0, ("a1", 0, 8)))
    meter.stepped(step(20.0, ("a1", 8, 1), ("b1", 0, 3), out=1))

    assert meter.max_gap == 8.0


class PlainGap:
    """The largest gap of two tenants, worked out from the definition: every interval, every step, every request."""

    def __init__(self) -> None:
        self.most = 0.0
        self._service = {"a": 0.0, "b": 0.0}
        self._there: dict[str, Arrival] = {}
        self._reached: Counter[str] = Counter()
        self._began: float | None = None

    @property
    def _apart(self) -> float:
        return self._service["a"] - self._service["b"]

    def arrived(self, one: Arrival, now_ms: float) -> None:
        self._there[one.job_id] = one

    def stepped(self, step: SimulatedStep) -> None:
        running = {row.seq.job_id for row in step.plan.rows}
        waiting = [one for job_id, one in self._there.items() if job_id not in running]
        if len({one.tenant for one in waiting if one.at_ms <= step.started_ms}) < 2:
            self._began = None
        if self._began is None and len({one.tenant for one in waiting}) == 2:
            self._began = self._apart
        for row in step.plan.rows:
            one = self._there[row.seq.job_id]
            reached = min(one.prompt_tokens, row.context_length)
            self._service[one.tenant] += max(0, reached - self._reached[one.job_id])
            self._reached[one.job_id] = max(reached, self._reached[one.job_id])
        for produced in step.outcome.produced:
            self._service[self._there[produced.seq.job_id].tenant] += 2.0
        if self._began is not None:
            self.most = max(self.most, abs(self._apart - self._began))

    def ended(self, record: Record) -> None:
        del self._there[record.arrival.job_id]


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_the_gap_is_what_its_definition_says(seed: int) -> None:
    meter, plain, draws = ServiceMeter(), PlainGap(), random.Random(seed)
    arrivals = []
    for name in ("a", "b"):
        every_ms, at_ms = 1e3 / draws.uniform(3.0, 15.0), 0.0
        while (at_ms := at_ms + draws.expovariate(1.0 / every_ms)) < 10_000.0:
            prompt, output = draws.randint(1, 30), draws.randint(1, 20)
            arrivals.append(arrival(f"{name}/{at_ms}", at_ms, tenant=name, prompt=prompt, output=output, max_tokens=32))

    simulation(sorted(arrivals, key=lambda one: one.at_ms), observers=[meter, plain]).run()

    assert meter.max_gap == plain.most > 0.0


def test_who_comes_while_all_runs_that_its_tenant_asked_for_has_not_waited_with_it() -> None:
    meter = meter_of("a", "b")
    meter.stepped(step(10.0, ("a1", 0, 2), ("b1", 0, 1), ("b2", 0, 1)))

    meter.arrived(arrival("b3", tenant="b"), 15.0)
    meter.stepped(step(20.0, ("a1", 2, 4), ("b1", 0, 1), ("b2", 0, 1)))
    meter.arrived(arrival("b4", tenant="b"), 25.0)
    meter.stepped(step(30.0, ("a1", 6, 2), ("b1", 0, 1), ("b2", 0, 1), ("b3", 0, 1)))

    assert meter.max_gap == 4.0  # b3 no longer waits when b4 comes; else it were five


def test_the_gap_is_by_weight() -> None:
    meter = meter_of("a", "b", weight=4.0)

    meter.stepped(step(10.0, ("a1", 0, 8)))

    assert meter.max_gap == 2.0


def test_who_has_nothing_waiting_is_not_behind() -> None:
    meter = meter_of("a")
    meter.arrived(arrival("c1", tenant="c"), 0.0)

    meter.stepped(step(10.0, ("c1", 0, 1)))  # all that it has runs
    meter.stepped(step(20.0, ("a1", 0, 8), ("c1", 1, 1)))
    assert meter.max_gap == 0.0

    meter.stepped(step(30.0, ("a2", 0, 8)))  # c1 waits again, from here on
    assert meter.max_gap == 8.0


def test_lanes_are_apart() -> None:
    meter = meter_of("a")
    meter.arrived(arrival("b1", tenant="b", lane=LaneName.THROUGHPUT), 0.0)

    meter.stepped(step(10.0, ("a1", 0, 8)))

    assert meter.max_gap == 0.0


def test_a_request_that_ends_while_it_waits_leaves_no_claim() -> None:
    meter = meter_of("a")
    gone = arrival("b1", tenant="b")
    meter.arrived(gone, 0.0)
    meter.ended(Record(gone))

    meter.stepped(step(10.0, ("a1", 0, 8)))

    assert meter.max_gap == 0.0


def test_gaps_are_looked_at_as_often_as_asked() -> None:
    meter = meter_of("a", "b")
    meter.every_ms = 15.0

    meter.stepped(step(10.0, ("a1", 0, 6)))
    assert meter.max_gap == 0.0

    meter.stepped(step(20.0, ("a1", 6, 2)))
    assert meter.max_gap == 8.0
