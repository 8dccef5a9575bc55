import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.ordering import SPARE_COUNTERS, STEP_WINDOW
from fairlane.scheduler.protocol.engine_priority import encode
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LATENCY, THROUGHPUT, LaneName
from fairlane.worker.vllm.lane_policy import Claim, LanePolicy, Progress, claim_of, service

NOW_MS = 1.8e12
NEW = Progress(tokens=100, computed=0, has_output=False)
HOUR_MS = 3_600_000.0


def claim(
    rank: int = 1, due_ms: float = NOW_MS + HOUR_MS, arrived_ms: float = NOW_MS, *, tenant: str = "", **more: bool
) -> Claim:
    return claim_of(encode(rank, due_ms, **more), {"fairlane_tenant": tenant}, arrived_ms, DEFAULT_LANES.values())


def learnt() -> CostModel:
    costs = CostModel()
    costs.know((10.0, 1.0, 0.5, 0.001, 0.0), (1.0, 1.0), 20.0)
    return costs


def policy(*waiting: Claim, running: tuple[Claim, ...] = ()) -> LanePolicy:
    made = LanePolicy(DEFAULT_LANES, learnt())
    made.begin(NOW_MS, waiting, running)
    return made


def test_a_claim_is_read_from_priority_and_extra_arguments() -> None:
    read = claim_of(
        encode(1, NOW_MS, guaranteed=True), {"fairlane_tenant": "a", "fairlane_weight": 4}, 5.0, DEFAULT_LANES.values()
    )

    assert read == Claim(THROUGHPUT, 0, True, NOW_MS, 5.0, "a", 4.0, is_paced=False)


@pytest.mark.parametrize(("told", "is_paced"), [(1, True), (True, True), (0, False), ("", False)])
def test_a_sender_says_whether_it_meters_prompts_itself(told: object, is_paced: bool) -> None:
    assert claim_of(1, {"fairlane_paced": told}, NOW_MS, DEFAULT_LANES.values()).is_paced is is_paced


@pytest.mark.parametrize(("priority", "lane"), [(-5, LATENCY), (0, LATENCY), (1, THROUGHPUT), (10, THROUGHPUT)])
def test_a_plain_priority_names_a_lane_and_orders_in_it(priority: int, lane: object) -> None:
    read = claim_of(priority, None, NOW_MS, DEFAULT_LANES.values())

    assert (read.lane, read.plain, read.due_ms) == (lane, priority, NOW_MS + read.lane.ttft_ms)


def test_a_lower_plain_priority_goes_first_in_its_lane() -> None:
    later = claim_of(5, None, NOW_MS - 1_000.0, DEFAULT_LANES.values())
    sooner = claim_of(3, None, NOW_MS, DEFAULT_LANES.values())
    order = policy(later, sooner)

    assert order.waiting_rank(sooner, NEW) < order.waiting_rank(later, NEW)


def test_a_rank_beyond_the_last_lane_is_of_the_last() -> None:
    assert claim(rank=9).lane is THROUGHPUT


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.dictionaries(
        st.sampled_from(["fairlane_tenant", "fairlane_weight", "x"]),
        st.none() | st.floats() | st.integers() | st.sampled_from(["", "tenant", "t" * 300, [1], {}]),
    ),
)
def test_whatever_a_client_sends_is_a_claim(priority: int, extra: Mapping[str, object]) -> None:
    read = claim_of(priority, extra, NOW_MS, DEFAULT_LANES.values())

    assert read.weight > 0.0
    assert len(read.tenant) <= 256
    assert policy(read).waiting_rank(read, NEW).lane in (0, 1)


def test_the_upper_lane_goes_first_however_late_it_comes() -> None:
    urgent, patient = claim(rank=0, due_ms=NOW_MS + HOUR_MS), claim(rank=1, due_ms=NOW_MS + 500.0)
    order = policy(urgent, patient)

    assert order.waiting_rank(urgent, NEW) < order.waiting_rank(patient, NEW)


def test_in_a_lane_what_was_guaranteed_goes_first() -> None:
    promised, other = claim(due_ms=NOW_MS + HOUR_MS, guaranteed=True), claim(due_ms=NOW_MS + 1_000.0)
    order = policy(promised, other)

    assert order.waiting_rank(promised, NEW) < order.waiting_rank(other, NEW)


def test_what_can_still_be_in_time_goes_before_what_cannot() -> None:
    late, in_time = claim(due_ms=NOW_MS + 1.0), claim(due_ms=NOW_MS + 500.0)
    order = policy(late, in_time)

    assert order.waiting_rank(in_time, NEW) < order.waiting_rank(late, NEW)


def test_what_has_begun_goes_before_what_has_not() -> None:
    begun, new = claim(arrived_ms=NOW_MS), claim(arrived_ms=NOW_MS - 1_000.0)
    order = policy(begun, new)

    assert order.waiting_rank(begun, Progress(120, 0, True)) < order.waiting_rank(new, NEW)


def test_what_has_waited_half_of_the_longest_wait_counts_for_the_lane_above() -> None:
    order = policy()

    assert order.lane_rank(claim(arrived_ms=NOW_MS - THROUGHPUT.long_wait_ms)) == 0
    assert order.lane_rank(claim(arrived_ms=NOW_MS - THROUGHPUT.long_wait_ms + 1.0)) == 1


def test_a_request_that_keeps_its_lanes_floor_goes_before_all() -> None:
    urgent, kept = claim(rank=0), claim(rank=1)
    order = policy(urgent, kept)

    assert order.waiting_rank(kept, NEW, keeps_floor=True) < order.waiting_rank(urgent, NEW)


def test_of_running_work_the_least_computed_yields_first() -> None:
    order = policy()
    much, little = Progress(900, 900, True), Progress(200, 200, True)

    assert order.running_rank(claim(), much) < order.running_rank(claim(), little)
    assert order.running_rank(claim(), little) < order.running_rank(claim(), Progress(900, 100, False))


def test_of_running_prompts_whose_deadlines_press_the_latest_yields_first() -> None:
    order = policy()
    sooner, later = claim(due_ms=NOW_MS + 500.0), claim(due_ms=NOW_MS + 600.0)

    assert order.running_rank(sooner, NEW) < order.running_rank(later, Progress(100, 90, False))


def test_a_tenant_far_ahead_goes_after_the_least_served_that_waits() -> None:
    ahead, behind = claim(tenant="a", arrived_ms=NOW_MS - 1.0), claim(tenant="b")
    order = policy(ahead, behind)
    order.charge(ahead.lane.name, ahead.tenant, STEP_WINDOW + 1.0)
    order.begin(NOW_MS, [ahead, behind], [])

    assert order.waiting_rank(behind, NEW) < order.waiting_rank(ahead, NEW)


def test_service_counts_by_weight() -> None:
    lanes = DEFAULT_LANES.values()
    heavy, light = (
        claim_of(encode(1, math.inf), {"fairlane_tenant": name, "fairlane_weight": weight}, NOW_MS, lanes)
        for name, weight in (("heavy", 4.0), ("light", 1.0))
    )
    order = policy(heavy, light)
    order.charge(LaneName.THROUGHPUT, "heavy", service(heavy, 400, 50))
    order.charge(LaneName.THROUGHPUT, "light", service(light, 200, 50))

    assert order.waiting_rank(heavy, NEW) < order.waiting_rank(light, NEW)


def test_who_comes_to_a_busy_lane_starts_from_the_least_served_there() -> None:
    old, new = claim(tenant="old"), claim(tenant="new", arrived_ms=NOW_MS + 1.0)
    order = policy(old)
    order.charge(LaneName.THROUGHPUT, "old", 10_000.0)
    order.arrive(new)
    order.begin(NOW_MS, [old, new], [])

    assert not order.waiting_rank(old, NEW).outside_window


def test_a_lane_where_nobody_is_left_is_level_again() -> None:
    old, new = claim(tenant="old"), claim(tenant="new")
    order = policy(old)
    order.charge(LaneName.THROUGHPUT, "old", 10_000.0)
    order.begin(NOW_MS, [], [])
    order.begin(NOW_MS, [old, new], [])

    assert order.waiting_rank(old, NEW)[:-1] == order.waiting_rank(new, NEW)[:-1]


progresses = st.builds(Progress, st.integers(1, 8_000), st.integers(0, 8_000), st.booleans())
claims = st.builds(
    claim,
    st.integers(0, 1),
    st.floats(NOW_MS - HOUR_MS, NOW_MS + HOUR_MS) | st.just(math.inf),
    st.floats(NOW_MS - 2 * HOUR_MS, NOW_MS),
    tenant=st.sampled_from("abc"),
    guaranteed=st.booleans(),
)


@given(st.lists(st.tuples(claims, progresses), min_size=2, max_size=8), st.integers(0, 20_000))
def test_both_orders_are_total_and_the_lane_leads(all_work: list[tuple[Claim, Progress]], served: int) -> None:
    order = policy(*[one for one, _ in all_work])
    order.charge(all_work[0][0].lane.name, all_work[0][0].tenant, float(served))
    order.begin(NOW_MS, [one for one, _ in all_work], [])
    for rank in (order.waiting_rank, order.running_rank):
        ranks = sorted(rank(one, progress) for one, progress in all_work)

        assert [one.lane for one in ranks] == sorted(one.lane for one in ranks)
        assert not any(math.isnan(one.urgency) or math.isnan(one.cost) for one in ranks)


def test_counters_of_tenants_whose_requests_are_over_are_forgotten() -> None:
    standing, order = claim(tenant="standing"), policy()
    order.arrive(standing)
    for number in range(1_000):
        passing = claim(tenant=f"t{number}")
        order.arrive(passing)
        for each in (passing, standing):
            order.charge(each.lane.name, each.tenant, 10.0)
        order.begin(NOW_MS, [standing], [])

    assert len(order.counters[THROUGHPUT.name].values) <= SPARE_COUNTERS
