"""`fairlane usage`: what a tenant has used, from the ledger."""

from typing import Annotated

import typer

from gateway.commands.client import AsJson, Url, connect, segment, show_json, show_table

app = typer.Typer()

FIGURES = ("requests", "prompt_tokens", "cached_tokens", "output_tokens")


@app.command()
def usage(
    tenant: Annotated[str, typer.Argument(help="The tenant's id.")],
    since: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Date, RFC 3339 or Unix time.")] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="The same; its day is included.")] = None,
    group_by: Annotated[str | None, typer.Option(help="Of lane, model, key and day, with commas between.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Requests and tokens from the ledger."""
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
