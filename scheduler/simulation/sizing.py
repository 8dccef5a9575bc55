"""Search by simulation for the smallest number of workers that meets the lanes' targets under a trace.

A share of ATTAINMENT of all offered requests must get their first token within the lane's target; in the latency lane,
later tokens must be in time too. The throughput lane's backlog must drain soon after the last arrival
(`drain_allowed_ms`)."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairlane.scheduler.protocol.lanes import AUTO_STREAMS, LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.simulation.calibration import Calibration
from fairlane.scheduler.simulation.results import Spread, first_in_time, pace_kept, spread
from fairlane.scheduler.simulation.scenario import MAX_WORKERS, work_ms
from fairlane.scheduler.simulation.trace import TraceRow
from fairlane.scheduler.simulation.workload import Record

ATTAINMENT = 0.99
DRAIN_PART = 0.1
# Fraction below a result within which every number is tried.
NEAR = 0.1
# Multiple of the first guess at which the search gives up.
BEYOND = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneVerdict:
    """The results of one lane in one run."""

    requests: int
    # Share of the offered requests, 0 to 1.
    ttft_kept: float
    # By the mean time between tokens; requests with a single token always meet it.
    tpot_kept: float
    refused: float
    ttft_ms: Spread | None
    tpot_ms: Spread | None

    @property
    def kept(self) -> float:
        return min(self.ttft_kept, self.tpot_kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The results with one number of workers."""

    workers: int
    lanes: Mapping[LaneName, LaneVerdict]
    # From the last arrival to the throughput lane's last end; 0.0 if that was earlier.
    drained_ms: float
    drain_allowed_ms: float

    @property
    def misses(self) -> tuple[str, ...]:
        found = []
        for lane, verdict in sorted(self.lanes.items()):
            if verdict.ttft_kept < ATTAINMENT:
                found.append(f"{lane.value} TTFT")
            if lane is LaneName.LATENCY and verdict.tpot_kept < ATTAINMENT:
                found.append("latency TPOT")
        if self.drained_ms > self.drain_allowed_ms:
            found.append("backlog")
        return tuple(found)

    @property
    def keeps(self) -> bool:
        return not self.misses


@dataclass(frozen=True, slots=True)
class Sizing:
    """The result of a search."""

    workers: int | None
    verdicts: Mapping[int, Verdict]

    @property
    def is_edge(self) -> bool:
        """Return whether one more worker misses the targets again, so that the result partly depends on chance."""
        above = None if self.workers is None else self.verdicts.get(self.workers + 1)
        return above is not None and not above.keeps


def judge(workers: int, records: Iterable[Record], drain_allowed_ms: float) -> Verdict:
    """Return the verdict on a run."""
    records = list(records)
    by_lane: dict[LaneName, list[Record]] = {}
    for record in records:
        by_lane.setdefault(record.arrival.lane, []).append(record)
    last_ms = max(record.arrival.at_ms for record in records)
    ends = [record.end_ms or math.inf for record in by_lane.get(LaneName.THROUGHPUT, ())]
    return Verdict(
        workers=workers,
        lanes={lane: _lane(found) for lane, found in sorted(by_lane.items())},
        drained_ms=max(0.0, max(ends, default=0.0) - last_ms),
        drain_allowed_ms=drain_allowed_ms,
    )


def _lane(records: Sequence[Record]) -> LaneVerdict:
    count = len(records)
    return LaneVerdict(
        requests=count,
        ttft_kept=sum(map(first_in_time, records)) / count,
        tpot_kept=sum(map(pace_kept, records)) / count,
        refused=sum(record.outcome is Outcome.REJECTED for record in records) / count,
        ttft_ms=spread(record.ttft_ms for record in records if record.ttft_ms is not None),
        tpot_ms=spread(record.tpot_ms for record in records if record.tpot_ms is not None),
    )


def drain_allowed_ms(rows: Sequence[TraceRow], calibration: Calibration) -> float:
    """Return how long the throughput lane may be busy after the last arrival."""
    longest = max(row.output_tokens for row in rows) * AUTO_STREAMS * calibration.single_stream_ms
    prefill = max(work_ms(row, calibration) for row in rows)
    return DRAIN_PART * (rows[-1].at_ms - rows[0].at_ms) + longest + prefill


def first_guess(rows: Sequence[TraceRow], calibration: Calibration, tpot_ms: float) -> int:
    """Return the workers that the trace would keep busy, at the step efficiency that the TPOT target allows."""
    length_ms = max(1.0, rows[-1].at_ms - rows[0].at_ms)
    base_ms = calibration.step[0] + calibration.overhead_ms
    useful = max(0.1, 1.0 - base_ms / max(tpot_ms, base_ms))
    return min(MAX_WORKERS, max(1, math.ceil(sum(work_ms(row, calibration) for row in rows) / length_ms / useful)))


def alone_kept(rows: Sequence[TraceRow], calibration: Calibration, ttft_ms: float) -> float:
    """Return the share of requests whose first token is in time on an otherwise idle worker."""
    step = calibration.step
    in_time = sum(
        step[0] + row.prompt_tokens * step[2] + step[4] * row.prompt_tokens**2 / 2.0 <= ttft_ms for row in rows
    )
    return in_time / len(rows)


def smallest(
    simulate: Callable[[Sequence[int]], Sequence[Verdict]], *, guess: int, at_once: int = 1, most: int = MAX_WORKERS
) -> Sizing:
    """Search from a guess. `simulate` returns verdicts for numbers of workers, `at_once` of them in the time of one.

    A larger number can miss by chance, because arrivals coincide with other requests. The search bisects between a
    number that misses and one that meets the targets, then tries all numbers within NEAR below the result, and one
    above it."""
    known: dict[int, Verdict] = {}

    def look(counts: Iterable[int]) -> None:
        new = sorted({count for count in counts if 1 <= count <= most} - known.keys())
        for verdict in simulate(new) if new else ():
            known[verdict.workers] = verdict

    look(math.ceil(guess * (1.0 + 0.5 * number)) for number in range(at_once))
    while not any(verdict.keeps for verdict in known.values()):
        highest = max(known)
        if highest >= min(most, BEYOND * guess):
            return Sizing(None, known)
        look(highest * 2 * (number + 1) for number in range(at_once))
        look([min(most, 2 * highest)])
    while True:
        upper = min(count for count, verdict in known.items() if verdict.keeps)
        lower = max((count for count in known if count < upper), default=0)
        if upper - lower > 1:
            look(_between(lower, upper, at_once))
            continue
        near = [*range(math.ceil((1.0 - NEAR) * upper), upper), upper + 1]
        look(near)
        if min(count for count, verdict in known.items() if verdict.keeps) == upper:
            return Sizing(upper, known)


def _between(lower: int, upper: int, at_once: int) -> list[int]:
    parts = min(at_once, upper - lower - 1) + 1
    return [lower + max(1, (upper - lower) * part // parts) for part in range(1, parts)]
