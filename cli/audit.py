"""`fairlane audit`: the audit log, newest first, or followed live."""

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import islice, takewhile
from typing import Annotated

import typer

from fairlane.cli import printer
from fairlane.cli.client import AdminClient, CommandError, Url, connect
from fairlane.cli.printer import Document, Output, OutputCommand, OutputForm, cell, readable, show_list, show_next

app = typer.Typer(add_completion=False)

COLUMNS = ("at", "actor", "from", "action", "target", "changes")
# Fields of a created object that repeat its target or the time.
OMITTED = frozenset({"id", "tenant", "state", "created_at", "version"})
FOLLOW_S = 1.0


@app.command(cls=OutputCommand)
def audit(
    tenant: Annotated[str | None, typer.Option(help="Changes of this tenant, its keys and limits.")] = None,
    actor: Annotated[str | None, typer.Option(help="Changes by this operator.")] = None,
    action: Annotated[str | None, typer.Option(help="Action such as key.revoke, or a prefix such as key.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Date, RFC 3339, or an age such as 2h.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="Maximum number of rows.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print the latest, then each new one.")] = False,
    url: Url = None,
    output: Output = OutputForm.TABLE,
) -> None:
    """Show the audit log: who changed what and when, newest first."""
    with connect(url) as admin:
        wanted = partial(_takes, tenant, actor, action)
        since_s = 0.0 if since is None else moment(since, time.time())
        if follow:
            for entry in _followed(admin, wanted, since_s, limit):
                show_next(entry, _row(entry), output)
        else:
            found = filter(wanted, _newest_first(admin, since_s))
            show_list(islice(found, limit), COLUMNS, _row, output)


def moment(text: str, now: float) -> float:
    """Parse a date, a time or a duration before `now` into epoch seconds. Raises CommandError."""
    unit = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}.get(text[-1:], 0)
    if unit and text[:-1].isascii() and text[:-1].isdecimal() and len(text) < 10:
        return now - int(text[:-1]) * unit
    try:
        stated = datetime.fromisoformat(text)
    except ValueError:
        rule = "expected a date, a time or a duration such as 90m, 2h, 7d"
        raise CommandError(f"--since: {rule}, not {text[:40]!r}") from None
    return (stated if stated.tzinfo else stated.replace(tzinfo=UTC)).timestamp()


def _takes(tenant: str | None, actor: str | None, action: str | None, entry: Document) -> bool:
    return (
        (tenant is None or entry["target"] == tenant or str(entry["target"]).startswith(f"{tenant}/"))
        and (actor is None or entry["actor"] == actor)
        and (action is None or entry["action"] == action or str(entry["action"]).startswith(f"{action}."))
    )


def _newest_first(admin: AdminClient, since_s: float, after: str = "0-0") -> Iterator[Document]:
    return takewhile(lambda entry: entry["at"] >= since_s and _place(entry["id"]) > _place(after), admin.all("/audit"))


def _followed(admin: AdminClient, wanted: Callable[[Document], bool], since_s: float, limit: int) -> Iterator[Document]:
    head = admin.get("/audit", limit=1)["data"]
    found = list(islice(filter(wanted, _newest_first(admin, since_s)), limit))
    newest = max([entry["id"] for entry in (*head, *found)], key=_place, default="0-0")
    yield from reversed(found)
    while True:
        fresh = list(_newest_first(admin, since_s, newest))
        newest = fresh[0]["id"] if fresh else newest
        yield from filter(wanted, reversed(fresh))
        time.sleep(FOLLOW_S)


def _place(entry_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry_id.split("-"))


def _row(entry: Document) -> tuple[object, ...]:
    who = entry["actor"], entry["address"] or None
    return printer.moment(entry["at"]), *who, entry["action"], entry["target"], _changes(entry["changes"])


def _changes(changes: Document) -> str:
    before, after = ({} if changes.get(name) is None else changes[name] for name in ("before", "after"))
    if not (isinstance(before, Mapping) and isinstance(after, Mapping) and changes.keys() <= {"before", "after"}):
        return cell(changes)
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    if before and after:
        changed = [name for name in names if name in after]
        return ", ".join(f"{name}: {_format_field(name, before)} → {_format_field(name, after)}" for name in changed)
    fields = {name: value for name, value in (after or before).items() if name in names and name not in OMITTED}
    shown = [name for name, value in fields.items() if value not in (None, "", {}, [])]
    return ", ".join(f"{name}={_format_field(name, fields)}" for name in shown)


def _format_field(name: str, fields: Mapping[str, object]) -> str:
    value = fields.get(name)
    return cell(value["id"] if name == "replaced_by" and isinstance(value, Mapping) else readable(name, value))
