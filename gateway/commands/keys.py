"""`fairlane keys`: create, list, rotate and revoke a tenant's API keys."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from gateway.commands.client import (
    AsJson,
    Document,
    LimitOptions,
    Url,
    connect,
    given,
    limits_of,
    segment,
    show_json,
    show_table,
)

app = typer.Typer(no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="The tenant's id.")]
Key = Annotated[str, typer.Argument(help="The key's public id.")]
Many = list[str] | None
COLUMNS = ("id", "name", "state", "created", "expires")


@app.command()
def create(
    tenant: Tenant,
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    expires_at: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339, such as 2027-01-01T00:00Z.")] = None,
    limit: LimitOptions = None,
    model: Annotated[Many, typer.Option(help="Allow this model only; may be repeated.")] = None,
    lane: Annotated[Many, typer.Option(help="Allow this lane only; may be repeated.")] = None,
    endpoint: Annotated[Many, typer.Option(help="Allow this endpoint only; may be repeated.")] = None,
    cidr: Annotated[Many, typer.Option(help="Allow callers from this network only; may be repeated.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown this once: what is stored can only recognise it."""
    with connect(url) as admin:
        scopes = given(models=model, lanes=lane, endpoints=endpoint, cidrs=cidr)
        limits = limits_of(limit) if limit else None
        body = given(name=name, expires_at=expires_at, limits=limits, scopes=scopes or None)
        _show_new(admin.call("POST", f"/tenants/{segment(tenant)}/keys", body), as_json)


@app.command("list")
def list_keys(tenant: Tenant, url: Url = None, as_json: AsJson = False) -> None:
    """The tenant's keys, without what is secret of them."""
    with connect(url) as admin:
        keys = list(admin.all(f"/tenants/{segment(tenant)}/keys"))
        if as_json:
            return show_json(keys)
        return show_table(COLUMNS, [_row(key) for key in keys])


@app.command()
def revoke(tenant: Tenant, key: Key, url: Url = None) -> None:
    """Stop a key, everywhere within a second."""
    with connect(url) as admin:
        admin.call("DELETE", f"/tenants/{segment(tenant)}/keys/{segment(key)}")
        typer.echo(f"{key} is revoked")


@app.command()
def rotate(
    tenant: Tenant,
    key: Key,
    overlap_s: Annotated[int, typer.Option(min=0, help="How long the old key goes on working, in seconds.")] = 3600,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make a new key like this one; the old one ends after the overlap."""
    with connect(url) as admin:
        path = f"/tenants/{segment(tenant)}/keys/{segment(key)}/rotate"
        _show_new(admin.call("POST", path, {"overlap_s": overlap_s}), as_json)


def _show_new(key: Document, as_json: bool) -> None:
    """The key alone on stdout, so that `KEY=$(fairlane keys create …)` works; the rest goes to stderr."""
    if as_json:
        return show_json(key)
    typer.echo(f"{key['id']} ({key['name']}); the key is shown this once:", err=True)
    return typer.echo(key["key"])


def _row(key: Document) -> tuple[object, ...]:
    return key["id"], key["name"], key["state"], _date(key["created_at"]), _date(key["expires_at"])


def _date(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%MZ")
