"""What the admin API answers, made from what is stored."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from gateway.admin_shapes import (
    AuditView,
    KeyView,
    LimitsByView,
    NewKeyView,
    Page,
    TenantView,
    UsageLine,
    UsageView,
    WorkerView,
)
from quotas.api_keys import ApiKey, NewKey
from quotas.audit import AuditEntry
from quotas.ledger import Usage, UsageReport
from quotas.limits import LimitsBy
from quotas.tenants import Tenant
from scheduler.messages import WorkerStatus

View = TypeVar("View")
Item = TypeVar("Item")

TENANT_FIELDS = (
    "name",
    "parent",
    "timezone",
    "weight",
    "default_lane",
    "lanes",
    "models",
    "limits",
    "limits_by",
    "shadow",
    "reserve",
    "preemption",
    "share_group",
)
"""Fields of a TenantView that an operator sets."""


def page(items: Sequence[Item], limit: int, view: Callable[[Item], View], id_of: Callable[[Item], str]) -> Page[View]:
    """A page of `limit` items from a sequence that was asked for one more."""
    shown = items[:limit]
    last_id = id_of(shown[-1]) if shown else None
    return {"data": [view(item) for item in shown], "has_more": len(items) > limit, "last_id": last_id}


def tenant_view(tenant: Tenant) -> TenantView:
    """A tenant as operators see it."""
    return {
        "id": tenant.id,
        "name": tenant.name,
        "parent": tenant.parent,
        "timezone": tenant.timezone,
        "weight": tenant.weight,
        "default_lane": tenant.default_lane,
        "lanes": list(tenant.lanes),
        "models": _listed(tenant.models),
        "limits": tenant.limits.as_dict(),
        "limits_by": [_limits_by_view(each) for each in tenant.limits_by],
        "shadow": list(tenant.shadow),
        "reserve": tenant.reserve,
        "preemption": tenant.preemption,
        "share_group": tenant.share_group,
        "state": tenant.state,
        "created_at": tenant.created_at,
        "version": tenant.version,
    }


def _limits_by_view(by: LimitsBy) -> LimitsByView:
    return {"model": by.model or None, "lane": by.lane or None, "limits": by.limits.as_dict()}


def key_view(key: ApiKey) -> KeyView:
    """A key as operators see it."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "name": key.name,
        "state": key.state,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "last_used_at": key.last_used_at,
        "limits": key.limits.as_dict(),
        "scopes": {
            "models": _listed(key.scopes.models),
            "lanes": _listed(key.scopes.lanes),
            "endpoints": _listed(key.scopes.endpoints),
            "cidrs": _listed(key.scopes.cidrs),
        },
        "version": key.version,
    }


def new_key_view(new: NewKey) -> NewKeyView:
    """A key just made, secret and all: goes into one answer, and nowhere else."""
    return {**key_view(new.key), "key": new.secret}


def usage_view(report: UsageReport) -> UsageView:
    """A ledger's report, each group's values beside its figures."""
    data = [_line(row.usage, row.group) for row in report.rows]
    return {"data": data, "total": _line(report.total, {})}


def worker_view(status: WorkerStatus) -> WorkerView:
    """A worker's last heartbeat."""
    return {
        "id": status.worker_id,
        "model": status.model,
        "queue": status.queue,
        "card_sha256": status.card_sha256,
        "started_at": status.started_at_ms / 1e3,
        "draining": status.draining,
        "block_size": status.block_size,
        "blocks_total": status.blocks_total,
        "blocks_free": status.blocks_free,
        "host_slots_total": status.host_slots_total,
        "host_slots_free": status.host_slots_free,
        "max_sequences": status.max_sequences,
        "running": status.running,
        "waiting": status.waiting,
        "preempted": status.preempted,
        "tokens_per_s": status.tokens_per_s,
        "step_ms": status.step_ms,
        "single_stream_ms": status.single_stream_ms,
        "prefill_tokens_per_s": status.prefill_tokens_per_s,
    }


def audit_view(entry: AuditEntry) -> AuditView:
    """An entry of the audit log."""
    return {
        "id": entry.id,
        "at": entry.at,
        "actor": entry.actor,
        "address": entry.address,
        "action": entry.action,
        "target": entry.target,
        "changes": entry.changes,
    }


def _line(usage: Usage, group: Mapping[str, str]) -> UsageLine:
    figures: UsageLine = {
        "requests": usage.requests,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
    return cast(UsageLine, {**group, **figures})  # the group's names are the ledger's own


def _listed(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)
