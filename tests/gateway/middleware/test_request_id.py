"""x-request-id: the caller's where it is well-formed, on every answer."""

import re

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from fairlane.gateway.http.exchange import exchange_of
from fairlane.gateway.http.request_id import request_id_of
from fairlane.gateway.middleware.request_id import RequestIdMiddleware

MINTED = re.compile(r"req_[0-9a-f]{24}")


@pytest.mark.parametrize("given", ["a", "req_1", "0e3b-11.2:3/4+5=6@x", "x" * 128])
def test_a_well_formed_id_is_the_callers(given: str) -> None:
    assert request_id_of([(b"accept", b"*/*"), (b"x-request-id", given.encode())]) == given


@pytest.mark.parametrize("given", [b"", b"x" * 129, b"a b", b"a\x00", b"a\r\nb: c", b"\xff", b'"', b"<script>"])
def test_another_is_replaced(given: bytes) -> None:
    assert MINTED.fullmatch(request_id_of([(b"x-request-id", given)]))


def test_two_ids_are_none() -> None:
    assert MINTED.fullmatch(request_id_of([(b"x-request-id", b"a"), (b"x-request-id", b"b")]))


def test_minted_ids_differ() -> None:
    assert len({request_id_of([]) for _ in range(1000)}) == 1000


def client() -> TestClient:
    def say(request: Request) -> Response:
        return PlainTextResponse(exchange_of(request.scope).request_id, headers={"x-request-id": "ours"})

    def fail(request: Request) -> Response:
        raise RuntimeError("broken")

    routes = [Route("/", say), Route("/fail", fail)]
    return TestClient(RequestIdMiddleware(Starlette(routes=routes)), raise_server_exceptions=False)


def test_the_application_and_the_answer_know_the_same_id() -> None:
    answer = client().get("/", headers={"x-request-id": "mine"})

    assert answer.text == "mine"
    assert answer.headers.get_list("x-request-id") == ["mine"]


@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), ("/fail", 500)])
def test_errors_are_named_too(path: str, status: int) -> None:
    answer = client().get(path)

    assert answer.status_code == status
    assert MINTED.fullmatch(answer.headers["x-request-id"])


@pytest.mark.anyio
async def test_what_is_not_http_passes_untouched() -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    await RequestIdMiddleware(app)({"type": "lifespan"}, receive, send)

    assert seen == [{"type": "lifespan"}]
