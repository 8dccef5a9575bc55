"""`fairlane top`: a live view of lanes, tenants, workers and KV blocks in the terminal."""

import sys
from typing import Annotated

import typer

from fairlane.cli.client import CommandError, Url, address_and_key, report_errors
from fairlane.cli.top.feed import Feed

app = typer.Typer(add_completion=False)


@app.command()
def top(
    every: Annotated[float, typer.Option(min=0.2, max=3_600, help="Seconds between updates.")] = 1.0,
    url: Url = None,
) -> None:
    """Watch lanes, tenants, workers and KV blocks. q quits, p pauses, s sorts, / filters, 1-4 zooms."""
    with report_errors():
        try:
            from fairlane.cli.top.app import TopApp
        except ModuleNotFoundError as error:
            if str(error.name).startswith("fairlane"):
                raise
            raise CommandError(f"{error.name} is not installed: `fairlane top` needs fairlane[top]") from None
        address, key = address_and_key(url)
        if not (sys.stdin.isatty() and sys.stderr.isatty()):  # textual reads stdin and draws on stderr
            raise CommandError("top needs a terminal; programs can use `fairlane lanes -o json`")
        TopApp(address, lambda on_picture: Feed(address, key, on_picture, every).run()).run()
