"""The short way leads to the same answers as the long one, and leaves nothing behind."""

import gc
from collections import Counter
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from fairlane.gateway.app import FastPath, create_app, with_fast_path
from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.middleware.paths import PlainPaths
from fairlane.gateway.request.live_request import LiveJob, LiveRequest
from fairlane.gateway.runtime.resources import Resources
from fairlane.gateway.server import configure
from tests.support.gateway.served import ASKED, CHAT, serving, settings

pytestmark = pytest.mark.anyio


def saying(word: str, said: list[str]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        said.append(word)

    return app


@pytest.mark.parametrize(
    ("scope", "way"),
    [
        ({"type": "http", "method": "POST", "path": "/hot"}, "short"),
        ({"type": "http", "method": "GET", "path": "/hot"}, "long"),
        ({"type": "http", "method": "POST", "path": "/hot/"}, "long"),
        ({"type": "lifespan"}, "long"),
    ],
)
async def test_only_the_named_routes_go_the_short_way(scope: Scope, way: str) -> None:
    said: list[str] = []

    async def nothing(*_: object) -> None: ...

    await FastPath(saying("long", said), {("POST", "/hot"): saying("short", said)})(scope, nothing, nothing)  # type: ignore[arg-type]

    assert said == [way]


async def test_generation_goes_the_short_way_as_it_is_served() -> None:
    settings = GatewaySettings(redis_url="unix:///nowhere", port=0)
    resources = Resources(settings)

    express = with_fast_path(create_app(resources))

    assert isinstance(express, FastPath)
    paths = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
    assert set(express.routes) == {("POST", path) for path in paths}
    plain = configure(settings, resources).app
    assert isinstance(plain, PlainPaths)
    assert isinstance(plain.app, FastPath)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "asked"), [(CHAT, ASKED), ("/v1/responses", {"model": "tiny", "input": "What?"})])
async def test_what_a_request_made_goes_with_its_last_reference(
    valkey_url: str, path: str, asked: dict[str, Any], stream: bool
) -> None:
    """Or it would stay, prompt and all, until the next collection, which is seldom."""
    async with serving(settings(valkey_url)) as served:
        headers = {"authorization": f"Bearer {await served.tenant()}"}
        gc.collect()
        gc.disable()
        try:
            async with served.http as client:
                for _ in range(3):
                    assert (await client.post(path, json={**asked, "stream": stream}, headers=headers)).is_success
                await served.landed()
                left = Counter(type(one) for one in gc.get_objects())
        finally:
            gc.enable()

    assert left[LiveJob] == left[LiveRequest] == 0
    assert left[RequestResponseCycle] <= 1  # the connection has its last
