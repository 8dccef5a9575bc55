"""Prompts of a simulation: the token ids that plain tuples would have, and so the same hits in the prefix cache."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Job, Lease
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.simulate import Simulation
from fairlane.scheduler.simulation.synthetic_tenants import SyntheticTenants
from fairlane.scheduler.simulation.trace import HASHED_TOKENS, TraceRow
from fairlane.scheduler.simulation.workload import Arrival, Hardware, Prompt

HARDWARE = Hardware(step=(1.0, 0.1, 0.01, 0.0, 0.0), copy=(0.1, 0.1))
PLACES = st.none() | st.integers(-2_000, 2_000)


@given(
    st.integers(0, 1_800), st.lists(st.integers(2, 5), max_size=4), PLACES, PLACES, st.sampled_from([1, 3, -1, None])
)
def test_it_is_the_tuple_that_its_blocks_describe(
    length: int, blocks: list[int], first: int | None, end: int | None, step: int | None
) -> None:
    plain = (*[block for block in blocks for _ in range(HASHED_TOKENS)], *[-7] * length)[:length]
    prompt = Prompt(length, tuple(blocks), -7)

    assert tuple(prompt) == plain
    assert prompt[first:end:step] == plain[first:end:step]
    assert len(prompt) == length
    assert [prompt[place] for place in (0, -1) if length] == [plain[place] for place in (0, -1) if length]


def planner(*, remembers: bool = True) -> Planner:
    return Planner(
        lanes=DEFAULT_LANES,
        block_size=16,
        blocks=4_096,
        host_slots=64,
        max_sequences=8,
        max_step_tokens=2_048,
        costs=CostModel(),
        prefix_share=1.0 if remembers else None,
    )


class Spelled(Planner):
    """Gets each prompt as the tuple of its token ids."""

    def add(self, lease: Lease, now_ms: float) -> None:
        job: Job = lease.job
        fields = {name: getattr(job, name) for name in job.__struct_fields__}
        spelled = Job(**{**fields, "prompt": tuple(job.prompt)})
        super().add(Lease(job=spelled, epoch=lease.epoch, arrived_ms_ago=lease.arrived_ms_ago), now_ms)


CHAINS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=1, max_size=6)


@settings(deadline=None)
@given(CHAINS, st.integers(-40, 40))
def test_blocks_that_are_named_alike_hit_as_equal_token_ids_do(chains: list[list[int]], tail: int) -> None:
    """Names of a chain: equal where all before them are."""
    rows = [
        TraceRow(n, 5_000.0 * n, max(1, HASHED_TOKENS * len(chain) + tail), 3, tuple(_names(chain)))
        for n, chain in enumerate(chains, 1)
    ]
    arrivals = list(SyntheticTenants(tenants=1, seed=1).arrivals(rows))
    spelled = Spelled(
        lanes=DEFAULT_LANES, block_size=16, blocks=4_096, host_slots=64, max_sequences=8, max_step_tokens=2_048,
        costs=CostModel(), prefix_share=1.0,
    )  # fmt: skip

    lazy = Simulation(arrivals, [planner()], HARDWARE).run()

    assert lazy == Simulation(arrivals, [spelled], HARDWARE).run()
    for place, record in enumerate(lazy.values()):
        row = rows[place]
        alike = max((_common(row.hash_ids, one.hash_ids) for one in rows[:place]), default=0)
        most = min(alike * HASHED_TOKENS, row.prompt_tokens - 1, *[one.prompt_tokens for one in rows[:place]] or [0])
        assert record.cached <= min(alike * HASHED_TOKENS, row.prompt_tokens - 1)
        assert record.cached >= most // 16 * 16 - 16


def _names(chain: list[int]) -> list[int]:
    """Each prefix of a chain has a name of its own."""
    return [int("1" + "".join(map(str, chain[: depth + 1]))) for depth in range(len(chain))]


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return sum(1 for place in range(min(len(one), len(other))) if one[: place + 1] == other[: place + 1])


def test_without_a_cache_nothing_is_found() -> None:
    rows = [TraceRow(n, 1_000.0 * n, 1_200, 3, (1, 2, 3)) for n in (1, 2)]
    arrivals = list(SyntheticTenants(tenants=1).arrivals(rows))

    records = Simulation(arrivals, [planner(remembers=False)], HARDWARE).run()

    assert [record.cached for record in records.values()] == [0, 0]


def test_of_two_idle_workers_a_jobs_home_wins_it() -> None:
    turns = [
        Arrival(
            at_ms=10_000.0 * number,
            job_id=f"{number}",
            tenant="acme",
            lane=LaneName.LATENCY,
            prompt_tokens=HASHED_TOKENS * (1 + number),
            output_tokens=1,
            max_tokens=1,
            ttft_ms=1_000.0,
            tpot_ms=100.0,
            blocks=tuple(range(2, 3 + number)),
        )
        for number in range(8)
    ]
    queue = LaneQueue(DEFAULT_LANES)

    records = Simulation(turns, [planner(), planner()], HARDWARE, queue=queue, has_affinity=True).run()

    assert [records[f"{number}"].cached for number in range(8)] == [
        0,
        *(HASHED_TOKENS * number for number in range(1, 8)),
    ]


def test_a_conversation_stays_with_its_tenant() -> None:
    rows = [TraceRow(n, float(n), 1_500, 3, (0, 100 + n % 5, 1_000 + n)) for n in range(60)]

    tenants = [arrival.tenant for arrival in SyntheticTenants(tenants=50, zipf=0.0).arrivals(rows)]

    assert len(set(tenants)) > 2
    assert all(tenants[n] == tenants[n % 5] for n in range(60))
    plain = [
        arrival.tenant
        for arrival in SyntheticTenants(tenants=50, zipf=0.0).arrivals([replace(r, hash_ids=()) for r in rows])
    ]
    assert plain[:1] == tenants[:1]
    assert any(one != other for one, other in pairwise(plain[::5]))
