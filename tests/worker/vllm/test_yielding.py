from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fairlane.scheduler.protocol.lanes import LATENCY, THROUGHPUT
from fairlane.worker.vllm.yielding import Candidate, Demand, Room, choose_yielding, slot_floors

NO_FLOORS: dict[int, int] = {}
PLENTY = 1_000_000


def low(place: int, blocks: int = 4) -> Candidate:
    return Candidate(place, rank=1, lane_rank=1, blocks=blocks)


def high(blocks: int = 4, tokens: int = 10) -> Demand:
    return Demand(rank=0, blocks=blocks, tokens=tokens)


def test_the_last_of_the_running_order_yields_its_slot() -> None:
    assert choose_yielding([high()], [low(5), low(6), low(7)], Room(0, PLENTY, PLENTY), NO_FLOORS) == ([7], 1)


def test_nobody_yields_where_there_is_room() -> None:
    assert choose_yielding([high()], [low(7)], Room(1, 4, PLENTY), NO_FLOORS) == ([], 1)


def test_an_equal_never_yields() -> None:
    equal = Candidate(7, rank=0, lane_rank=0, blocks=4)

    assert choose_yielding([high()], [equal], Room(0, PLENTY, PLENTY), NO_FLOORS) == ([], 0)


def test_what_has_waited_long_counts_for_the_lane_above_and_keeps_its_slot() -> None:
    promoted = Candidate(7, rank=0, lane_rank=1, blocks=4)

    assert choose_yielding([high()], [low(6), promoted], Room(0, PLENTY, PLENTY), NO_FLOORS) == ([6], 1)


def test_a_lane_keeps_the_slots_of_its_floor() -> None:
    demands, running = [high(), high(), high()], [low(5), low(6), low(7)]

    assert choose_yielding(demands, running, Room(0, PLENTY, PLENTY), {1: 1}) == ([7, 6], 2)


def test_as_many_yield_as_the_blocks_take_and_the_dearest_that_is_not_needed_stays() -> None:
    running = [low(5, blocks=20), low(6, blocks=2), low(7, blocks=1)]

    assert choose_yielding([high(blocks=3)], running, Room(1, 0, PLENTY), NO_FLOORS) == ([7, 6], 1)
    assert choose_yielding([high(blocks=20)], running, Room(1, 0, PLENTY), NO_FLOORS) == ([5], 1)


def test_nobody_yields_where_all_would_not_suffice() -> None:
    assert choose_yielding([high(blocks=99), high()], [low(7)], Room(0, 0, PLENTY), NO_FLOORS) == ([], 0)


def test_no_more_yield_than_a_step_could_start() -> None:
    demands, running = [high(tokens=600), high(tokens=600), high(tokens=600)], [low(5), low(6), low(7)]

    assert choose_yielding(demands, running, Room(0, PLENTY, 1_200), NO_FLOORS) == ([7, 6], 2)
    assert choose_yielding(demands, running, Room(0, PLENTY, 100), NO_FLOORS) == ([7], 1)


candidates = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), max_size=12).map(
    lambda drawn: [Candidate(place, rank, rank, blocks) for place, (rank, blocks) in enumerate(sorted(drawn))]
)
demands = st.lists(st.builds(Demand, st.integers(0, 1), st.integers(0, 30), st.integers(1, 100)), max_size=6).map(
    sorted
)
floors = st.dictionaries(st.integers(1, 2), st.integers(0, 4))


@given(demands, candidates, st.builds(Room, st.integers(-2, 3), st.integers(-5, 40), st.integers(0, 300)), floors)
def test_who_yields_suffices_and_keeps_the_rules(
    demands: list[Demand], candidates: list[Candidate], room: Room, floors: dict[int, int]
) -> None:
    yielding, met = choose_yielding(demands, candidates, room, floors)

    gone = [candidate for candidate in candidates if candidate.place in yielding]
    assert len(yielding) == len(set(yielding)) == len(gone)
    assert met == 0 or room.slots + len(gone) >= met
    assert met == 0 or room.blocks + sum(one.blocks for one in gone) >= sum(one.blocks for one in demands[:met])
    assert met > 0 or not gone
    assert all(candidate.rank > min(demand.rank for demand in demands[:met]) for candidate in gone)
    before, after = (
        Counter(one.lane_rank for one in some) for some in (candidates, [h for h in candidates if h not in gone])
    )
    for rank in before:
        assert after[rank] >= min(before[rank], floors.get(rank, 0))


@given(st.integers(1, 512), st.floats(0.0, 1.0))
def test_a_floor_is_a_whole_slot_at_least_and_never_all_of_them(slots: int, share: float) -> None:
    floor = slot_floors([LATENCY, replace(THROUGHPUT, share_floor=share)], slots).get(1, 0)

    assert floor <= max(slots - 1, 0)
    assert (floor >= 1) == (share > 0.0 and slots > 1)
    assert floor <= max(1, share * slots)
