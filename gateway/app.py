"""ASGI applications of the gateway, one for each port, with every route and middleware.

Generation requests bypass the router and the application's middleware (`FastPath`): every layer adds a wrapper to each
response message, and a stream has one message per token."""

from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from fairlane.gateway import errors
from fairlane.gateway.api import (
    batches,
    completions,
    embeddings,
    files,
    messages,
    requests,
    responses,
    scores,
    tokenize,
)
from fairlane.gateway.api.batches import BatchEndpoints
from fairlane.gateway.api.conversations import Conversations
from fairlane.gateway.api.count_tokens import CountTokens
from fairlane.gateway.api.files import FileEndpoints
from fairlane.gateway.api.generate import Generate
from fairlane.gateway.api.health import Health
from fairlane.gateway.api.message_batches import MessageBatches
from fairlane.gateway.api.models import Models, ShowLimits
from fairlane.gateway.api.response_socket import ResponseSocket
from fairlane.gateway.api.responses import Respond, StoredResponses
from fairlane.gateway.api.stored_input import StoredInput
from fairlane.gateway.api.tokenize import TextEndpoints
from fairlane.gateway.control.admin import routes as admin
from fairlane.gateway.control.admin.call import AdminParts
from fairlane.gateway.control.admin.router import mount, operators_only
from fairlane.gateway.control.console import routes as console_routes
from fairlane.gateway.control.console import sign_in
from fairlane.gateway.control.openapi import document as openapi
from fairlane.gateway.control.openapi import headers as openapi_headers
from fairlane.gateway.control.openapi import page as openapi_page
from fairlane.gateway.control.portal import routes as portal
from fairlane.gateway.control.self_service.account import OwnAccount
from fairlane.gateway.control.self_service.keys import OwnKeys
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.exchange import exchange_of
from fairlane.gateway.middleware.idempotency import Idempotent
from fairlane.gateway.middleware.paths import PlainPaths, right_path, root_path_of
from fairlane.gateway.middleware.request_id import RequestIdMiddleware
from fairlane.gateway.middleware.tenant import TenantMiddleware
from fairlane.gateway.pipeline.context import Bounds, Endpoint
from fairlane.gateway.pipeline.prepare import Kind
from fairlane.gateway.runtime.resources import Resources

PREFLIGHT_S = 600


@dataclass(eq=False)
class FastPath:
    """An ASGI application that serves some routes directly and passes all others to the router.

    `routes` maps method and path to an endpoint. Each must be a route of `app` too."""

    app: ASGIApp
    routes: Mapping[tuple[str, str], ASGIApp]

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        app = self.app
        if scope["type"] == "http":
            app = self.routes.get((scope["method"], scope["path"]), app)
        return app(scope, receive, send)


def create_app(resources: Resources) -> Starlette:
    """Return the application of the tenants' port. Its lifespan opens and closes the gateway's parts."""
    events, kept = resources.requests.generation, resources.requests.responses
    stored_input = StoredInput(kept, resources.accounts.seals, resources.requests.body_room)
    response, line, compaction, count = responses.kinds(stored_input)
    kinds: Mapping[str, Kind[Any]] = {
        completions.CHAT_PATH: completions.chat(resources.settings.gateway.reasoning_field),
        completions.COMPLETION_PATH: completions.COMPLETION,
        messages.MESSAGES_PATH: messages.MESSAGES,
        embeddings.PATH: embeddings.EMBEDDINGS,
        embeddings.POOLING_PATH: embeddings.POOLING,
        **dict.fromkeys(scores.SCORE_PATHS, scores.SCORE),
        **dict.fromkeys(scores.RERANK_PATHS, scores.RERANK),
    }
    endpoints = {path: Generate(kind, events) for path, kind in kinds.items()}
    of_lines: dict[str, Endpoint] = {
        **endpoints,
        responses.PATH: Respond(events, line),
    }
    models, stored = Models(resources.fleet.cache), StoredResponses(kept)
    texts = TextEndpoints(resources.fleet.cache, events.bounds, events.preparer.reading)

    guarded = partial(
        TenantMiddleware,
        authenticator=resources.accounts.authenticator,
        quotas=resources.accounts.quotas,
        telemetry=resources.telemetry,
        availability=resources.stores.availability,
        refusal=resources.refusal,
        refused=resources.ports.refused,
        missing=resources.missing,
    )

    socket = ResponseSocket(events, stored_input, guarded, resources.refusal)
    counts = partial(CountTokens, events.preparer, events.bounds)

    def tenant(method: str, path: str, endpoint: Endpoint) -> Route:
        return Route(path, guarded(endpoint, path), methods=[method])

    def once(path: str, kind: Kind[Any], endpoint: Endpoint) -> Route:
        runs = resources.requests.runs
        return tenant("POST", path, Idempotent(endpoint, path, runs, events.bounds, resources.telemetry, kind))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with resources.running(), resources.batches.runner.running(of_lines):
            yield

    return _application(
        [
            *[once(path, kind, endpoints[path]) for path, kind in kinds.items()],
            *[tenant(*each) for each in _batches(resources, events.bounds)],
            tenant("POST", messages.COUNT_PATH, counts(messages.counted)),
            tenant("POST", responses.COUNT_PATH, counts(count, responses.COUNTED)),
            once(responses.PATH, responses.RESPONSE, Respond(events, response)),
            once(responses.COMPACT_PATH, responses.COMPACT, Respond(events, compaction)),
            tenant("GET", responses.PATH, socket),
            tenant("GET", responses.ONE_PATH, stored.show),
            tenant("DELETE", responses.ONE_PATH, stored.forget),
            tenant("GET", responses.ITEMS_PATH, stored.list_items),
            *[tenant(*each) for each in Conversations(stored_input, events.bounds, events.preparer.reading).routes()],
            tenant("GET", "/v1/models", models.list),
            tenant("GET", "/v1/models/{model:path}", models.show),
            tenant("POST", tokenize.TOKENIZE_PATH, texts.tokenize),
            tenant("POST", tokenize.DETOKENIZE_PATH, texts.detokenize),
            tenant(
                "GET",
                "/v1/limits",
                ShowLimits(resources.accounts.quotas, resources.fleet.stored.waiting, resources.batches.records),
            ),
            *[tenant(*each) for each in _self_service(resources)],
            tenant("GET", requests.ONE_PATH, requests.ShowRequest(resources.insight.records)),
            *portal.routes(resources.settings.root_path),
            *_status_routes(resources),
            *([] if resources.settings.admin_port else _operators(resources)),
        ],
        lifespan,
    )


def _batches(resources: Resources, bounds: Bounds) -> list[tuple[str, str, Endpoint]]:
    section, records = resources.settings.gateway.files, resources.batches.records
    of_files = FileEndpoints(
        records=resources.batches.files,
        batches=records,
        storage=resources.batches.storage,
        drafts=resources.batches.drafts,
        max_bytes=int(section.max_bytes),
        timeout_s=section.upload_timeout_s,
        uploads_at_once=section.uploads_at_once,
        room=resources.requests.body_room,
    )
    storage, runner = resources.batches.storage, resources.batches.runner
    of_batches = BatchEndpoints(records, resources.batches.files, storage, runner, resources.fleet.cache, bounds)
    return [
        *MessageBatches(of_batches, resources.batches.drafts).routes(),
        ("POST", files.PATH, files.of_openai(of_files.upload)),
        ("GET", files.PATH, files.of_openai(of_files.list)),
        ("GET", f"{files.PATH}/{{file}}", files.of_openai(of_files.show)),
        ("DELETE", f"{files.PATH}/{{file}}", files.of_openai(of_files.delete)),
        ("GET", f"{files.PATH}/{{file}}/content", files.of_openai(of_files.content)),
        ("POST", batches.PATH, of_batches.create),
        ("GET", batches.PATH, of_batches.list),
        ("GET", f"{batches.PATH}/{{batch}}", of_batches.show),
        ("POST", f"{batches.PATH}/{{batch}}/cancel", of_batches.cancel),
    ]


def _self_service(resources: Resources) -> list[tuple[str, str, Endpoint]]:
    accounts, timeout_s = resources.accounts, resources.settings.gateway.body_timeout_s
    account = OwnAccount(accounts.ledger, accounts.pools.report, resources.insight.records, resources.settings.currency)
    return [*account.routes(), *OwnKeys(accounts.keys, timeout_s, accounts.authenticator.forget).routes()]


def metrics_app(resources: Resources) -> Starlette:
    """Return the application of the metrics port: metrics and health, without authentication."""
    health = _health(resources)
    return _application([*health.routes(), Route("/metrics", health.metrics, methods=["GET"])])


def admin_app(resources: Resources) -> Starlette:
    """Return the application of the admin port, for a gateway that has a separate one."""
    return _application([*_status_routes(resources), *_operators(resources)])


def _application(routes: Sequence[BaseRoute], lifespan: Lifespan[Starlette] | None = None) -> Starlette:
    app = Starlette(
        routes=routes,
        middleware=[Middleware(RequestIdMiddleware)],
        exception_handlers={HTTPException: _routing_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a client that posts to the wrong path needs a clear error
    return app


def _status_routes(resources: Resources) -> list[Route]:
    health = _health(resources)
    guarded = operators_only(resources.control.operators, health.metrics)
    documents = [openapi.route(resources.settings.root_path), *openapi_page.routes()]
    return [*health.routes(), Route("/metrics", guarded, methods=["GET"]), *documents]


def _operators(resources: Resources) -> list[BaseRoute]:
    parts = AdminParts(
        operators=resources.control.operators,
        single_sign_on=resources.control.single_sign_on,
        tenants=resources.accounts.tenants,
        keys=resources.accounts.keys,
        budgets=resources.accounts.quotas,
        report=resources.accounts.pools.report,
        ledger=resources.accounts.ledger,
        audit=resources.accounts.audit,
        fleet=resources.fleet.stored,
        lanes=resources.lanes,
        cuts_output=resources.settings.gateway.max_tokens_beyond_context == "cut",
        batches=resources.batches.records,
        records=resources.insight.records,
        open_requests=resources.fleet.open_requests,
        overview=resources.control.overview,
        traces=resources.insight.traces,
        live=resources.control.live,
        history=resources.control.history,
        prices=resources.accounts.prices,
        known_prices=resources.accounts.known_prices,
        currency=resources.settings.currency,
        links=resources.settings.gateway.links,
        erasure=resources.control.erasure,
        changed=resources.accounts.authenticator.forget,
    )
    return [
        mount(admin.OPERATIONS, parts),
        *console_routes.routes(resources.settings.root_path),
        console_routes.session_route(parts),
        *sign_in.routes(parts),
    ]


def _health(resources: Resources) -> Health:
    return Health(
        resources.fleet.cache,
        resources.processes,
        resources.stores.availability,
        resources.refusal,
        resources.stores.checks,
    )


def with_fast_path(app: Starlette) -> ASGIApp:
    """Wrap the application so that generation requests bypass its router."""
    paths = (completions.CHAT_PATH, completions.COMPLETION_PATH, messages.MESSAGES_PATH, responses.PATH)
    posted = [route for route in app.routes if isinstance(route, Route) and "POST" in (route.methods or ())]
    return FastPath(app, {("POST", route.path): route.app for route in posted if route.path in paths})


def with_plain_paths(app: ASGIApp, routes: Sequence[BaseRoute], root_path: str) -> ASGIApp:
    """Wrap an application with these routes in `PlainPaths`."""

    async def outside(scope: Scope, receive: Receive, send: Send) -> None:
        right = right_path(routes, scope["path"])
        error = errors.wrong_path(right and root_path + right)
        response = errors.response(error, path=right or scope["path"], request_id=exchange_of(scope).request_id)
        await response(scope, receive, send)

    return PlainPaths(app, RequestIdMiddleware(outside), root_path)


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Wrap the application in CORS for these origins; return it unchanged without any.

    Pages send keys in their own header, so cookies are never allowed."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=list(openapi_headers.components()),
        max_age=PREFLIGHT_S,
    )


async def _routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered only for these
    shown = errors.of_http_exception(error)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and "sec-websocket-key" in request.headers:
        message = "This path has no WebSocket: send a POST, with `stream: true` for server-sent events."
        shown = ApiError(message, "websocket_not_supported")
    path: str = request.scope["path"]
    if error.status_code == HTTPStatus.NOT_FOUND and (right := right_path(request.app.routes, path)):
        shown, path = errors.wrong_path(root_path_of(request.scope) + right), right
    response = errors.response(shown, path=path, request_id=exchange_of(request.scope).request_id)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        asked = {"type": "http", "method": request.method, "path": path, "root_path": ""}
        response.headers["allow"] = ", ".join(sorted(_methods(request.app.routes, asked)))
    return response


def _methods(routes: Iterable[BaseRoute], scope: Scope) -> set[str]:
    found: set[str] = set()
    for route in routes:
        match, inner = route.matches(scope)
        if isinstance(route, Mount) and match is not Match.NONE:
            found |= _methods(route.routes, {**scope, **inner})
        elif isinstance(route, Route) and match is not Match.NONE:
            found |= route.methods or set()
    return found
