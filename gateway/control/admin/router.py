"""One call of the admin API: its row in the table, the operator's role, the input, the response and its errors.

Entity tags prevent lost updates: a change applies only to the version that its author saw (RFC 9110, 13.1.1)."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, get_origin

import msgspec
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router

from fairlane.gateway import errors
from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.control.admin.history import History
from fairlane.gateway.control.admin.live import LiveHub
from fairlane.gateway.control.admin.overview import Overview
from fairlane.gateway.control.erasure.rounds import Erasure
from fairlane.gateway.control.operators.operator import Operator, Role
from fairlane.gateway.control.operators.operators import Operators
from fairlane.gateway.control.operators.single_sign_on import SingleSignOn
from fairlane.gateway.dialects.openai.wire import checked, checked_fields
from fairlane.gateway.errors import ApiError, Code, invalid, not_found
from fairlane.gateway.fleet import ModelQueueView
from fairlane.gateway.http.body import read_body
from fairlane.gateway.http.connections import OPERATORS
from fairlane.gateway.http.exchange import exchange_of
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES
from fairlane.gateway.insight.request_records.search import Records
from fairlane.gateway.insight.request_traces.files import TraceFolder
from fairlane.gateway.insight.request_traces.reads import TraceReads
from fairlane.gateway.insight.request_traces.simulator import Simulator
from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.pipeline.prices import KnownPrices
from fairlane.quotas.api_keys import KeyExists, KeyNotFound, KeyStore
from fairlane.quotas.audit import Audit, Note
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.ledger import Ledger
from fairlane.quotas.prices import PriceStore
from fairlane.quotas.store import QuotaError, QuotaStore
from fairlane.quotas.tenants import TenantExists, TenantHasChildren, TenantNotFound, TenantStore, VersionConflict
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import WorkerStatus
from fairlane.scheduler.queue.types import LaneDepth
from fairlane.store.errors import STORE_ERRORS, StoreUnavailable

IF_MATCH = "if-match"
_TAG = r'(?:W/)?"[!#-~]*"'
TAGS = re.compile(rf"{_TAG}(?:[ \t]*,[ \t]*{_TAG})*")
LONGEST_TAGS = 1_000


@dataclass(frozen=True, slots=True)
class IfMatch:
    """The tags that the caller accepts; None: any."""

    tags: frozenset[str] | None = None

    def check(self, tag: str) -> None:
        if self.tags is not None and tag not in self.tags:
            message = (
                "The object has changed since you read it: read it again, and send `If-Match` with its new `ETag`."
            )
            raise ApiError(message, "precondition_failed", IF_MATCH)


def if_match(headers: Iterable[tuple[bytes, bytes]]) -> IfMatch:
    """Parse `If-Match`. A weak tag matches nothing. Raise ApiError for a malformed header."""
    given = [value.decode("latin-1").strip() for name, value in headers if name == IF_MATCH.encode()]
    if not given or given == ["*"]:
        return IfMatch()
    text = ", ".join(given)
    if len(text) > LONGEST_TAGS or not TAGS.fullmatch(text):
        raise invalid(IF_MATCH, '`If-Match` must be `*` or a list of entity tags as `ETag` returned them, such as "7".')
    return IfMatch(frozenset(re.findall(_TAG, text)))


def of_version(version: int) -> str:
    """Return the entity tag of a version number."""
    return f'"{version}"'


log = logging.getLogger(__name__)

MAX_BODY_BYTES = 2**20
BODY_TIMEOUT_S = 10.0

JSON = "application/json"
HEADERS = {"cache-control": "no-store"}

Document = Mapping[str, Any]
Input = TypeVar("Input", bound=BaseModel)


class Fleet(Protocol):
    """Workers and their queues."""

    async def workers(self) -> list[WorkerStatus]: ...

    async def undrain(self, worker_id: str) -> bool:
        """Let the worker take jobs again. Return False if there is no such worker."""
        ...

    async def drain(self, worker_id: str) -> bool: ...

    async def depths(self, model: str | None = None) -> Mapping[LaneName, LaneDepth]:
        """Return the depth of each lane for a model, or for all if None. Raise ApiError for an unknown model."""

    async def open_requests(self, tenant: str, allowed: Collection[str] | None) -> Sequence[ModelQueueView]:
        """Return the state of admission of each model that a tenant may use (None: all). Raise ApiError if it is not
        known."""

    async def waiting(self, tenant: str) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminParts:
    """The dependencies of the admin API."""

    operators: Operators
    # None: operators sign in with a key or token only.
    single_sign_on: SingleSignOn | None
    tenants: TenantStore
    keys: KeyStore
    budgets: QuotaStore
    ledger: Ledger
    audit: Audit
    fleet: Fleet
    lanes: Mapping[LaneName, Lane]
    batches: BatchRecords
    # Records of requests of all gateways.
    records: Records
    # Requests that this gateway has admitted.
    open_requests: AllOpenRequests
    overview: Overview
    traces: TraceFolder
    trace_reads: TraceReads = field(default_factory=TraceReads)
    simulator: Simulator
    live: LiveHub
    history: History
    prices: PriceStore
    known_prices: KnownPrices
    # The currency of all prices and charges.
    currency: str
    erasure: Erasure
    # Call it before answering a call that may have changed a tenant or key.
    changed: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Call:
    """One authorised call of an operator."""

    parts: AdminParts
    path: Mapping[str, str]
    # The versions that the caller accepts for the object to be changed.
    expected: IfMatch
    operator: Operator
    address: str
    # Raises ApiError once the operator's rights have ended; for long responses.
    check: Callable[[], Awaitable[object]]
    # Additional response headers.
    headers: dict[str, str] = field(default_factory=dict)
    # The request, for operations that read their form themselves.
    request: Request | None = None

    def tag(self, tag: str) -> None:
        self.headers["etag"] = tag

    def note(self, action: str, target: str, before: Document | None, after: Document | None) -> Note:
        """Return an audit note of the fields that changed, without the version. Views with a key's secret must not be
        passed."""
        changes = {"before": _unversioned(before), "after": _unversioned(after)}
        return Note(actor=self.operator.actor, address=self.address, action=action, target=target, changes=changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[Input]):
    """One row of the table that routes, checks and documents the admin API."""

    method: str
    path: str
    name: str
    summary: str
    handler: Callable[[Call, Input], Awaitable[Document | Response]]
    # The query of a GET, else the body.
    input: type[Input]
    # A TypedDict that is sent as multipart/form-data and read by the handler, instead of `input`.
    form: Any = None
    # The handler's return type, for the document.
    answer: Any
    # Content types of the response.
    media: tuple[str, ...] = (JSON,)
    status: int = 200
    # The last path parameter may contain slashes.
    has_slashes: bool = False
    # The object has an `ETag`.
    tagged: bool = False
    # Errors in addition to those of all calls and `not_found` of the path.
    codes: tuple[Code, ...] = ()

    # The lowest role that may call it. None: `viewer` for reads, `owner` for changes.
    role: Role | None = None

    @property
    def needs(self) -> Role:
        return self.role or (Role.VIEWER if self.method == "GET" else Role.OWNER)

    @property
    def honours_tags(self) -> bool:
        return self.tagged and self.method != "GET" and ("{" in self.path or self.method == "PUT")


def _routed(operation: Operation[Any]) -> str:
    return operation.path.removesuffix("}") + ":path}" if operation.has_slashes else operation.path


def mount(prefix: str, operations: Iterable[Operation[Any]], parts: AdminParts) -> Mount:
    """Mount one route per operation under the prefix. The application answers unknown paths and methods."""
    routes = [
        Route(_routed(operation), endpoint(operation, parts), methods=[operation.method], name=operation.name)
        for operation in operations
    ]
    return Mount(prefix, Router(routes, redirect_slashes=False))


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


async def _let_through(operation: "Operation[Any]", parts: AdminParts, request: Request) -> Operator:
    operator = await parts.operators.calling(request.scope, address_of(request))
    exchange_of(request.scope).vouch(OPERATORS)
    _check_role(operation, operator)
    return operator


def _check_role(operation: "Operation[Any]", operator: Operator) -> None:
    needed = operation.needs
    if not operator.role.includes(needed):
        message = f"This call requires the role {needed}; your role is {operator.role}."
        raise ApiError(message, "role_not_allowed")


def address_of(request: Request) -> str:
    """Return the caller's address, or an empty string if it is not known."""
    return request.client.host if request.client is not None else ""


def endpoint(operation: Operation[Any], parts: AdminParts) -> Callable[[Request], Awaitable[Response]]:
    """Return the operation as a Starlette endpoint."""

    async def serve(request: Request) -> Response:
        try:
            operator = await _let_through(operation, parts, request)
            given = await _input(operation, request) if operation.form is None else operation.input()
            expected = if_match(request.scope["headers"]) if operation.honours_tags else IfMatch()
            check = partial(parts.operators.still, request.scope)
            read_by_handler = None if operation.form is None else request
            call = Call(
                parts, request.path_params, expected, operator, address_of(request), check, request=read_by_handler
            )
            try:
                document = await operation.handler(call, given)
            finally:
                if operation.method != "GET":
                    parts.changed()
        except (ApiError, FieldError, QuotaError, StoreUnavailable, *STORE_ERRORS) as error:
            return errors.response(refusal_of(error))
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone
        if isinstance(document, Response):
            return document
        headers = HEADERS | call.headers
        return Response(msgspec.json.encode(document), operation.status, headers, JSON)

    return serve


def _unversioned(document: Document | None) -> Document | None:
    return document and {name: value for name, value in document.items() if name != "version"}


async def _input(operation: Operation[Input], request: Request) -> Input:
    """Return the validated input. A missing body is read as an empty object."""
    if operation.method == "GET":
        return checked_fields(operation.input, {}, _query(request, operation.input))
    headers = request.scope["headers"]
    hold = exchange_of(request.scope).hold
    body = await read_body(request.receive, headers, max_bytes=MAX_BODY_BYTES, timeout_s=BODY_TIMEOUT_S, hold=hold)
    if len(body) <= LARGE_BODY_BYTES:
        return checked(operation.input, {}, body or b"{}")
    return await asyncio.to_thread(checked, operation.input, {}, body)


def _query(request: Request, kind: type[BaseModel]) -> dict[str, object]:
    """Return the query's parameters; a list is written as `name=a&name=b` or `name[]=a&name[]=b`."""
    found: dict[str, object] = dict(request.query_params)
    listed = [name for name, known in kind.model_fields.items() if get_origin(known.annotation) is list]
    for name in listed:
        values = [value for key, value in request.query_params.multi_items() if key in (name, f"{name}[]")]
        found.pop(f"{name}[]", None)
        if values:
            found[name] = values
    return found


def refusal_of(error: Exception) -> ApiError:
    """Map an exception of the layers below to the API's error."""
    match error:
        case ApiError():
            return error
        case FieldError():
            return invalid(error.field, f"`{error.field}` {str(error).removeprefix(f'{error.field}: ')}.")
        case TenantNotFound():
            return not_found("tenant")
        case KeyNotFound():
            return not_found("key")
        case TenantExists():
            return ApiError("A tenant with this id already exists.", "already_exists", "id")
        case KeyExists():
            return ApiError("This key has already been imported.", "already_exists", "sha256")
        case TenantHasChildren():
            return ApiError("This tenant has child tenants: delete them first.", "tenant_has_children")
        case VersionConflict():
            return ApiError("Concurrent changes prevented this one: try again.", "quota_store_unavailable")
        case _:
            log.debug(
                "an admin call failed in the store: error=%s", type(error).__name__
            )  # the breaker logs the outage once
            return ApiError(
                "The store does not respond; the change may or may not have been made.", "quota_store_unavailable"
            )
