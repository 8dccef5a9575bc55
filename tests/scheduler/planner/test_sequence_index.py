from hypothesis import given
from hypothesis import strategies as st

from fairlane.scheduler.planner.lane_index import LaneIndex
from fairlane.scheduler.planner.ordering import SPARE_COUNTERS, Counters
from fairlane.scheduler.planner.sequence import Kind, Sequence
from fairlane.scheduler.planner.sequence_index import Decodes
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from tests.support.scheduler.planner_world import job

TENANTS = ("a", "b")
LONGEST_MS = max(lane.long_wait_ms for lane in DEFAULT_LANES.values())


def sequence(number: int, lane: LaneName, tenant: str, arrived_ms: float) -> Sequence:
    one = job(f"f{number}", lane=lane, tenant=tenant)
    promoted_ms = arrived_ms + DEFAULT_LANES[lane].long_wait_ms
    return Sequence(SeqId(one.job_id, 0), one, 1, arrived_ms, 1_000.0, promoted_ms, granted_until=4)


def regrouped(decoding: dict[int, Sequence], now_ms: float) -> dict[Kind, set[SeqId]]:
    found: dict[Kind, set[SeqId]] = {}
    for seq in decoding.values():
        promoted = seq.promoted_ms <= now_ms
        found.setdefault((*seq.kind[:3], promoted), set()).add(seq.id)
    return found


moves = st.tuples(
    st.integers(0, 5),
    st.sampled_from(LaneName),
    st.sampled_from(TENANTS),
    st.floats(0.0, LONGEST_MS),
)


@given(st.lists(moves, max_size=40))
def test_what_is_kept_is_what_a_fresh_look_at_all_would_find(steps: list[tuple[int, LaneName, str, float]]) -> None:
    decodes, decoding, now_ms = Decodes(DEFAULT_LANES), dict[int, Sequence](), 0.0
    for number, lane, tenant, later_ms in steps:
        if number in decoding:
            decodes.remove(decoding.pop(number))
        else:
            decoding[number] = sequence(number, lane, tenant, now_ms)
            decodes.add(decoding[number])
        now_ms += later_ms / 4

        kinds = decodes.by_kind(now_ms)

        assert {kind: {seq.id for seq in alike} for kind, alike in kinds.items()} == regrouped(decoding, now_ms)
        assert +decodes.counts == {
            name: held for name in LaneName if (held := sum(seq.job.lane is name for seq in decoding.values()))
        }


def test_a_look_does_not_change_afterwards() -> None:
    decodes, seq = Decodes(DEFAULT_LANES), sequence(1, LaneName.LATENCY, "a", 0.0)
    decodes.add(seq)
    kinds = decodes.by_kind(0.0)

    decodes.remove(seq)
    decodes.remove(seq)

    assert kinds == {seq.kind: (seq,)}
    assert decodes.by_kind(0.0) == {}


def test_counters_of_tenants_whose_work_is_over_are_forgotten() -> None:
    lane = LaneIndex(DEFAULT_LANES[LaneName.LATENCY], Counters(100.0))
    lane.add(sequence(0, LaneName.LATENCY, "waits", 0.0))
    for number in range(10_000):
        tenant = f"t{number}"
        lane.lift(tenant)
        lane.begin(tenant, answered=True, away=False)
        for each in (tenant, "waits"):
            lane.charge(each, 10.0, 1.0)
        lane.begin(tenant, answered=True, away=False, count=-1)
        assert len(lane.counters.values) <= SPARE_COUNTERS

    assert lane.counters.value("waits") == 100_000.0
