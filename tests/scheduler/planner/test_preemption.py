import pytest

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.priority import IDLE
from fairlane.scheduler.planner.sequence import State
from fairlane.scheduler.protocol.messages import YieldMode
from tests.support.scheduler.victim_shop import (
    LATENCY_RANK,
    THROUGHPUT_RANK,
    Shop,
    given,
    modes,
    names,
    recompute_is_cheap,
    swap_is_cheap,
)


def test_nobody_yields_where_nothing_is_short() -> None:
    shop = Shop()
    shop.stand("batch")

    assert shop.choose(0, shop.stand("chat", LATENCY_RANK, state=State.WAITING)) == []


def test_a_waiting_request_takes_from_the_lane_below() -> None:
    shop = Shop()
    shop.stand("batch")

    assert names(shop.choose(2, shop.stand("chat", LATENCY_RANK, state=State.WAITING))) == ["batch"]


def test_a_waiting_request_takes_nothing_from_its_own_lane_or_above() -> None:
    shop = Shop()
    shop.stand("chat", LATENCY_RANK)
    shop.stand("batch")

    assert shop.choose(2, shop.stand("next", THROUGHPUT_RANK, urgency=0.0, state=State.WAITING)) is None


def test_running_work_takes_from_the_last_ranked_of_its_lane() -> None:
    shop = Shop()
    growing = shop.stand("a", urgency=1.0)
    shop.stand("b", urgency=2.0)
    shop.stand("c", urgency=3.0)

    assert names(shop.choose(1, growing)) == ["c"]


def test_nobody_yields_to_work_ranked_below_it() -> None:
    shop = Shop()
    shop.stand("a", urgency=1.0)
    growing = shop.stand("b", urgency=2.0)

    assert shop.choose(1, growing) is None


def test_lower_lanes_yield_before_equals() -> None:
    shop = Shop()
    growing = shop.stand("chat", LATENCY_RANK, urgency=1.0)
    shop.stand("other-chat", LATENCY_RANK, urgency=2.0)
    shop.stand("batch")

    assert names(shop.choose(1, growing)) == ["batch"]


def test_idle_work_yields_to_anybody() -> None:
    shop = Shop()
    shop.stand("paused", IDLE, state=State.PAUSED)

    assert names(shop.choose(1, shop.stand("batch", state=State.WAITING))) == ["paused"]


def test_the_cheapest_way_back_per_freed_block_yields_first() -> None:
    shop = Shop(host_slots=0)
    shop.stand("long", blocks=60)  # attention makes its recompute dearer per block
    shop.stand("short", blocks=4)

    assert names(shop.choose(3, shop.stand("chat", LATENCY_RANK, state=State.WAITING))) == ["short"]


def test_only_as_many_yield_as_are_needed() -> None:
    shop = Shop(host_slots=0)
    shop.stand("small", blocks=2)
    shop.stand("large", blocks=20)

    assert names(shop.choose(18, shop.stand("chat", LATENCY_RANK, state=State.WAITING))) == ["large"]


def test_nobody_yields_in_vain() -> None:
    shop = Shop()
    shop.stand("a", blocks=4)
    shop.stand("b", blocks=4)

    assert shop.choose(9, shop.stand("chat", LATENCY_RANK, state=State.WAITING)) is None


def test_choices_that_share_a_prompt_free_it_together() -> None:
    shop = Shop()
    trunk, branch = shop.stand("trunk", blocks=10), shop.stand("branch", blocks=0, computed=40)
    shop.pool.share(trunk.seq.table, 10, branch.seq.table)

    victims = shop.choose(10, shop.stand("chat", LATENCY_RANK, state=State.WAITING))

    assert sorted(names(victims)) == ["branch", "trunk"]


@pytest.mark.parametrize(("costs", "mode"), [(swap_is_cheap(), "swap"), (recompute_is_cheap(), "recompute")])
def test_the_mode_is_what_the_cost_model_finds_cheaper(costs: CostModel, mode: YieldMode) -> None:
    shop = Shop(costs=costs)
    shop.stand("batch")

    assert modes(shop.choose(1, shop.stand("chat", LATENCY_RANK, state=State.WAITING))) == [mode]


def test_without_host_room_the_rest_is_recomputed() -> None:
    shop = Shop(host_slots=5)
    shop.stand("a", urgency=1.0, blocks=4)
    shop.stand("b", urgency=2.0, blocks=4)

    victims = shop.choose(8, shop.stand("chat", LATENCY_RANK, state=State.WAITING))

    assert sorted(modes(victims)) == ["recompute", "swap"]


def test_work_that_computed_nothing_yet_is_simply_dropped() -> None:
    shop = Shop()
    shop.stand("begun", blocks=4, computed=0, state=State.PREFILL, exact=True)

    assert modes(shop.choose(4, shop.stand("chat", LATENCY_RANK, state=State.WAITING))) == ["recompute"]


def test_exact_work_is_swapped_even_where_recompute_is_cheaper() -> None:
    shop = Shop(costs=recompute_is_cheap())
    shop.stand("exact", exact=True)

    assert modes(shop.choose(1, shop.stand("chat", LATENCY_RANK, state=State.WAITING))) == ["swap"]


def test_with_the_host_full_another_victim_stands_in_for_exact_work() -> None:
    shop = Shop(host_slots=0)
    shop.stand("exact", blocks=4, exact=True)
    shop.stand("fast", blocks=50)

    assert names(shop.choose(1, shop.stand("chat", LATENCY_RANK, state=State.WAITING))) == ["fast"]


def test_what_others_give_less_of_takes_no_room_from_exact_work() -> None:
    shop = Shop(host_slots=6)
    trunk, branch = shop.stand("trunk", urgency=2.0, blocks=5), shop.stand("branch", blocks=0, computed=20, exact=True)
    shop.pool.share(trunk.seq.table, 3, branch.seq.table)
    shop.pool.allocate(branch.seq.table, 2)

    victims = shop.choose(5, shop.stand("chat", LATENCY_RANK, state=State.WAITING))

    assert dict(zip(names(victims), modes(victims), strict=True))["branch"] == "swap"


def test_exact_work_is_never_recomputed_not_even_where_nothing_else_could_run() -> None:
    shop = Shop(host_slots=0)
    shop.stand("exact", exact=True)
    chat = shop.stand("chat", LATENCY_RANK, state=State.WAITING)

    assert shop.choose(1, chat) is None
    assert shop.choose(1, chat, last_resort=True) is None


def test_slots_that_were_counted_for_exact_work_are_nobody_elses() -> None:
    shop = Shop(host_slots=6)
    shop.stand("fast", urgency=2.0, blocks=4)
    shop.stand("exact", blocks=3, exact=True)

    victims = shop.choose(7, shop.stand("chat", LATENCY_RANK, state=State.WAITING))

    assert dict(zip(names(victims), modes(victims), strict=True)) == {"fast": "recompute", "exact": "swap"}


def test_to_exact_work_that_stays_all_others_yield_where_nothing_else_could_run() -> None:
    shop = Shop(host_slots=0)
    staying = shop.stand("staying", urgency=9.0, exact=True)
    shop.stand("chat", LATENCY_RANK, blocks=2)

    assert shop.choose(1, staying) is None
    assert names(shop.choose(1, staying, last_resort=True, leader="chat")) == ["chat"]


def test_the_leader_is_swapped_but_never_recomputed() -> None:
    swapping, full = Shop(costs=recompute_is_cheap()), Shop(host_slots=0)
    for shop in (swapping, full):
        shop.stand("leader")
        shop.stand("chat", LATENCY_RANK, state=State.WAITING)

    assert modes(swapping.choose(1, swapping.standings[1], leader="leader")) == ["swap"]
    assert full.choose(1, full.standings[1], leader="leader", last_resort=True) is None


def test_a_victim_gives_only_as_many_blocks_as_are_short() -> None:
    shop = Shop()
    shop.stand("batch", blocks=20)

    assert given(shop.choose(3, shop.stand("chat", LATENCY_RANK, state=State.WAITING))) == {"batch": 3}


def test_the_last_of_several_victims_gives_only_what_is_still_lacking() -> None:
    shop = Shop()
    growing = shop.stand("a", urgency=1.0)
    for urgency, name in enumerate("bcd", 2):
        shop.stand(name, urgency=urgency)

    assert given(shop.choose(6, growing)) == {"d": 4, "c": 2}


def test_the_way_back_costs_what_was_given() -> None:
    shop = Shop(costs=recompute_is_cheap())
    shop.stand("batch", blocks=20)
    chat = shop.stand("chat", LATENCY_RANK, state=State.WAITING)

    one, all_of_it = shop.choose(1, chat), shop.choose(20, chat)

    assert one is not None
    assert all_of_it is not None
    assert 0.0 < one[0].resume_ms < all_of_it[0].resume_ms / 10


def test_blocks_that_hold_nothing_yet_cost_nothing_whoever_gives_them() -> None:
    shop = Shop(host_slots=0)
    shop.stand("prefill", blocks=20, computed=30, state=State.PREFILL, exact=True)
    chat = shop.stand("chat", LATENCY_RANK, state=State.WAITING)

    victims = shop.choose(12, chat)

    assert victims is not None
    assert [(victim.mode, victim.resume_ms) for victim in victims] == [("recompute", 0.0)]
    assert shop.choose(13, chat) is None


def test_exact_work_gives_as_much_as_the_host_has_room_for() -> None:
    shop = Shop(host_slots=5)
    shop.stand("exact", blocks=20, exact=True)
    chat = shop.stand("chat", LATENCY_RANK, state=State.WAITING)

    victims = shop.choose(5, chat)

    assert (given(victims), modes(victims)) == ({"exact": 5}, ["swap"])
    assert shop.choose(6, chat) is None


def test_nobody_gives_shared_blocks_that_would_not_be_free() -> None:
    shop = Shop()
    trunk, branch = shop.stand("trunk", urgency=1.0, blocks=10), shop.stand("branch", urgency=3.0, blocks=0)
    shop.pool.share(trunk.seq.table, 8, branch.seq.table)
    shop.pool.allocate(branch.seq.table, 2)
    branch.seq.num_computed = 40
    shop.stand("other", urgency=2.0, blocks=10)
    chat = shop.stand("chat", LATENCY_RANK, state=State.WAITING)

    victims = shop.choose(13, chat)

    assert sum(given(victims).values()) == 13


def test_work_on_its_way_back_takes_from_equals_only_where_they_do_not_run() -> None:
    shop = Shop()
    back = shop.stand("a", urgency=1.0, state=State.SWAPPED)
    shop.stand("b", urgency=3.0)

    assert shop.choose(1, back) is None
    away = shop.stand("c", urgency=2.0, state=State.DROPPED)
    shop.pool.allocate(away.seq.table, 2)
    assert names(shop.choose(1, back)) == ["c"]


def test_copies_that_nobody_measured_yet_are_tried() -> None:
    shop = Shop(costs=CostModel())
    shop.stand("batch", blocks=20, computed=77)

    assert modes(shop.choose(1, shop.stand("chat", LATENCY_RANK, state=State.WAITING))) == ["swap"]


def test_what_is_guaranteed_takes_from_best_effort_of_its_lane_whether_it_has_begun_or_not() -> None:
    shop = Shop()
    back, fresh = shop.stand("a", state=State.SWAPPED), shop.stand("b", state=State.WAITING)
    shop.stand("c")
    assert shop.choose(1, back) is None
    assert shop.choose(1, fresh) is None

    back, fresh = (one._replace(rank=one.rank._replace(service_class=0)) for one in (back, fresh))

    assert names(shop.choose(1, back)) == ["c"]
    assert names(shop.choose(1, fresh)) == ["c"]


def test_what_sequences_hold_alone_goes_before_what_they_share() -> None:
    shop = Shop()
    lender, borrower = shop.stand("lender", blocks=10), shop.stand("borrower", blocks=0)
    shop.pool.share(lender.seq.table, 8, borrower.seq.table)
    shop.pool.allocate(borrower.seq.table, 2)
    borrower.seq.num_computed = 40
    first = shop.stand("first", LATENCY_RANK, state=State.WAITING)

    assert given(shop.choose(4, first)) == {"lender": 2, "borrower": 2}
    assert given(shop.choose(12, first)) == {"lender": 10, "borrower": 10}
