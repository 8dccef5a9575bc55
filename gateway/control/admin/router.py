"""Runs one call of the admin API: the operator's role, the input, the handler, the response and its errors."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router

from fairlane.gateway import errors
from fairlane.gateway.control.admin.call import NOT_CACHED, AdminParts, Call, address_of, if_match
from fairlane.gateway.control.admin.inputs import Nothing
from fairlane.gateway.control.admin.operation import JSON, PREFIX, Operation
from fairlane.gateway.control.operators.operator import Operator
from fairlane.gateway.control.operators.operators import Operators
from fairlane.gateway.dialects.openai.reading import checked, checked_fields
from fairlane.gateway.errors import ApiError, Code, invalid
from fairlane.gateway.http.body import read_body
from fairlane.gateway.http.connections import OPERATORS
from fairlane.gateway.http.exchange import exchange_of
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES
from fairlane.quotas.api_keys import KeyExists, KeyNotFound
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.store import QuotaError
from fairlane.quotas.tenants import TenantExists, TenantHasChildren, TenantNotFound, VersionConflict
from fairlane.store.errors import STORE_ERRORS, StoreUnavailable

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 2**20
BODY_TIMEOUT_S = 10.0


def mount(operations: Iterable[Operation], parts: AdminParts) -> Mount:
    """Mount one route per operation. The application answers unknown paths and methods."""
    routes = [
        Route(operation.route, endpoint(operation, parts), methods=[operation.method], name=operation.name)
        for operation in operations
    ]
    return Mount(PREFIX, Router(routes, redirect_slashes=False))


def operators_only(
    operators: Operators, served: Callable[[Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """Wrap an endpoint so that only operators with a key or token, of any role, reach it."""

    async def serve(request: Request) -> Response:
        try:
            await showing(operators, request)
        except (ApiError, *STORE_ERRORS) as error:
            return errors.response(refusal_of(error))
        return await served(request)

    return serve


async def showing(operators: Operators, request: Request) -> Operator:
    """Return the operator of the key or token. Raise ApiError for anyone else, and redis.RedisError."""
    operator = await operators.showing(request.scope, address_of(request))
    exchange_of(request.scope).vouch(OPERATORS)
    return operator


def endpoint(operation: Operation, parts: AdminParts) -> Callable[[Request], Awaitable[Response]]:
    """Return the operation as a Starlette endpoint."""

    async def serve(request: Request) -> Response:
        try:
            operator = await parts.operators.calling(request.scope, address_of(request))
            exchange_of(request.scope).vouch(OPERATORS)
            if not operator.role.includes(operation.role):
                message = f"This call requires the role {operation.role}; your role is {operator.role}."
                raise ApiError(message, "role_not_allowed")
            given = await _input(operation, request)
            expected = if_match(request.scope["headers"]) if operation.if_match else None
            call = Call(parts, request, operator, expected)
            try:
                document = await operation.handler(call, *given)
            finally:
                if operation.method != "GET":
                    parts.changed()
        except (ApiError, FieldError, QuotaError, StoreUnavailable, *STORE_ERRORS) as error:
            return errors.response(refusal_of(error))
        except ClientDisconnect:
            return Response(status_code=400)  # the client has disconnected
        if isinstance(document, Response):
            return document
        return Response(msgspec.json.encode(document), operation.status, NOT_CACHED | call.headers, JSON)

    return serve


async def _input(operation: Operation, request: Request) -> tuple[BaseModel, ...]:
    kind = operation.input
    if kind is None:
        return ()
    if operation.method == "GET":
        found = checked_fields(kind, {}, dict(request.query_params))
    else:
        hold, headers = exchange_of(request.scope).hold, request.scope["headers"]
        body = await read_body(request.receive, headers, max_bytes=MAX_BODY_BYTES, timeout_s=BODY_TIMEOUT_S, hold=hold)
        if len(body) <= LARGE_BODY_BYTES:
            found = checked(kind, {}, body or b"{}")
        else:
            found = await asyncio.to_thread(checked, kind, {}, body)
    return () if kind is Nothing else (found,)


_REFUSALS: Mapping[type[Exception], tuple[str, Code, str | None]] = {
    TenantNotFound: ("There is no such tenant.", "not_found", None),
    KeyNotFound: ("There is no such key.", "not_found", None),
    TenantExists: ("A tenant with this id already exists.", "already_exists", "id"),
    KeyExists: ("This key has already been imported.", "already_exists", "sha256"),
    TenantHasChildren: ("This tenant has child tenants: delete them first.", "tenant_has_children", None),
    VersionConflict: ("Concurrent changes prevented this one: try again.", "quota_store_unavailable", None),
}


def refusal_of(error: Exception) -> ApiError:
    """Map an exception of the layers below to the API's error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, FieldError):
        return invalid(error.field, f"`{error.field}` {str(error).removeprefix(f'{error.field}: ')}.")
    if type(error) in _REFUSALS:
        return ApiError(*_REFUSALS[type(error)])
    log.debug("an admin call failed in the store: error=%s", type(error).__name__)  # the breaker logs the outage once
    return ApiError("The store does not respond; the change may or may not have been made.", "quota_store_unavailable")
