"""`fairlane tenants apply`: what a file of tenants asks for, against what is stored, as a plan.

The file says each of its tenants whole: a field that it leaves out is at its default. Tenants that it does not name
are left alone, unless pruning is asked for. Parents are made before their children, in whatever order they stand there,
and deleted after them. A second run of the same file changes nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from fairlane.cli.client import AdminClient, CommandError, Document, segment
from fairlane.gateway.admin.inputs import TenantBody
from fairlane.gateway.admin.views import TENANT_FIELDS, tenant_view
from fairlane.gateway.errors import ApiError
from fairlane.gateway.openai.wire import checked_fields
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.tenants import DEEPEST, Tenant

Action = Literal["create", "update", "delete"]


@dataclass(frozen=True, slots=True)
class Step:
    """One call to the admin API."""

    action: Action
    tenant: str
    fields: Document
    """create: the whole tenant; update: what differs; delete: nothing."""
    before: Document
    version: int | None = None
    """Of what is stored; None: nothing is."""

    def words(self) -> list[str]:
        """The step as a person reads it: a line, and one for each field that changes."""
        changes = [
            f"    {name}: {_shown(self.before.get(name))} -> {_shown(value)}"
            for name, value in self.fields.items()
            if name != "id" and value != self.before.get(name)
        ]
        return [f"{self.action} {self.tenant}", *([] if self.action == "delete" else changes)]


def read_file(path: Path) -> list[Document]:
    """The tenants of a file, each whole and valid. Raises CommandError naming the tenant and the field."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"{path}: cannot be read as YAML ({type(error).__name__})") from None
    if not isinstance(document, dict) or document.keys() != {"tenants"} or not isinstance(document["tenants"], list):
        raise CommandError(f"{path}: must hold `tenants:` and a list under it, and nothing else")
    tenants = [_whole(entry, f"{path}: tenants[{place}]") for place, entry in enumerate(document["tenants"])]
    ids = [tenant["id"] for tenant in tenants]
    for name in ids:
        if ids.count(name) > 1:
            raise CommandError(f"{path}: tenant {name} stands in it twice")
    return tenants


def plan(wanted: Sequence[Document], stored: Collection[Document], *, prune: bool) -> list[Step]:
    """What makes `stored` match `wanted`; empty where it does already. Deletions come last.

    Raises CommandError where a parent is missing, would change, would be pruned, or is below its own child.
    """
    versions = {tenant["id"]: tenant["version"] for tenant in stored}
    known = {tenant["id"]: {name: tenant[name] for name in TENANT_FIELDS} for tenant in stored}
    named = {tenant["id"] for tenant in wanted}
    gone = known.keys() - named if prune else set()
    depths = _depths([*wanted, *({"id": name, **known[name]} for name in known.keys() - named - gone)])
    steps = []
    for tenant in sorted(wanted, key=lambda tenant: depths[tenant["id"]]):
        now = known.get(tenant["id"])
        if now is None:
            steps.append(Step("create", tenant["id"], tenant, {}))
        elif tenant["parent"] != now["parent"]:
            raise CommandError(f"tenant {tenant['id']}: its parent is {_shown(now['parent'])}, and cannot change")
        elif changes := {name: tenant[name] for name in TENANT_FIELDS if tenant[name] != now[name]}:
            steps.append(Step("update", tenant["id"], changes, now, versions[tenant["id"]]))
    before = _depths({"id": name, **fields} for name, fields in known.items())
    ending = sorted(gone, key=lambda name: (-before[name], name))
    return steps + [Step("delete", name, {}, known[name], versions[name]) for name in ending]


def _depths(tenants: Iterable[Document]) -> dict[str, int]:
    """How many tenants stand above each. Raises CommandError."""
    parents = {tenant["id"]: tenant["parent"] for tenant in tenants}
    depths = {}
    for name in parents:
        above, parent = 0, parents[name]
        while parent is not None:
            above += 1
            if parent not in parents:
                raise CommandError(f"tenant {name}: there would be no tenant {parent}, its parent or one above")
            if above >= DEEPEST:
                raise CommandError(f"tenant {name}: at most {DEEPEST - 1} tenants may be above another, in no circle")
            parent = parents[parent]
        depths[name] = above
    return depths


def carry_out(admin: AdminClient, step: Step) -> None:
    """Do one step. Raises CommandError."""
    path = f"/tenants/{segment(step.tenant)}"
    match step.action:
        case "create":
            admin.call("POST", "/tenants", step.fields)
        case "update":
            admin.call("PATCH", path, _change(step), version=step.version)
        case "delete":
            admin.call("DELETE", path, version=step.version)


def _change(step: Step) -> Document:
    """The step as a PATCH, which merges limits: those that are to go are cleared by name."""
    if "limits" not in step.fields:
        return step.fields
    cleared = dict.fromkeys(step.before["limits"])
    return {**step.fields, "limits": {**cleared, **step.fields["limits"]}}


def _whole(entry: object, place: str) -> Document:
    """An entry with every field that it leaves out at its default."""
    if not isinstance(entry, dict) or not all(isinstance(name, str) for name in entry):
        raise CommandError(f"{place}: must be a tenant's fields")
    try:
        stated = checked_fields(TenantBody, {}, entry).model_dump(exclude_none=True)
        blank = Tenant(id=stated.pop("id"), root="", parent=stated.pop("parent", None))
        tenant = tenant_view(blank.changed(stated))
    except ApiError as error:
        raise CommandError(f"{place}: {error.message}") from None
    except FieldError as error:
        raise CommandError(f"{place}: {error}") from None
    whole: Document = dict(tenant)
    return {name: whole[name] for name in ("id", *TENANT_FIELDS)}


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
