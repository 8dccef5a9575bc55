"""Output of every command: a table for people, JSON or YAML for programs.

A command that lists or shows takes `output: Output` and has the class `OutputCommand`."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

WIDTH_OF_A_PIPE = 200

Document = dict[str, Any]


class OutputForm(StrEnum):
    """The format of a list or document."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[OutputForm, typer.Option("--output", "-o", help="Output format; --json is -o json.")]


class OutputCommand(TyperCommand):
    """A command with `--output`; the older `--json` is an alias of `--output json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer's own vendored click types are private
        return super().parse_args(ctx, ["--output=json" if word == "--json" else word for word in args])


def default_command(name: str) -> type[TyperGroup]:
    """Return a group that runs this subcommand if none is named."""

    class DefaultGroup(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
            is_named = args[0] in (*self.commands, "--help") if args else self.no_args_is_help
            return super().parse_args(ctx, args if is_named else [name, *args])

    return DefaultGroup


def show_list(
    items: Iterable[Document], columns: Sequence[str], row: Callable[[Document], Sequence[object]], output: OutputForm
) -> None:
    """Show the API's items, or a table with a row for each."""
    found = list(items)
    show(found, output, lambda: show_table(columns, [row(item) for item in found]))


def show_document(document: Mapping[str, object], output: OutputForm) -> None:
    """Show a document, or a table with a row for each of its fields."""
    rows = [(name, readable(name, value)) for name, value in document.items()]
    show(document, output, lambda: show_table(("field", "value"), rows))


def show(document: object, output: OutputForm, table: Callable[[], None]) -> None:
    """Show a document on stdout, or call `table`."""
    match output:
        case OutputForm.JSON:
            typer.echo(json.dumps(document, indent=2))
        case OutputForm.YAML:
            typer.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)
        case OutputForm.TABLE:
            table()


def show_next(document: Document, row: Sequence[object], output: OutputForm) -> None:
    """Show one item of an unbounded series: a line of cells or of JSON, or a YAML document."""
    match output:
        case OutputForm.JSON:
            typer.echo(json.dumps(document))
        case OutputForm.YAML:
            typer.echo(f"---\n{yaml.safe_dump(document, sort_keys=False, allow_unicode=True)}", nl=False)
        case OutputForm.TABLE:
            typer.echo("  ".join(map(cell, row)))


def show_secret(document: Document, name: str, output: OutputForm) -> None:
    """Show a new object; its secret alone goes to stdout, so that `KEY=$(fairlane keys create …)` works."""
    show(document, output, lambda: _print_secret(document, name))


def _print_secret(document: Document, name: str) -> None:
    label = ", ".join(printable(document[field]) for field in ("name", "role") if field in document)
    typer.echo(f"{printable(document['id'])} ({label}); the {name} is shown only this once:", err=True)
    typer.echo(document[name])


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows, with numbers right-aligned. Text from the API is never interpreted as markup."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, column in enumerate(columns):
        figures = rows and all(isinstance(row[place], int | float) for row in rows)
        table.add_column(column, justify="right" if figures else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    console(None if sys.stdout.isatty() else WIDTH_OF_A_PIPE).print(table)


def console(width: int | None = None) -> Console:
    """Return a console on stdout, which respects `NO_COLOR`."""
    return Console(width=width, markup=False, highlight=False, no_color="NO_COLOR" in os.environ or None)


def cell(value: object) -> str:
    """Format a value for people, in one line without control characters."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(cell, value)) or "-"
        case Mapping():
            return ", ".join(f"{cell(name)}={cell(readable(str(name), each))}" for name, each in value.items()) or "-"
        case float():
            return f"{value:,.1f}"
        case int():
            return f"{value:,}"
        case _:
            return printable(str(value))


def readable(name: str, value: object) -> object:
    """Format a field's value for people: fields named `…_at` are Unix seconds."""
    if not name.endswith("_at") or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return moment(value)


def minute(seconds: float | None) -> str | None:
    """Format Unix seconds in UTC, to the minute."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%MZ")


def moment(seconds: float) -> str:
    """Format Unix seconds in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def printable(text: str, kept: str = "") -> str:
    """Replace unprintable characters, except `kept`, by `?`, so that text from the API cannot control the terminal."""
    return "".join(character if character.isprintable() or character in kept else "?" for character in text)


def duration(milliseconds: float | None) -> str:
    """Format a duration with a suitable unit; `-` if it is unknown."""
    if milliseconds is None:
        return "-"
    for least, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if milliseconds >= least:
            return f"{_three_digits(milliseconds / least)} {unit}"
    return f"{_three_digits(milliseconds)} ms"


def _three_digits(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
