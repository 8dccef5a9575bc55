"""Prints the tables of docs/deployment.md, and draws its picture where `--plot FILE` names one."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.autoscaling import gateways, workers
from benchmarks.autoscaling.workers import Outcomes

HEAD = ("rule", "worker hours", "most", "changes", "TTFT P50, s", "P95", "P99", "within 1 s", "finished")
DRAWN = ("4 workers", "queued tokens alone", "queued tokens and running")


def table(found: Sequence[Outcomes]) -> str:
    """In Markdown."""
    lines = [HEAD, ("---",) * len(HEAD)]
    lines += [
        (
            each.rule, f"{each.worker_hours:.2f}", str(each.most), str(each.changes), f"{each.ttft_p50_s:.2f}",
            f"{each.ttft_p95_s:.1f}", f"{each.ttft_p99_s:.1f}", f"{each.in_time:.1%}", f"{each.ended:.1%}",
        )
        for each in found
    ]  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(found: Sequence[Outcomes], file: Path) -> None:
    """Workers over time. Needs matplotlib, an extra."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib.figure import Figure

    style = {
        "svg.hashsalt": "fairlane",
        "svg.fonttype": "none",
        "figure.facecolor": "#f8fafc",
        "axes.facecolor": "#f8fafc",
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(8, 4.2))
        axes = figure.subplots()
        hours = [place * workers.STRETCH_S / 60.0 for place in range(len(workers.PACES) + 1)]
        axes.stairs(workers.PACES, hours, fill=True, color="#cbd5e1", label="requests per second")
        for each, colour in zip(found, ("#64748b", "#d97706", "#2563eb"), strict=True):
            times = [size.at_ms / 6e4 for size in each.sizes]
            axes.step(times, [size.serving for size in each.sizes], where="post", color=colour, label=each.rule)
        axes.set_xlabel("minutes")
        axes.set_ylabel("workers that serve")
        axes.set_ylim(0, None)
        axes.legend(frameon=False, loc="upper left")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, format="svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscaling", description=__doc__)
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("--rule", action="append", choices=[*workers.RULES], help="one alone; repeat for several")
    chosen = parser.parse_args()
    found = []
    for rule in chosen.rule or workers.RULES:
        found.append(workers.play(rule))
        print(f"played: {rule}", flush=True)
    print(table(found))
    scaled = gateways.play()
    print(
        f"gateways, {gateways.TIMES} such loads: {scaled.gateway_hours:.2f} gateway hours, {scaled.most} at most,"
        f" busiest core {scaled.busiest_percent:.0f} %, full for {scaled.full_s:.0f} s"
    )
    if chosen.plot is not None:
        draw([each for name in DRAWN for each in found if each.rule == name], chosen.plot)


main()
