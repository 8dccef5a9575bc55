"""`fairlane prices`: show the price list, set one row of it, or apply a file.

The command line uses the currency per million tokens; the API uses whole nano-units per token, a thousandth of that."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated

import typer

from fairlane.cli.client import CommandError, Url, connect, read_yaml
from fairlane.cli.printer import Document, Output, OutputCommand, OutputForm, show, show_table
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.prices import ANY, PriceList

app = typer.Typer(no_args_is_help=True, add_completion=False)

COLUMNS = ("model", "lane", "input", "cached input", "output")
PRICES = ("input", "cached_input", "output")
# Nano-units per token in one unit of the currency per million tokens.
PER_MILLION = 1_000

Price = Annotated[str | None, typer.Option(metavar="AMOUNT", help="Price per million tokens, such as 0.15.")]


@app.command("show", cls=OutputCommand)
def show_prices(url: Url = None, output: Output = OutputForm.TABLE) -> None:
    """Show the price list, per million tokens."""
    with connect(url) as admin:
        _show(admin.get("/prices"), output)


@app.command("set", cls=OutputCommand)
def set_row(
    model: Annotated[str, typer.Option(help="Name of a model; defaults to any.")] = ANY,
    lane: Annotated[str, typer.Option(help="latency or throughput; defaults to any.")] = ANY,
    input: Price = None,  # noqa: A002 - the option's name
    cached_input: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Price of cached input tokens; defaults to --input.")
    ] = None,
    output_price: Annotated[str | None, typer.Option("--output-tokens", metavar="AMOUNT", help="Output price.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the row.")] = False,
    url: Url = None,
    output: Output = OutputForm.TABLE,
) -> None:
    """Set the prices of a model and lane; other rows stay."""
    with connect(url) as admin:
        stored = admin.get("/prices")
        others = [row for row in stored["prices"] if (row["model"], row["lane"]) != (model, lane)]
        if remove:
            if len(others) == len(stored["prices"]):
                raise CommandError(f"there is no row of model {model} and lane {lane}")
        elif input is None or output_price is None:
            raise CommandError("--input and --output-tokens are needed, or --remove")
        else:
            row: Document = {"model": model, "lane": lane, "input": nano(input), "output": nano(output_price)}
            if cached_input is not None:
                row["cached_input"] = nano(cached_input)
            others.append(row)
        _show(admin.call("PUT", "/prices", {"prices": others}, version=stored["version"]), output)


@app.command()
def apply(
    file: Annotated[Path, typer.Option("-f", "--file", help="YAML with `prices:` and rows in the API's form.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, without changing it.")] = False,
    url: Url = None,
) -> None:
    """Make the stored list match a file with the API's figures: nano-units per token."""
    with connect(url) as admin:
        wanted, stored = read_file(file).as_rows(), admin.get("/prices")
        changes = differences(stored["prices"], wanted)
        if not dry_run and wanted != stored["prices"]:
            admin.call("PUT", "/prices", {"prices": wanted}, version=stored["version"])
        typer.echo("\n".join(changes), nl=bool(changes))
        typer.echo(f"{len(changes)} {'to change' if dry_run else 'changed'}, {len(wanted)} in {file}", err=True)


def nano(amount: str) -> int:
    """Convert an amount per million tokens to nano-units per token. Raises CommandError."""
    try:
        exact = Decimal(amount) * PER_MILLION
        if not exact.is_finite() or exact != exact.to_integral_value():
            raise CommandError(f"{amount}: a price must be a multiple of 0.001 of the currency per million tokens")
    except InvalidOperation:
        raise CommandError(f"{amount}: write an amount of the currency per million tokens, such as 0.15") from None
    return int(exact)


def per_million(price: int) -> str:
    """Convert nano-units per token to an amount per million tokens."""
    return f"{Decimal(price) / PER_MILLION:,f}"


def read_file(path: Path) -> PriceList:
    """Read a price list from a file. Raises CommandError naming the row and the field."""
    document = read_yaml(path)
    if not isinstance(document, dict) or document.keys() != {"prices"}:
        raise CommandError(f"{path}: must hold `prices:` with a list, and nothing else")
    try:
        return PriceList.parse(document["prices"])
    except FieldError as error:
        raise CommandError(f"{path}: {error}") from None


def differences(stored: Sequence[Document], wanted: Sequence[Document]) -> list[str]:
    """Describe what would change, one line per row."""
    before, after = ({(row["model"], row["lane"]): row for row in rows} for rows in (stored, wanted))
    words = []
    for place in sorted(before.keys() | after.keys()):
        old, new = before.get(place), after.get(place)
        if old != new:
            action = "create" if old is None else "delete" if new is None else "update"
            figures = "" if new is None else ": " + ", ".join(f"{name} {new[name]}" for name in PRICES)
            words.append(f"{action} model {place[0]}, lane {place[1]}{figures}")
    return words


def _show(prices: Document, output: OutputForm) -> None:
    columns = (*COLUMNS[:2], *(f"{name} ({prices['currency']}/M)" for name in COLUMNS[2:]))
    rows = [(row["model"], row["lane"], *(per_million(row[name]) for name in PRICES)) for row in prices["prices"]]
    show(prices, output, lambda: show_table(columns, rows))
