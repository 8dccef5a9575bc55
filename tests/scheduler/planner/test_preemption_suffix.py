"""A victim gives only its last blocks."""

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.sequence import State
from tests.support.scheduler.victim_shop import LATENCY_RANK, Shop, given, modes, names, recompute_is_cheap


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

    back, fresh = (one._replace(rank=one.rank._replace(standing=0)) for one in (back, fresh))

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
