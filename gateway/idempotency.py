"""`Idempotency-Key`: a request that is sent twice runs once. Wraps an endpoint of generation, inside its rim.

The key is the API key's own for 24 hours. The same request again joins the one that runs, on whichever gateway, or is
told how it ended, byte for byte; any other request with that key is refused. What counts as the same: path, body, and
the headers that say on which terms it is to be served.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Iterable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import body_budget, http_answer
from gateway.auth import Caller, bearer
from gateway.body_budget import BodyHold
from gateway.departure import STATE, Departure
from gateway.errors import invalid
from gateway.generate import Bounds
from gateway.http_body import read_body
from gateway.idempotency_listener import Listener, asks_for_stream
from gateway.idempotency_recording import Recording, Spoken
from gateway.idempotency_runs import HEADER, Runs
from gateway.json_body import LARGE_BODY_BYTES
from gateway.replies import Connection
from gateway.rim import Journal
from gateway.telemetry import Telemetry
from gateway.terms import DEADLINE_HEADER, LANE_HEADER, TTFT_HEADERS, asks_progress
from quotas.idempotency import Mine, Name
from quotas.sealing import Seal

_HEADER = HEADER.encode()
_WELL_FORMED = re.compile(rb"[\x20-\x7e]{1,255}")
_TERMS = tuple(name.encode() for name in (LANE_HEADER, DEADLINE_HEADER, *TTFT_HEADERS))


class Idempotent:
    """Wraps one endpoint. A request without the header goes by as if this were not there."""

    def __init__(
        self, app: ASGIApp, path: str, runs: Runs, bounds: Bounds, telemetry: Telemetry, *, most_prompts: int
    ) -> None:
        """`most_prompts`: that one request of the endpoint may hold."""
        self._app = app
        self._most_prompts = most_prompts
        self._telemetry = telemetry
        self._path = path
        self._runs = runs
        self._bounds = bounds

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """One ASGI call. Raises ApiError as long as the answer has not begun."""
        given = [value for name, value in scope["headers"] if name == _HEADER]
        if not given:
            return self._app(scope, receive, send)
        return self._once(given, scope, receive, send)

    async def _once(self, given: Sequence[bytes], scope: Scope, receive: Receive, send: Send) -> None:
        state, bounds = scope["state"], self._bounds
        caller: Caller = state["caller"]
        journal: Journal = state["journal"]
        key = _checked(given)
        hold: BodyHold = state[body_budget.STATE]
        body = await read_body(
            receive,
            scope["headers"],
            max_bytes=bounds.room.most_bytes(self._most_prompts),
            timeout_s=bounds.body_timeout_s,
            arrived=state[http_answer.STATE].take_body(),
            hold=hold,
            tenant=caller.tenant_id,
        )
        journal.body_bytes = len(body)
        if len(body) <= LARGE_BODY_BYTES:
            digest, wants_stream = _looked_at(self._path, scope["headers"], body)
        else:
            digest, wants_stream = await asyncio.to_thread(_looked_at, self._path, scope["headers"], body)
        whole = [body]
        del body  # whoever performs it takes it: it is not kept for as long as the answer lasts

        async def perform(mine: Mine, to: Recording, departure: Departure) -> None:
            caller.once, caller.runs = mine.once, mine.runs
            replaced = {STATE: departure, http_answer.STATE: Spoken(whole.pop(), to)}
            await self._app({**scope, "state": {**state, **replaced}}, _nothing_more, to.send)

        tells_progress = asks_progress(scope["headers"])  # of a run too, which it must not begin if that is no answer
        name = Name(caller.root, caller.key_id, hashlib.sha256(key).hexdigest())
        seal = Seal(bearer(scope["headers"]))
        fingerprint = seal.mark(digest)
        run, is_first = self._runs.find(name, seal, fingerprint, perform, journal.request_id)
        if not is_first:
            whole.clear()
            hold.release()
        listener = Listener(
            run,
            send,
            wants_stream=wants_stream,
            is_first=is_first,
            rhythm=bounds.stream_rhythm,
            tells_progress=tells_progress,
            write_timeout_s=bounds.write_timeout_s,
        )
        try:
            with Connection(state[STATE]), run.heard():
                await listener.listen()
        finally:
            journal.lane = _lane(run.recording) or journal.lane
            if listener.replays:
                self._telemetry.replays.add(self._path)


def _checked(given: Sequence[bytes]) -> bytes:
    """The one key. Raises ApiError."""
    key = given[0].strip()
    if len(given) != 1 or not _WELL_FORMED.fullmatch(key):
        raise invalid(HEADER, f"`{HEADER}` must be sent once, as 1 to 255 printable ASCII characters.")
    return key


def _looked_at(path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> tuple[bytes, bool]:
    """The request's fingerprint, and whether it asks for a stream."""
    return _fingerprint(path, headers, body), asks_for_stream(body)


def _fingerprint(path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """SHA-256 of what makes two requests the same."""
    given = [(name, value.strip()) for name, value in headers if name in _TERMS]
    digest = hashlib.sha256()
    for part in (path.encode(), *(part for header in sorted(given) for part in header), b"", body):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def _lane(recording: Recording) -> str:
    """The lane that an answer names; empty where it names none."""
    return next((value.decode("latin-1") for name, value in recording.headers if name == _TERMS[0]), "")


async def _nothing_more() -> Message:
    """`receive` of a request whose body was read."""
    return {"type": "http.disconnect"}
