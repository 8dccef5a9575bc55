"""`RequestContext`: everything known so far about one tenant request, passed from stage to stage."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from fairlane.common.log_lines import Facts
from fairlane.gateway.answers.chunks import KeepAliveSchedule
from fairlane.gateway.http.body import read_body
from fairlane.gateway.http.body_budget import BodyRoom
from fairlane.gateway.http.exchange import Exchange
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.insight.request_records.live import LiveRecord
from fairlane.gateway.insight.telemetry.tracing import NO_SPAN, Span, Value

# Code of a request whose client disconnected; never sent in a response.
CLIENT_CLOSED = "client_closed"
OK = "ok"
Notes = dict[str, Value | None]


@dataclass(slots=True)
class RequestContext:
    """One request of a tenant, to which each stage adds its results. Times are on the event loop's clock."""

    scope: Scope
    receive: Receive
    send: Send
    exchange: Exchange
    endpoint: str
    request_id: str
    arrived_s: float
    headers: Sequence[tuple[bytes, bytes]] = field(init=False)
    # Set by authentication, before any endpoint runs.
    caller: Caller = field(init=False)
    tenant: str = ""
    span: Span = NO_SPAN
    body_bytes: int = 0
    lane: str = "none"
    model: str = "none"
    code: str = OK
    status: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    # Output tokens of each prompt, if traces are recorded.
    outputs: Sequence[int] = ()
    first_token_s: float | None = None
    record: LiveRecord | None = None
    pace_s: float | None = None
    queued_s: float | None = None
    took_s: float = 0.0
    notes: Notes = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.headers = self.scope["headers"]

    @property
    def path_params(self) -> dict[str, str]:
        params: dict[str, str] = self.scope["path_params"]
        return params

    def authenticated(self, caller: Caller) -> None:
        self.caller, self.tenant = caller, caller.tenant_id
        self.exchange.vouch(caller.root)

    @property
    def is_refusal(self) -> bool:
        return self.code not in (OK, CLIENT_CLOSED)

    async def read_body(self, *, max_bytes: int, timeout_s: float) -> bytes:
        """Return the whole body, which counts until `exchange.release`. Raises ApiError, ClientDisconnect."""
        body = await read_body(
            self.receive,
            self.headers,
            max_bytes=max_bytes,
            timeout_s=timeout_s,
            arrived=self.exchange.channel.take_body(),
            hold=self.exchange.hold,
            tenant=self.tenant,
        )
        self.body_bytes = len(body)
        return body

    def facts(self) -> Facts:
        return {
            "request_id": self.request_id,
            "endpoint": self.endpoint,
            "status": self.status or None,
            "code": self.code,
            "tenant": self.tenant or None,
            "lane": self.lane,
            "model": self.model,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "duration_ms": round(self.took_s * 1e3, 1),
        }

    def describe_span(self) -> None:
        span = self.span
        if not span.is_recording:
            return
        own: Notes = {
            "http.route": self.endpoint,
            "http.response.status_code": self.status or None,
            "fairlane.request_id": self.request_id,
            "fairlane.tenant": self.tenant,
            "fairlane.code": self.code,
        }
        span.set(own | self.notes)
        if self.is_refusal:
            span.fail(self.code)
            span.set({"error.type": self.code})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of every generation request, and the keep-alive schedule of a waiting stream."""

    room: BodyRoom
    body_timeout_s: float
    write_timeout_s: float
    stream_schedule: KeepAliveSchedule


# Serves one request inside the tenant middleware. Raises ApiError before the response has started.
Endpoint = Callable[[RequestContext], Awaitable[None]]
