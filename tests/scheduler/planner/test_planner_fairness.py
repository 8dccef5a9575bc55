"""The service gap between tenants of a lane that both have work waiting: bounded, whatever lengths and pools are."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.ordering import DECODE_WEIGHT
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Preempted
from fairlane.scheduler.simulation.simulate import SimulatedStep, Simulation
from fairlane.scheduler.simulation.workload import Arrival, Hardware, Record
from tests.support.scheduler.planner_world import THROUGHPUT, World, job

HARDWARE = Hardware(step=(10.0, 0.1, 0.02, 0.0, 0.0), copy=(0.1, 0.01))
REQUESTS = 40
BLOCK_SIZE = 16


@dataclass
class Spread:
    """Watches the weighted service of two tenants for as long as both have requests that have not begun, but for what
    one gets that the other could not use: while its own requests leave the pool no room for its next one."""

    weights: dict[str, float]
    request_blocks: dict[str, int]
    """Of one request of each tenant, at its fullest."""
    blocks: int
    bound: float
    served: dict[str, float] = field(default_factory=lambda: {"a": 0.0, "b": 0.0})
    broken: list[float] = field(default_factory=list)
    """Gaps beyond the bound that a step made wider."""
    _unbegun: dict[str, set[str]] = field(default_factory=lambda: {"a": set(), "b": set()})
    _resident: dict[str, set[str]] = field(default_factory=lambda: {"a": set(), "b": set()})
    _gap: float = 0.0

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        """It waits."""
        self._unbegun[arrival.tenant].add(arrival.job_id)

    def ended(self, record: Record) -> None:
        """It holds nothing any more."""
        self._resident[record.arrival.tenant].discard(record.arrival.job_id)

    def stepped(self, step: SimulatedStep) -> None:
        """Count the service, and compare."""
        for event in step.plan.events:
            if isinstance(event, Preempted) and event.mode != "keep":
                self._resident[event.job_id[0]].discard(event.job_id)
        for row in step.plan.rows:
            self._resident[row.seq.job_id[0]].add(row.seq.job_id)
        for job_id, tokens in step.outcome.charges.items():
            self._unbegun[job_id[0]].discard(job_id)
            self.served[job_id[0]] += tokens / self.weights[job_id[0]]
        before, self._gap = self._gap, abs(self.served["a"] - self.served["b"])
        behind = min(self.served, key=self.served.__getitem__)
        if all(self._unbegun.values()) and self._gap > max(before, self.bound) and not self._fills_the_pool(behind):
            self.broken.append(self._gap)

    def _fills_the_pool(self, tenant: str) -> bool:
        return (len(self._resident[tenant]) + 1) * self.request_blocks[tenant] > self.blocks


requests = st.tuples(st.integers(1, 300), st.integers(1, 200))
"""Prompt and output tokens, for every request of one tenant."""


Sizes = tuple[int, int]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other", "weight", "blocks", "max_sequences"),
    [((1, 1), (1, 24), 0.5, 36, 18), ((56, 1), (253, 38), 0.5, 32, 2), ((1, 200), (300, 1), 1.0, 64, 32)],
)
def test_the_service_gap_is_bounded_where_it_once_was_not(
    one: Sizes, other: Sizes, weight: float, blocks: int, max_sequences: int
) -> None:
    assert not gaps(one, other, weight, 100.0, blocks, max_sequences)


@pytest.mark.thorough
@settings(deadline=None, max_examples=10)
@given(
    one=requests,
    other=requests,
    weight=st.sampled_from([0.5, 1.0, 3.0]),
    window=st.sampled_from([100.0, 512.0, 2_000.0]),
    blocks=st.integers(32, 400),
    max_sequences=st.integers(2, 32),
)
def test_the_service_gap_of_backlogged_tenants_is_bounded(
    one: Sizes, other: Sizes, weight: float, window: float, blocks: int, max_sequences: int
) -> None:
    assert not gaps(one, other, weight, window, blocks, max_sequences)


def gaps(one: Sizes, other: Sizes, weight: float, window: float, blocks: int, max_sequences: int) -> list[float]:
    """Play two backlogged tenants; return the gaps above the bound that a step made wider."""
    max_step_tokens = 256
    planner = Planner(
        lanes=DEFAULT_LANES,
        block_size=BLOCK_SIZE,
        blocks=blocks,
        host_slots=4 * blocks,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        costs=CostModel(),
        window=window,
    )
    weights = {"a": 1.0, "b": weight}
    bound = 3 * window + 2 * (max_step_tokens + 2 * max_sequences) / min(weights.values())
    request_blocks = {tenant: -(-sum(sizes) // BLOCK_SIZE) for tenant, sizes in (("a", one), ("b", other))}
    spread = Spread(weights, request_blocks, blocks, bound)
    arrivals = [
        arrival(tenant, number, sizes, spread.weights[tenant])
        for number in range(REQUESTS)
        for tenant, sizes in (("a", one), ("b", other))
    ]

    Simulation(arrivals, [planner], HARDWARE, observers=[spread]).run()
    return spread.broken


def test_rows_go_by_what_tenants_were_served_however_many_decodes_each_has() -> None:
    world = World(blocks=400, block_size=64, host_slots=0, max_sequences=8, max_step_tokens=512, window=800.0)
    for number in range(40):
        world.add(job(f"a{number:02}", tenant="a", max_tokens=400, granted_until=1))
    for _ in range(6):
        world.step()
    for number in range(8):
        world.add(job(f"b{number}", tenant="b", max_tokens=400))
    served = {"a": 0.0, "b": 0.0}
    step(world, served)
    for number in range(40):
        world.planner.grant(f"a{number:02}", 400)

    for _ in range(40):
        step(world, served)

    assert served["a"] + served["b"] > 40 * 8 * DECODE_WEIGHT
    assert abs(served["a"] - served["b"]) <= 8 * DECODE_WEIGHT, "all that decode have their turn"


def test_requests_of_a_step_each_keep_up_with_streams_that_hold_all_rows() -> None:
    window, rows, max_step_tokens = 50.0, 8, 64
    world = World(blocks=400, max_sequences=rows, max_step_tokens=max_step_tokens, window=window)
    for number in range(2 * rows):
        world.add(job(f"b{number:02}", tenant="b", prompt=1, max_tokens=200))
    world.step()
    assert len(world.rows()) == rows
    for number in range(400):
        world.add(job(f"a{number:03}", tenant="a", prompt=1, max_tokens=1))

    served = {"a": 0.0, "b": 0.0}
    for _ in range(100):
        step(world, served)

    assert served["b"] - served["a"] < 3 * window + 2 * (max_step_tokens + 2 * rows)


def test_who_needs_both_a_row_and_blocks_of_a_tenant_ahead_has_them_together() -> None:
    world = World(blocks=48, host_slots=200, max_sequences=4, max_step_tokens=256, window=20.0)
    world.add(job("c0", tenant="c", prompt=4, max_tokens=60))
    for number in range(3):
        world.add(job(f"a{number}", tenant="a", prompt=40, max_tokens=60))
    for _ in range(3):
        world.step()
    world.add(job("c1", tenant="c", prompt=40, max_tokens=8))

    for _ in range(7):  # after five the other one is ahead by more than the window
        world.step()

    assert "c1" in world.rows()


def step(world: World, served: dict[str, float]) -> None:
    """Run one, and count what it serves each tenant, in weighted tokens."""
    for job_id, tokens in world.step()[1].charges.items():
        served[job_id[0]] += tokens


def arrival(tenant: str, number: int, sizes: tuple[int, int], weight: float) -> Arrival:
    """A request that is there from the beginning."""
    prompt, output = sizes
    return Arrival(
        at_ms=0.0,
        job_id=f"{tenant}-{number:03}",
        tenant=tenant,
        weight=weight,
        lane=THROUGHPUT,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output,
        ttft_ms=600_000.0,
        tpot_ms=1_000.0,
    )
