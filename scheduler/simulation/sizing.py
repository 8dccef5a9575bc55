"""The smallest number of workers that keeps the lanes' targets under a trace, by simulations of single counts.

A count keeps them where, of all requests that were offered,

- in the latency lane ATTAINMENT had their first token within the lane's target, and ATTAINMENT their later ones;
- in the throughput lane ATTAINMENT had their first token within the lane's target, and the lane's backlog has drained
  DRAIN_PART of the trace's length after the last arrival, beside what its longest request takes anyway.

More workers do not keep more promises at each single step: whom an arrival meets is a little chance. So the search
halves an interval whose lower end misses and whose upper end keeps, and then looks at all counts within NEAR below what
it found, and one above; a smaller one that keeps the targets is taken, and looked around again.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairlane.scheduler.protocol.lanes import AUTO_STREAMS, LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.simulation.calibration import Calibration
from fairlane.scheduler.simulation.results import Spread, spread
from fairlane.scheduler.simulation.scenario import MOST_WORKERS, work_ms
from fairlane.scheduler.simulation.trace import TraceRow
from fairlane.scheduler.simulation.workload import Record

ATTAINMENT = 0.99
DRAIN_PART = 0.1
NEAR = 0.1
"""Part of a count below it that is looked at whole."""
BEYOND = 16
"""Times the first guess after which no count is expected to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneVerdict:
    """One lane of one run."""

    requests: int
    ttft_kept: float
    """Share of the requests offered, 0 to 1, as the next."""
    tpot_kept: float
    """By the mean time between tokens; requests of one token have none, and keep it."""
    refused: float
    ttft_ms: Spread | None
    tpot_ms: Spread | None

    @property
    def kept(self) -> float:
        """The worse of the two."""
        return min(self.ttft_kept, self.tpot_kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One count of workers under the trace."""

    workers: int
    lanes: Mapping[LaneName, LaneVerdict]
    drained_ms: float
    """From the last arrival to the throughput lane's last end; 0.0 where that came before."""
    drain_allowed_ms: float
    unfinished: int
    """Requests that neither finished nor were refused."""

    @property
    def misses(self) -> tuple[str, ...]:
        """What is not kept; nothing where the count will do."""
        found = []
        latency, throughput = self.lanes.get(LaneName.LATENCY), self.lanes.get(LaneName.THROUGHPUT)
        if latency is not None and latency.ttft_kept < ATTAINMENT:
            found.append("latency TTFT")
        if latency is not None and latency.tpot_kept < ATTAINMENT:
            found.append("latency TPOT")
        if throughput is not None and throughput.ttft_kept < ATTAINMENT:
            found.append("throughput TTFT")
        if self.drained_ms > self.drain_allowed_ms:
            found.append("backlog")
        return tuple(found)

    @property
    def keeps(self) -> bool:
        """All targets are kept."""
        return not self.misses


@dataclass(frozen=True, slots=True)
class Sizing:
    """What a search found."""

    workers: int | None
    """None: no count that was tried keeps the targets."""
    verdicts: Mapping[int, Verdict]
    """Of every count that was simulated."""

    @property
    def is_edge(self) -> bool:
        """One worker more misses again: the count is found by chance as much as by need."""
        above = None if self.workers is None else self.verdicts.get(self.workers + 1)
        return above is not None and not above.keeps


def judge(workers: int, records: Iterable[Record], drain_allowed_ms: float) -> Verdict:
    """What a run came to."""
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
        unfinished=sum(record.outcome not in (Outcome.FINISHED, Outcome.REJECTED) for record in records),
    )


def _lane(records: Sequence[Record]) -> LaneVerdict:
    count = len(records)
    return LaneVerdict(
        requests=count,
        ttft_kept=sum(map(_first_kept, records)) / count,
        tpot_kept=sum(map(_pace_kept, records)) / count,
        refused=sum(record.outcome is Outcome.REJECTED for record in records) / count,
        ttft_ms=spread(record.ttft_ms for record in records if record.ttft_ms is not None),
        tpot_ms=spread(record.tpot_ms for record in records if record.tpot_ms is not None),
    )


def _first_kept(record: Record) -> bool:
    ttft_ms = record.ttft_ms
    return record.outcome is Outcome.FINISHED and ttft_ms is not None and ttft_ms <= record.arrival.ttft_ms


def _pace_kept(record: Record) -> bool:
    tpot_ms = record.tpot_ms
    return record.outcome is Outcome.FINISHED and (tpot_ms is None or tpot_ms <= record.arrival.tpot_ms)


def drain_allowed_ms(rows: Sequence[TraceRow], calibration: Calibration) -> float:
    """How long after the last arrival the throughput lane may be busy."""
    longest = max(row.output_tokens for row in rows) * AUTO_STREAMS * calibration.hardware.single_stream_ms
    prefill = max(work_ms(row, calibration) for row in rows)
    return DRAIN_PART * (rows[-1].at_ms - rows[0].at_ms) + longest + prefill


def first_guess(rows: Sequence[TraceRow], calibration: Calibration, tpot_ms: float) -> int:
    """Workers that the trace would keep busy, if each spent in a step what the target of the time between tokens leaves
    beside the step's own base."""
    length_ms = max(1.0, rows[-1].at_ms - rows[0].at_ms)
    base_ms = calibration.step[0] + calibration.overhead_ms
    useful = max(0.1, 1.0 - base_ms / max(tpot_ms, base_ms))
    return min(MOST_WORKERS, max(1, math.ceil(sum(work_ms(row, calibration) for row in rows) / length_ms / useful)))


def alone_kept(rows: Sequence[TraceRow], calibration: Calibration, ttft_ms: float) -> float:
    """Share of the requests whose first token comes in time on a worker that does nothing else."""
    step = calibration.step
    in_time = sum(
        step[0] + row.prompt_tokens * step[2] + step[4] * row.prompt_tokens**2 / 2.0 <= ttft_ms for row in rows
    )
    return in_time / len(rows)


def smallest(
    simulate: Callable[[Sequence[int]], Sequence[Verdict]], *, guess: int, at_once: int = 1, most: int = MOST_WORKERS
) -> Sizing:
    """Search from a guess. `simulate`: counts to their verdicts, `at_once` of them at the cost of one."""
    known: dict[int, Verdict] = {}

    def look(counts: Iterable[int]) -> None:
        new = sorted({count for count in counts if 1 <= count <= most} - known.keys())
        for verdict in simulate(new) if new else ():
            known[verdict.workers] = verdict

    look(_around(guess, at_once))
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


def _around(guess: int, at_once: int) -> list[int]:
    """The guess, and larger counts as far as they cost nothing."""
    return [math.ceil(guess * (1.0 + 0.5 * number)) for number in range(at_once)]


def _between(lower: int, upper: int, at_once: int) -> list[int]:
    """Counts that part what lies between two evenly."""
    parts = min(at_once, upper - lower - 1) + 1
    return [lower + max(1, (upper - lower) * part // parts) for part in range(1, parts)]
