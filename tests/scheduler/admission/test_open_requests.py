"""What a door keeps of the requests that it let in."""

import pytest
from msgspec import structs

from fairlane.scheduler.admission.demand import BUCKET_MS, ServiceClass
from fairlane.scheduler.admission.open_requests import (
    MAX_REFUSED_RATIO,
    OpenRequests,
    Request,
)
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.queue.promises import MAX_TAKEN
from tests.support.scheduler.admitted import BEST_EFFORT, PROMISED, WORKERS
from tests.support.scheduler.planner_world import LATENCY, THROUGHPUT


def known() -> OpenRequests:
    commitments = OpenRequests(DEFAULT_LANES)
    commitments.look(WORKERS, 0.0)
    return commitments


def chat(tenant: str = "acme", *, max_tokens: int = 500, ttft_ms: float | None = None) -> Request:
    return Request(lane=LATENCY, tenant=tenant, prompt_tokens=100, max_tokens=max_tokens, ttft_ms=ttft_ms)


def test_what_is_over_leaves_nothing_behind() -> None:
    commitments = known()
    for number in range(50):
        commitments.enter(f"r{number}", chat(ttft_ms=5_000.0), guaranteed=number % 2 == 0, now_ms=number)
        commitments.produced(f"r{number}", number, 100.0)
    for number in range(50):
        commitments.leave(f"r{number}", finished=True)

    for level in (PROMISED, BEST_EFFORT):
        left = commitments.ledger.at(level)
        assert (left.loads, left.dated) == (0, {})
        assert left.work_ms == pytest.approx(0.0, abs=1e-6)
        assert left.share == pytest.approx(0.0, abs=1e-9)


def test_a_wait_is_foretold_by_how_fast_its_tenants_places_move() -> None:
    commitments = known()
    for number in range(8):
        commitments.enter(f"r{number}", chat(), guaranteed=False, now_ms=0.0)
        commitments.placed(f"r{number}", number + 1, 0.0)
    assert commitments.still_waits_ms(LATENCY, "acme", 8) is None

    for number in range(4):
        commitments.produced(f"r{number}", 1, 1_000.0 * (number + 1))
    commitments.leave("r4", finished=False)
    commitments.placed("r7", 3, 4_000.0)

    assert commitments.still_waits_ms(LATENCY, "acme", 3) == pytest.approx(3_000.0, rel=0.15)


def test_what_nobody_let_in_changes_nothing() -> None:
    commitments = known()

    commitments.produced("stranger", 5, 0.0)
    commitments.leave("stranger", finished=True)

    assert commitments.ledger.at(BEST_EFFORT).loads == 0


def test_outputs_that_go_on_count_in_the_expected_length() -> None:
    """Of 40 outputs the first 10 end at 20 tokens; the others have 100 by then and are still there."""
    commitments = known()
    for number in range(40):
        commitments.enter(f"r{number}", chat(), guaranteed=False, now_ms=0.0)
        commitments.produced(f"r{number}", 20 if number < 10 else 100, 0.0)
        if number < 10:
            commitments.leave(f"r{number}", finished=True)
    assert commitments.output_tokens(chat()) > 100

    for number in range(10, 40):
        commitments.leave(f"r{number}", finished=True)

    assert commitments.output_tokens(chat()) == pytest.approx(80, abs=10)


def test_each_tenant_has_its_own_expected_length_and_a_new_one_its_lanes() -> None:
    commitments = known()
    for number in range(40):
        tenant, tokens = ("short", 4) if number % 2 else ("long", 400)
        commitments.enter(f"r{number}", chat(tenant), guaranteed=False, now_ms=0.0)
        commitments.produced(f"r{number}", tokens, 0.0)
        commitments.leave(f"r{number}", finished=True)

    short, long, new = (commitments.output_tokens(chat(tenant)) for tenant in ("short", "long", "new"))

    assert (short, long) == (4, 400)
    assert short < new < long
    assert commitments.output_tokens(chat("long", max_tokens=50)) == 50


def test_however_many_deadlines_there_are_a_test_looks_at_hundreds() -> None:
    commitments = known()
    for number in range(5_000):
        asked = Request(lane=THROUGHPUT, prompt_tokens=10, max_tokens=10, deadline_ms=60_000.0 + 7_919.0 * number)
        commitments.enter(f"r{number}", asked, guaranteed=True, now_ms=float(number))

    assert len(commitments.ledger.at(ServiceClass(1, best_effort=False)).dated) < 1_000


def test_what_was_asked_for_in_vain_counts_for_the_lanes_below_and_is_soon_forgotten() -> None:
    commitments = known()
    for number in range(5):
        commitments.enter(f"r{number}", chat(), guaranteed=False, now_ms=0.0)
    for _ in range(1_000):
        commitments.refuse(chat(), 0.0)

    assert commitments.lanes_above(LATENCY, 0.0) == 0.0
    assert commitments.lanes_above(THROUGHPUT, 0.0) > 0.9
    assert commitments.lanes_above(THROUGHPUT, 10_000.0) < 0.1


def test_what_a_tenant_asks_for_in_vain_claims_no_more_than_it_pays_for_several_times() -> None:
    commitments = known()
    commitments.enter("paid", chat(max_tokens=10), guaranteed=False, now_ms=0.0)
    paid = commitments.lanes_above(THROUGHPUT, 0.0)
    for _ in range(1_000):
        commitments.refuse(chat(), 0.0)
        commitments.refuse(chat("pays nothing"), 0.0)

    assert commitments.lanes_above(THROUGHPUT, 0.0) == pytest.approx((1.0 + MAX_REFUSED_RATIO) * paid)


def test_what_is_withdrawn_was_never_asked_for() -> None:
    commitments = known()
    commitments.enter("stays", chat(), guaranteed=True, now_ms=0.0)
    asked, promised = commitments.lanes_above(THROUGHPUT, 100.0), commitments.promised(LATENCY, 100.0)

    commitments.enter("goes", chat(), guaranteed=True, now_ms=50.0)
    commitments.enter("goes", chat(), guaranteed=True, now_ms=60.0)
    commitments.withdraw("goes", 100.0)

    assert commitments.ledger.at(PROMISED).loads == 1
    assert commitments.lanes_above(THROUGHPUT, 100.0) == pytest.approx(asked)
    assert commitments.promised(LATENCY, 100.0) == pytest.approx(promised)


def test_what_one_door_tells_the_others_know() -> None:
    telling, hearing = known(), known()
    for number in range(10):
        telling.enter(f"r{number}", chat(ttft_ms=2_000.0 * (1 + number)), guaranteed=number % 2 == 0, now_ms=0.0)

    said = [(telling.report(500.0), 250), (b"what another release says", 0)]
    hearing.receive_reports(said, {}, 10_000.0)

    own, heard = telling.ledger.up_to(PROMISED), hearing.ledger.up_to(PROMISED)
    assert (heard.loads, heard.work_ms, heard.share) == pytest.approx((own.loads, own.work_ms, own.share))
    assert hearing.ledger.up_to(BEST_EFFORT).loads == 10
    later = (10_000.0 - 750.0) / BUCKET_MS
    assert sorted(heard.dated) == [bucket + later for bucket in sorted(own.dated)]
    hearing.receive_reports([], {}, 10_500.0)
    assert hearing.ledger.up_to(BEST_EFFORT).loads == 0


def test_what_came_to_all_doors_counts_for_the_lanes_below() -> None:
    commitments = known()
    assert commitments.leaves_time(THROUGHPUT, 10_000.0)

    commitments.receive_reports([], {LATENCY: 0.6}, 10_000.0)
    assert commitments.lanes_above(THROUGHPUT, 10_000.0) == 0.6
    commitments.receive_reports([], {LATENCY: 1.7}, 10_000.0)

    assert not commitments.leaves_time(THROUGHPUT, 10_000.0)
    assert commitments.lanes_above(THROUGHPUT, 10_000.0) == MAX_TAKEN
    assert commitments.leaves_time(LATENCY, 10_000.0)


def test_what_came_before_prices_were_known_counts_when_they_are() -> None:
    early, late = known(), OpenRequests(DEFAULT_LANES)
    for commitments in (early, late):
        commitments.enter("r", chat(), guaranteed=True, now_ms=0.0)
    late.look(WORKERS, 1_000.0)

    assert late.lanes_above(THROUGHPUT, 1_000.0) == pytest.approx(early.lanes_above(THROUGHPUT, 1_000.0)) != 0.0


def test_what_was_turned_away_is_told_once() -> None:
    commitments = known()
    commitments.enter("r", chat(), guaranteed=False, now_ms=0.0)
    commitments.refuse(chat(), 0.0)

    told = commitments.refused_us()

    assert told.keys() == {LATENCY}
    assert told[LATENCY] > 0
    assert commitments.refused_us() == {}


def test_a_price_that_moves_counts_for_what_is_open() -> None:
    commitments = known()
    commitments.enter("r", chat(), guaranteed=False, now_ms=0.0)
    before_ms = commitments.ledger.at(BEST_EFFORT).work_ms

    slower = tuple(3.0 * weight for weight in WORKERS[0].step_weights)
    commitments.look((structs.replace(WORKERS[0], step_weights=slower),), 100.0)

    assert commitments.ledger.at(BEST_EFFORT).work_ms == pytest.approx(3.0 * before_ms)
