"""A dry run: whether a request of these sizes would be admitted now, which limit binds, and how long it would wait.

It runs the checks of a real request in their order, and reserves nothing. The request counts as admitted if one model
would serve it. For a refilling limit the reported time is when it is full again, which may be later than necessary."""

from collections.abc import Iterable

import msgspec

from fairlane.common.views import view_of
from fairlane.gateway.control.admin.call import Call
from fairlane.gateway.control.admin.inputs import ExplainBody
from fairlane.gateway.control.admin.operation import Operations
from fairlane.gateway.control.admin.tenants import the_tenant
from fairlane.gateway.control.admin.views import ExplainView
from fairlane.gateway.control.operators.operator import Role
from fairlane.gateway.errors import ApiError, LimitBlock, context_length, limit_denied, model_not_found
from fairlane.gateway.fleet import ModelQueueView
from fairlane.gateway.pipeline.admission import AllOpenRequests, queue_refused, queued_limit, refused
from fairlane.gateway.pipeline.fitting import exceeds, room_after
from fairlane.quotas.limits import RULES, Demand, LimitRefusal, LimitStatus, most_severe
from fairlane.quotas.store import LARGEST_ASK
from fairlane.quotas.tenants import Tenant
from fairlane.scheduler.admission.decide import Admitted, assess
from fairlane.scheduler.admission.open_requests import Request
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.queue.types import LaneDepth, LaneFull, TenantQueueFull, drain_ms

_RULES = {rule.name: rule for rule in RULES}
# Used when the tenant may use none of the announced models: admission and queue never refuse it.
NOWHERE = ModelQueueView(model="", queue="", context_length=2 * LARGEST_ASK, workers=(), depths={}, waiting=0)

operations = Operations()


@operations.add("POST /tenants/{tenant}/explain", role=Role.VIEWER)
async def explain(call: Call, body: ExplainBody) -> ExplainView:
    """Explain whether a request would be admitted now, without reserving anything."""
    tenant = await the_tenant(call)
    asked = Request(
        lane=LaneName(body.lane),
        tenant=tenant.id,
        prompt_tokens=body.prompt_tokens,
        max_tokens=body.max_output_tokens,
        deadline_ms=body.deadline_ms,
        exact=tenant.is_exact,
    )
    open_requests = await call.parts.fleet.open_requests(
        tenant.id, tenant.models if body.model is None else [body.model]
    )
    above = [await call.parts.tenants.get(parent) for parent in tenant.above]
    access = access_refusal(tenant, above, body) if open_requests or body.model is None else model_not_found()
    found = []
    for queue in open_requests or [NOWHERE]:
        fitted = within_context(queue, asked) if call.parts.cuts_output else asked
        most = fitted.max_tokens
        first = 1 if tenant.reserve == "progressive" or not fitted.max_tokens_stated else most  # needed for admission
        not_admitted, wait_ms = queue_verdict(queue, fitted, call.parts.open_requests)
        statuses = await call.parts.budgets.statuses(tenant.root, tenant.account, model=queue.model, lane=body.lane)
        prices = await call.parts.known_prices.of(queue.model, body.lane)
        demand = Demand(input=body.prompt_tokens, ceiling=most, choice=first, choices=1, prices=prices)
        limited = limit_refusal(statuses, demand, in_part=demand.choice < demand.ceiling)
        queue_full = queue_refusal(queue, call.parts.lanes[asked.lane], statuses)
        found.append((access or not_admitted or limited or queue_full, wait_ms))
    return _view(*min(found, key=lambda each: each[0] is not None))  # one model that would serve it is enough


def access_refusal(tenant: Tenant, above: Iterable[Tenant | None], body: ExplainBody) -> ApiError | None:
    """Return the refusal of a tenant that may not make the request at all. `above`: its ancestors, None for a deleted
    one."""
    if tenant.state == "suspended":
        return ApiError("This tenant is suspended.", "tenant_suspended")
    if any(parent is None or parent.state == "suspended" for parent in above):
        return ApiError("A parent of this tenant is suspended.", "tenant_suspended")
    if not (body.model is None or tenant.models is None or body.model in tenant.models):
        return ApiError("This tenant may not use the model.", "model_not_allowed", "model")
    if body.lane not in tenant.lanes:
        return ApiError(f"This tenant may not use the lane {body.lane}.", "lane_not_allowed", "lane")
    return None


def within_context(queue: ModelQueueView, asked: Request) -> Request:
    """Return the request, with output beyond the context cut to what context and KV pool leave."""
    if not exceeds(asked.prompt_tokens, asked.max_tokens, queue.context_length):
        return asked
    left = room_after(asked.prompt_tokens, queue.longest)
    return msgspec.structs.replace(asked, max_tokens=left, max_tokens_stated=False)


def queue_verdict(
    queue: ModelQueueView, asked: Request, open_requests: AllOpenRequests
) -> tuple[ApiError | None, float | None]:
    """Return one model's refusal at admission, or else the expected wait for the first token."""
    if exceeds(asked.prompt_tokens, asked.max_tokens, queue.context_length):
        most = asked.max_tokens if asked.max_tokens_stated else None
        return context_length(queue.context_length, asked.prompt_tokens, most), None
    let_in = open_requests.at(queue.queue)
    verdict = assess(asked, workers=queue.workers, open_requests=let_in, now_ms=open_requests.now_ms)
    if not isinstance(verdict, Admitted):
        return refused(verdict, asked), None
    still_ms = let_in.still_waits_ms(asked.lane, asked.tenant, queue.waiting + 1) if queue.waiting else None
    return None, verdict.expected_ttft_ms if still_ms is None else still_ms


def queue_refusal(queue: ModelQueueView, lane: Lane, statuses: Iterable[LimitStatus]) -> ApiError | None:
    """Return the refusal of the queue behind admission: the tenant's own limit first, then the lane's cap."""
    limit, depth = queued_limit(statuses), queue.depths.get(lane.name, LaneDepth(0, 0))
    if limit is not None and queue.waiting >= limit.limit:
        full = TenantQueueFull(limit.limit, queue.waiting, drain_ms(queue.waiting, depth.oldest_wait_ms))
        return queue_refused(full, limit.scope)
    if depth.queued >= lane.max_queued:
        return queue_refused(LaneFull(lane.name, depth.queued, drain_ms(depth.queued, depth.oldest_wait_ms)))
    return None


def limit_refusal(statuses: Iterable[LimitStatus], demand: Demand, *, in_part: bool) -> ApiError | None:
    """Return the refusal of the limit that binds, if any: limits that can never fit come first, then the longest wait.

    `in_part`: see `limit_denied`."""
    refusal = most_severe([found for status in statuses if (found := _refused(status, demand)) is not None])
    if refusal is None:
        return None
    block = LimitBlock.of(refusal.status, refusal.requested)
    return limit_denied(refusal.kind, block, refusal.retry_after_s, in_part=in_part)


def _refused(status: LimitStatus, demand: Demand) -> LimitRefusal | None:
    rule = _RULES[status.name]
    amount, most = demand.amount(rule), demand.most(rule)
    if most > status.limit:
        return LimitRefusal(status, most, None, "exceeds")
    if amount <= status.remaining:
        return None
    return LimitRefusal(status, amount, None if rule.kind == "concurrency" else status.reset_after_s, rule.kind)


def _view(refusal: ApiError | None, wait_ms: float | None) -> ExplainView:
    if refusal is None:
        absent = dict.fromkeys(("code", "message", "limit", "retry_after_s"))
        return view_of(ExplainView, None, admitted=True, expected_wait_ms=wait_ms, **absent)
    limit = refusal.limit and msgspec.to_builtins(refusal.limit)
    return view_of(ExplainView, refusal, admitted=False, expected_wait_ms=wait_ms, limit=limit)
