"""KEDA on workers: the real queue and planners behind fleets of a fixed size, and behind such as grow and shrink.

The load is that of a day in 35 minutes: the Azure conversation trace in seven stretches of five minutes, each at a pace
of its own, so that the peak asks for eight times what the edges do. Admission lets all in, as it does where nobody
states a deadline. A fleet costs from a worker's start to its end.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import pairwise

from benchmarks.autoscaling.fleet import Autoscaler, FleetSize, ScaledFleet, ScalingRule
from benchmarks.autoscaling.simulation import ScaledSimulation
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.calibration import preset
from fairlane.scheduler.simulation.results import spread
from fairlane.scheduler.simulation.scenario import Scenario
from fairlane.scheduler.simulation.synthetic_tenants import SyntheticTenants, lane_tiers
from fairlane.scheduler.simulation.trace import TraceRow, load_trace
from fairlane.scheduler.simulation.workload import Record

HARDWARE = "l4-8b"
STRETCH_S = 300.0
PACES = (1.0, 2.0, 4.0, 8.0, 4.0, 2.0, 1.0)
"""Requests per second in each stretch, about."""
LATENCY_SHARE = 0.7
MOST = 10
SPARE = 4
"""Workers that may drain beside those that serve."""
LATENCY, THROUGHPUT = LaneName.LATENCY, LaneName.THROUGHPUT
WAITING = {LATENCY: 4_096.0, THROUGHPUT: 262_144.0}
BOTH = ScalingRule(least=2, most=MOST, queued_tokens=WAITING, running={LATENCY: 12.0})
RULES: Mapping[str, ScalingRule] = {
    "4 workers": ScalingRule(least=4, most=4),
    "7 workers": ScalingRule(least=7, most=7),
    "queued tokens alone": ScalingRule(least=2, most=MOST, queued_tokens=WAITING),
    "queued tokens and running": BOTH,
    "the same, ready after 5 minutes": replace(BOTH, start_ms=300_000.0),
}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a rule came to. Times of the latency lane are in seconds."""

    rule: str
    worker_hours: float
    most: int
    changes: int
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    in_time: float
    """Part of its requests whose first token came within the lane's target."""
    ended: float
    """Part of all requests that finished."""
    sizes: tuple[FleetSize, ...]


def day() -> Iterator[TraceRow]:
    """The rows, by arrival."""
    text = (files("benchmarks.scheduling") / "traces" / "azure-2023-conversation.csv").read_text()
    rows = list(load_trace(text.splitlines()).demand())
    pace = len(rows) / rows[-1].at_ms * 1e3
    for place, wanted in enumerate(PACES):
        for row in rows:
            at_s = row.at_ms / 1e3 * pace / wanted
            if at_s < STRETCH_S:
                yield replace(row, at_ms=1e3 * (place * STRETCH_S + at_s))


def play(name: str) -> Outcomes:
    """The day before a fleet by that rule."""
    rule, calibration, rows = RULES[name], preset(HARDWARE), list(day())
    tiers = lane_tiers(LATENCY_SHARE, single_stream_ms=calibration.single_stream_ms)
    overlay = SyntheticTenants(tiers=tiers, kv_tokens=calibration.kv_tokens)
    slots = rule.most if rule.least == rule.most else rule.most + SPARE
    scenario = Scenario(rows=rows, overlay=overlay, calibration=calibration, workers=slots, seed=0)
    fleet = ScaledFleet(Autoscaler(rule), slots)
    records = ScaledSimulation(
        arrivals=overlay.arrivals(rows),
        policies=[scenario.planner() for _ in range(slots)],
        hardware=calibration,
        queue=LaneQueue(DEFAULT_LANES),
        fleet=fleet,
    ).run()
    return _outcomes(name, list(records.values()), fleet)


def _outcomes(name: str, records: list[Record], fleet: ScaledFleet) -> Outcomes:
    chats = [record for record in records if record.arrival.lane is LATENCY]
    first = spread(record.ttft_ms for record in chats if record.ttft_ms is not None)
    wanted = [size.wanted for size in fleet.sizes]
    if first is None:
        raise ValueError(f"{name}: no request of the latency lane had a token")
    return Outcomes(
        rule=name,
        worker_hours=fleet.paid_ms / 3.6e6,
        most=max(wanted),
        changes=sum(before != after for before, after in pairwise(wanted)),
        ttft_p50_s=first.p50 / 1e3,
        ttft_p95_s=first.p95 / 1e3,
        ttft_p99_s=first.p99 / 1e3,
        in_time=sum(_is_in_time(record) for record in chats) / len(chats),
        ended=sum(record.outcome is Outcome.FINISHED for record in records) / len(records),
        sizes=tuple(fleet.sizes),
    )


def _is_in_time(record: Record) -> bool:
    return record.ttft_ms is not None and record.ttft_ms <= record.arrival.ttft_ms
