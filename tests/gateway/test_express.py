"""The short way leads to the same answers as the long one."""

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.app import create_app, with_express
from gateway.config import GatewaySettings
from gateway.express import Express
from gateway.resources import Resources
from gateway.server import configure

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

    await Express(saying("long", said), {("POST", "/hot"): saying("short", said)})(scope, nothing, nothing)  # type: ignore[arg-type]

    assert said == [way]


async def test_generation_goes_the_short_way_as_it_is_served() -> None:
    settings = GatewaySettings(redis_url="unix:///nowhere", port=0)
    resources = Resources(settings)

    express = with_express(create_app(resources))

    assert isinstance(express, Express)
    assert express.routes == {("POST", "/v1/chat/completions"), ("POST", "/v1/completions")}
    assert isinstance(configure(settings, resources).app, Express)
