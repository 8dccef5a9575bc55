"""`fairlane tenants`: create, show, change, suspend, delete and erase tenants; apply a file of them.

The file describes its tenants completely: omitted fields get their defaults. Other tenants stay, unless --prune
deletes them. Parents are created before their children and deleted after them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from fairlane.cli import client, printer
from fairlane.cli.options import with_options
from fairlane.cli.printer import Document, Output, OutputCommand, OutputForm, show_document, show_list, show_table
from fairlane.gateway.control.admin.inputs import TenantBody, TenantChange
from fairlane.gateway.control.admin.views import TenantView, tenant_view
from fairlane.gateway.dialects.openai.reading import checked_fields
from fairlane.gateway.errors import ApiError
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.tenants import DEEPEST, Tenant

app = typer.Typer(no_args_is_help=True, add_completion=False)

Texts = list[str] | None
FIELDS = {
    "name": Annotated[str | None, typer.Option(help="Display name; defaults to the id.")],
    "timezone": Annotated[str | None, typer.Option(help="IANA zone of its days and months; defaults to UTC.")],
    "weight": Annotated[float | None, typer.Option(help="Share relative to other tenants of a lane.")],
    "lanes": Annotated[Texts, typer.Option("--lane", help="Lane it may use; may be repeated.")],
    "default_lane": Annotated[str | None, typer.Option(help="Lane of requests that do not name one.")],
    "models": Annotated[Texts, typer.Option("--model", help="Model it may use; may be repeated. Defaults to all.")],
    "preemption": Annotated[str | None, typer.Option(help="exact or fast.")],
    "reserve": Annotated[str | None, typer.Option(help="progressive or full.")],
    "unknown_fields": Annotated[str | None, typer.Option(help="ignore or refuse.")],
    "self_service": Annotated[str | None, typer.Option(help="none, or keys: its keys may manage keys.")],
    "share_group": Annotated[str | None, typer.Option(help="Tenants of one group share cached prompts.")],
    "limit": client.LimitOptions,
    "limit_by": Annotated[
        Texts,
        typer.Option(
            metavar="model=NAME,lane=LANE,LIMIT=NUMBER,…",
            help="Limits for a model, a lane or both; may be repeated. Replaces all of them; `none` removes them.",
        ),
    ],
    "shadow": Annotated[Texts, typer.Option(help="Limit that is only counted and reported; may be repeated.")],
}
Action = Literal["create", "update", "delete"]
TENANT_FIELDS = tuple(TenantChange.model_fields)
# Fields of a listed tenant that only the gateway sets: `apply` ignores them.
READ_ONLY = TenantView.__annotations__.keys() - {"id", *TENANT_FIELDS}
COLUMNS = ("id", "name", "parent", "state", "lanes", "weight", "models", "limits")


@app.command("list", cls=OutputCommand)
def list_tenants(url: client.Url = None, output: Output = OutputForm.TABLE) -> None:
    """List all tenants."""
    with client.connect(url) as admin:
        show_list(admin.all("/tenants"), COLUMNS, _row, output)


@app.command(cls=OutputCommand)
def show(tenant: client.TenantId, url: client.Url = None, output: Output = OutputForm.JSON) -> None:
    """Show one tenant with all its fields."""
    with client.connect(url) as admin:
        show_document(admin.get(f"/tenants/{client.segment(tenant)}"), output)


@app.command()
@with_options(FIELDS)
def create(
    tenant: client.TenantId,
    parent: Annotated[str | None, typer.Option(help="Parent tenant, whose limits apply too; it never changes.")] = None,
    *,
    url: client.Url = None,
    **options: object,
) -> None:
    """Create a tenant; it needs an API key to be used (`fairlane keys create`)."""
    with client.connect(url) as admin:
        admin.call("POST", "/tenants", {"id": tenant, **client.given(parent=parent), **_fields(options)})
        typer.echo(f"{tenant} is created")


@app.command()
@with_options(FIELDS)
def update(tenant: client.TenantId, *, url: client.Url = None, **options: object) -> None:
    """Change the given fields of a tenant; `--limit NAME=none` removes a limit."""
    with client.connect(url) as admin:
        fields = _fields(options)
        admin.call("PATCH", f"/tenants/{client.segment(tenant)}", fields)
        typer.echo(f"{tenant} is changed" if fields else f"nothing to change for {tenant}")


@app.command()
def delete(
    tenant: client.TenantId,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    url: client.Url = None,
) -> None:
    """Delete a tenant: its keys stop at once, its requests are cancelled, its data is erased; its ledger stays."""
    with client.connect(url) as admin:
        if not yes:
            typer.confirm(f"Delete {tenant}, stop its keys and cancel what it runs?", abort=True, err=True)
        admin.call("DELETE", f"/tenants/{client.segment(tenant)}")
        typer.echo(f"{tenant} is deleted")


@app.command(cls=OutputCommand)
def erase(
    tenant: client.TenantId,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    url: client.Url = None,
    output: Output = OutputForm.TABLE,
) -> None:
    """Erase the ledgers and audit values of all deleted tenants with an id; print what was erased."""
    with client.connect(url) as admin:
        if not yes:
            typer.confirm(f"Erase the ledgers of all deleted tenants named {tenant}, for good?", abort=True, err=True)
        reply = admin.call("POST", f"/tenants/{client.segment(tenant)}/erase")
        rows = [(name.replace("_", " "), count) for name, count in reply["erased"].items()]
        printer.show(reply, output, lambda: show_table(("erased", "count"), rows))
        if not reply["complete"]:
            typer.echo("the rest is erased automatically within 20 minutes of the deletion", err=True)


@app.command()
def suspend(tenant: client.TenantId, url: client.Url = None) -> None:
    """Reject a tenant's requests with 403 and cancel running ones, until it is resumed."""
    with client.connect(url) as admin:
        admin.call("POST", f"/tenants/{client.segment(tenant)}/suspend")
        typer.echo(f"{tenant} is suspended")


@app.command()
def resume(tenant: client.TenantId, url: client.Url = None) -> None:
    """Serve a suspended tenant again."""
    with client.connect(url) as admin:
        admin.call("POST", f"/tenants/{client.segment(tenant)}/resume")
        typer.echo(f"{tenant} is resumed")


@app.command(cls=OutputCommand)
def explain(
    tenant: client.TenantId,
    prompt_tokens: Annotated[int, typer.Option(min=0)],
    max_output_tokens: Annotated[int, typer.Option(min=1)],
    lane: Annotated[str, typer.Option(help="latency or throughput.")] = "latency",
    model: Annotated[str | None, typer.Option(help="Defaults to any model that the tenant may use.")] = None,
    deadline_ms: Annotated[float | None, typer.Option(help="Milliseconds from arrival to the last token.")] = None,
    url: client.Url = None,
    output: Output = OutputForm.JSON,
) -> None:
    """Check whether a request of these sizes would be admitted now; nothing is reserved."""
    with client.connect(url) as admin:
        sizes = {"prompt_tokens": prompt_tokens, "max_output_tokens": max_output_tokens, "lane": lane}
        body = {**sizes, **client.given(model=model, deadline_ms=deadline_ms)}
        show_document(admin.call("POST", f"/tenants/{client.segment(tenant)}/explain", body), output)


@app.command()
def apply(
    file: Annotated[Path, typer.Option("-f", "--file", help="YAML with `tenants:`, or `tenants list -o yaml`.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, without changing it.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Delete tenants that are not in the file.")] = False,
    url: client.Url = None,
) -> None:
    """Make the stored tenants match a file. Omitted fields get their defaults."""
    with client.connect(url) as admin:
        wanted = read_file(file)
        stored = list(admin.all("/tenants"))
        changes = plan(wanted, stored, prune=prune)
        for change in changes:
            if not dry_run:
                _carry_out(admin, change)
            typer.echo("\n".join(change.describe()))
        others = len({tenant["id"] for tenant in stored} - {tenant["id"] for tenant in wanted})
        if others and not prune:
            typer.echo(f"left alone: {others} not in {file} (--prune would delete them)", err=True)
        typer.echo(f"{len(changes)} {'to change' if dry_run else 'changed'}, {len(wanted)} in {file}", err=True)


def _row(tenant: Document) -> tuple[object, ...]:
    limits = [f"{name}={figure:,}" for name, figure in tenant["limits"].items()]
    models = "all" if tenant["models"] is None else tenant["models"]
    shown = [tenant[name] for name in COLUMNS[:6]]
    return *shown, models, limits


def _fields(options: Document) -> Document:
    limit, limit_by = options.pop("limit"), options.pop("limit_by")
    limits = client.limits_of(limit) if limit else None
    return client.given(limits=limits, limits_by=client.limits_by_of(limit_by) if limit_by else None, **options)


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """One change of the stored tenants, which is one call of the admin API."""

    action: Action
    tenant: str
    # create: the whole tenant; update: the fields that differ; delete: empty.
    fields: Document
    before: Document
    # The stored version; None when creating.
    version: int | None = None

    def describe(self) -> list[str]:
        changes = [
            f"    {name}: {_shown(self.before.get(name))} -> {_shown(value)}"
            for name, value in self.fields.items()
            if name != "id" and value != self.before.get(name)
        ]
        return [f"{self.action} {self.tenant}", *([] if self.action == "delete" else changes)]


def read_file(path: Path) -> list[Document]:
    """Read tenants, complete and validated. Raises CommandError naming the tenant and the field."""
    document = client.read_yaml(path)
    listed = document["tenants"] if isinstance(document, dict) and document.keys() == {"tenants"} else document
    # A plain empty list, with --prune, would delete every tenant.
    if not isinstance(listed, list) or (listed is document and not listed):
        raise client.CommandError(f"{path}: must hold `tenants:` with a list, and nothing else")
    tenants = [_whole(entry, f"{path}: tenants[{place}]") for place, entry in enumerate(listed)]
    ids = [tenant["id"] for tenant in tenants]
    for name in ids:
        if ids.count(name) > 1:
            raise client.CommandError(f"{path}: tenant {name} is listed twice")
    return tenants


def plan(wanted: Sequence[Document], stored: Collection[Document], *, prune: bool) -> list[PlannedChange]:
    """Return the changes that make `stored` match `wanted`, deletions last.

    Raises CommandError if a parent is missing, would change, would be pruned, or is below its own child."""
    versions = {tenant["id"]: tenant["version"] for tenant in stored}
    known = {tenant["id"]: {name: tenant[name] for name in TENANT_FIELDS} for tenant in stored}
    named = {tenant["id"] for tenant in wanted}
    gone = known.keys() - named if prune else set()
    depths = _depths([*wanted, *({"id": name, **known[name]} for name in known.keys() - named - gone)])
    changes = []
    for tenant in sorted(wanted, key=lambda tenant: depths[tenant["id"]]):
        now = known.get(tenant["id"])
        if now is None:
            changes.append(PlannedChange("create", tenant["id"], tenant, {}))
        elif tenant["parent"] != now["parent"]:
            raise client.CommandError(
                f"tenant {tenant['id']}: its parent is {_shown(now['parent'])}, and cannot change"
            )
        elif fields := {name: tenant[name] for name in TENANT_FIELDS if tenant[name] != now[name]}:
            changes.append(PlannedChange("update", tenant["id"], fields, now, versions[tenant["id"]]))
    before = _depths({"id": name, **fields} for name, fields in known.items())
    ending = sorted(gone, key=lambda name: (-before[name], name))
    return changes + [PlannedChange("delete", name, {}, known[name], versions[name]) for name in ending]


def _depths(tenants: Iterable[Document]) -> dict[str, int]:
    parents = {tenant["id"]: tenant["parent"] for tenant in tenants}
    depths = {}
    for name in parents:
        above, parent = 0, parents[name]
        while parent is not None:
            above += 1
            if parent not in parents:
                raise client.CommandError(f"tenant {name}: its parent or ancestor {parent} would not exist")
            if above >= DEEPEST:
                raise client.CommandError(
                    f"tenant {name}: a tenant has at most {DEEPEST - 1} ancestors, without a cycle"
                )
            parent = parents[parent]
        depths[name] = above
    return depths


def _carry_out(admin: client.AdminClient, change: PlannedChange) -> None:
    path = f"/tenants/{client.segment(change.tenant)}"
    fields = change.fields
    match change.action:
        case "create":
            admin.call("POST", "/tenants", fields)
        case "update":
            if "limits" in fields:  # a limit that is not named would stay
                fields = {**fields, "limits": {**dict.fromkeys(change.before["limits"]), **fields["limits"]}}
            admin.call("PATCH", path, fields, version=change.version)
        case "delete":
            admin.call("DELETE", path, version=change.version)


def _whole(entry: object, place: str) -> Document:
    if not isinstance(entry, dict) or not all(isinstance(name, str) for name in entry):
        raise client.CommandError(f"{place}: must be an object of a tenant's fields")
    try:
        settable = {name: value for name, value in entry.items() if name not in READ_ONLY}
        stated = checked_fields(TenantBody, {}, settable).model_dump(exclude_none=True)
        blank = Tenant(id=stated.pop("id"), root="", parent=stated.pop("parent", None))
        tenant = tenant_view(blank.changed(stated))
    except (ApiError, FieldError) as error:
        raise client.CommandError(f"{place}: {error}") from None
    return {name: value for name, value in tenant.items() if name in ("id", *TENANT_FIELDS)}


def _shown(value: object) -> str:
    match value:
        case None:
            return "none"
        case Mapping():
            return "{" + ", ".join(f"{name}: {_shown(each)}" for name, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_shown, value)) + "]"
        case _:
            return str(value)
