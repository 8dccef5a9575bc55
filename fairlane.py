"""The `fairlane` command. Subcommands live in `gateway.commands`; each is imported only when it runs."""

import typer

app = typer.Typer(no_args_is_help=True)


def main() -> None:
    """The entry point."""
    app()
