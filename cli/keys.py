"""`fairlane keys`: create, list, show, change, rotate and revoke a tenant's API keys. `fairlane quotas`: its limits.
`fairlane tokens`: named tokens with a role, for people and programs that operate this installation."""

from typing import Annotated, Literal

import typer

from fairlane.cli import printer
from fairlane.cli.client import LimitOptions, TenantId, Url, connect, given, limits_of, segment

app = typer.Typer(no_args_is_help=True, add_completion=False)
quotas = typer.Typer(no_args_is_help=True, add_completion=False)
tokens = typer.Typer(no_args_is_help=True, add_completion=False)

Key = Annotated[str, typer.Argument(help="The key's public id.")]
Many = list[str] | None
ExpiresAt = Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339, such as 2027-01-01T00:00Z.")]
COLUMNS = ("id", "name", "state", "created", "expires", "last used")
TOKEN_COLUMNS = ("id", "name", "role", "created", "by", "expires")
LIMIT_COLUMNS = ("limit", "used", "reserved", "remaining", "of")


@app.command(cls=printer.OutputCommand)
def create(
    tenant: TenantId,
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    expires_at: ExpiresAt = None,
    limit: LimitOptions = None,
    model: Annotated[Many, typer.Option(help="Restrict the key to this model; may be repeated.")] = None,
    lane: Annotated[Many, typer.Option(help="Restrict the key to this lane; may be repeated.")] = None,
    endpoint: Annotated[Many, typer.Option(help="Restrict the key to this endpoint; may be repeated.")] = None,
    cidr: Annotated[Many, typer.Option(help="Restrict the key to callers from this network; may be repeated.")] = None,
    act_as: Annotated[Many, typer.Option(help="Allow the key to act as this tenant; may be repeated.")] = None,
    url: Url = None,
    output: printer.Output = printer.OutputForm.TABLE,
) -> None:
    """Create a key. It is shown only this once: only a hash is stored."""
    with connect(url) as admin:
        scopes = given(models=model, lanes=lane, endpoints=endpoint, cidrs=cidr, act_as=act_as)
        limits = limits_of(limit) if limit else None
        body = given(name=name, expires_at=expires_at, limits=limits, scopes=scopes or None)
        printer.show_secret(admin.call("POST", f"/tenants/{segment(tenant)}/keys", body), "key", output)


@app.command("list", cls=printer.OutputCommand)
def list_keys(tenant: TenantId, url: Url = None, output: printer.Output = printer.OutputForm.TABLE) -> None:
    """List the tenant's keys, without their secrets."""
    with connect(url) as admin:
        printer.show_list(admin.all(f"/tenants/{segment(tenant)}/keys"), COLUMNS, _row, output)


@app.command("show", cls=printer.OutputCommand)
def show_key(tenant: TenantId, key: Key, url: Url = None, output: printer.Output = printer.OutputForm.JSON) -> None:
    """Show one key, without its secret."""
    with connect(url) as admin:
        printer.show_document(admin.get(_path(tenant, key)), output)


@app.command()
def update(
    tenant: TenantId,
    key: Key,
    name: Annotated[str | None, typer.Option(help="What the key is for.")] = None,
    expires_at: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339, or none.")] = None,
    limit: LimitOptions = None,
    url: Url = None,
) -> None:
    """Change the given fields of an active key; `--limit NAME=none` removes a limit."""
    with connect(url) as admin:
        body = given(name=name, limits=limits_of(limit) if limit else None)
        if expires_at is not None:
            body["expires_at"] = None if expires_at == "none" else expires_at
        admin.call("PATCH", _path(tenant, key), body)
        typer.echo(f"{key} is changed" if body else f"nothing to change for {key}")


@app.command()
def revoke(tenant: TenantId, key: Key, url: Url = None) -> None:
    """Revoke a key, everywhere within a second."""
    with connect(url) as admin:
        admin.call("DELETE", _path(tenant, key))
        typer.echo(f"{key} is revoked")


@app.command(cls=printer.OutputCommand)
def rotate(
    tenant: TenantId,
    key: Key,
    overlap_s: Annotated[int, typer.Option(min=0, help="How long the old key keeps working, in seconds.")] = 3600,
    url: Url = None,
    output: printer.Output = printer.OutputForm.TABLE,
) -> None:
    """Create a copy of a key with a new secret; the old key expires after the overlap."""
    with connect(url) as admin:
        printer.show_secret(admin.call("POST", f"{_path(tenant, key)}/rotate", {"overlap_s": overlap_s}), "key", output)


def _path(tenant: str, key: str) -> str:
    return f"/tenants/{segment(tenant)}/keys/{segment(key)}"


def _row(key: printer.Document) -> tuple[object, ...]:
    times = [printer.minute(key[name]) for name in ("created_at", "expires_at", "last_used_at")]
    return key["id"], key["name"], key["state"], *times


@quotas.command("show", cls=printer.OutputCommand)
def show_limits(tenant: TenantId, url: Url = None, output: printer.Output = printer.OutputForm.TABLE) -> None:
    """Show every limit that is set, with its used and reserved amounts."""
    with connect(url) as admin:
        _show_quota(admin.get(f"/tenants/{segment(tenant)}/quota"), output)


@quotas.command("set", cls=printer.OutputCommand)
def set_limits(
    tenant: TenantId,
    limits: Annotated[list[str], typer.Argument(metavar="NAME=NUMBER...", help="NAME=none removes a limit.")],
    replace: Annotated[bool, typer.Option("--replace", help="Remove all other limits.")] = False,
    url: Url = None,
    output: printer.Output = printer.OutputForm.TABLE,
) -> None:
    """Change limits; they apply from the next request on every gateway."""
    with connect(url) as admin:
        method = "PUT" if replace else "PATCH"
        _show_quota(admin.call(method, f"/tenants/{segment(tenant)}/quota", {"limits": limits_of(limits)}), output)


def _show_quota(quota: printer.Document, output: printer.OutputForm) -> None:
    parts = ("used", "reserved", "remaining", "limit")
    rows = [(name, *(limit[part] for part in parts)) for name, limit in quota["limits"].items()]
    printer.show(quota, output, lambda: printer.show_table(LIMIT_COLUMNS, rows))


@tokens.command("create", cls=printer.OutputCommand)
def create_token(
    name: Annotated[str, typer.Argument(help="Who or what it is for; shown in the audit log.")],
    role: Annotated[
        Literal["viewer", "operator", "owner"],
        typer.Option(help="viewer: read only; operator: also limits, keys, drain, suspend; owner: everything."),
    ] = "viewer",
    expires_at: ExpiresAt = None,
    url: Url = None,
    output: printer.Output = printer.OutputForm.TABLE,
) -> None:
    """Create a token. It is shown only this once: only a hash is stored."""
    with connect(url) as admin:
        body = given(name=name, role=role, expires_at=expires_at)
        printer.show_secret(admin.call("POST", "/tokens", body), "token", output)


@tokens.command("list", cls=printer.OutputCommand)
def list_tokens(url: Url = None, output: printer.Output = printer.OutputForm.TABLE) -> None:
    """List all tokens, without their secrets."""
    with connect(url) as admin:
        printer.show_list(admin.all("/tokens"), TOKEN_COLUMNS, _token_row, output)


@tokens.command("revoke")
def revoke_token(token: Annotated[str, typer.Argument(help="The token's id.")], url: Url = None) -> None:
    """Revoke a token and the sessions that signed in with it, from the next call on."""
    with connect(url) as admin:
        admin.call("DELETE", f"/tokens/{segment(token)}")
        typer.echo(f"{printer.printable(token)} is revoked")


def _token_row(token: printer.Document) -> tuple[object, ...]:
    created, expires = printer.minute(token["created_at"]), printer.minute(token["expires_at"])
    return token["id"], token["name"], token["role"], created, token["created_by"], expires
