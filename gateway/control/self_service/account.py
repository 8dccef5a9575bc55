"""`/v1/me`, `/v1/usage` and `/v1/requests`: who calls, what its tenant has used, and its last requests."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import Field
from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about
from fairlane.gateway.control.admin.inputs import DaysQuery, PageQuery, optional
from fairlane.gateway.control.admin.router import refusal_of
from fairlane.gateway.control.admin.usage import usage_of
from fairlane.gateway.control.admin.views import KeyView, key_view, page
from fairlane.gateway.control.self_service.keys import refusal_to_manage
from fairlane.gateway.dialects.openai.batches import read_query
from fairlane.gateway.http.sse import send_json
from fairlane.gateway.insight.request_records.search import AFTER, RecordQuery, Records
from fairlane.gateway.insight.request_records.views import request_view
from fairlane.gateway.pipeline.context import Endpoint, RequestContext
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.ledger import Ledger

MOST_LISTED = 100
# Of a report of usage, so that none occupies a gateway for long.
MOST_ROWS = 5_000


class OwnRequestsQuery(PageQuery):
    """The page of the tenant's requests that have ended, newest first."""

    limit: int = Field(20, ge=1, le=MOST_LISTED, description="Maximum number of items of the page")
    after: str | None = optional("`last_id` of the previous page", pattern=AFTER)


class CallerView(TypedDict):
    """The calling key and its tenant."""

    tenant: Annotated[str, about("Id of the tenant")]
    tenant_name: Annotated[str, about("The tenant's name; may be empty")]
    timezone: Annotated[str, about("IANA name of the zone in which its days and months begin")]
    lanes: Annotated[list[str], about("Lanes that the calling key may use")]
    default_lane: Annotated[str, about("The lane of requests that name none")]
    key: Annotated[KeyView, about("The calling key")]
    may_manage_keys: Annotated[bool, about("Whether the calling key may make, rotate and revoke keys")]
    currency: Annotated[str, about("Currency of all prices and charges")]


@dataclass(eq=False)
class OwnAccount:
    """The calls by which a tenant sees its own use."""

    ledger: Ledger
    # Writes what this gateway has not reported yet of a root organisation.
    report: Callable[[str], Awaitable[None]]
    records: Records
    currency: str

    def routes(self) -> list[tuple[str, str, Endpoint]]:
        return [
            ("GET", "/v1/me", self.show_caller),
            ("GET", "/v1/usage", self.show_usage),
            ("GET", "/v1/requests", self.list_requests),
        ]

    async def show_caller(self, context: RequestContext) -> None:
        tenant, key = context.caller.identity.tenant, context.caller.identity.key
        own = tenant.lanes if key.scopes.lanes is None else key.scopes.lanes
        shown: CallerView = {
            "tenant": tenant.id,
            "tenant_name": tenant.name,
            "timezone": tenant.timezone,
            "lanes": [each for each in tenant.lanes if each in own],
            "default_lane": tenant.default_lane,
            "key": key_view(key),
            "may_manage_keys": refusal_to_manage(context.caller) is None,
            "currency": self.currency,
        }
        await send_json(context.send, shown, [])

    async def show_usage(self, context: RequestContext) -> None:
        tenant, query = context.caller.identity.tenant, read_query(DaysQuery, context.scope["query_string"])
        await self.report(tenant.root)
        where = (self.ledger, self.currency, tenant.root, tenant.account, ZoneInfo(tenant.timezone))
        try:
            found = await usage_of(*where, query, MOST_ROWS)
        except FieldError as error:
            raise refusal_of(error) from None
        await send_json(context.send, found, [])

    async def list_requests(self, context: RequestContext) -> None:
        query = read_query(OwnRequestsQuery, context.scope["query_string"])
        wanted = RecordQuery(limit=query.limit, after=query.after)
        found = await self.records.ended_of(context.caller.account, wanted)
        await send_json(context.send, page(found, query.limit, request_view, wanted.shown_place), [])
