"""`fairlane usage`: what a tenant has used, from the ledger, in sums or entry by entry."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fairlane.cli.client import AsJson, Url, check_writable, connect, segment, show_json, show_table

FIGURES = ("requests", "prompt_tokens", "cached_tokens", "output_tokens")
Tenant = Annotated[str, typer.Argument(help="The tenant's id.")]
Since = Annotated[str | None, typer.Option("--from", metavar="TIME", help="Date, RFC 3339 or Unix time.")]
Until = Annotated[str | None, typer.Option("--to", metavar="TIME", help="The same; its day is included.")]


class OrShow(TyperGroup):
    """`fairlane usage TENANT` is `fairlane usage show TENANT`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer's own vendored click types are private
        """The arguments, with `show` before them where no subcommand is named."""
        is_named = not args or args[0] in (*self.commands, "--help")
        return super().parse_args(ctx, args if is_named else ["show", *args])


app = typer.Typer(cls=OrShow, no_args_is_help=True, add_completion=False)


@app.command()
def show(
    tenant: Tenant,
    since: Since = None,
    until: Until = None,
    group_by: Annotated[str | None, typer.Option(help="Of lane, model, key and day, with commas between.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Requests and tokens, added up from the ledger."""
    with connect(url) as admin:
        query = {"from": since, "to": until, "group_by": group_by}
        report = admin.get(f"/tenants/{segment(tenant)}/usage", **query)
        if as_json:
            return show_json(report)
        groups = [name for name in (group_by or "").split(",") if name]
        rows = [tuple(line[name] for name in (*groups, *FIGURES)) for line in report["data"]]
        if groups:
            rows.append((*("total", *[""] * (len(groups) - 1)), *(report["total"][name] for name in FIGURES)))
        return show_table((*groups, *FIGURES), rows or [tuple(report["total"][name] for name in FIGURES)])


@app.command()
def export(
    tenant: Tenant,
    since: Since = None,
    until: Until = None,
    kind: Annotated[str, typer.Option("--format", help="csv, or jsonl.")] = "jsonl",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; else stdout.")] = None,
    url: Url = None,
) -> None:
    """The ledger itself, one line for each settled request."""
    with connect(url) as admin:
        chunks = admin.stream(f"/tenants/{segment(tenant)}/ledger", **{"from": since, "to": until, "format": kind})
        if output is None:
            for chunk in chunks:
                sys.stdout.buffer.write(chunk)
            sys.stdout.flush()
            return
        check_writable(output)
        beside = output.with_name(f".{output.name}.part")
        try:
            with beside.open("wb") as file:
                file.writelines(chunks)
            beside.replace(output)
        finally:
            beside.unlink(missing_ok=True)
