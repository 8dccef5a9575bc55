"""Middleware of every tenant path: authentication, limits in the headers, the format of errors, one log line."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from fairlane.gateway import errors
from fairlane.gateway.dialects.anthropic import rate_limits as anthropic_limits
from fairlane.gateway.dialects.openai import rate_limits
from fairlane.gateway.errors import ApiError, LimitBlock, internal_error, limit_denied, store_unavailable
from fairlane.gateway.http.exchange import exchange_of
from fairlane.gateway.http.request_id import ANTHROPIC_HEADER, HEADER
from fairlane.gateway.identity.auth import Authenticator, Caller, check
from fairlane.gateway.insight.fleet_metrics.recorder import Ended
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.gateway.middleware.request_id import log_fault
from fairlane.gateway.pipeline.context import CLIENT_CLOSED, Endpoint, Notes, RequestContext
from fairlane.quotas.limits import LimitStatus
from fairlane.quotas.store import QuotaStore
from fairlane.store.circuit_breaker import Availability
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

PROCESSING_HEADER = b"openai-processing-ms"
# Names the unavailable stores.
DEGRADED_HEADER = b"x-fairlane-degraded"
NAME = "refused_requests_per_minute"
MINUTE_S = 60.0
REMEMBERED = 10_000
# A body that was read for an invalid request counts as one request per this many bytes …
_BYTES_PER_REQUEST = 64 * 1024
# … and as one per this much CPU time spent on finding its error.
_WORK_S_PER_REQUEST = 0.001
# Statuses that do not count: they are cheap, and an operator has to fix their cause.
_TELLING = frozenset({401, 403})


@dataclass(eq=False)
class RefusedRequests:
    """A token bucket of invalid requests for each key, refilled within a minute. For one event loop."""

    per_minute: int
    clock: Callable[[], float] = time.monotonic
    # By key: amount used, and when.
    _used: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict, init=False)

    def check(self, key_id: str) -> None:
        if key_id not in self._used:
            return
        used = self._used_of(key_id)
        if used > self.per_minute - 1:
            block = LimitBlock(NAME, "key", self.per_minute, round(used), 0, 1, None)
            raise limit_denied("rate", block, (used - self.per_minute + 1) * MINUTE_S / self.per_minute)

    def count(self, key_id: str, status: int, body_bytes: int, work_s: float = 0.0) -> None:
        """Count an invalid request of a key. Rejections by a limit count only for a large body or long work."""
        if not 400 <= status < 500 or status in _TELLING:
            return
        cost = max(body_bytes // _BYTES_PER_REQUEST, int(work_s / _WORK_S_PER_REQUEST)) + (status != 429)
        if not cost:
            return
        self._used[key_id] = self._used_of(key_id) + cost, self.clock()
        self._used.move_to_end(key_id)
        if len(self._used) > REMEMBERED:
            self._used.popitem(last=False)

    def _used_of(self, key_id: str) -> float:
        used, when_s = self._used.get(key_id, (0.0, 0.0))
        return max(0.0, used - (self.clock() - when_s) * self.per_minute / MINUTE_S)


@dataclass(eq=False)
class TenantMiddleware:
    """Wraps one endpoint. All its exceptions are converted to responses here, and nowhere else."""

    app: Endpoint
    endpoint: str
    authenticator: Authenticator
    quotas: QuotaStore
    telemetry: Telemetry
    availability: Availability
    # Returns the error for new requests while the gateway shuts down.
    refusal: Callable[[], ApiError | None]
    refused: RefusedRequests
    missing: Callable[[], str]

    def __post_init__(self) -> None:
        self.is_anthropic = errors.is_anthropic(self.endpoint)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop, exchange = asyncio.get_running_loop(), exchange_of(scope)
        request_id = exchange.request_id
        context = RequestContext(scope, receive, send, exchange, self.endpoint, request_id, loop.time())
        context.send = answer = _Answer(send, context, self)
        name = f"{scope['method']} {self.endpoint}"
        try:
            with self.telemetry.request_span(name, context.headers, request_id) as context.span:
                try:
                    await self._authenticate(context)
                    await self.app(context)
                except BaseException as error:
                    if not await self._answers(error, context, answer):
                        raise
                finally:
                    self._record(context, loop.time())
                    if context.send is answer:  # else a run continues although its client does not wait for it
                        context.send = send  # breaks the cycle of context and answer, so that both are freed now
        except Exception as error:  # noqa: BLE001 - the last place to catch it
            log_fault(request_id, error)
            if not answer.started:
                response = errors.response(internal_error(), path=self.endpoint, request_id=request_id)
                await response(scope, receive, answer)

    async def _authenticate(self, context: RequestContext) -> None:
        if context.span.is_recording:
            scope = context.scope
            asked: Notes = {
                "http.request.method": scope["method"],
                "url.path": scope["path"],
                "url.scheme": scope.get("scheme", "http"),
                "network.protocol.version": scope.get("http_version"),
            }
            context.span.set(asked)
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        with context.span.child("authenticate") as span:
            caller = await self.authenticator.identify(context.scope)
            if span.is_recording:
                span.set({"fairlane.tenant": caller.tenant_id, "fairlane.key_id": caller.key_id})
        context.authenticated(caller)  # from here on errors have limit headers too
        check(caller, context.scope)
        self.refused.check(caller.key_id)

    async def _answers(self, error: BaseException, context: RequestContext, answer: "_Answer") -> bool:
        match error:
            case ApiError():
                await self._refuse(error, context, answer)
            case ClientDisconnect():
                context.code = CLIENT_CLOSED
            case asyncio.CancelledError():
                refusal = self.refusal()
                if refusal is None or answer.started:
                    context.code = CLIENT_CLOSED
                    return False
                await self._refuse(refusal, context, answer)  # the server has stopped waiting for it
            case _ if isinstance(error, STORE_ERRORS):
                await self._refuse(store_unavailable(), context, answer)
            case Exception():  # an internal error must not leave a client without a response
                log_fault(context.request_id, error)
                await self._refuse(internal_error(), context, answer)
            case _:
                return False
        return True

    async def _refuse(self, error: ApiError, context: RequestContext, answer: "_Answer") -> None:
        context.code, context.lane = error.code, error.lane or context.lane
        if context.tenant:
            self.refused.count(context.caller.key_id, error.status, context.body_bytes, error.work_s)
        if not answer.started:
            path = errors.format_path(self.endpoint, context.headers)
            response = errors.response(error, path=path, request_id=context.request_id)
            await response(context.scope, context.receive, answer)

    async def limits(self, caller: Caller) -> Sequence[LimitStatus]:
        caller.statuses = ()
        if not self.availability.is_away:
            with suppress(*STORE_ERRORS):
                caller.statuses = await self.quotas.statuses(caller.root, caller.account, caller.key_id)
        return caller.statuses

    def _record(self, context: RequestContext, now_s: float) -> None:
        took_s, first_s, tenant = now_s - context.arrived_s, context.first_token_s, context.tenant
        context.took_s = took_s
        ttft_s = None if first_s is None else first_s - context.arrived_s
        self.telemetry.ended(
            Ended(tenant, context.lane, context.code, ttft_s, context.pace_s, context.queued_s),
            endpoint=context.endpoint,
            model=context.model,
            is_refusal=context.is_refusal,
            took_s=took_s,
        )
        context.describe_span()
        log.info(
            "%s %s tenant=%s lane=%s code=%s prompt=%d output=%d ms=%.0f",
            context.request_id,
            context.endpoint,
            tenant or "-",
            context.lane,
            context.code,
            context.prompt_tokens,
            context.output_tokens,
            took_s * 1e3,
            extra={"context": context},
        )


@dataclass(eq=False)
class _Answer:
    """The `send` callable of one request: adds limits, unavailable stores, the time taken and the id to the headers."""

    send: Send
    context: RequestContext
    middleware: TenantMiddleware
    started: bool = field(default=False, init=False)

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            context, middleware, headers = self.context, self.middleware, [*message.get("headers", ())]
            if context.tenant:
                caller = context.caller
                statuses = await middleware.limits(caller) if caller.statuses is None else caller.statuses
                headers += rate_limits.headers(statuses)
                if middleware.is_anthropic:
                    headers += anthropic_limits.headers(statuses)
            request_id = context.request_id.encode("ascii")
            if middleware.is_anthropic:
                headers.append((ANTHROPIC_HEADER, request_id))
            missing = middleware.missing()
            if missing:
                headers.append((DEGRADED_HEADER, missing.encode()))
            took_ms = (asyncio.get_running_loop().time() - context.arrived_s) * 1e3
            message = {**message, "headers": [*headers, (PROCESSING_HEADER, b"%d" % took_ms), (HEADER, request_id)]}
            self.started, context.status = True, message["status"]
        await self.send(message)
