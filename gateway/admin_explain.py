"""A dry run: would a request of these sizes be admitted now, which limit binds, how long would it wait.

Reads what stands and reserves nothing, so the answer is of this moment. The checks come in the order in which a real
request meets them: access, admission, the tenant's limits. A refilling limit is said to fit when it is full again,
at the latest; the refusal of a real request knows that moment exactly.
"""

from collections.abc import Iterable

import msgspec

from gateway.admin_bodies import ExplainBody
from gateway.admin_call import Call
from gateway.admin_shapes import ExplainView
from gateway.admin_tenants import the_tenant
from gateway.admit import refused
from gateway.errors import ApiError, LimitBlock, limit_denied
from quotas.limits import RULES, Demand, LimitStatus, Refusal, heaviest
from quotas.tenants import Tenant
from scheduler.admission import Admitted, Request, assess
from scheduler.lanes import LaneName

_RULES = {rule.name: rule for rule in RULES}


async def explain(call: Call, body: ExplainBody) -> ExplainView:
    """Say what would become of a request. Raises TenantNotFound."""
    tenant = await the_tenant(call)
    statuses = await call.parts.budgets.statuses(tenant.root, tenant.id)
    asked = Request(
        lane=LaneName(body.lane),
        prompt_tokens=body.prompt_tokens,
        max_tokens=body.max_output_tokens,
        deadline_ms=body.deadline_ms,
    )
    workers, depths = await call.parts.fleet.workers(), await call.parts.fleet.depths()
    verdict = assess(asked, workers=workers, depths=depths, lanes=call.parts.lanes)
    wait_ms = verdict.expected_ttft_ms if isinstance(verdict, Admitted) else None
    at_door = None if isinstance(verdict, Admitted) else refused(verdict, asked)
    demand = Demand(input=body.prompt_tokens, choice=body.max_output_tokens, choices=1)
    return _view(access_refusal(tenant, body.lane) or at_door or limit_refusal(statuses, demand), wait_ms)


def access_refusal(tenant: Tenant, lane: str) -> ApiError | None:
    """What the tenant as such may not do."""
    if tenant.state == "suspended":
        return ApiError("This tenant is suspended.", "tenant_suspended")
    if lane not in tenant.lanes:
        return ApiError(f"This tenant may not use the lane {lane}.", "lane_not_allowed", "lane")
    return None


def limit_refusal(statuses: Iterable[LimitStatus], demand: Demand) -> ApiError | None:
    """The limit that binds, if any does: what can never fit before what would have to wait longest."""
    refusal = heaviest([found for status in statuses if (found := _refused(status, demand)) is not None])
    if refusal is None:
        return None
    status = refusal.status
    block = LimitBlock(
        name=status.name,
        scope=status.scope,
        limit=status.limit,
        used=status.used,
        reserved=status.reserved,
        requested=refusal.requested,
        resets_at=status.resets_at,
    )
    return limit_denied(refusal.kind, block, refusal.retry_after_s)


def _refused(status: LimitStatus, demand: Demand) -> Refusal | None:
    rule = _RULES[status.name]
    amount = demand.amount(rule)
    if amount > status.limit:
        return Refusal(status, amount, None, "exceeds")
    if amount <= status.remaining:
        return None
    return Refusal(status, amount, None if rule.kind == "concurrency" else status.reset_after_s, rule.kind)


def _view(refusal: ApiError | None, wait_ms: float | None) -> ExplainView:
    if refusal is None:
        return {
            "admitted": True,
            "code": None,
            "message": None,
            "limit": None,
            "retry_after_s": None,
            "expected_wait_ms": wait_ms,
        }
    return {
        "admitted": False,
        "code": refusal.code,
        "message": refusal.message,
        "limit": None if refusal.limit is None else msgspec.to_builtins(refusal.limit),
        "retry_after_s": refusal.retry_after_s,
        "expected_wait_ms": wait_ms,
    }
