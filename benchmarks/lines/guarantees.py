"""Line 11: does every guarantee hold, whichever door gave it? And do several doors give as many as one would?

Each world has dated and undated requests of the same tenants, some of them far more than their share, on both kinds of
deadlines; doors whose views of workers and queue are a heartbeat old; and workers, some of which die. What a dead
worker breaks is counted apart: it is a guarantee that it held when it died, or that was given by its capacity.
"""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.lines.overload import in_time
from benchmarks.lines.world import BLOCK_SIZE, OURS, World
from scheduler.doorkeeper import Doorkeeper
from scheduler.lane_queue import LaneQueue
from scheduler.lanes import DEFAULT_LANES
from scheduler.planner import Planner
from scheduler.simulate import Death, Simulation
from scheduler.workload import Arrival

HEARTBEAT_MS = 1_000.0
LEASE_MS = 6_000.0
WORLD = World(kv_tokens=100_000, max_step_tokens=2048)


class Given(NamedTuple):
    """What was promised in one run."""

    guaranteed: int
    broken: int
    """Of these, not kept."""


def play(
    arrivals: Sequence[Arrival],
    *,
    workers: int = 1,
    doors: int = 1,
    heartbeat_ms: float = HEARTBEAT_MS,
    deaths: Sequence[Death] = (),
    seed: int = 0,
    world: World = WORLD,
) -> Given:
    """Play these requests to their ends."""
    policies = [world.policy(OURS, arrivals) for _ in range(workers)]
    planners = [policy for policy in policies if isinstance(policy, Planner)]
    queue = LaneQueue(DEFAULT_LANES)
    keeper = Doorkeeper(
        planners,
        kv_tokens=world.kv_tokens,
        block_size=BLOCK_SIZE,
        max_sequences=world.max_sequences,
        queue=queue,
        doors=doors,
        heartbeat_ms=heartbeat_ms,
        deaths=deaths,
        seed=seed,
    )
    simulation = Simulation(
        arrivals,
        policies,
        world.hardware,
        queue=queue,
        door=keeper.decide,
        deaths=deaths,
        observers=[keeper],
        seed=seed,
    )
    records = simulation.run()
    promised = [records[flight_id] for flight_id in keeper.guaranteed]
    return Given(len(promised), sum(not in_time(record) for record in promised))
