"""`fairlane usage`: a tenant's usage from the ledger. `fairlane workers`: list, drain and undrain workers.
`fairlane lanes`: queues and running work."""

import sys
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import typer

from fairlane.cli import printer
from fairlane.cli.client import TenantId, Url, check_writable, connect, segment, write_whole

WORKER_COLUMNS = ("worker", "model", "state", "kv blocks used", "of", "running", "waiting", "preempted", "tokens/s")
FIGURES = ("requests", "prompt_tokens", "cached_tokens", "output_tokens", "cost", "gpu_seconds", "kv_block_seconds")
# The API's units of money per unit of currency.
NANO = 10**9
LANE_COLUMNS = ("lane", "queued", "oldest wait", "running", "preempted", "tokens/s", "ttft target", "tpot target")
Worker = Annotated[str, typer.Argument(help="Id of the worker, as in `list`.")]
Since = Annotated[str | None, typer.Option("--from", metavar="TIME", help="Date, RFC 3339 or Unix time.")]
Incarnation = Annotated[str | None, typer.Option(help="Deleted tenant of this id: one of `earlier` in `-o json`.")]
Until = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Date (included), RFC 3339 or Unix time.")]


usage = typer.Typer(cls=printer.default_command("show"), no_args_is_help=True, add_completion=False)
workers = typer.Typer(no_args_is_help=True, add_completion=False)
lanes = typer.Typer(add_completion=False)


@usage.command("show", cls=printer.OutputCommand)
def show_usage(
    tenant: TenantId,
    since: Since = None,
    until: Until = None,
    group_by: Annotated[str | None, typer.Option(help="Comma-separated: lane, model, key, day.")] = None,
    incarnation: Incarnation = None,
    url: Url = None,
    output: printer.Output = printer.OutputForm.TABLE,
) -> None:
    """Show requests and tokens, summed from the ledger."""
    with connect(url) as admin:
        query = {"from": since, "to": until, "group_by": group_by, "incarnation": incarnation}
        report = admin.get(f"/tenants/{segment(tenant)}/usage", **query)
        groups = [name for name in (group_by or "").split(",") if name]
        rows = [(*(line[name] for name in groups), *_figures(line)) for line in report["data"]]
        if groups:
            rows.append((*("total", *[""] * (len(groups) - 1)), *_figures(report["total"])))
        columns = (*groups, *(f"cost ({report['currency']})" if name == "cost" else name for name in FIGURES))
        printer.show(report, output, lambda: printer.show_table(columns, rows or [_figures(report["total"])]))


def _figures(line: printer.Document) -> tuple[object, ...]:
    return tuple(f"{Decimal(line[name]) / NANO:,f}" if name == "cost" else line[name] for name in FIGURES)


@usage.command()
def chargeback(
    month: Annotated[str | None, typer.Option(help="Month such as 2026-11; defaults to the last complete one.")] = None,
    group_by: Annotated[str | None, typer.Option(help="Comma-separated: lane, model, key.")] = None,
    kind: Annotated[Literal["csv", "json"], typer.Option("--format", help="csv or json.")] = "csv",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Output file; defaults to stdout.")] = None,
    url: Url = None,
) -> None:
    """Export the charges of a month, by tenant and organisation; each tenant's month is in its own zone."""
    with connect(url) as admin:
        _write(admin.stream("/chargeback", month=month, group_by=group_by, format=kind), output)


@usage.command()
def export(
    tenant: TenantId,
    since: Since = None,
    until: Until = None,
    kind: Annotated[str, typer.Option("--format", help="csv or jsonl.")] = "jsonl",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Output file; defaults to stdout.")] = None,
    incarnation: Incarnation = None,
    url: Url = None,
) -> None:
    """Export the ledger, one line per settled request."""
    with connect(url) as admin:
        query = {"from": since, "to": until, "format": kind, "incarnation": incarnation}
        chunks = admin.stream(f"/tenants/{segment(tenant)}/ledger", **query)
        _write(chunks, output)


def _write(chunks: Iterable[bytes], output: Path | None) -> None:
    if output is None:
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
        return
    check_writable(output)
    write_whole(output, chunks)


@workers.command("list", cls=printer.OutputCommand)
def list_workers(url: Url = None, output: printer.Output = printer.OutputForm.TABLE) -> None:
    """List live workers and their load."""
    with connect(url) as admin:
        printer.show_list(admin.all("/workers"), WORKER_COLUMNS, _row, output)


@workers.command()
def drain(worker: Worker, url: Url = None) -> None:
    """Stop giving jobs to a worker; it finishes or hands back its running ones."""
    with connect(url) as admin:
        admin.call("POST", f"/workers/{segment(worker)}/drain")
        typer.echo(f"{worker} is draining")


@workers.command()
def undrain(worker: Worker, url: Url = None) -> None:
    """Give jobs to a draining or drained worker again."""
    with connect(url) as admin:
        admin.call("POST", f"/workers/{segment(worker)}/undrain")
        typer.echo(f"{worker} takes jobs again")


@lanes.command(cls=printer.OutputCommand)
def list_lanes(url: Url = None, output: printer.Output = printer.OutputForm.TABLE) -> None:
    """Show each lane's queue, running and preempted work, and targets."""
    with connect(url) as admin:
        printer.show_list(admin.all("/lanes"), LANE_COLUMNS, _lane_row, output)


def _lane_row(lane: printer.Document) -> tuple[object, ...]:
    return (
        lane["lane"],
        lane["queued"],
        printer.duration(lane["oldest_wait_ms"]),
        lane["running"],
        lane["preempted"],
        float(lane["tokens_per_s"]),
        printer.duration(lane["ttft_target_ms"]),
        printer.duration(lane["tpot_target_ms"]),
    )


def _row(worker: printer.Document) -> tuple[object, ...]:
    return (
        worker["id"],
        worker["model"],
        "draining" if worker["draining"] else "serving",
        worker["blocks_total"] - worker["blocks_free"],
        worker["blocks_total"],
        sum(worker["running"].values()),
        sum(worker["waiting"].values()),
        sum(worker["preempted"].values()),
        float(sum(worker["tokens_per_s"].values())),
    )
