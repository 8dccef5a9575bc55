"""A policy on stage: a small worker, its requests, and everything that it was seen to do."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from benchmarks.scheduling.policies import Engine, Setup
from fairlane.scheduler.planner.steps import features
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.simulate import SimulatedStep, Simulation
from fairlane.scheduler.simulation.workload import Arrival, Hardware, Record
from tests.support.scheduler.fleet import Watcher, asks

P = TypeVar("P", bound=Engine[Any])

LATENCY, THROUGHPUT = LaneName.LATENCY, LaneName.THROUGHPUT
HARDWARE = Hardware(step=(10.0, 0.1, 0.05, 0.001, 0.00001), copy=(0.1, 0.05), overhead_ms=1.0)


def request(
    job_id: str,
    lane: LaneName = THROUGHPUT,
    *,
    at_ms: float = 0.0,
    prompt: int = 8,
    output: int = 8,
    max_tokens: int | None = None,
    tenant: str = "acme",
    ttft_ms: float | None = None,
) -> Arrival:
    """A request with its lane's targets."""
    return asks(at_ms, job_id, tenant, lane, prompt, output, max_tokens=max_tokens or output, ttft_ms=ttft_ms)


def crowd(seed: int, count: int = 60) -> list[Arrival]:
    """More than the stage can hold at once, of both lanes and four tenants."""
    rng = random.Random(seed)
    at_ms, arrivals = 0.0, []
    for number in range(count):
        at_ms += rng.expovariate(0.05)
        output = rng.randint(1, 60)
        arrivals.append(
            request(
                f"f{number}",
                rng.choice([LATENCY, THROUGHPUT]),
                at_ms=at_ms,
                prompt=rng.randint(1, 150),
                output=output,
                max_tokens=output + rng.randint(0, 40),
                tenant=f"t{rng.randrange(4)}",
            )
        )
    return arrivals


@dataclass
class Stage(Watcher):
    """Plays arrivals to a policy and checks each step against what the worker has."""

    arrivals: Sequence[Arrival]
    blocks: int = 40
    block_size: int = 8
    host_slots: int = 20
    max_sequences: int = 8
    max_step_tokens: int = 128
    hardware: Hardware = HARDWARE
    holds_kv: bool = True
    steps: list[SimulatedStep] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)

    def setup(self) -> Setup:
        """What its policies are built from."""
        lengths = {arrival.job_id: arrival.output_tokens for arrival in self.arrivals}
        return Setup(
            hardware=self.hardware,
            blocks=self.blocks,
            block_size=self.block_size,
            host_slots=self.host_slots,
            max_sequences=self.max_sequences,
            max_step_tokens=self.max_step_tokens,
            output_tokens=lengths.__getitem__,
        )

    def play(self, make: Callable[[Setup], P]) -> P:
        """Run a policy to the end of its work; the policy."""
        policy = make(self.setup())
        self.policy: Engine[Any] = policy
        self.steps = []
        self.records = Simulation(self.arrivals, [policy], self.hardware, observers=[self]).run()
        return policy

    def stepped(self, step: SimulatedStep) -> None:
        """Check a step."""
        self.steps.append(step)
        rows = step.plan.rows
        self.policy.check_integrity()
        assert len({row.seq for row in rows}) == len(rows) <= self.max_sequences
        assert sum(len(row.token_ids) for row in rows) <= self.max_step_tokens
        assert step.plan.features == features(rows)
        if self.holds_kv:
            assert sum(-(-row.context_length // self.block_size) for row in rows) <= self.blocks

    def firsts(self) -> list[str]:
        """Jobs in the order of their first tokens."""
        return _by(self.records.values(), lambda record: record.first_ms)

    def ends(self) -> list[str]:
        """Jobs in the order of their ends."""
        return _by(self.records.values(), lambda record: record.end_ms)

    def preempted(self) -> list[str]:
        """Jobs that were preempted."""
        return [job_id for job_id, record in self.records.items() if record.preemptions]

    def tokens(self, step: SimulatedStep) -> dict[str, int]:
        """Tokens computed in a step, by job."""
        return {row.seq.job_id: len(row.token_ids) for row in step.plan.rows}


def _by(records: Iterable[Record], when: Callable[[Record], float | None]) -> list[str]:
    times = [(when(record), record.arrival.job_id) for record in records]
    return [job_id for at_ms, job_id in sorted((at_ms, one) for at_ms, one in times if at_ms is not None)]
