"""`fairlane audit`: the audit log, newest first, or followed live."""

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import Annotated

import msgspec
import typer

from fairlane.cli import printer
from fairlane.cli.client import AdminClient, CommandError, Url, connect
from fairlane.cli.printer import Document, Output, OutputCommand, OutputForm, cell, readable, show_list, show_next

app = typer.Typer(add_completion=False)

COLUMNS = ("at", "actor", "from", "action", "target", "changes")
# Fields of a created object that repeat its target or the time.
OMITTED = frozenset({"id", "tenant", "state", "created_at", "version"})
FOLLOW_S = 1.0


class _AuditFilter(msgspec.Struct, frozen=True):
    tenant: str | None
    actor: str | None
    action: str | None
    since: float | None

    def takes(self, entry: Document) -> bool:
        target, action = str(entry["target"]), str(entry["action"])
        return (
            (self.tenant is None or target == self.tenant or target.startswith(f"{self.tenant}/"))
            and (self.actor is None or entry["actor"] == self.actor)
            and (self.action is None or action == self.action or action.startswith(f"{self.action}."))
        )

    def is_older(self, entry: Document) -> bool:
        return self.since is not None and entry["at"] < self.since


@app.command(cls=OutputCommand)
def audit(
    tenant: Annotated[str | None, typer.Option(help="Changes of this tenant, its keys and limits.")] = None,
    actor: Annotated[str | None, typer.Option(help="Changes by this operator.")] = None,
    action: Annotated[str | None, typer.Option(help="Action such as key.revoke, or a prefix such as key.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Date, RFC 3339, or a duration before now such as 2h.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="Maximum number of rows.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print the latest, oldest first, and then each new one.")
    ] = False,
    url: Url = None,
    output: Output = OutputForm.TABLE,
) -> None:
    """Show the audit log: who changed what and when, newest first."""
    with connect(url) as admin:
        wanted = _AuditFilter(tenant, actor, action, None if since is None else moment(since, time.time()))
        if not follow:
            return show_list(islice(_newest_first(admin, wanted), limit), COLUMNS, _row, output)
        for entry in _followed(admin, wanted, limit):
            show_next(entry, _row(entry), output)
    return None


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


def _newest_first(admin: AdminClient, wanted: _AuditFilter) -> Iterator[Document]:
    recent = takewhile(lambda entry: not wanted.is_older(entry), admin.all("/audit"))
    return filter(wanted.takes, recent)


def _followed(admin: AdminClient, wanted: _AuditFilter, limit: int) -> Iterator[Document]:
    head = admin.get("/audit", limit=1)["data"]
    found = list(islice(_newest_first(admin, wanted), limit))
    newest = max([entry["id"] for entry in (*head, *found)], key=_place, default="0-0")
    yield from reversed(found)
    while True:
        fresh = []
        for entry in _newest_first(admin, _AuditFilter(None, None, None, wanted.since)):
            if _place(entry["id"]) <= _place(newest):
                break
            fresh.append(entry)
        if fresh:
            newest = fresh[0]["id"]
        yield from (entry for entry in reversed(fresh) if wanted.takes(entry))
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
