"""`fairlane tokens`: named tokens with a role, for people and programs that operate this installation."""

from typing import Annotated, Literal

import typer

from fairlane.cli.client import Url, connect, given, segment
from fairlane.cli.printer import Document, Output, OutputCommand, OutputForm, minute, printable, show_list, show_secret

app = typer.Typer(no_args_is_help=True, add_completion=False)

COLUMNS = ("id", "name", "role", "created", "by", "expires")


@app.command(cls=OutputCommand)
def create(
    name: Annotated[str, typer.Argument(help="Who or what it is for; shown in the audit log.")],
    role: Annotated[
        Literal["viewer", "operator", "owner"],
        typer.Option(help="viewer: read only; operator: also limits, keys, drain, suspend; owner: everything."),
    ] = "viewer",
    expires_at: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339, such as 2027-01-01T00:00Z.")] = None,
    url: Url = None,
    output: Output = OutputForm.TABLE,
) -> None:
    """Create a token. It is shown only this once: only a hash is stored."""
    with connect(url) as admin:
        body = given(name=name, role=role, expires_at=expires_at)
        show_secret(admin.call("POST", "/tokens", body), "token", output)


@app.command("list", cls=OutputCommand)
def list_tokens(url: Url = None, output: Output = OutputForm.TABLE) -> None:
    """List all tokens, without their secrets."""
    with connect(url) as admin:
        show_list(admin.all("/tokens"), COLUMNS, _row, output)


@app.command()
def revoke(token: Annotated[str, typer.Argument(help="The token's id, as `list` shows it.")], url: Url = None) -> None:
    """Revoke a token and the sessions that signed in with it, from the next call on."""
    with connect(url) as admin:
        admin.call("DELETE", f"/tokens/{segment(token)}")
        typer.echo(f"{printable(token)} is revoked")


def _row(token: Document) -> tuple[object, ...]:
    created, expires = minute(token["created_at"]), minute(token["expires_at"])
    return token["id"], token["name"], token["role"], created, token["created_by"], expires
