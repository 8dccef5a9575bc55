"""`fairlane migrate`: whether a store's data has this release's schema, and its conversion."""

import asyncio
from typing import Annotated

import typer

from fairlane.cli.client import CommandError
from fairlane.cli.main import ConfigFile
from fairlane.cli.recovery import place
from fairlane.cli.recovery.command import errors
from fairlane.cli.recovery.place import Place
from fairlane.store import schema

app = typer.Typer(add_completion=False)


@app.command()
def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Say what is to be done; exit with 1 if something is.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Do it, while gateways of this release serve.")] = False,
    config: ConfigFile = None,
) -> None:
    """Check or migrate the store's data to this release's schema, once all processes are of this release."""
    with errors(), place.opened(config) as here:
        if check == apply:
            raise CommandError("say either --check or --apply")
        due = asyncio.run(migrated(here, apply=apply))
    done = "migrated to" if apply and due else "to be migrated to" if due else "has"
    typer.echo(f"the data {done} schema {schema.SCHEMA}")
    if due and check:
        raise typer.Exit(1)


async def migrated(here: Place, *, apply: bool) -> bool:
    """Migrate each store with `apply`; return whether any data was, or is, of an older schema. Raises CommandError."""
    found = False
    for url in here.urls:
        async with place.client(url) as client:
            try:
                found = bool(await schema.steps_due(client)) or found
                if apply:
                    await schema.migrate(client, url)
            except ValueError as refused:
                raise CommandError(f"the store cannot be migrated: {refused}") from None
    return found
