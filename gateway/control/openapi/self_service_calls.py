"""The operations by which a tenant sees its own use and manages its own keys."""

from collections.abc import Iterator

from fairlane.gateway.control.admin.inputs import DaysQuery, OwnKeyBody, PageQuery, RotateBody
from fairlane.gateway.control.admin.operation import Documented
from fairlane.gateway.control.admin.views import KeyView, NewKeyView, OwnUsageView, Page
from fairlane.gateway.control.openapi.documented import CHANGES, documented
from fairlane.gateway.control.self_service.account import CallerView, OwnRequestsQuery
from fairlane.gateway.control.self_service.keys import ONE_PATH, PATH, ROTATE_PATH
from fairlane.gateway.insight.request_records.views import RequestView


def self_service_calls() -> Iterator[Documented]:
    """Yield the operations."""
    yield documented("GET /v1/me", "get_caller", "Return the calling key and its tenant", CallerView)
    yield documented(
        "GET /v1/usage",
        "get_own_usage",
        "Return the tenant's usage and spend from the ledger",
        OwnUsageView,
        query=DaysQuery,
    )
    yield documented(
        "GET /v1/requests",
        "list_own_requests",
        "List the tenant's requests that have ended, newest first",
        Page[RequestView],
        query=OwnRequestsQuery,
    )
    yield documented(
        f"GET {PATH}",
        "list_own_keys",
        "List the tenant's keys by creation time, where its operator allows self-service",
        Page[KeyView],
        query=PageQuery,
    )
    yield documented(
        f"POST {PATH}",
        "create_own_key",
        "Create a key that may do no more than the calling key; only this response contains its secret",
        NewKeyView,
        *CHANGES,
        body=OwnKeyBody,
    )
    yield documented(f"DELETE {ONE_PATH}", "revoke_own_key", "Revoke a key, within a second on all gateways", KeyView)
    yield documented(
        f"POST {ROTATE_PATH}",
        "rotate_own_key",
        "Replace a key by a copy with a new secret; the old one expires after the overlap",
        NewKeyView,
        *CHANGES,
        body=RotateBody,
    )
