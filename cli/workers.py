"""`fairlane workers`: list, drain and undrain workers."""

from typing import Annotated

import typer

from fairlane.cli.client import AsJson, Document, Url, connect, segment, show_json, show_table

app = typer.Typer(no_args_is_help=True, add_completion=False)

COLUMNS = ("worker", "model", "state", "kv blocks used", "of", "running", "waiting", "preempted", "tokens/s")
Worker = Annotated[str, typer.Argument(help="Its id, as the list shows it.")]


@app.command("list")
def list_workers(url: Url = None, as_json: AsJson = False) -> None:
    """Every worker that is alive, and how full it is."""
    with connect(url) as admin:
        workers = list(admin.all("/workers"))
        if as_json:
            show_json(workers)
        else:
            show_table(COLUMNS, [_row(worker) for worker in workers])


@app.command()
def drain(worker: Worker, url: Url = None) -> None:
    """Let a worker take no more jobs, and finish or hand back what it runs."""
    with connect(url) as admin:
        admin.call("POST", f"/workers/{segment(worker)}/drain")
        typer.echo(f"{worker} drains")


@app.command()
def undrain(worker: Worker, url: Url = None) -> None:
    """Let a worker that drains, or has drained, take jobs again."""
    with connect(url) as admin:
        admin.call("POST", f"/workers/{segment(worker)}/undrain")
        typer.echo(f"{worker} takes jobs again")


def _row(worker: Document) -> tuple[object, ...]:
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
