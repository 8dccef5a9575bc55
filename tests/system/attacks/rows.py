"""What an attack tells: a row of the table."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One attack."""

    kind: str
    attacked: str
    expected: str
    seen: str
    is_well: bool


def compared(kind: str, attacked: str, expected: str, seen: str) -> Row:
    """A row of what may be seen in a few ways, which `expected` lists with `or` between them."""
    return Row(kind, attacked, expected, seen, seen in expected.split(" or "))


def markdown(rows: Iterable[Row]) -> str:
    """The rows as a table."""
    lines = ["| | attacked | expected | seen |", "| --- | --- | --- | --- |"]
    last = ""
    for row in rows:
        kind, last = "" if row.kind == last else row.kind, row.kind
        seen = row.seen if row.is_well else f"**{row.seen}**"
        lines.append("| " + " | ".join(_cell(text) for text in (kind, row.attacked, row.expected, seen)) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
