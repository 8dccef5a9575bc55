"""The admin API: every operation in one table, which is what is routed, what is checked and what OpenAPI shows."""

from typing import Any

from starlette.routing import Mount, Route

from gateway import admin_explain, admin_export, admin_fleet, admin_keys, admin_reports, admin_tenants
from gateway.admin_bodies import (
    AuditQuery,
    ExplainBody,
    KeyBody,
    KeyChange,
    LedgerQuery,
    Nothing,
    PageQuery,
    QuotaBody,
    RotateBody,
    TenantBody,
    TenantChange,
    UsageQuery,
)
from gateway.admin_call import AdminParts, Operation, endpoint
from gateway.admin_shapes import (
    AuditView,
    Deleted,
    ExplainView,
    KeyView,
    LaneView,
    NewKeyView,
    Page,
    QuotaView,
    TenantView,
    UsageView,
    WorkerView,
)

PREFIX = "/admin/v1"
_TENANT = "/tenants/{tenant}"
_KEY = _TENANT + "/keys/{key}"

OPERATIONS: tuple[Operation[Any], ...] = (
    Operation(
        method="POST",
        path="/tenants",
        name="create_tenant",
        summary="Make a tenant",
        handler=admin_tenants.create_tenant,
        input=TenantBody,
        answer=TenantView,
        tagged=True,
        status=201,
        codes=("already_exists",),
    ),
    Operation(
        method="GET",
        path="/tenants",
        name="list_tenants",
        summary="List tenants by id",
        handler=admin_tenants.list_tenants,
        input=PageQuery,
        answer=Page[TenantView],
    ),
    Operation(
        method="GET",
        path=_TENANT,
        name="get_tenant",
        summary="Show a tenant",
        handler=admin_tenants.get_tenant,
        input=Nothing,
        answer=TenantView,
        tagged=True,
    ),
    Operation(
        method="PATCH",
        path=_TENANT,
        name="change_tenant",
        summary="Change some fields: null is the default, limits are merged",
        handler=admin_tenants.change_tenant,
        input=TenantChange,
        answer=TenantView,
        tagged=True,
    ),
    Operation(
        method="DELETE",
        path=_TENANT,
        name="delete_tenant",
        summary="Delete a tenant: its keys stop at once, its ledger stays",
        handler=admin_tenants.delete_tenant,
        input=Nothing,
        answer=Deleted,
        tagged=True,
        codes=("tenant_has_children",),
    ),
    Operation(
        method="POST",
        path=_TENANT + "/suspend",
        name="suspend_tenant",
        summary="Let none of a tenant's requests in until it is resumed",
        handler=admin_tenants.suspend_tenant,
        input=Nothing,
        answer=TenantView,
        tagged=True,
    ),
    Operation(
        method="POST",
        path=_TENANT + "/resume",
        name="resume_tenant",
        summary="Serve a suspended tenant again",
        handler=admin_tenants.resume_tenant,
        input=Nothing,
        answer=TenantView,
        tagged=True,
    ),
    Operation(
        method="POST",
        path=_TENANT + "/keys",
        name="create_key",
        summary="Make a key; it is shown this once",
        handler=admin_keys.create_key,
        input=KeyBody,
        answer=NewKeyView,
        status=201,
    ),
    Operation(
        method="GET",
        path=_TENANT + "/keys",
        name="list_keys",
        summary="List a tenant's keys by creation",
        handler=admin_keys.list_keys,
        input=PageQuery,
        answer=Page[KeyView],
    ),
    Operation(
        method="GET",
        path=_KEY,
        name="get_key",
        summary="Show a key",
        handler=admin_keys.get_key,
        input=Nothing,
        answer=KeyView,
        tagged=True,
    ),
    Operation(
        method="PATCH",
        path=_KEY,
        name="change_key",
        summary="Change some fields of a key that is not revoked",
        handler=admin_keys.change_key,
        input=KeyChange,
        answer=KeyView,
        tagged=True,
    ),
    Operation(
        method="DELETE",
        path=_KEY,
        name="revoke_key",
        summary="End a key, everywhere within a second",
        handler=admin_keys.revoke_key,
        input=Nothing,
        answer=KeyView,
    ),
    Operation(
        method="POST",
        path=_KEY + "/rotate",
        name="rotate_key",
        summary="Make a key like this one, which ends after the overlap",
        handler=admin_keys.rotate_key,
        input=RotateBody,
        answer=NewKeyView,
        status=201,
    ),
    Operation(
        method="GET",
        path=_TENANT + "/quota",
        name="get_quota",
        summary="Show every limit that is set, and what is used and reserved of it",
        handler=admin_tenants.get_quota,
        input=Nothing,
        answer=QuotaView,
        tagged=True,
    ),
    Operation(
        method="PUT",
        path=_TENANT + "/quota",
        name="replace_quota",
        summary="Replace all limits",
        handler=admin_tenants.put_quota,
        input=QuotaBody,
        answer=QuotaView,
        tagged=True,
    ),
    Operation(
        method="PATCH",
        path=_TENANT + "/quota",
        name="change_quota",
        summary="Change some limits; null takes one away",
        handler=admin_tenants.patch_quota,
        input=QuotaBody,
        answer=QuotaView,
        tagged=True,
    ),
    Operation(
        method="POST",
        path=_TENANT + "/explain",
        name="explain",
        summary="Say whether a request would be admitted now; nothing is reserved",
        handler=admin_explain.explain,
        input=ExplainBody,
        answer=ExplainView,
    ),
    Operation(
        method="GET",
        path=_TENANT + "/usage",
        name="get_usage",
        summary="Sum the ledger, of a deleted tenant too",
        handler=admin_reports.get_usage,
        input=UsageQuery,
        answer=UsageView,
    ),
    Operation(
        method="GET",
        path=_TENANT + "/ledger",
        name="export_ledger",
        summary="Export the ledger entry by entry, of a deleted tenant too",
        handler=admin_export.export_ledger,
        input=LedgerQuery,
        answer=str,
        media=(admin_export.CSV, admin_export.JSON_LINES),
    ),
    Operation(
        method="GET",
        path="/workers",
        name="list_workers",
        summary="List the workers that are alive",
        handler=admin_fleet.list_workers,
        input=PageQuery,
        answer=Page[WorkerView],
    ),
    Operation(
        method="POST",
        path="/workers/{worker}/drain",
        name="drain_worker",
        summary="Let a worker take no more jobs",
        handler=admin_fleet.drain_worker,
        input=Nothing,
        answer=WorkerView,
    ),
    Operation(
        method="GET",
        path="/lanes",
        name="list_lanes",
        summary="Show each lane's queue, running work and rate",
        handler=admin_fleet.list_lanes,
        input=PageQuery,
        answer=Page[LaneView],
    ),
    Operation(
        method="GET",
        path="/audit",
        name="list_audit",
        summary="Show who changed what, newest first",
        handler=admin_reports.list_audit,
        input=AuditQuery,
        answer=Page[AuditView],
    ),
)


def mount(parts: AdminParts) -> Mount:
    """The whole API under its prefix. It answers its own errors; paths and methods that it has not are the router's."""
    return Mount(PREFIX, routes=routes(parts))


def routes(parts: AdminParts) -> list[Route]:
    """One route per operation, with the prefix left out."""
    return [
        Route(operation.path, endpoint(operation, parts), methods=[operation.method], name=operation.name)
        for operation in OPERATIONS
    ]
