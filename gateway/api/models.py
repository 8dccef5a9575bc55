"""`GET /v1/models`, `GET /v1/models/{id}` and `GET /v1/limits`: models and limits of the calling key."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.dialects.openai import rate_limits
from fairlane.gateway.dialects.openai.batches import read_query
from fairlane.gateway.dialects.openai.rate_limits import Waiting
from fairlane.gateway.errors import invalid, speaks_anthropic
from fairlane.gateway.fleet import FleetCache, ServedModel
from fairlane.gateway.http.sse import send_json
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.pipeline.context import RequestContext
from fairlane.gateway.pipeline.fitting import allowed_model
from fairlane.quotas.store import QuotaStore

OWNER = "fairlane"
MOST_LISTED = 1_000
# Of a model's name.
_MOST_CHARS = 1_024


class ModelsQuery(BaseModel):
    """The page of models to list in Anthropic's format."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = MOST_LISTED
    after_id: Annotated[str, Field(max_length=_MOST_CHARS)] = ""
    before_id: Annotated[str, Field(max_length=_MOST_CHARS)] = ""


@dataclass(eq=False)
class Models:
    """`GET /v1/models`: all known models that the key may use, with or without a worker; and one model by name."""

    fleet_cache: FleetCache

    async def list(self, context: RequestContext) -> None:
        caller = context.caller
        found = _usable(caller, self.fleet_cache.find())
        if speaks_anthropic(context.headers):
            document = _anthropic_page(found, read_query(ModelsQuery, context.scope["query_string"]))
        else:
            document = {"object": "list", "data": [_shown(model) for model in found]}
        await send_json(context.send, document, [])

    async def show(self, context: RequestContext) -> None:
        model = allowed_model(self.fleet_cache, context.path_params["model"], context.caller)
        shown = _anthropic_model if speaks_anthropic(context.headers) else _shown
        await send_json(context.send, shown(model), [])


@dataclass(eq=False)
class ShowLimits:
    """`GET /v1/limits`: the current limits of the calling key."""

    quotas: QuotaStore
    waiting: Waiting
    batches: BatchRecords

    async def __call__(self, context: RequestContext) -> None:
        caller = context.caller
        statuses = await self.quotas.statuses(caller.root, caller.account, caller.key_id)
        caller.statuses = await rate_limits.with_queue(statuses, caller.tenant_id, self.waiting)
        of_batches = await self.batches.standing(caller.identity.tenant, caller.identity.key)
        await send_json(context.send, rate_limits.as_json([*caller.statuses, *of_batches]), [])


def _usable(caller: Caller, models: Sequence[ServedModel]) -> Sequence[ServedModel]:
    for names in (caller.identity.tenant.models, caller.identity.key.scopes.models):
        if names is not None:
            allowed = frozenset(names)
            models = [model for model in models if model.name in allowed]
    return models


def _shown(model: ServedModel) -> dict[str, Any]:
    usual = model.text.card.usual_draw
    return {
        "id": model.name,
        "object": "model",
        "created": model.text.card.created_s,
        "owned_by": OWNER,
        "context_length": model.context_length,
        "max_model_len": model.context_length,
        "exact": model.text.card.is_exact,
        **({"default_sampling": usual} if usual else {}),
    }


def _anthropic_model(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "type": "model",
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.text.card.created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.context_length,
        "max_tokens": model.context_length,
    }


def _anthropic_page(models: Sequence[ServedModel], query: ModelsQuery) -> dict[str, Any]:
    names = [model.name for model in models]
    for field, cursor in (("after_id", query.after_id), ("before_id", query.before_id)):
        if cursor and cursor not in names:
            raise invalid(field, f"`{field}` is not the id of a model.")
    first = names.index(query.after_id) + 1 if query.after_id else 0
    end = names.index(query.before_id) if query.before_id else len(names)
    between = models[first:end]
    page = between[-query.limit :] if query.before_id else between[: query.limit]
    data = [_anthropic_model(model) for model in page]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return {"data": data, "has_more": len(between) > len(page), **ends}
