"""The service gap between tenants of a lane that both have work waiting: bounded, whatever lengths and pools are."""

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.costs import CostModel
from scheduler.lanes import DEFAULT_LANES
from scheduler.planner import Planner
from scheduler.simulate import Simulation, Step
from scheduler.workload import Arrival, Hardware, Record
from tests.scheduler.planner_world import THROUGHPUT

HARDWARE = Hardware(step=(10.0, 0.1, 0.02, 0.0, 0.0), copy=(0.1, 0.01))
REQUESTS = 40
BLOCK_SIZE = 16


@dataclass
class Spread:
    """Watches the weighted service of two tenants for as long as both have requests that have not begun."""

    weights: dict[str, float]
    served: dict[str, float] = field(default_factory=lambda: {"a": 0.0, "b": 0.0})
    most: float = 0.0
    _unbegun: dict[str, set[str]] = field(default_factory=lambda: {"a": set(), "b": set()})

    def arrived(self, arrival: Arrival, now_ms: float) -> None:
        """It waits."""
        self._unbegun[arrival.tenant].add(arrival.flight_id)

    def ended(self, record: Record) -> None:
        """Nothing to do: it began before."""

    def stepped(self, step: Step) -> None:
        """Count the service, and compare."""
        for flight_id, tokens in step.outcome.charges.items():
            self._unbegun[flight_id[0]].discard(flight_id)
            self.served[flight_id[0]] += tokens / self.weights[flight_id[0]]
        if all(self._unbegun.values()):
            self.most = max(self.most, abs(self.served["a"] - self.served["b"]))


requests = st.tuples(st.integers(1, 300), st.integers(1, 200))
"""Prompt and output tokens, for every request of one tenant."""


@settings(deadline=None, max_examples=25)
@given(
    one=requests,
    other=requests,
    weight=st.sampled_from([0.5, 1.0, 3.0]),
    window=st.sampled_from([100.0, 512.0, 2_000.0]),
    blocks=st.integers(32, 400),
    max_sequences=st.integers(2, 32),
)
@example(one=(1, 200), other=(300, 1), weight=1.0, window=100.0, blocks=64, max_sequences=32)
def test_the_service_gap_of_backlogged_tenants_is_bounded(
    one: tuple[int, int], other: tuple[int, int], weight: float, window: float, blocks: int, max_sequences: int
) -> None:
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
    spread = Spread({"a": 1.0, "b": weight})
    arrivals = [
        arrival(tenant, number, sizes, spread.weights[tenant])
        for number in range(REQUESTS)
        for tenant, sizes in (("a", one), ("b", other))
    ]

    Simulation(arrivals, [planner], HARDWARE, observers=[spread]).run()

    in_a_step = (max_step_tokens + 2 * max_sequences) / min(spread.weights.values())
    assert spread.most <= 3 * window + 2 * in_a_step


def arrival(tenant: str, number: int, sizes: tuple[int, int], weight: float) -> Arrival:
    """A request that is there from the beginning."""
    prompt, output = sizes
    return Arrival(
        at_ms=0.0,
        flight_id=f"{tenant}-{number:03}",
        tenant=tenant,
        weight=weight,
        lane=THROUGHPUT,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output,
        ttft_ms=600_000.0,
        tpot_ms=1_000.0,
    )
