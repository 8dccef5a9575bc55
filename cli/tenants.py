"""`fairlane tenants`: create, show, change, suspend and delete tenants; apply a file of them."""

from pathlib import Path
from typing import Annotated

import typer

from fairlane.cli import tenants_apply as application
from fairlane.cli.client import (
    AsJson,
    Document,
    LimitOptions,
    Url,
    connect,
    given,
    limits_by_of,
    limits_of,
    segment,
    show_json,
    show_table,
)

app = typer.Typer(no_args_is_help=True, add_completion=False)

Tenant = Annotated[str, typer.Argument(help="The tenant's id.")]
Name = Annotated[str | None, typer.Option(help="For people; the id where there is none.")]
Timezone = Annotated[str | None, typer.Option(help="IANA zone of its days and months; UTC where none is named.")]
Weight = Annotated[float | None, typer.Option(help="Share against other tenants of a lane.")]
Lane = Annotated[list[str] | None, typer.Option(help="Lane that it may use; may be repeated.")]
DefaultLane = Annotated[str | None, typer.Option(help="Lane of requests that name none.")]
Model = Annotated[
    list[str] | None, typer.Option(help="Model that it may use; may be repeated. All where none is named.")
]
Preemption = Annotated[str | None, typer.Option(help="exact, or fast.")]
Reserve = Annotated[str | None, typer.Option(help="progressive, or full.")]
Shadow = Annotated[list[str] | None, typer.Option(help="Limit that is counted and never refuses; may be repeated.")]
ShareGroup = Annotated[str | None, typer.Option(help="Tenants of one group reuse each other's cached prompts.")]
LimitBy = Annotated[
    list[str] | None,
    typer.Option(
        "--limit-by",
        metavar="model=NAME,lane=LANE,LIMIT=NUMBER,…",
        help="Limits of a model, a lane or both; may be repeated. All of them are replaced; `none` takes them away.",
    ),
]
COLUMNS = ("id", "name", "parent", "state", "lanes", "weight", "models", "limits")


@app.command("list")
def list_tenants(url: Url = None, as_json: AsJson = False) -> None:
    """Every tenant."""
    with connect(url) as admin:
        tenants = list(admin.all("/tenants"))
        if as_json:
            return show_json(tenants)
        return show_table(COLUMNS, [_row(tenant) for tenant in tenants])


@app.command()
def show(tenant: Tenant, url: Url = None) -> None:
    """One tenant, whole, as JSON."""
    with connect(url) as admin:
        show_json(admin.get(f"/tenants/{segment(tenant)}"))


@app.command()
def create(
    tenant: Tenant,
    parent: Annotated[str | None, typer.Option(help="The tenant above, whose limits hold too; never changes.")] = None,
    name: Name = None,
    timezone: Timezone = None,
    weight: Weight = None,
    lane: Lane = None,
    default_lane: DefaultLane = None,
    model: Model = None,
    preemption: Preemption = None,
    reserve: Reserve = None,
    share_group: ShareGroup = None,
    limit: LimitOptions = None,
    limit_by: LimitBy = None,
    shadow: Shadow = None,
    url: Url = None,
) -> None:
    """Make a tenant; it needs a key of its own to be used (`fairlane keys create`)."""
    with connect(url) as admin:
        fields = given(
            id=tenant,
            parent=parent,
            name=name,
            timezone=timezone,
            weight=weight,
            lanes=lane,
            default_lane=default_lane,
            models=model,
            preemption=preemption,
            reserve=reserve,
            share_group=share_group,
            limits=limits_of(limit) if limit else None,
            limits_by=limits_by_of(limit_by) if limit_by else None,
            shadow=shadow,
        )
        admin.call("POST", "/tenants", fields)
        typer.echo(f"{tenant} is created")


@app.command()
def update(
    tenant: Tenant,
    name: Name = None,
    timezone: Timezone = None,
    weight: Weight = None,
    lane: Lane = None,
    default_lane: DefaultLane = None,
    model: Model = None,
    preemption: Preemption = None,
    reserve: Reserve = None,
    share_group: ShareGroup = None,
    limit: LimitOptions = None,
    limit_by: LimitBy = None,
    shadow: Shadow = None,
    url: Url = None,
) -> None:
    """Change what is named, and nothing else of a tenant; `--limit NAME=none` takes a limit away."""
    with connect(url) as admin:
        fields = given(
            name=name,
            timezone=timezone,
            weight=weight,
            lanes=lane,
            default_lane=default_lane,
            models=model,
            preemption=preemption,
            reserve=reserve,
            share_group=share_group,
            limits=limits_of(limit) if limit else None,
            limits_by=limits_by_of(limit_by) if limit_by else None,
            shadow=shadow,
        )
        admin.call("PATCH", f"/tenants/{segment(tenant)}", fields)
        typer.echo(f"{tenant} is changed" if fields else f"nothing was named to change of {tenant}")


@app.command()
def delete(
    tenant: Tenant,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = None,
) -> None:
    """Delete a tenant: its keys stop at once and its requests are cancelled; its ledger stays."""
    with connect(url) as admin:
        if not yes:
            typer.confirm(f"Delete {tenant}, stop its keys and cancel what it runs?", abort=True, err=True)
        admin.call("DELETE", f"/tenants/{segment(tenant)}")
        typer.echo(f"{tenant} is deleted")


@app.command()
def suspend(tenant: Tenant, url: Url = None) -> None:
    """Refuse a tenant's requests with 403 and cancel what it runs, until it is resumed."""
    with connect(url) as admin:
        admin.call("POST", f"/tenants/{segment(tenant)}/suspend")
        typer.echo(f"{tenant} is suspended")


@app.command()
def resume(tenant: Tenant, url: Url = None) -> None:
    """Serve a suspended tenant again."""
    with connect(url) as admin:
        admin.call("POST", f"/tenants/{segment(tenant)}/resume")
        typer.echo(f"{tenant} is resumed")


@app.command()
def explain(
    tenant: Tenant,
    prompt_tokens: Annotated[int, typer.Option(min=0)],
    max_output_tokens: Annotated[int, typer.Option(min=1)],
    lane: Annotated[str, typer.Option(help="latency, or throughput.")] = "latency",
    model: Annotated[str | None, typer.Option(help="Any that the tenant may use where none is named.")] = None,
    deadline_ms: Annotated[float | None, typer.Option(help="From arrival to the last token.")] = None,
    url: Url = None,
) -> None:
    """Ask whether a request of these sizes would be admitted now; nothing is reserved. Answers as JSON."""
    with connect(url) as admin:
        sizes = {"prompt_tokens": prompt_tokens, "max_output_tokens": max_output_tokens, "lane": lane}
        body = {**sizes, **given(model=model, deadline_ms=deadline_ms)}
        show_json(admin.call("POST", f"/tenants/{segment(tenant)}/explain", body))


@app.command()
def apply(
    file: Annotated[Path, typer.Option("-f", "--file", help="YAML with `tenants:` and a list of them.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Delete the tenants that the file does not name.")] = False,
    url: Url = None,
) -> None:
    """Make the stored tenants match a file. A field that the file leaves out is at its default."""
    with connect(url) as admin:
        wanted = application.read_file(file)
        stored = list(admin.all("/tenants"))
        steps = application.plan(wanted, stored, prune=prune)
        for step in steps:
            if not dry_run:
                application.carry_out(admin, step)
            typer.echo("\n".join(step.words()))
        others = len({tenant["id"] for tenant in stored} - {tenant["id"] for tenant in wanted})
        if others and not prune:
            typer.echo(f"left alone: {others} not in {file} (--prune would delete them)", err=True)
        typer.echo(f"{len(steps)} {'to change' if dry_run else 'changed'}, {len(wanted)} in {file}", err=True)


def _row(tenant: Document) -> tuple[object, ...]:
    limits = [f"{name}={figure:,}" for name, figure in tenant["limits"].items()]
    models = "all" if tenant["models"] is None else tenant["models"]
    shown = [tenant[name] for name in COLUMNS[:6]]
    return *shown, models, limits
