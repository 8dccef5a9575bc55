"""Line 6: what preemption costs where KV is short, as a share of all work: recomputed tokens and stalls for copies.

300 requests at once, of 32 to 256 prompt and 128 to 704 output tokens, with KV for a tenth, a fifth and two fifths of
what all need together (vLLM's #54644 measured 79, 58 and 32 % on such a sweep, one token batch on one GPU).
"""

import random
from statistics import fmean
from typing import NamedTuple

from benchmarks.common.intervals import interval
from benchmarks.common.line import Effort, Line, Table, at_most
from benchmarks.scheduling.lines.world import BLOCK_SIZE, OURS, World
from fairlane.scheduler.protocol.lanes import THROUGHPUT
from fairlane.scheduler.simulation.results import ServiceMeter
from fairlane.scheduler.simulation.synthetic_tenants import max_tokens_over
from fairlane.scheduler.simulation.trace import TraceRow
from fairlane.scheduler.simulation.workload import Arrival

REQUESTS = 300
PARTS = (0.1, 0.2, 0.4)
PEERS = ("fcfs-vllm", "fcfs-sarathi", "mlfq")


class Case(NamedTuple):
    """One run of one policy."""

    policy: str
    part: float
    """KV there is, of what all requests need together."""
    swaps: bool
    seed: int


class Taxed(NamedTuple):
    """What came out of it."""

    tax: float
    duration_s: float


def batch(seed: int) -> list[Arrival]:
    """The requests, all there at the start."""
    draws = random.Random(seed)
    rows = [TraceRow(number, 0.0, draws.randint(32, 256), draws.randint(128, 704)) for number in range(REQUESTS)]
    return [
        Arrival(
            at_ms=0.0,
            job_id=f"r{row.row}",
            tenant="batch",
            lane=THROUGHPUT.name,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            max_tokens=max_tokens_over(row),
            ttft_ms=THROUGHPUT.ttft_ms,
            tpot_ms=THROUGHPUT.tpot_ms,
        )
        for row in rows
    ]


def taxed(case: Case) -> Taxed:
    """Play a case and measure it."""
    arrivals = batch(case.seed)
    demand = sum(arrival.prompt_tokens + arrival.output_tokens for arrival in arrivals)
    kv_tokens = max(1, int(case.part * demand) // BLOCK_SIZE) * BLOCK_SIZE
    meter = ServiceMeter()
    world = World(kv_tokens=kv_tokens, host_tokens=demand if case.swaps else 0)
    simulation = world.simulation(case.policy, arrivals, observers=[meter])
    simulation.run()
    return Taxed(meter.tax, simulation.now_ms / 1e3)


def measure(effort: Effort) -> list[Line]:
    """The line."""
    parts = PARTS[:1] if effort.quick else PARTS
    peers = PEERS[:1] if effort.quick else PEERS
    settings = [(OURS, True), (OURS, False), *((peer, peer == "mlfq") for peer in peers)]
    found = {
        (name, swaps, part): effort.each("tax", taxed, [Case(name, part, swaps, seed) for seed in effort.seeds])
        for name, swaps in settings
        for part in parts
    }
    effort.show(_table(settings, parts, found))
    lines = []
    for swaps, target in ((True, 0.01), (False, 0.05)):
        for part in parts:
            tax = interval([one.tax for one in found[OURS, swaps, part]])
            name = f"preemption tax, KV {part:g} of demand, {'swap' if swaps else 'recompute only'}"
            vllm = fmean(one.tax for one in found["fcfs-vllm", False, part])
            how = f"{tax}, {len(effort.seeds)} seeds; first come first served as vLLM: {vllm:.3g}"
            lines.append(at_most(6, name, round(tax.mean, 5), target, how))
    return lines


def _table(
    settings: list[tuple[str, bool]], parts: tuple[float, ...], found: dict[tuple[str, bool, float], list[Taxed]]
) -> Table:
    rows = []
    for name, swaps in settings:
        cells = [f"{name}{', swap' if swaps else ''}"]
        for part in parts:
            runs = found[name, swaps, part]
            cells += [f"{100 * fmean(one.tax for one in runs):.2f} %", f"{fmean(one.duration_s for one in runs):.1f} s"]
        rows.append(cells)
    columns = ["", *(title for part in parts for title in (f"tax, KV {part:g}", "duration"))]
    return Table("Preemption tax of 300 requests at once", columns, rows)
