"""Search over what the console has a page for: requests, tenants, keys, workers and models. Bounded in every part."""

from typing import Annotated, Literal

from typing_extensions import TypedDict

from fairlane.common.views import about
from fairlane.gateway.control.admin.call import AdminParts, Call
from fairlane.gateway.control.admin.inputs import SearchQuery
from fairlane.gateway.control.admin.operation import Operations
from fairlane.quotas.api_keys import public_id

# Results of one kind.
MOST_OF_A_KIND = 8

operations = Operations()


class Found(TypedDict):
    """One thing that matches."""

    kind: Annotated[Literal["request", "tenant", "key", "worker", "model"], about("Its kind")]
    id: Annotated[str, about("Its id; a model's name")]
    tenant: Annotated[str | None, about("Of a request or key; else null")]
    name: Annotated[str, about("Name of a tenant or key, state of a request, model of a worker")]


class SearchView(TypedDict):
    """What matches a text."""

    data: Annotated[list[Found], about("At most 8 of each kind")]


@operations.add("GET /search")
async def search(call: Call, query: SearchQuery) -> SearchView:
    """Find a request, key or response by its whole id, and tenants, workers and models by a part of their names.

    A part that is not at the start of a tenant's id finds only the first 2,000 tenants."""
    parts, text = call.parts, query.q.strip()
    if not text:
        return {"data": []}
    found = [*await _requests(parts, text), *await _keys(parts, text), *await _tenants(parts, text)]
    return {"data": [*found, *await _fleet(parts, text.lower())]}


async def _requests(parts: AdminParts, text: str) -> list[Found]:
    record = await parts.records.find(text)
    if record is None:
        return []
    return [{"kind": "request", "id": record.id, "tenant": record.tenant, "name": record.outcome or record.state}]


async def _keys(parts: AdminParts, text: str) -> list[Found]:
    # A secret pasted by mistake is searched by its public id.
    key_id = public_id(text) or text.removeprefix("fl-")
    owner = await parts.keys.owner(key_id)
    tenant = None if owner is None else await parts.tenants.get(owner)
    key = None if tenant is None else await parts.keys.get(tenant, key_id)
    return [] if key is None else [{"kind": "key", "id": key.id, "tenant": owner, "name": key.name}]


async def _tenants(parts: AdminParts, text: str) -> list[Found]:
    return [
        {"kind": "tenant", "id": tenant.id, "tenant": None, "name": tenant.name}
        for tenant in await parts.tenants.search(text, MOST_OF_A_KIND)
    ]


async def _fleet(parts: AdminParts, text: str) -> list[Found]:
    alive = sorted(await parts.fleet.workers(), key=lambda status: status.worker_id)
    names = sorted({*parts.overview.models, *(status.model for status in alive)})
    workers: list[Found] = [
        {"kind": "worker", "id": each.worker_id, "tenant": None, "name": each.model}
        for each in alive
        if text in each.worker_id.lower()
    ]
    models: list[Found] = [
        {"kind": "model", "id": name, "tenant": None, "name": ""} for name in names if text in name.lower()
    ]
    return [*workers[:MOST_OF_A_KIND], *models[:MOST_OF_A_KIND]]
