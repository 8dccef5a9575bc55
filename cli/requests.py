"""`fairlane requests`: running and recent requests, and why they were slow or failed."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import typer

from fairlane.cli import printer
from fairlane.cli.client import Url, connect, segment
from fairlane.scheduler.protocol.lanes import LaneName

app = typer.Typer(no_args_is_help=True, add_completion=False)

COLUMNS = ("came", "request", "tenant", "lane", "state", "outcome", "queue", "ttft", "total", "output", "preempted")
EVENT_COLUMNS = ("at", "what", "position", "stall")
PREEMPTION_COLUMNS = ("at", "choice", "by", "for", "mode", "blocks", "bytes", "copies foreseen", "away")
Name = Annotated[str, typer.Argument(metavar="ID", help="x-request-id, or the id of the response or record.")]
TIME_COLUMNS = ("time went to", "time")
WHY = ("id", "request_id", "outcome", "code", "time", "why")
_LISTS = ("events", "preemptions", "time", "waits")
State = Literal["queued", "running", "preempted", "paused", "lost", "ended"]
Outcome = Literal["rejected", "finished", "cancelled", "expired", "unavailable", "failed"]


@app.command("ls", cls=printer.OutputCommand)
def list_requests(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    lane: Annotated[LaneName | None, typer.Option(help="Only this lane's.")] = None,
    state: Annotated[State | None, typer.Option(help="Only requests in this state.")] = None,
    outcome: Annotated[Outcome | None, typer.Option(help="Only requests with this outcome.")] = None,
    slowest: Annotated[Literal["ttft", "total", "queue"] | None, typer.Option(help="Longest of these first.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="Maximum number of rows.")] = 20,
    url: Url = None,
    output: printer.Output = printer.OutputForm.TABLE,
) -> None:
    """List running requests, then those that ended last; or the slowest first."""
    with connect(url) as admin:
        query = {"tenant": tenant, "lane": lane, "state": state, "outcome": outcome, "slowest": slowest}
        printer.show_list(admin.get("/requests", limit=limit, **query)["data"], COLUMNS, _row, output)


@app.command("show", cls=printer.OutputCommand)
def show_request(name: Name, url: Url = None, output: printer.Output = printer.OutputForm.TABLE) -> None:
    """Show all that is recorded of a request."""
    with connect(url) as admin:
        found = admin.get(f"/requests/{segment(name)}")
        printer.show(found, output, lambda: _show_tables(found))


@app.command(cls=printer.OutputCommand)
def why(name: Name, url: Url = None, output: printer.Output = printer.OutputForm.TABLE) -> None:
    """Explain in a sentence or two why a request was slow, refused or ended."""
    with connect(url) as admin:
        shown = {field: value for field, value in admin.get(f"/requests/{segment(name)}").items() if field in WHY}
        printer.show(shown, output, lambda: typer.echo(printer.printable(shown["why"])))


def _show_tables(request: printer.Document) -> None:
    printer.show_document(
        {name: value for name, value in request.items() if name not in _LISTS}, printer.OutputForm.TABLE
    )
    times = [(name.removesuffix("_ms"), printer.duration(ms)) for name, ms in request["time"].items()]
    waits = [(wait["reason"], printer.duration(wait["ms"]), wait.get("words")) for wait in request["waits"]]
    tables: Mapping[tuple[str, ...], Sequence[tuple[object, ...]]] = {
        TIME_COLUMNS: times[1:] + times[:1],  # the total comes last
        ("waited for", "time", "that is"): waits,
        PREEMPTION_COLUMNS: [_preemption_row(each) for each in request["preemptions"]],
        EVENT_COLUMNS: [
            (printer.duration(each["at_ms"]), each["kind"], each["position"], printer.duration(each["stall_ms"]))
            for each in request["events"]
        ],
    }
    for columns, rows in tables.items():
        if rows:
            typer.echo()
            printer.show_table(columns, rows)


def _row(request: printer.Document) -> tuple[object, ...]:
    times = [printer.duration(request[name]) for name in ("queue_ms", "ttft_ms", "total_ms")]
    how = request["code"] or request["outcome"]
    who = request["request_id"], request["tenant"], request["lane"] or None, request["state"], how
    return printer.moment(request["arrived_at"]), *who, *times, request["output_tokens"], request["preemptions"]


def _preemption_row(preemption: printer.Document) -> tuple[object, ...]:
    cause = preemption["cause"] or {"tenant": None, "lane": None, "resource": None}
    by = " of ".join(str(part) for part in (cause["lane"], cause["tenant"]) if part)
    return (
        printer.duration(preemption["at_ms"]),
        preemption["choice"],
        by or None,
        cause["resource"],
        preemption["mode"],
        preemption["blocks"],
        preemption["bytes"],
        printer.duration(preemption["predicted_ms"]),
        printer.duration(preemption["stall_ms"]),
    )
