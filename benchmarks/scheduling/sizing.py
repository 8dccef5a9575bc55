"""Does `fairlane advise` find the smallest number of workers? Beside every smaller count, simulated one by one.

python -m benchmarks.scheduling.sizing [--processes 2] [--only NAME] [--requests N]

Each trace is played whole, so fast that the answer lies between about 4 and 30 workers. The search simulates a few
counts; here all counts below its answer are simulated too, with the same criterion and seed. Exits with 1 where the
answer is more than a tenth above the smallest count that keeps the lanes' targets.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from benchmarks.common.line import Table
from benchmarks.common.machine import describe
from benchmarks.common.report import open_console
from fairlane.cli.simulation.advise import players
from fairlane.scheduler.simulation.advice import Case, Question, size
from fairlane.scheduler.simulation.calibration import preset
from fairlane.scheduler.simulation.scenario import busiest
from fairlane.scheduler.simulation.sizing import NEAR, Sizing, Verdict
from fairlane.scheduler.simulation.synthetic_tenants import lane_tiers
from fairlane.scheduler.simulation.trace import load_trace, scale_load

LATENCY_SHARE = 0.3
COLUMNS = (
    "trace",
    "requests",
    "workers like",
    "load",
    "advised",
    "smallest",
    "counts by search, by all",
    "within 10 %",
)


@dataclass(frozen=True, slots=True)
class World:
    """A trace and who serves it."""

    trace: str
    """A file beside the others in `traces/`."""
    hardware: str
    load: float


WORLDS = {
    "conversation": World("azure-2023-conversation.csv", "h100-8b", 8.0),
    "code": World("azure-2023-code.csv", "h100-8b", 1.0),
    "recorded": World("recorded-serve.trace", "cpu-1b", 8.0),
}


@dataclass(frozen=True, slots=True)
class Found:
    """What the search and the exhaustive look came to."""

    world: World
    requests: int
    sizing: Sizing
    exhaustive: Sequence[Verdict]

    @property
    def smallest(self) -> int | None:
        """By looking at every count."""
        return next((verdict.workers for verdict in self.exhaustive if verdict.keeps), None)

    @property
    def is_near(self) -> bool:
        """The advised count is at most a tenth above the smallest."""
        if self.sizing.workers is None or self.smallest is None:
            return False
        return self.sizing.workers - self.smallest <= NEAR * self.smallest

    def row(self) -> tuple[str, ...]:
        """As a table has it."""
        counts = f"{len(self.sizing.verdicts)}, {len({*self.sizing.verdicts, *(v.workers for v in self.exhaustive)})}"
        return (
            self.world.trace,
            f"{self.requests:,}",
            self.world.hardware,
            f"{self.world.load:g}",
            str(self.sizing.workers),
            str(self.smallest),
            counts,
            "yes" if self.is_near else "NO",
        )


def question(world: World, requests: int = 0) -> Question:
    """The world's trace at its load; `requests`: so many in a row, 0: all."""
    calibration = preset(world.hardware)
    text = (files("benchmarks.scheduling") / "traces" / world.trace).read_text()
    rows = [
        *scale_load(load_trace(text.splitlines(keepends=True), kv_tokens=calibration.kv_tokens).demand(), world.load)
    ]
    return Question(
        rows=busiest(rows, requests or len(rows), calibration).rows,
        calibration=calibration,
        tiers=lane_tiers(LATENCY_SHARE, single_stream_ms=calibration.single_stream_ms),
    )


def measure(world: World, processes: int, requests: int = 0) -> Found:
    """Search, then look at each count below what was found that the search has not."""
    asked = question(world, requests)
    with players(asked, processes) as play_all:
        sizing = size(asked, play_all, at_once=processes)
        upto = sizing.workers or max(sizing.verdicts)
        missing = [count for count in range(1, upto + 1) if count not in sizing.verdicts]
        known = {**sizing.verdicts, **{v.workers: v for v in play_all([Case(workers=count) for count in missing])}}
    return Found(world, len(asked.rows), sizing, [known[count] for count in range(1, upto + 1)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where an answer is too large."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", choices=sorted(WORLDS))
    parser.add_argument("--requests", type=int, default=0, help="of each trace; 0: all")
    options = parser.parse_args(arguments)
    console = open_console()
    console.print(describe())
    found = []
    for name, world in WORLDS.items():
        if options.only in (None, name):
            found.append(measure(world, options.processes, options.requests))
            console.print(" | ".join(found[-1].row()))
            for verdict in found[-1].exhaustive:
                shares = {lane.value: f"{100 * each.kept:.2f}" for lane, each in verdict.lanes.items()}
                console.print(f"  {verdict.workers}: {'keeps' if verdict.keeps else 'misses'} {shares}")
    table = Table("Workers", COLUMNS, [each.row() for each in found])
    console.print("\n".join(" | ".join(row) for row in (table.columns, *table.rows)))
    return 0 if all(each.is_near for each in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
