"""`fairlane quotas`: show and change a tenant's limits."""

from typing import Annotated

import typer

from fairlane.cli.client import AsJson, Document, Url, connect, limits_of, segment, show_json, show_table

app = typer.Typer(no_args_is_help=True, add_completion=False)

Tenant = Annotated[str, typer.Argument(help="The tenant's id.")]
COLUMNS = ("limit", "used", "reserved", "remaining", "of")


@app.command()
def show(tenant: Tenant, url: Url = None, as_json: AsJson = False) -> None:
    """Every limit that stands, and what is used and reserved of it."""
    with connect(url) as admin:
        _show(admin.get(f"/tenants/{segment(tenant)}/quota"), as_json)


@app.command("set")
def set_limits(
    tenant: Tenant,
    limits: Annotated[list[str], typer.Argument(metavar="NAME=NUMBER...", help="NAME=none takes a limit away.")],
    replace: Annotated[bool, typer.Option("--replace", help="Take every other limit away.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Change limits; the next request on every gateway meets them."""
    with connect(url) as admin:
        method = "PUT" if replace else "PATCH"
        _show(admin.call(method, f"/tenants/{segment(tenant)}/quota", {"limits": limits_of(limits)}), as_json)


def _show(quota: Document, as_json: bool) -> None:
    if as_json:
        return show_json(quota)
    rows = [
        (name, limit["used"], limit["reserved"], limit["remaining"], limit["limit"])
        for name, limit in quota["limits"].items()
    ]
    return show_table(COLUMNS, rows)
