"""Requests as a recorder hears of them."""

from collections.abc import Sequence

from fairlane.gateway.insight.request_traces.recorder import Asked
from fairlane.gateway.request.service_level import ServiceLevel
from fairlane.quotas.tenants import Tenant
from fairlane.scheduler.admission.open_requests import Request
from fairlane.scheduler.protocol.lanes import LATENCY


def asked(tenant: str = "acme", prompt: Sequence[int] = (1, 2, 3)) -> Asked:
    """One prompt in the latency lane."""
    level = ServiceLevel(
        lane=LATENCY, service_tier="default", deadline_ms=None, hard_ttft_ms=None, max_wait_ms=LATENCY.max_wait_ms
    )
    request = Request(lane=LATENCY.name, tenant=tenant, prompt_tokens=len(prompt), max_tokens=50)
    return Asked(
        arrived_s=0.0,
        tenant=Tenant(id=tenant, root=tenant),
        model="tiny",
        level=level,
        prompts=[prompt],
        requests=[request],
        salt="",
    )
