"""Browsers let web pages call the tenants' port where the settings name their origins, and no others."""

from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from fairlane.common.settings_error import SettingsError
from fairlane.gateway.app import with_cors
from fairlane.gateway.config import GatewaySection, GatewaySettings
from fairlane.scheduler.protocol.settings import Origins, load
from tests.support.gateway.served import ASKED, CHAT, SAID, Served, serving, settings

pytestmark = pytest.mark.anyio

PAGE = "https://chat.example.com"
ELSEWHERE = "https://elsewhere.example.com"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-fairlane-lane",
}


def of(environment: dict[str, str]) -> GatewaySection:
    return load(GatewaySettings, document=None, environ=environment).gateway


async def preflight(served: Served, origin: str) -> Any:
    async with served.http as client:
        return await client.options(CHAT, headers={"origin": origin, **PREFLIGHT})


async def test_a_page_may_call_where_its_origin_is_named(valkey_url: str) -> None:
    async with serving(settings(valkey_url, section={"cors_origins": Origins([PAGE])})) as served:
        await served.tenant(limits={"requests_per_minute": 10})
        asked = await preflight(served, PAGE)
        plain = await served.post(CHAT, ASKED, origin=PAGE)
        stream = await served.post(CHAT, {**ASKED, "stream": True}, origin=PAGE)
        refused = await served.post(CHAT, b"{", origin=PAGE)
        other, others = await preflight(served, ELSEWHERE), await served.post(CHAT, ASKED, origin=ELSEWHERE)
        without = await served.post(CHAT, ASKED)

    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert "x-fairlane-lane" in asked.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in asked.headers
    assert plain.json()["choices"][0]["message"]["content"] == SAID
    assert stream.text.endswith("data: [DONE]\n\n")
    assert refused.status_code == 400
    for answer in (plain, stream, refused):
        assert answer.headers["access-control-allow-origin"] == PAGE
        exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
        told = {
            name for name in answer.headers if name.startswith(("x-fairlane-", "x-rate", "x-req", "retry-", "openai-"))
        }
        assert told <= exposed
    assert other.status_code == 400
    assert "access-control-allow-origin" not in others.headers
    assert not [name for name in without.headers if name == "access-control-allow-origin"]


async def test_no_page_may_call_unless_one_is_named(valkey_url: str) -> None:
    async with serving(settings(valkey_url)) as served:
        await served.tenant()
        assert (await preflight(served, PAGE)).status_code == 405
        assert "access-control-allow-origin" not in (await served.post(CHAT, ASKED, origin=PAGE)).headers


async def test_without_origins_nothing_stands_before_the_application() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    assert with_cors(app, ()) is app


async def test_origins_are_a_list_or_words_with_commas() -> None:
    assert of({}).cors_origins == ()
    assert of({"FAIRLANE_GATEWAY__CORS_ORIGINS": f"{PAGE}, http://localhost:3000"}).cors_origins == (
        PAGE,
        "http://localhost:3000",
    )
    assert of({"FAIRLANE_GATEWAY__CORS_ORIGINS": "*"}).cors_origins == ("*",)


@pytest.mark.parametrize("wrong", [f"{PAGE}/", "chat.example.com", "null", "https://*.example.com", "ftp://a"])
async def test_what_is_no_origin_stops_the_start(wrong: str) -> None:
    with pytest.raises(SettingsError, match=r"gateway\.cors_origins"):
        of({"FAIRLANE_GATEWAY__CORS_ORIGINS": wrong})
