"""One call of the admin API: its row in the table, who makes it, what it may read, and how its end is answered.

Entity tags against lost updates: what a change is made of must still be what its author saw (RFC 9110, 13.1.1).
"""

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
from fairlane.gateway.admin.history import History
from fairlane.gateway.admin.live import LiveHub
from fairlane.gateway.admin.overview import Overview
from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.erasure.rounds import Erasure
from fairlane.gateway.errors import ApiError, Code, invalid, not_found
from fairlane.gateway.fleet import Door
from fairlane.gateway.http import body_budget
from fairlane.gateway.http.body import read_body
from fairlane.gateway.http.connections import OPERATORS, vouch
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES
from fairlane.gateway.openai.wire import checked, checked_fields
from fairlane.gateway.operators.operator import Operator, Role
from fairlane.gateway.operators.operators import Operators
from fairlane.gateway.operators.single_sign_on import SingleSignOn
from fairlane.gateway.records.search import Records
from fairlane.gateway.requests.admission import AllOpenRequests
from fairlane.gateway.requests.prices import KnownPrices
from fairlane.gateway.traces.files import TraceFolder
from fairlane.gateway.traces.reads import TraceReads
from fairlane.gateway.traces.simulator import Simulator
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
    """What the caller takes the thing for; None: anything."""

    tags: frozenset[str] | None = None

    def check(self, tag: str) -> None:
        """Pass a thing with this tag. Raises ApiError `precondition_failed`."""
        if self.tags is not None and tag not in self.tags:
            message = "It has been changed since: read it again, and send `If-Match` with its new `ETag`."
            raise ApiError(message, "precondition_failed", IF_MATCH)


def if_match(headers: Iterable[tuple[bytes, bytes]]) -> IfMatch:
    """What `If-Match` asks for. A weak tag matches nothing. Raises ApiError where it holds no tags."""
    given = [value.decode("latin-1").strip() for name, value in headers if name == IF_MATCH.encode()]
    if not given or given == ["*"]:
        return IfMatch()
    text = ", ".join(given)
    if len(text) > LONGEST_TAGS or not TAGS.fullmatch(text):
        raise invalid(IF_MATCH, '`If-Match` must be `*`, or tags as `ETag` gave them: "7".')
    return IfMatch(frozenset(re.findall(_TAG, text)))


def of_version(version: int) -> str:
    """The tag of what is counted by versions."""
    return f'"{version}"'


log = logging.getLogger(__name__)

MAX_BODY_BYTES = 2**20
BODY_TIMEOUT_S = 10.0

JSON = "application/json"
HEADERS = {"cache-control": "no-store"}

Document = Mapping[str, Any]
Input = TypeVar("Input", bound=BaseModel)


class Fleet(Protocol):
    """The workers, and the queues that they take from."""

    async def workers(self) -> list[WorkerStatus]:
        """Every worker that is alive."""

    async def undrain(self, worker_id: str) -> bool:
        """Let it take jobs again; False where there is no such worker."""
        ...

    async def drain(self, worker_id: str) -> bool:
        """Let it take no more jobs; False where there is no such worker."""

    async def depths(self, model: str | None = None) -> Mapping[LaneName, LaneDepth]:
        """What waits in each lane for a model; None: for all of them. Raises ApiError where that model is not known."""

    async def open_requests(self, tenant: str, allowed: Collection[str] | None) -> Sequence[Door]:
        """Each model that a tenant may use (None: all), as its next request finds it. Raises ApiError where that is not
        known."""

    async def waiting(self, tenant: str) -> int:
        """How many jobs of a tenant wait, in the queue where most of them do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminParts:
    """What the admin API works on."""

    operators: Operators
    single_sign_on: SingleSignOn | None
    """None: operators sign in by a key or token alone."""
    tenants: TenantStore
    keys: KeyStore
    budgets: QuotaStore
    ledger: Ledger
    audit: Audit
    fleet: Fleet
    lanes: Mapping[LaneName, Lane]
    batches: BatchRecords
    records: Records
    """What became of requests, of all gateways."""
    open_requests: AllOpenRequests
    """What this gateway has let in."""
    overview: Overview
    traces: TraceFolder
    trace_reads: TraceReads = field(default_factory=TraceReads)
    simulator: Simulator
    live: LiveHub
    history: History
    prices: PriceStore
    known_prices: KnownPrices
    """Of this gateway."""
    currency: str
    """Of all prices and charges."""
    erasure: Erasure
    """Of this gateway."""
    changed: Callable[[], None]
    """To be called once a call may have changed a tenant or a key, before it is answered."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operator's call, let through."""

    parts: AdminParts
    path: Mapping[str, str]
    expected: IfMatch
    """What the caller takes what is to be changed for."""
    operator: Operator
    address: str
    check: Callable[[], Awaitable[object]]
    """Raises ApiError once the operator may not call any more: for answers that take long."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of the answer, beside those of all answers."""
    request: Request | None = None
    """Where the operation reads its form itself."""

    def tag(self, tag: str) -> None:
        """Say which version the answer shows."""
        self.headers["etag"] = tag

    def note(self, action: str, target: str, before: Document | None, after: Document | None) -> Note:
        """A change for the audit log: what was, and what is, but for the version. Never with a key's secret."""
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
    input: type[Input]
    """A GET's query, or any other call's body."""
    form: Any = None
    """A TypedDict that is sent as multipart/form-data and read by the handler, in place of `input`."""
    answer: Any
    """Type of what the handler returns, for the document."""
    media: tuple[str, ...] = (JSON,)
    """Of what it answers with."""
    status: int = 200
    has_slashes: bool = False
    """What its path ends with may hold slashes."""
    tagged: bool = False
    """What it works on has an `ETag`."""
    codes: tuple[Code, ...] = ()
    """How it may fail, beside what all calls share and `not_found` of what the path names."""

    role: Role | None = None
    """Of those who may call it, at least; None: viewers may read, and owners alone change."""

    @property
    def needs(self) -> Role:
        """The least role of those who may call it."""
        return self.role or (Role.VIEWER if self.method == "GET" else Role.OWNER)

    @property
    def honours_tags(self) -> bool:
        """It changes something that has an `ETag`, and honours `If-Match`."""
        return self.tagged and self.method != "GET" and ("{" in self.path or self.method == "PUT")


def _routed(operation: Operation[Any]) -> str:
    """Its path in the router's words."""
    return operation.path.removesuffix("}") + ":path}" if operation.has_slashes else operation.path


def mount(prefix: str, operations: Iterable[Operation[Any]], parts: AdminParts) -> Mount:
    """One route per operation, under the prefix. Paths and methods that it has not are the application's to refuse."""
    routes = [
        Route(_routed(operation), endpoint(operation, parts), methods=[operation.method], name=operation.name)
        for operation in operations
    ]
    return Mount(prefix, Router(routes, redirect_slashes=False))


def operators_only(
    operators: Operators, served: Callable[[Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that answers nobody but operators, of any role, who send a key or token."""

    async def serve(request: Request) -> Response:
        try:
            await showing(operators, request)
        except (ApiError, *STORE_ERRORS) as error:
            return errors.response(refusal_of(error))
        return await served(request)

    return serve


async def showing(operators: Operators, request: Request) -> Operator:
    """The operator who sends a key or token. Raises ApiError for anyone else, redis.RedisError."""
    operator = await operators.showing(request.scope, address_of(request))
    vouch(request.scope, OPERATORS)
    return operator


async def _let_through(operation: "Operation[Any]", parts: AdminParts, request: Request) -> Operator:
    """The operator who may make this call. Raises ApiError for anyone else, redis.RedisError."""
    operator = await parts.operators.calling(request.scope, address_of(request))
    vouch(request.scope, OPERATORS)
    _check_role(operation, operator)
    return operator


def _check_role(operation: "Operation[Any]", operator: Operator) -> None:
    needed = operation.needs
    if not operator.role.includes(needed):
        message = f"That takes the role {needed}, and {operator.role} is yours."
        raise ApiError(message, "role_not_allowed")


def address_of(request: Request) -> str:
    """Where a call comes from; empty: not known."""
    return request.client.host if request.client is not None else ""


def endpoint(operation: Operation[Any], parts: AdminParts) -> Callable[[Request], Awaitable[Response]]:
    """The operation as Starlette calls it."""

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
            return Response(status_code=400)  # to nobody
        if isinstance(document, Response):
            return document
        headers = HEADERS | call.headers
        return Response(msgspec.json.encode(document), operation.status, headers, JSON)

    return serve


def _unversioned(document: Document | None) -> Document | None:
    return document and {name: value for name, value in document.items() if name != "version"}


async def _input(operation: Operation[Input], request: Request) -> Input:
    """What the caller sent, valid by construction. A body that is not there is an empty object."""
    if operation.method == "GET":
        return checked_fields(operation.input, {}, _query(request, operation.input))
    headers = request.scope["headers"]
    hold = request.scope.get("state", {}).get(body_budget.STATE)
    body = await read_body(request.receive, headers, max_bytes=MAX_BODY_BYTES, timeout_s=BODY_TIMEOUT_S, hold=hold)
    if len(body) <= LARGE_BODY_BYTES:
        return checked(operation.input, {}, body or b"{}")
    return await asyncio.to_thread(checked, operation.input, {}, body)


def _query(request: Request, kind: type[BaseModel]) -> dict[str, object]:
    """What stands behind the question mark; a list as `name=a&name=b`, or as `name[]=a&name[]=b`."""
    found: dict[str, object] = dict(request.query_params)
    listed = [name for name, known in kind.model_fields.items() if get_origin(known.annotation) is list]
    for name in listed:
        values = [value for key, value in request.query_params.multi_items() if key in (name, f"{name}[]")]
        found.pop(f"{name}[]", None)
        if values:
            found[name] = values
    return found


def refusal_of(error: Exception) -> ApiError:
    """What went wrong below, in the words of the API."""
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
            return ApiError("There is a tenant of this id already.", "already_exists", "id")
        case KeyExists():
            return ApiError("This key was imported already.", "already_exists", "sha256")
        case TenantHasChildren():
            return ApiError("Other tenants have this one as their parent: delete them first.", "tenant_has_children")
        case VersionConflict():
            return ApiError("Others change it at the same time: try again.", "quota_store_unavailable")
        case _:
            log.debug("the store fails an admin call (%s)", type(error).__name__)  # the breaker says it once, aloud
            return ApiError("The store does not answer; a change may have been made.", "quota_store_unavailable")
