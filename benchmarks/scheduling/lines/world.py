"""Where the lines are played: documented hardware, a worker's room, ours and the policies to compare with.

`GPU` is an 8B model (32 layers, 8 KV heads) on one large GPU: 16 GB of weights in 8 ms, a prompt at 33,000 tokens per
second, 128 kB of KV per token read at 3.2 TB/s and copied at 50 GB/s, 400,000 tokens of KV. `A10G` gives VTC's own
throughput (Llama-2-7B, pool of 10,000 tokens, 256/256 in overload: 893 tokens per second, prompts included).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.scheduling.policies import POLICIES, Setup
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.ordering import STEP_WINDOW
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.simulation.simulate import AdmissionCheck, Policy, Simulation, SimulationObserver
from fairlane.scheduler.simulation.workload import Arrival, Hardware

OURS = "fairlane"
THETA = STEP_WINDOW
"""Ours in every row: the eligibility window that a worker has, in weighted tokens."""
BLOCK_SIZE = 16

GPU = Hardware(step=(8.0, 0.02, 0.03, 4e-5, 5e-7), copy=(0.05, 0.04), overhead_ms=0.3)
A10G = Hardware(step=(26.0, 0.2, 0.26, 7.7e-4, 1e-5), copy=(0.1, 0.4), overhead_ms=4.5)
GPU_KV_TOKENS = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One worker."""

    hardware: Hardware = GPU
    kv_tokens: int = GPU_KV_TOKENS
    host_tokens: int | None = None
    """KV that fits into host memory; as much as on the device by default."""
    max_sequences: int = 256
    max_step_tokens: int = 8192

    def policy(self, name: str, arrivals: Iterable[Arrival], *, window: float = THETA) -> Policy:
        """Ours, or a policy to compare with. Those that need an oracle of output lengths have it from the arrivals."""
        blocks = self.kv_tokens // BLOCK_SIZE
        host_slots = blocks if self.host_tokens is None else self.host_tokens // BLOCK_SIZE
        if name == OURS:
            return Planner(
                lanes=DEFAULT_LANES,
                block_size=BLOCK_SIZE,
                blocks=blocks,
                host_slots=host_slots,
                max_sequences=self.max_sequences,
                max_step_tokens=self.max_step_tokens,
                costs=CostModel(),
                window=window,
            )
        lengths = {arrival.job_id: arrival.output_tokens for arrival in arrivals}
        setup = Setup(
            hardware=self.hardware,
            blocks=blocks,
            block_size=BLOCK_SIZE,
            host_slots=host_slots,
            max_sequences=self.max_sequences,
            max_step_tokens=self.max_step_tokens,
            output_tokens=lengths.__getitem__ if name in ("vtc-oracle", "clairvoyant") else None,
        )
        return POLICIES[name](setup)

    def simulation(
        self,
        name: str,
        arrivals: Sequence[Arrival],
        *,
        observers: Sequence[SimulationObserver] = (),
        until_ms: float = float("inf"),
        window: float = THETA,
        admission: AdmissionCheck | None = None,
    ) -> Simulation:
        """These arrivals before that policy, not yet run."""
        policy = self.policy(name, arrivals, window=window)
        return Simulation(
            arrivals, [policy], self.hardware, admission=admission, observers=observers, until_ms=until_ms
        )
