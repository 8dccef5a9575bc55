"""Output of a run: progress, tables, and the comparison of two runs."""

import asyncio
from pathlib import Path
from statistics import median

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeElapsedColumn

from fairlane.cli.bench.results import BenchGroup, BenchReport, BenchSpread
from fairlane.cli.bench.run import Tally
from fairlane.cli.client import CommandError
from fairlane.cli.printer import Document, cell, duration, show_table

REFRESH_S = 0.25
COLUMNS = ("", "requests", "ended", "req/s", "tokens/s", "TTFT p95", "TPOT p95", "goodput")
DETAIL_COLUMNS = ("", "mean", "p50", "p90", "p95", "p99")
COMPARED_COLUMNS = ("figure", "A", "B", "change")
# Above this lag the load generator itself is too slow, and its figures are doubtful.
LATE_MS = 50.0
MOST_TENANTS_SHOWN = 20


async def show_progress(tally: Tally, requests: int | None, duration_s: float | None) -> None:
    """Draw a progress line until cancelled; nothing if stderr is not a terminal."""
    console = Console(stderr=True)
    columns = "{task.percentage:>3.0f}%", BarColumn(bar_width=20), "{task.description}", TimeElapsedColumn()
    seen_s, seen_tokens = 0.0, 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=requests if duration_s is None else duration_s)
        while True:
            seconds = tally.seconds if tally.began_s else 0.0
            tokens = tally.tokens
            rate = (tokens - seen_tokens) / max(seconds - seen_s, 1e-9)
            seen_s, seen_tokens = seconds, tokens
            done = len(tally.done) if duration_s is None else seconds
            progress.update(task, completed=done, description=_line(tally, rate))
            await asyncio.sleep(REFRESH_S)


def _line(tally: Tally, rate: float) -> str:
    ttft = duration(median(tally.recent_ttft_ms)) if tally.recent_ttft_ms else "-"
    counts = f"{len(tally.done):,} done, {tally.running:,} running, {tally.failed:,} failed"
    return f"{counts}, {rate:,.0f} tokens/s, TTFT {ttft}"


def show_report(report: BenchReport) -> None:
    """Print the tables of a run."""
    groups = {**report.lanes, "all": report.total} if len(report.lanes) != 1 else report.lanes
    show_table(COLUMNS, [_row(name, group) for name, group in groups.items()])
    typer.echo("")
    details: list[tuple[str, ...]] = []
    for name, group in groups.items():
        details += [(f"{name} {kind}", *_spread(found)) for kind, found in _spreads(group).items()]
    show_table(DETAIL_COLUMNS, details)
    if len(report.tenants) > 1:
        typer.echo("")
        shown = list(report.tenants.items())[:MOST_TENANTS_SHOWN]
        show_table(("tenant", *COLUMNS[1:]), [_row(name, group) for name, group in shown])
    if report.total.errors:
        typer.echo("")
        lanes = [*report.lanes]
        by_code = [
            (code, count, *(report.lanes[lane].errors.get(code, 0) for lane in lanes))
            for code, count in report.total.errors.items()
        ]
        show_table(("error", "requests", *lanes), by_code)
    typer.echo("")
    typer.echo("\n".join(_notes(report)))


def _row(name: str, group: BenchGroup) -> tuple[object, ...]:
    ttft, tpot = group.ttft_ms, group.tpot_ms
    return (
        name,
        group.requests,
        group.ended,
        group.requests_per_s,
        group.output_tokens_per_s,
        duration(None if ttft is None else ttft.p95),
        duration(None if tpot is None else tpot.p95),
        f"{group.goodput:.1%}",
    )


def _spreads(group: BenchGroup) -> dict[str, BenchSpread | None]:
    return {"TTFT": group.ttft_ms, "TPOT": group.tpot_ms, "ITL": group.itl_ms, "e2e": group.e2e_ms}


def _spread(spread: BenchSpread | None) -> list[str]:
    if spread is None:
        return ["-"] * (len(DETAIL_COLUMNS) - 1)
    return [duration(value) for value in msgspec.structs.astuple(spread)]


def _notes(report: BenchReport) -> list[str]:
    total = report.total
    notes = [
        f"{report.duration_s:,.1f} s, {total.prompt_tokens:,} prompt tokens ({total.cached_tokens:,} cached), "
        f"{total.output_tokens:,} output tokens"
    ]
    for lane in report.lanes:
        target = report.targets[lane]
        notes.append(
            f"goodput of {lane}: TTFT within {duration(target.ttft_ms)}, TPOT within {duration(target.tpot_ms)}"
        )
    if report.unsent:
        notes.append(f"{report.unsent:,} requests were not sent, since too many were running: raise --most-open")
    if report.lag_p99_ms > LATE_MS:
        notes.append(f"requests were sent late (p99 {duration(report.lag_p99_ms)}): this machine is too slow")
    if report.interrupted:
        notes.append("interrupted: unfinished requests count as cancelled")
    return notes


def read_report(file: Path) -> BenchReport:
    """Read a report that `--json` wrote. Raises CommandError."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=BenchReport)
    except OSError as error:
        raise CommandError(f"{file}: cannot be read ({error.strerror or type(error).__name__})") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise CommandError(f"{file}: is not a result of `fairlane bench --json`") from None


def compared(first: BenchReport, second: BenchReport) -> list[Document]:
    """Return each figure of both runs, in total and by lane; the change is None if one of them is missing."""
    figures = [_figures("all", each.total) for each in (first, second)]
    for lane in [lane for lane in first.lanes if lane in second.lanes]:
        for found, each in zip(figures, (first, second), strict=True):
            found.update(_figures(lane, each.lanes[lane]))
    return [
        {"figure": name, "a": a, "b": figures[1].get(name), "change": _change(a, figures[1].get(name))}
        for name, a in figures[0].items()
    ]


def differences(first: BenchReport, second: BenchReport) -> list[str]:
    """Return the parameters in which two runs differ."""
    names = dict.fromkeys((*first.setup, *second.setup))
    return [
        f"{name}: {cell(first.setup.get(name))} and {cell(second.setup.get(name))}"
        for name in names
        if first.setup.get(name) != second.setup.get(name)
    ]


def _figures(name: str, group: BenchGroup) -> dict[str, float | None]:
    figures: dict[str, float | None] = {
        f"{name} requests/s": group.requests_per_s,
        f"{name} output tokens/s": group.output_tokens_per_s,
        f"{name} goodput": group.goodput,
        f"{name} errors": float(sum(group.errors.values())),
    }
    for kind, spread in _spreads(group).items():
        for part in ("p50", "p95", "p99"):
            figures[f"{name} {kind} {part} ms"] = None if spread is None else getattr(spread, part)
    return figures


def _change(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None or a == 0.0 else b / a - 1.0


def show_compared(rows: list[Document]) -> None:
    """Print both runs side by side."""
    shown = [
        (row["figure"], _plain(row["a"]), _plain(row["b"]), "-" if row["change"] is None else f"{row['change']:+.1%}")
        for row in rows
    ]
    show_table(COMPARED_COLUMNS, shown)


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}" if abs(value) < 1_000 else f"{value:,.0f}"
