"""The scheduler's proof: its statistics, its searches, its verdicts, and its command at its smallest."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.common.clients import Client, flood
from benchmarks.common.intervals import highest, interval
from benchmarks.common.line import at_least, at_most, unmeasured
from benchmarks.scheduling.__main__ import main
from benchmarks.scheduling.lines import capacity, fairness, gauntlet, overload
from benchmarks.scheduling.lines.world import BLOCK_SIZE, OURS, THETA, World
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.simulation.simulated_admission import SimulatedAdmission
from fairlane.scheduler.simulation.workload import Record
from tests.support.benchmarks.stage import LATENCY, request


def test_an_interval_is_students_t_around_the_mean() -> None:
    found = interval([1.0, 2.0, 3.0, 4.0])

    assert found.mean == 2.5
    assert found.high - found.mean == pytest.approx(3.182 * math.sqrt(5.0 / 3.0) / 2.0)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_equal_values_leave_no_doubt_and_a_single_one_leaves_all() -> None:
    assert interval([7.0] * 40).low == interval([7.0] * 40).high == 7.0
    assert interval([7.0]).high == math.inf


def test_no_values_have_no_interval() -> None:
    with pytest.raises(ValueError, match="at least one"):
        interval([])


@pytest.mark.parametrize("limit", [0.013, 0.7, 3.3, 250.0])
def test_bisection_finds_the_highest_load_that_holds_wherever_it_is(limit: float) -> None:
    found = highest(lambda load: load <= limit, 1.0, 2.0)

    assert limit / 1.02 <= found <= limit


def test_bisection_says_zero_where_nothing_holds() -> None:
    assert highest(lambda load: False, 1.0, 2.0) == 0.0


def test_bisection_refuses_guesses_out_of_order() -> None:
    with pytest.raises(ValueError, match="0 < low < high"):
        highest(lambda load: True, 2.0, 1.0)


def test_misses_cross_one_percent_between_the_loads_measured() -> None:
    assert capacity.crossing([(1.0, 0.0), (2.0, 0.005), (3.0, 0.015)]) == pytest.approx(2.5)


def test_capacity_is_the_first_load_where_all_miss_too_much_and_the_last_where_none_does() -> None:
    assert capacity.crossing([(1.0, 0.02), (2.0, 0.5)]) == 1.0
    assert capacity.crossing([(1.0, 0.0), (2.0, 0.01)]) == 2.0


def test_a_figure_is_met_up_to_or_from_its_target_on() -> None:
    assert [at_most(1, "", value, 2.0, "").met for value in (2.0, 2.1)] == [True, False]
    assert [at_least(1, "", value, 2.0, "").met for value in (2.0, 1.9)] == [True, False]
    assert unmeasured(1, "", 2.0, "").met is None


def test_the_same_case_gives_the_same_figures() -> None:
    case = fairness.Case(OURS, fairness.EQUAL, pool=5_000, seed=3, duration_s=20.0)

    assert fairness.share(case) == fairness.share(case)


def test_a_tenant_that_floods_is_ahead_under_first_come_first_served_and_not_under_vtc() -> None:
    gaps = {
        policy: fairness.share(fairness.Case(policy, fairness.EQUAL, pool=5_000, seed=0, duration_s=120.0)).gap
        for policy in ("fcfs-vllm", "vtc")
    }

    assert gaps["fcfs-vllm"] > 4 * gaps["vtc"]


def test_a_request_that_comes_back_does_not_keep_its_own_tenant_behind() -> None:
    """In a pool of 230 sequences one of the tenant that was behind lay in the host pool, and could take nobody's
    blocks: nothing of its tenant could begin behind it, until that was behind by 2 Θ."""
    case = fairness.Case(OURS, fairness.HARDER, pool=80_000, seed=0, duration_s=36.0)

    assert fairness.share(case).gap < 1.5 * THETA


def test_policies_have_the_same_arrivals_and_other_loads_the_same_tiers() -> None:
    case = capacity.Case(OURS, "code", 1.0, 5)
    asked = capacity.asked(case)

    assert asked == capacity.asked(case._replace(policy="edf"))
    faster = capacity.asked(case._replace(load=2.0))
    assert [replace(one, at_ms=0.0) for one in faster] == [replace(one, at_ms=0.0) for one in asked]


def test_goodput_counts_what_was_in_time_and_names_what_was_wasted() -> None:
    in_time, late, refused, expired = (
        Record(replace(request(name, LATENCY, ttft_ms=1_000.0), deadline_ms=5_000.0)) for name in "abcd"
    )
    for record, end_ms in ((in_time, 900.0), (late, 6_000.0)):
        record.outcome, record.first_ms, record.end_ms = Outcome.FINISHED, 500.0, end_ms
        record.tokens = record.computed = 10
    refused.outcome, expired.outcome, expired.computed = Outcome.REJECTED, Outcome.EXPIRED, 70

    found = overload.kept([in_time, late, refused, expired], {"a", "b"}, duration_s=2.0)

    assert (found.goodput, found.attained, found.refused) == (5.0, 0.25, 0.25)
    assert (found.refused_tokens, found.expired_tokens, found.computed_tokens) == (0, 70, 90)
    assert (found.guaranteed, found.broken) == (2, 1)


def test_the_door_refuses_what_cannot_be_in_time_before_anything_is_computed() -> None:
    world = World(kv_tokens=20_000)
    tier = replace(overload.PERSON, hard_ttft_ms=20.0)
    patient = Client(tenant="patient", rate_per_s=5.0, prompt=(64, 64), output=(8, 8), tier=overload.PERSON)
    hasty = Client(tenant="hasty", rate_per_s=5.0, prompt=(4_000, 4_000), output=(8, 8), tier=tier, from_ms=2_000.0)
    simulation = world.simulation(OURS, list(flood([patient, hasty], 4.0)))
    [policy] = simulation.policies
    assert isinstance(policy, Planner)
    keeper = SimulatedAdmission([policy], kv_tokens=20_000, block_size=BLOCK_SIZE, max_sequences=16)
    simulation.admission, simulation.observers = keeper.decide, [keeper]

    records = simulation.run().values()

    ends = {(record.arrival.tenant, record.outcome) for record in records}
    assert ends == {("patient", Outcome.FINISHED), ("hasty", Outcome.REJECTED)}
    assert all(record.computed == 0 for record in records if record.outcome is Outcome.REJECTED)


def test_what_the_queue_refuses_was_not_promised_anything() -> None:
    world = World(kv_tokens=20_000)
    client = Client(tenant="acme", rate_per_s=20.0, prompt=(64, 64), output=(8, 8), tier=overload.PERSON)
    simulation = world.simulation(OURS, list(flood([client], 2.0)))
    [policy] = simulation.policies
    assert isinstance(policy, Planner)
    keeper = SimulatedAdmission([policy], kv_tokens=20_000, block_size=BLOCK_SIZE, max_sequences=16)
    simulation.observers = [keeper]
    simulation.run()
    before = set(keeper.guaranteed)

    last = list(flood([client], 2.0))[-1]
    decided = keeper.decide(last, 60_000.0)

    assert decided is not None
    assert decided.guaranteed
    assert keeper.guaranteed == before
    keeper.arrived(last, 60_000.0)
    assert keeper.guaranteed == {*before, last.job_id}


def test_a_policy_beats_ours_only_where_the_interval_leaves_no_doubt() -> None:
    def scores(gap: float, batch: float) -> list[gauntlet.Scores]:
        return [gauntlet.Scores(0.5, 100.0 + seed, gap, batch + seed % 2) for seed in range(4)]

    found = {OURS: scores(10.0, 50.0), "edf": scores(20.0, 60.0), "vtc": scores(30.0, 50.0)}

    assert gauntlet.beaten_on(found) == ["batch, tokens/s (edf)"]
    assert gauntlet.best_on(found) == ["max gap"]


def test_a_policy_with_an_oracle_is_no_rival() -> None:
    ours, better = ([gauntlet.Scores(*(value,) * 4)] * 2 for value in (1.0, 2.0))

    assert gauntlet.beaten_on({OURS: ours, "clairvoyant": better}) == []


@pytest.mark.thorough
def test_the_command_writes_the_figures_of_a_line_and_fails_where_one_is_not_met(tmp_path: Path) -> None:
    written = tmp_path / "lines.json"

    code = main(["--quick", "--only", "6", "--seeds", "1", "--processes", "1", "--json", str(written)])

    figures = json.loads(written.read_text())
    assert len(figures) == 2
    for figure in figures:
        assert list(figure) == ["line", "name", "value", "target", "met", "how"]
        assert figure["line"] == 6
        assert figure["met"] is (figure["value"] <= figure["target"])
    assert code == any(not figure["met"] for figure in figures)


def test_a_flood_is_in_order_at_the_rates_asked_for() -> None:
    clients = [Client(tenant="a", rate_per_s=1.5), Client(tenant="b", rate_per_s=3.0, output=(10, 20), weight=2.0)]

    made = list(flood(clients, 1_000.0, seed=3))

    assert made == list(flood(clients, 1_000.0, seed=3))
    assert [one.at_ms for one in made] == sorted(one.at_ms for one in made)
    assert made[-1].at_ms < 1e6
    assert Counter(one.tenant for one in made) == {
        "a": pytest.approx(1_500, rel=0.1),
        "b": pytest.approx(3_000, rel=0.1),
    }
    assert {(one.prompt_tokens, one.output_tokens, one.max_tokens) for one in made if one.tenant == "a"} == {
        (256, 256, 512)
    }
    assert {one.output_tokens for one in made if one.tenant == "b"} == set(range(10, 21))
    assert {one.weight for one in made if one.tenant == "b"} == {2.0}
    assert len({one.job_id for one in made}) == len(made)


def test_a_client_asks_the_same_whoever_else_does() -> None:
    alone = Client(tenant="a", rate_per_s=2.0, prompt=(1, 900))
    other = Client(tenant="b", rate_per_s=5.0, from_ms=2_000.0, until_ms=4_000.0)

    both = list(flood([other, alone], 10.0))

    assert [one for one in both if one.tenant == "a"] == list(flood([alone], 10.0))
    assert all(2_000.0 < one.at_ms < 4_000.0 for one in both if one.tenant == "b")


def test_a_client_out_of_range_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="client a: rate_per_s must be above 0"):
        Client(tenant="a", rate_per_s=0.0)
    with pytest.raises(ValueError, match="client a: output must be two lengths in order, not 9 and 3"):
        Client(tenant="a", rate_per_s=1.0, output=(9, 3))
