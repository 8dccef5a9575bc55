"""OpenAI's administration API, as far as it fits: its official SDK's `client.admin.organization` works with it."""

from typing import Any

from fairlane.gateway.admin.inputs import Nothing
from fairlane.gateway.admin.openai import calls, usage
from fairlane.gateway.admin.openai.shapes import (
    Buckets,
    CompletionsQuery,
    DeletedKeyView,
    KeysQuery,
    Listed,
    ListQuery,
    NewServiceAccountView,
    ProjectBody,
    ProjectChange,
    ProjectKeyView,
    ProjectsQuery,
    ProjectView,
    RateLimitChange,
    RateLimitView,
    ServiceAccountBody,
)
from fairlane.gateway.admin.router import Operation

PREFIX = "/v1/organization"
_PROJECT = "/projects/{tenant}"
_KEY = _PROJECT + "/api_keys/{key}"

OPERATIONS: tuple[Operation[Any], ...] = (
    Operation(
        method="GET",
        path="/projects",
        name="list_projects",
        summary="List tenants as projects",
        handler=calls.list_projects,
        input=ProjectsQuery,
        answer=Listed[ProjectView],
    ),
    Operation(
        method="POST",
        path="/projects",
        name="create_project",
        summary="Make a tenant with an id of the server's making",
        handler=calls.create_project,
        input=ProjectBody,
        answer=ProjectView,
    ),
    Operation(
        method="GET",
        path=_PROJECT,
        name="get_project",
        summary="Show a tenant as a project",
        handler=calls.get_project,
        input=Nothing,
        answer=ProjectView,
    ),
    Operation(
        method="POST",
        path=_PROJECT,
        name="change_project",
        summary="Rename a tenant",
        handler=calls.change_project,
        input=ProjectChange,
        answer=ProjectView,
    ),
    Operation(
        method="POST",
        path=_PROJECT + "/archive",
        name="archive_project",
        summary="Suspend a tenant",
        handler=calls.archive_project,
        input=Nothing,
        answer=ProjectView,
    ),
    Operation(
        method="GET",
        path=_PROJECT + "/api_keys",
        name="list_project_keys",
        summary="List a tenant's keys, but for revoked ones",
        handler=calls.list_keys,
        input=KeysQuery,
        answer=Listed[ProjectKeyView],
    ),
    Operation(
        method="GET",
        path=_KEY,
        name="get_project_key",
        summary="Show a key that is not revoked",
        handler=calls.get_key,
        input=Nothing,
        answer=ProjectKeyView,
    ),
    Operation(
        method="DELETE",
        path=_KEY,
        name="delete_project_key",
        summary="Revoke a key, everywhere within a second",
        handler=calls.delete_key,
        input=Nothing,
        answer=DeletedKeyView,
    ),
    Operation(
        method="POST",
        path=_PROJECT + "/service_accounts",
        name="create_service_account",
        summary="Make a key; it is shown this once",
        handler=calls.create_service_account,
        input=ServiceAccountBody,
        answer=NewServiceAccountView,
    ),
    Operation(
        method="GET",
        path=_PROJECT + "/rate_limits",
        name="list_rate_limits",
        summary="List a tenant's limits of each model",
        handler=calls.list_rate_limits,
        input=ListQuery,
        answer=Listed[RateLimitView],
    ),
    Operation(
        method="POST",
        path=_PROJECT + "/rate_limits/{rate_limit}",
        name="change_rate_limit",
        summary="Change a tenant's limits of a model",
        handler=calls.change_rate_limit,
        input=RateLimitChange,
        answer=RateLimitView,
    ),
    Operation(
        method="GET",
        path="/usage/completions",
        name="get_completions_usage",
        summary="Sum the ledger of all tenants by day",
        handler=usage.completions,
        input=CompletionsQuery,
        answer=Buckets,
    ),
)
