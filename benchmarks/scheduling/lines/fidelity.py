"""Line 9: does the simulator say what the worker does? Real runs of the default model, half of them to learn its costs.

A burst of long requests, then short ones, at the worker's own engine under ours, VTC, and first come, first served.
Calibration and test runs take turns. Each calibration run has requests of its own; the test runs repeat one set, which
shows how far reality agrees with itself. Then the simulator plays the test set with the costs learnt, and without a
figure of the test runs. The bar for each figure is 10 %, or 1.5 times what two test runs differ by in the mean.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.common.clients import Client, flood
from benchmarks.common.line import Effort, Line, Table, at_least, at_most, unmeasured
from benchmarks.scheduling.lines.world import BLOCK_SIZE, OURS, THETA
from benchmarks.scheduling.policies import POLICIES, Setup
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.scheduler.simulation.calibration import Calibration
from fairlane.scheduler.simulation.simulate import Policy, Simulation
from fairlane.scheduler.simulation.synthetic_tenants import lane_tiers
from fairlane.scheduler.simulation.workload import Arrival, Record
from fairlane.worker.__main__ import prepare_threads
from fairlane.worker.errors import ModelError
from fairlane.worker.model.files import resolve

if TYPE_CHECKING:
    from benchmarks.scheduling.real_runs import Bench

NAMES = (OURS, "vtc", "fcfs-sarathi")
BLOCKS, HOST_SLOTS, MAX_SEQUENCES, MAX_STEP_TOKENS = 32, 64, 4, 512
PERSON, CROWD = lane_tiers(0.5)
CLIENTS = (
    Client(tenant="person", rate_per_s=2.0, prompt=(16, 64), output=(8, 24), tier=PERSON),
    Client(tenant="crowd", rate_per_s=8.0, prompt=(64, 192), output=(32, 64), tier=CROWD, until_ms=1_000.0),
)
TEST_SEED, CALIBRATION_SEEDS = 2, (0, 1, 3)
"""As many rounds as there are seeds to calibrate with."""
LEAST_BAR, REPEATS_BAR = 0.1, 1.5
DURATION_S = 8.0
RANKING = "policies in the same order"
WARM_UP = 4
"""Requests of the first run, which is not measured: the first steps of a process are slow."""
MODELS_DIR = Path(".fairlane/models")


class Case(NamedTuple):
    """How long requests arrive, and what calibration runs begin from: a round of runs for each."""

    duration_s: float
    seeds: tuple[int, ...]


class Latency(NamedTuple):
    """End to end, in milliseconds."""

    mean: float
    p50: float
    p90: float


class Found(NamedTuple):
    """What came out of it, by policy."""

    real: dict[str, list[Latency]]
    """Of every test run."""
    simulated: dict[str, Latency]
    calibration: Calibration


def asked(seed: int, duration_s: float) -> list[Arrival]:
    """Who asks for what; the length of an output is stated."""
    return [replace(one, max_tokens=one.output_tokens) for one in flood(CLIENTS, duration_s, seed)]


def policy(name: str, bytes_per_block: int) -> Policy:
    """As a real engine and a simulation can have it."""
    if name == OURS:
        return Planner(
            lanes=DEFAULT_LANES,
            block_size=BLOCK_SIZE,
            blocks=BLOCKS,
            host_slots=HOST_SLOTS,
            max_sequences=MAX_SEQUENCES,
            max_step_tokens=MAX_STEP_TOKENS,
            costs=CostModel(),
            bytes_per_block=bytes_per_block,
            window=THETA,
        )
    setup = Setup(
        hardware=Calibration(),
        blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        host_slots=HOST_SLOTS,
        max_sequences=MAX_SEQUENCES,
        max_step_tokens=MAX_STEP_TOKENS,
        fills_rows=True,
    )
    return POLICIES[name](setup)


def compare(case: Case) -> Found:
    """All real runs, one after another on a machine that should do nothing else, then the simulated ones."""
    prepare_threads(os.environ)  # before torch is imported, as a worker process does
    from benchmarks.scheduling.real_runs import Learner

    bench = _bench()
    bytes_per_block = bench.model.shape.block_bytes(BLOCK_SIZE)
    test = asked(TEST_SEED, case.duration_s)
    real: dict[str, list[Latency]] = {name: [] for name in NAMES}
    learner = Learner()
    bench.play(policy(OURS, bytes_per_block), test[:WARM_UP])
    for seed in case.seeds:
        for name in NAMES:
            bench.play(policy(name, bytes_per_block), asked(seed, case.duration_s), learner)
            real[name].append(latency(bench.play(policy(name, bytes_per_block), test)))
    calibration = learner.calibration()
    simulated = {name: latency(Simulation(test, [policy(name, bytes_per_block)], calibration).run()) for name in NAMES}
    return Found(real, simulated, calibration)


def _bench() -> "Bench":
    """The default model, with threads as a worker process has them."""
    import torch

    from benchmarks.scheduling.real_runs import Bench
    from fairlane.worker.model.reference import load
    from fairlane.worker.own_engine import usable_cores

    torch.set_num_threads(usable_cores())
    return Bench(load(resolve(DEFAULT_MODEL, MODELS_DIR)), BLOCK_SIZE, BLOCKS, HOST_SLOTS)


def latency(records: Mapping[str, Record]) -> Latency:
    """End to end, over all requests."""
    found = sorted(one.end_ms - one.arrival.at_ms for one in records.values() if one.end_ms is not None)
    return Latency(fmean(found), found[len(found) // 2], found[9 * len(found) // 10])


def error(real: Sequence[float], simulated: float) -> float:
    """How far a prediction is from each of these runs in the mean, in parts of the run."""
    return fmean(abs(simulated - one) / one for one in real)


def repeat_error(real: Sequence[float]) -> float:
    """How far two of these runs are from each other in the mean, in parts of all runs' mean."""
    return fmean(abs(one - other) for one, other in combinations(real, 2)) / fmean(real)


def bar(real: Sequence[float]) -> float:
    """The largest error allowed."""
    return max(LEAST_BAR, REPEATS_BAR * repeat_error(real))


def measure(effort: Effort) -> list[Line]:
    """The line."""
    if effort.quick:
        return _unmeasured("not in a quick run")
    try:
        [found] = effort.each("real runs", compare, [Case(DURATION_S, CALIBRATION_SEEDS)])
    except ModelError as error:
        return _unmeasured(str(error))
    effort.show(_table(found))
    return lines(found)


def lines(found: Found) -> list[Line]:
    """Each figure's error where it is worst beside its bar, and whether both order the policies alike."""
    real = {name: fmean(run.mean for run in runs) for name, runs in found.real.items()}
    orders = [sorted(NAMES, key=by.__getitem__) for by in (real, {n: one.mean for n, one in found.simulated.items()})]
    how = f"by mean: {', '.join(orders[0])}; simulated {', '.join(orders[1])}"
    return [
        *(_line(found, figure) for figure in Latency._fields),
        at_least(9, RANKING, float(orders[0] == orders[1]), 1.0, how),
    ]


def _unmeasured(why: str) -> list[Line]:
    errors = [unmeasured(9, _name(figure), LEAST_BAR, why) for figure in Latency._fields]
    return [*errors, unmeasured(9, RANKING, 1.0, why)]


def _line(found: Found, figure: str) -> Line:
    def series(name: str) -> tuple[list[float], float]:
        return [getattr(run, figure) for run in found.real[name]], getattr(found.simulated[name], figure)

    worst = max(NAMES, key=lambda name: error(*series(name)) / bar(series(name)[0]))
    real, simulated = series(worst)
    how = f"worst of {len(NAMES)} policies: {worst}, {simulated:,.0f} ms for {fmean(real):,.0f} ms in {len(real)} runs"
    value, target = error(real, simulated), bar(real)
    return at_most(9, _name(figure), round(value, 4), round(target, 4), f"{how}; repeat error {repeat_error(real):.3f}")


def _name(figure: str) -> str:
    return f"end-to-end error, {figure}"


def _table(found: Found) -> Table:
    rows = []
    for name in NAMES:
        for figure in Latency._fields:
            real, simulated = [getattr(run, figure) for run in found.real[name]], getattr(found.simulated[name], figure)
            rows.append(
                (
                    name,
                    figure,
                    f"{fmean(real):,.0f} ({min(real):,.0f} to {max(real):,.0f})",
                    f"{simulated:,.0f}",
                    f"{100 * error(real, simulated):.1f} %",
                    f"{100 * repeat_error(real):.1f} %",
                )
            )
    step = ", ".join(f"{weight:.3g}" for weight in found.calibration.step)
    title = f"End to end, ms; costs learnt: {step}, {found.calibration.overhead_ms:.2g} between steps"
    return Table(title, ("policy", "", "real", "simulated", "error", "repeat error"), rows)
