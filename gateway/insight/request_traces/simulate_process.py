"""The simulating child process: one task as JSON on standard input, one result on standard output."""

import os
import resource
import sys
from pathlib import Path

import msgspec

from fairlane.gateway.insight.request_traces.figures import SimulationView, load_plot, run_view
from fairlane.scheduler.simulation.calibration import Calibration
from fairlane.scheduler.simulation.scenario import Scenario, busiest, check_load
from fairlane.scheduler.simulation.simulate import StuckError
from fairlane.scheduler.simulation.synthetic_tenants import SyntheticTenants, lane_tiers
from fairlane.scheduler.simulation.trace import BadRows, TraceError, load_trace, slice_trace, text_lines

MOST_CPU_S = 120
MOST_MEMORY_BYTES = 3 << 30
MOST_ROWS = 2_000_000
MOST_PLAYED = 12_000
NICENESS = 10


class SimulationTask(msgspec.Struct, frozen=True, kw_only=True):
    """A simulation task."""

    name: str
    path: str
    loads: tuple[float, ...]
    workers: int
    hardware: str
    calibration: Calibration
    tenants: int
    zipf: float
    latency_share: float
    seed: int
    bad_rows: str
    start_s: float = 0.0
    duration_s: float | None = None


def simulated(task: SimulationTask) -> SimulationView:
    """Run the simulation. Raise ValueError, TraceError or StuckError with the reason."""
    sizes = task.calibration
    loads = [check_load(load) for load in task.loads]
    bad = BadRows("skip" if task.bad_rows == "skip" else "fail")
    with Path(task.path).open("rb") as file:
        trace = load_trace(text_lines(file), kv_tokens=sizes.kv_tokens, bad=bad, most_rows=MOST_ROWS)
    rows = trace.demand()
    asked = len(rows)
    if task.start_s or task.duration_s is not None:
        length_s = rows[-1].at_ms / 1e3 + 1.0 if task.duration_s is None else task.duration_s
        rows = slice_trace(rows, task.start_s, length_s)
    stretch = busiest(rows, MOST_PLAYED // len(loads), sizes)
    tiers = lane_tiers(task.latency_share, single_stream_ms=sizes.single_stream_ms)
    overlay = SyntheticTenants(
        tenants=task.tenants,
        zipf=task.zipf,
        tiers=tiers,
        seed=task.seed,
        kv_tokens=sizes.kv_tokens,
        weights={name: tenant.weight for name, tenant in trace.tenants.items()},
    )
    scenario = Scenario(
        rows=stretch.rows,
        overlay=overlay,
        calibration=sizes,
        workers=task.workers,
        seed=task.seed,
    )
    runs = [run_view(load, scenario.run(load, lambda: None), tiers) for load in loads]
    return {
        "trace": task.name,
        "requests": asked,
        "played": len(stretch.rows),
        "from_s": task.start_s + stretch.from_s,
        "to_s": task.start_s + stretch.to_s,
        "bad_rows": trace.bad.count,
        "bad_rows_named": trace.bad.named,
        "workers": task.workers,
        "hardware": task.hardware,
        "runs": runs,
        "output": load_plot(runs),
    }


def main() -> int:
    """Process the task on standard input. Return 1 if memory runs out."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=SimulationTask)
    try:
        answer: SimulationView | dict[str, str] = simulated(task)
    except (TraceError, StuckError, ValueError, OSError) as error:
        answer = {"fault": type(error).__name__ if isinstance(error, OSError) else str(error)}
    except MemoryError:
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
