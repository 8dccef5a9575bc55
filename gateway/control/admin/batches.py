"""Admin calls on open batches, over all tenants."""

from fairlane.gateway.batches.batch_records import StandingBatch
from fairlane.gateway.control.admin.call import Call
from fairlane.gateway.control.admin.inputs import OpenBatchesQuery
from fairlane.gateway.control.admin.operation import Operations
from fairlane.gateway.control.admin.views import OpenBatchView, Page, open_batch_view, page

operations = Operations()


@operations.add("GET /batches")
async def list_open_batches(call: Call, query: OpenBatchesQuery) -> Page[OpenBatchView]:
    """List open batches and their progress, the earliest window end first."""
    found = [
        each
        for each in await call.parts.batches.open_batches()
        if query.tenant in (None, each.batch.tenant) and (query.after is None or _place(each) > query.after)
    ]
    return page(sorted(found, key=_place), query.limit, open_batch_view, _place)


def _place(standing: StandingBatch) -> str:
    """Return the batch's sort key, which stays valid when batches ahead of it end."""
    return f"{standing.batch.expires_at:012}:{standing.batch.id}"
