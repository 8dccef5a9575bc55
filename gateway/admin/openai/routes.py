"""OpenAI's administration API, as far as it fits: its official SDK's `client.admin.organization` works with it."""

import base64
import binascii
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from fairlane.gateway.admin import keys as admin_keys
from fairlane.gateway.admin import tenants as admin_tenants
from fairlane.gateway.admin.inputs import KeyBody, Nothing, TenantBody, TenantChange
from fairlane.gateway.admin.openai import routes as calls
from fairlane.gateway.admin.openai import usage
from fairlane.gateway.admin.openai.shapes import (
    Buckets,
    CompletionsQuery,
    CostBuckets,
    CostsQuery,
    DeletedKeyView,
    KeysQuery,
    KeyValueView,
    Listed,
    ListQuery,
    NewServiceAccountView,
    ProjectBody,
    ProjectChange,
    ProjectKeyView,
    ProjectsQuery,
    ProjectView,
    RateLimitChange,
    RateLimitView,
    ServiceAccountBody,
    ServiceAccountView,
)
from fairlane.gateway.admin.router import Call, Operation
from fairlane.gateway.admin.views import KeyView, NewKeyView, key_view, new_key_view
from fairlane.gateway.errors import not_found
from fairlane.gateway.operators.operator import Role
from fairlane.quotas.api_keys import ApiKey, KeyNotFound
from fairlane.quotas.limits import LARGEST, Limits
from fairlane.quotas.tenants import Tenant

T = TypeVar("T")
View = TypeVar("View")
_AT_ONCE = 100
_FIGURES = {
    "max_requests_per_1_minute": "requests_per_minute",
    "max_tokens_per_1_minute": "tokens_per_minute",
}
"""OpenAI's names of limits, and ours."""


async def create_project(call: Call, body: ProjectBody) -> ProjectView:
    """A new tenant with an id of our making. Raises FieldError."""
    made = TenantBody(id=f"proj_{secrets.token_hex(12)}", name=body.name)
    return await _project(call, (await admin_tenants.create_tenant(call, made))["id"])


async def list_projects(call: Call, query: ProjectsQuery) -> Listed[ProjectView]:
    """Tenants by id; those that are suspended only if they are asked for."""

    async def following() -> AsyncIterator[Tenant]:
        after = query.after
        while found := await call.parts.tenants.list(_AT_ONCE, after):
            for tenant in found:
                if query.include_archived or tenant.state == "active":
                    yield tenant
            after = found[-1].id

    return await _listed(following(), query, _project_view, lambda tenant: tenant.id)


async def get_project(call: Call, _: Nothing) -> ProjectView:
    """One tenant. Raises TenantNotFound."""
    return _project_view(await admin_tenants.the_tenant(call))


async def change_project(call: Call, body: ProjectChange) -> ProjectView:
    """Change its name. Raises TenantNotFound, FieldError."""
    change = TenantChange() if body.name is None else TenantChange(name=body.name)
    return await _project(call, (await admin_tenants.change_tenant(call, change))["id"])


async def archive_project(call: Call, nothing: Nothing) -> ProjectView:
    """Suspend a tenant; resuming it is Fairlane's own. Raises TenantNotFound."""
    return await _project(call, (await admin_tenants.suspend_tenant(call, nothing))["id"])


async def list_keys(call: Call, query: KeysQuery) -> Listed[ProjectKeyView]:
    """A tenant's keys by creation, but for revoked ones. Raises TenantNotFound."""
    tenant = await admin_tenants.the_tenant(call)

    async def following() -> AsyncIterator[ApiKey]:
        after = query.after
        while found := await call.parts.keys.list(tenant, _AT_ONCE, after):
            for key in found:
                if key.state == "active" and query.owner_project_access in ("any", _access(tenant)):
                    yield key
            after = found[-1].id

    return await _listed(following(), query, lambda key: _key_view(tenant, key), lambda key: key.id)


async def get_key(call: Call, _: Nothing) -> ProjectKeyView:
    """A key that is not revoked. Raises TenantNotFound, KeyNotFound."""
    tenant = await admin_tenants.the_tenant(call)
    return _key_view(tenant, await _live_key(call, tenant))


async def delete_key(call: Call, nothing: Nothing) -> DeletedKeyView:
    """Revoke a key. Raises TenantNotFound, KeyNotFound."""
    key = await _live_key(call, await admin_tenants.the_tenant(call))
    await admin_keys.revoke_key(call, nothing)
    return {"id": key.id, "object": "organization.project.api_key.deleted", "deleted": True}


async def create_service_account(call: Call, body: ServiceAccountBody) -> NewServiceAccountView:
    """A new key, shown this once. Raises TenantNotFound, FieldError."""
    expires_at = None if body.expires_in_seconds is None else time.time() + body.expires_in_seconds
    new = new_key_view(await admin_keys.make_key(call, KeyBody(name=body.name, expires_at=expires_at)))
    return {**_account_view(new), "api_key": _value_view(new)}


async def list_rate_limits(call: Call, query: ListQuery) -> Listed[RateLimitView]:
    """Limits of each model that the tenant may use, by the model's name. Raises TenantNotFound."""
    tenant = await admin_tenants.the_tenant(call)
    names = [name for name in await _models(call, tenant) if query.after is None or name > _model(query.after)]

    async def following() -> AsyncIterator[RateLimitView]:
        for name in names:
            yield _rate_limit_view(tenant, name)

    return await _listed(following(), query, lambda view: view, lambda view: view["id"])


async def change_rate_limit(call: Call, body: RateLimitChange) -> RateLimitView:
    """Change a model's limits in all lanes together. Raises TenantNotFound, ApiError `not_found`."""
    model = _model(call.path["rate_limit"])
    if model not in await _models(call, await admin_tenants.the_tenant(call)):
        raise not_found("rate limit")
    stated = body.model_dump(include=set(_FIGURES), exclude_none=True)
    figures = {_FIGURES[name]: None if figure == LARGEST else figure for name, figure in stated.items()}
    return _rate_limit_view(await admin_tenants.change_model_limits(call, model, figures), model)


async def _project(call: Call, tenant_id: str) -> ProjectView:
    tenant = await call.parts.tenants.get(tenant_id)
    if tenant is None:
        raise not_found("project")  # somebody deleted it since
    return _project_view(tenant)


async def _live_key(call: Call, tenant: Tenant) -> ApiKey:
    key = await admin_keys.the_key(call, tenant)
    if key.state != "active":
        raise KeyNotFound(key.id)
    return key


async def _models(call: Call, tenant: Tenant) -> list[str]:
    """Models that the tenant may use and that are there, or have limits of their own, by name."""
    served = {door.model for door in await call.parts.fleet.open_requests(tenant.id, tenant.models)}
    return sorted(served | {by.model for by in tenant.limits_by if by.model and not by.lane})


async def _listed(
    items: AsyncIterator[T], query: ListQuery, view: Callable[[T], View], id_of: Callable[[T], str]
) -> Listed[View]:
    found: list[T] = []
    async for item in items:
        found.append(item)
        if len(found) > query.limit:
            break
    shown: Sequence[T] = found[: query.limit]
    return {
        "object": "list",
        "data": [view(item) for item in shown],
        "first_id": id_of(shown[0]) if shown else None,
        "last_id": id_of(shown[-1]) if shown else None,
        "has_more": len(found) > query.limit,
    }


def _project_view(tenant: Tenant) -> ProjectView:
    return {
        "id": tenant.id,
        "object": "organization.project",
        "name": tenant.name or tenant.id,
        "created_at": int(tenant.created_at),
        "archived_at": None if tenant.suspended_at is None else int(tenant.suspended_at),
        "status": "active" if tenant.state == "active" else "archived",
    }


def _account_view(key: KeyView | NewKeyView) -> ServiceAccountView:
    return {
        "id": key["id"],
        "object": "organization.project.service_account",
        "name": key["name"],
        "created_at": int(key["created_at"]),
        "role": "member",
    }


def _key_view(tenant: Tenant, key: ApiKey) -> ProjectKeyView:
    return {
        "id": key.id,
        "object": "organization.project.api_key",
        "name": key.name,
        "redacted_value": f"fl-{key.id}-***",
        "created_at": int(key.created_at),
        "last_used_at": None if key.last_used_at is None else int(key.last_used_at),
        "expires_at": None if key.expires_at is None else int(key.expires_at),
        "owner": {"type": "service_account", "service_account": _account_view(key_view(key))},
        "owner_project_access": "active" if tenant.state == "active" else "inactive",
    }


def _access(tenant: Tenant) -> str:
    return "active" if tenant.state == "active" else "inactive"


def _value_view(new: NewKeyView) -> KeyValueView:
    return {
        "id": new["id"],
        "object": "organization.project.service_account.api_key",
        "name": new["name"],
        "value": new["key"],
        "created_at": int(new["created_at"]),
        "expires_at": None if new["expires_at"] is None else int(new["expires_at"]),
    }


def _rate_limit_view(tenant: Tenant, model: str) -> RateLimitView:
    limits = next((by.limits for by in tenant.limits_by if (by.model, by.lane) == (model, "")), Limits())
    requests, tokens = limits.requests_per_minute, limits.tokens_per_minute
    return {
        "id": _rate_limit_id(model),
        "object": "project.rate_limit",
        "model": model,
        "max_requests_per_1_minute": LARGEST if requests is None else requests,
        "max_tokens_per_1_minute": LARGEST if tokens is None else tokens,
    }


def _rate_limit_id(model: str) -> str:
    """A model's name as one part of a path."""
    return "rl-" + base64.urlsafe_b64encode(model.encode()).decode().rstrip("=")


def _model(rate_limit_id: str) -> str:
    """The model that an id of ours stands for. Raises ApiError `not_found`."""
    text = rate_limit_id.removeprefix("rl-")
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        raise not_found("rate limit") from None


PREFIX = "/v1/organization"
_PROJECT = "/projects/{tenant}"
_KEY = _PROJECT + "/api_keys/{key}"

OPERATIONS: tuple[Operation[Any], ...] = (
    Operation(
        method="GET",
        path="/projects",
        name="list_projects",
        summary="List tenants as projects",
        handler=calls.list_projects,
        input=ProjectsQuery,
        answer=Listed[ProjectView],
    ),
    Operation(
        method="POST",
        path="/projects",
        name="create_project",
        summary="Make a tenant with an id of the server's making",
        handler=calls.create_project,
        input=ProjectBody,
        answer=ProjectView,
    ),
    Operation(
        method="GET",
        path=_PROJECT,
        name="get_project",
        summary="Show a tenant as a project",
        handler=calls.get_project,
        input=Nothing,
        answer=ProjectView,
    ),
    Operation(
        method="POST",
        path=_PROJECT,
        name="change_project",
        role=Role.OPERATOR,
        summary="Rename a tenant",
        handler=calls.change_project,
        input=ProjectChange,
        answer=ProjectView,
    ),
    Operation(
        method="POST",
        path=_PROJECT + "/archive",
        name="archive_project",
        role=Role.OPERATOR,
        summary="Suspend a tenant",
        handler=calls.archive_project,
        input=Nothing,
        answer=ProjectView,
    ),
    Operation(
        method="GET",
        path=_PROJECT + "/api_keys",
        name="list_project_keys",
        summary="List a tenant's keys, but for revoked ones",
        handler=calls.list_keys,
        input=KeysQuery,
        answer=Listed[ProjectKeyView],
    ),
    Operation(
        method="GET",
        path=_KEY,
        name="get_project_key",
        summary="Show a key that is not revoked",
        handler=calls.get_key,
        input=Nothing,
        answer=ProjectKeyView,
    ),
    Operation(
        method="DELETE",
        path=_KEY,
        name="delete_project_key",
        role=Role.OPERATOR,
        summary="Revoke a key, everywhere within a second",
        handler=calls.delete_key,
        input=Nothing,
        answer=DeletedKeyView,
    ),
    Operation(
        method="POST",
        path=_PROJECT + "/service_accounts",
        name="create_service_account",
        role=Role.OPERATOR,
        summary="Make a key; it is shown this once",
        handler=calls.create_service_account,
        input=ServiceAccountBody,
        answer=NewServiceAccountView,
    ),
    Operation(
        method="GET",
        path=_PROJECT + "/rate_limits",
        name="list_rate_limits",
        summary="List a tenant's limits of each model",
        handler=calls.list_rate_limits,
        input=ListQuery,
        answer=Listed[RateLimitView],
    ),
    Operation(
        method="POST",
        path=_PROJECT + "/rate_limits/{rate_limit}",
        name="change_rate_limit",
        role=Role.OPERATOR,
        summary="Change a tenant's limits of a model",
        handler=calls.change_rate_limit,
        input=RateLimitChange,
        answer=RateLimitView,
    ),
    Operation(
        method="GET",
        path="/usage/completions",
        name="get_completions_usage",
        summary="Sum the ledger of all tenants by day",
        handler=usage.completions,
        input=CompletionsQuery,
        answer=Buckets,
    ),
    Operation(
        method="GET",
        path="/costs",
        name="get_costs",
        summary="Sum what all tenants' requests cost by day",
        handler=usage.costs,
        input=CostsQuery,
        answer=CostBuckets,
    ),
)
