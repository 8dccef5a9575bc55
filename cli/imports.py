"""`fairlane import litellm`: LiteLLM's teams, budgets, model aliases and keys, through the admin API.

Without `--apply` it changes nothing: it shows what would be created, and what cannot be imported and why. Existing
tenants and keys are left as they are, so an interrupted import can be repeated."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Annotated

import typer

from fairlane.cli.client import AdminClient, CommandError, RefusedCall, Url, connect, segment
from fairlane.cli.litellm_plan import ImportPlan, Money, plan
from fairlane.cli.litellm_tables import read_tables
from fairlane.cli.printer import Document, minute, show_table

app = typer.Typer(no_args_is_help=True, add_completion=False)

COLUMNS = ("what", "name", "tenant", "models", "limits", "expires", "")
EXISTS = "already_exists"
# An alternative to the argument: the URL holds a password, and other users of a machine can see arguments.
SOURCE_VARIABLE = "LITELLM_DATABASE_URL"


@app.callback()
def root() -> None:
    """Import teams and keys from another gateway."""


@app.command()
def litellm(
    source: Annotated[
        str,
        typer.Argument(
            envvar=SOURCE_VARIABLE,
            help="URL of LiteLLM's database (postgresql://…), a JSON file of its tables, or a folder of CSV files.",
        ),
    ],
    apply: Annotated[bool, typer.Option("--apply", help="Create them, instead of only showing them.")] = False,
    tenant: Annotated[str | None, typer.Option(help="Existing tenant for keys without a team.")] = None,
    tokens_per_unit: Annotated[
        float | None,
        typer.Option(
            min=0, help="Convert money budgets to this many tokens per unit of currency; by default they stay money."
        ),
    ] = None,
    without_money: Annotated[bool, typer.Option("--without-money", help="Drop money budgets.")] = False,
    url: Url = None,
) -> None:
    """Import organisations as tenants and teams as tenants below them; keys keep working unchanged."""
    with connect(url) as admin:
        money = Money(tokens_per_unit=tokens_per_unit, ignored=without_money)
        found = plan(read_tables(source), money=money, now=datetime.now(UTC), tenant=tenant)
        here = {each["id"] for each in admin.all("/tenants")}
        if tenant is not None and tenant not in here:
            raise CommandError(f"there is no tenant {tenant} for keys without a team")
        _show(found, here)
        if apply:
            _carry_out(admin, found, here)
        else:
            typer.echo("nothing was changed: use --apply to import", err=True)


def _show(found: ImportPlan, here: Collection[str]) -> None:
    rows: list[tuple[object, ...]] = []
    for each in found.tenants:
        notes = ["exists: left unchanged"] if each["id"] in here else []
        notes += ["suspended"] if each["id"] in found.suspended else []
        rows.append(("tenant", each["name"], each["id"], _models(each), _limits(each), None, ", ".join(notes)))
    for owner, each in found.keys:
        ends = minute(each.get("expires_at"))
        rows.append(("key", each["name"], owner, _models(each.get("scopes", {})), _limits(each), ends, ""))
    show_table(COLUMNS, rows)
    if found.left:
        typer.echo("\nimported without:")
        show_table(("name", "what"), found.left)
    limited = [*found.tenants, *(body for _, body in found.keys)]
    if any("spend_per_" in name for each in limited for name in each.get("limits", {})):
        typer.echo("\nmoney budgets use the price list: `fairlane prices show`")
    if found.refused:
        typer.echo("\nnot imported:")
        show_table(("name", "why"), found.refused)


def _carry_out(admin: AdminClient, found: ImportPlan, here: Collection[str]) -> None:
    tenants = [each for each in found.tenants if each["id"] not in here]
    for each in tenants:
        admin.call("POST", "/tenants", each)
    for blocked in found.suspended:  # existing ones too: an earlier run may have been interrupted
        admin.call("POST", f"/tenants/{segment(blocked)}/suspend")
    made = sum(_make_key(admin, owner, each) for owner, each in found.keys)
    there = len(found.keys) - made
    typer.echo(
        f"made {len(tenants)} tenants and {made} keys; {there} keys existed; {len(found.refused)} not imported",
        err=True,
    )


def _make_key(admin: AdminClient, tenant: str, body: Document) -> bool:
    try:
        admin.call("POST", f"/tenants/{segment(tenant)}/keys", body)
    except RefusedCall as refused:
        if refused.code != EXISTS:
            raise
        return False
    return True


def _models(document: Document) -> str:
    models = document.get("models")
    aliases = [f"{name}={model}" for name, model in document.get("model_aliases", {}).items()]
    return ", ".join([*(["all"] if models is None else models or ["none"]), *aliases])


def _limits(document: Document) -> str:
    limits = [f"{name}={figure:,}" for name, figure in document.get("limits", {}).items()]
    for each in document.get("limits_by", []):
        limits += [f"{each['model']}: {name}={figure:,}" for name, figure in each["limits"].items()]
    return ", ".join(limits)
