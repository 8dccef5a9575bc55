"""Paths as clients build them from a base URL, and below the prefix of a deployment."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import openai
import pytest

from fairlane.common.settings_error import SettingsError
from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.control.operators.sessions import cookie, sign_in_cookie
from fairlane.scheduler.protocol.settings import SharedSettings, load
from tests.support.gateway.served import ASKED, CHAT, OPERATOR, SAID, Served, error_of, serving, settings

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"
ROOT = "/team/llm"
LINK = re.compile(r'(?:href|src)="([^"#]+)"')


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


@pytest.fixture(scope="module")
async def prefixed(file_url: str) -> AsyncIterator[Served]:
    """A gateway with a prefix."""
    async with serving(settings(file_url, section={"root_path": f"{ROOT}/"})) as opened:
        await opened.tenant("below")
        yield opened


async def call(
    served: Served, method: str, path: str, tenant: str = "acme", headers: dict[str, str] | None = None
) -> httpx.Response:
    """Ask for a path as it stands here."""
    async with served.http as client:
        given = {"authorization": f"Bearer {served.keys[tenant]}"} if headers is None else headers
        body = ASKED if method == "POST" else None
        return await client.request(method, served.url + path, headers=given, json=body)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"/{CHAT}"),
        ("POST", f"///{CHAT}//"),
        ("POST", "/v1//chat/completions"),
        ("POST", f"{CHAT}/"),
        ("POST", f"{MESSAGES}/"),
        ("GET", "//v1/models?limit=1"),
        ("GET", "/v1/models/"),
        ("GET", "/v1//models//"),
        ("GET", "/v1/models/tiny/"),
        ("GET", "/healthz/"),
    ],
)
async def test_slashes_that_mean_nothing_are_left_out(served: Served, method: str, path: str) -> None:
    answer = await call(served, method, path)

    assert answer.status_code == 200, answer.text
    if CHAT in path:
        assert answer.json()["choices"][0]["message"]["content"] == SAID


async def test_a_base_url_with_a_slash_serves_the_sdk(served: Served) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.url}//v1/", api_key=served.keys["acme"]) as client:
        assert [model.id async for model in client.models.list()] == ["tiny"]


@pytest.mark.parametrize("path", ["//admin/v1/tenants", "/admin/v1//tenants", "/admin/v1/tenants/", "//metrics"])
async def test_operators_paths_are_served_as_they_are_written_only(served: Served, path: str) -> None:
    assert (await call(served, "GET", path, headers=OPERATOR)).status_code == 404


async def test_a_key_s_paths_are_those_that_are_served(served: Served) -> None:
    await served.tenant("narrow", scopes={"endpoints": ["/v1/models"]})

    assert error_of(await call(served, "POST", f"/{CHAT}/", "narrow")) == (403, "endpoint_not_allowed")
    assert (await call(served, "GET", "//v1/models/", "narrow")).status_code == 200


async def test_the_slashes_of_a_model_s_id_are_its_own(served: Served) -> None:
    answer = await call(served, "GET", "/v1/models//data/models//tiny")

    assert error_of(answer) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("POST", f"/v1{CHAT}", CHAT),
        ("POST", f"//v1/{CHAT}/", CHAT),
        ("POST", "/chat/completions", CHAT),
        ("GET", "/v1/v1/models", "/v1/models"),
        ("GET", "/v1/v1/models/secret", "/v1/models/{model}"),
        ("POST", f"{CHAT}/chat/completions", CHAT),
        ("GET", f"{CHAT}/models", "/v1/models"),
        ("POST", f"/openai{CHAT}", CHAT),
        ("POST", "/openai/deployments/tiny/chat/completions", CHAT),
        ("POST", f"/v1{MESSAGES}", MESSAGES),
        ("POST", "/messages", MESSAGES),
        ("GET", "/v1/healthz", "/healthz"),
    ],
)
async def test_a_wrong_path_is_told_the_right_one(served: Served, method: str, path: str, right: str) -> None:
    answer = await call(served, method, path)

    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == f"There is no such path: use `{right}`."
    assert answer.json().get("type") == ("error" if right == MESSAGES else None)


async def test_a_path_like_no_other_has_no_right_one(served: Served) -> None:
    answer = await call(served, "GET", "/v1/secret")

    assert answer.json()["error"]["message"] == "There is no such path."


@pytest.mark.parametrize("path", [MESSAGES, f"/{MESSAGES}", f"{ROOT}{MESSAGES}"])
async def test_headers_that_are_too_large_are_refused_in_anthropics_form(served: Served, path: str) -> None:
    answer = await call(served, "POST", path, headers={"x-long": "x" * 40_000})

    assert (answer.status_code, answer.json()["type"]) == (431, "error")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", MESSAGES, 405), ("POST", f"{MESSAGES}/none", 404), ("POST", MESSAGES, 401)]
)
async def test_other_refusals_are_in_anthropics_form_too(served: Served, method: str, path: str, status: int) -> None:
    for root in ("", "/"):
        answer = await call(served, method, root + path, headers={})

        assert (answer.status_code, answer.json()["type"]) == (status, "error")


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", f"{ROOT}{CHAT}", None),
        ("POST", f"/{ROOT}/{CHAT}/", None),
        ("GET", f"{ROOT}/v1/models/tiny", None),
        ("GET", f"{ROOT}/admin/v1/tenants", OPERATOR),
        ("GET", f"{ROOT}/metrics", OPERATOR),
        ("GET", f"{ROOT}/readyz", {}),
        ("GET", "/readyz", {}),
        ("GET", "/healthz", {}),
        ("GET", "/health", {}),
    ],
)
async def test_everything_is_below_the_prefix_and_health_without_it_too(
    prefixed: Served, method: str, path: str, headers: dict[str, str] | None
) -> None:
    answer = await call(prefixed, method, path, "below", headers)

    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("POST", CHAT, f"{ROOT}{CHAT}"),
        ("POST", "/chat/completions", f"{ROOT}{CHAT}"),
        ("POST", f"{ROOT}/v1{CHAT}", f"{ROOT}{CHAT}"),
        ("POST", MESSAGES, f"{ROOT}{MESSAGES}"),
        ("GET", "/docs", f"{ROOT}/docs"),
        ("GET", f"{ROOT}er/v1/models", f"{ROOT}/v1/models"),
        ("GET", f"{ROOT}er/secret", ""),
        ("GET", "/admin/v1/tenants", ""),
        ("GET", f"/{ROOT}/admin/v1/tenants", ""),
    ],
)
async def test_outside_the_prefix_there_is_nothing(prefixed: Served, method: str, path: str, right: str) -> None:
    answer = await call(prefixed, method, path, "below", OPERATOR if "admin" in path else None)

    assert answer.status_code == 404
    told = f"There is no such path: use `{right}`." if right else "There is no such path."
    assert answer.json()["error"]["message"] == told
    assert answer.json().get("type") == ("error" if path == MESSAGES else None)
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("page", ["/", "", "/docs"])
async def test_a_page_loads_its_files_below_the_prefix(prefixed: Served, page: str) -> None:
    shown = await call(prefixed, "GET", ROOT + page, headers={})
    links = [urljoin(ROOT + page, link) for link in LINK.findall(shown.text)]

    loaded = await asyncio.gather(*(call(prefixed, "GET", link, headers={}) for link in links))

    assert len(links) >= 4
    assert all(link.startswith(f"{ROOT}/") for link in links)
    assert {answer.status_code for answer in loaded} == {200}


async def test_the_document_names_the_prefix(prefixed: Served, served: Served) -> None:
    for gateway, root, url in ((prefixed, ROOT, ROOT), (served, "", "/")):
        answer = await call(gateway, "GET", f"{root}/openapi.json", headers={})
        assert answer.json()["servers"] == [{"url": url}]


async def test_a_session_s_cookie_is_for_the_prefix_alone(prefixed: Served) -> None:
    own = {**OPERATOR, "origin": prefixed.url, "x-fairlane-csrf": "1"}
    async with prefixed.http as client:
        begun = await client.post(f"{ROOT}/console/session", headers=own)
        assert f"Path={ROOT};" in begun.headers["set-cookie"]
        assert (await client.get(f"{ROOT}/admin/v1/tenants")).status_code == 200


@pytest.mark.parametrize("cookie_of", [cookie, sign_in_cookie])
def test_under_tls_a_cookie_below_a_prefix_has_a_name_that_browsers_keep(cookie_of: Any) -> None:
    named = cookie_of({"scheme": "https", "app_root_path": ROOT, "headers": []}, "kept")

    assert named.startswith("__Secure-fairlane")
    assert f"Path={ROOT};" in named
    assert named.endswith("; Secure")


@pytest.mark.parametrize("given", ["/llm", "/llm/", "/a/b-c_d.e~f", "/", "", None])
def test_a_prefix_is_part_of_the_address(given: str | None) -> None:
    document = {"gateway": {"root_path": given}, "admin_port": 9}
    root = (given or "").rstrip("/")

    for kind in (SharedSettings, GatewaySettings):
        found = load(kind, document=document, environ={})
        assert urlsplit(found.url).path == urlsplit(found.admin_url).path == found.root_path == root


@pytest.mark.parametrize("given", ["llm", "/a//b", "/..", "/a/../b", "/a b", "/é", "/{x}", "http://x/llm", "/" * 2])
def test_what_is_no_prefix_stops_the_start(given: str) -> None:
    with pytest.raises(SettingsError, match=r"gateway\.root_path"):
        load(GatewaySettings, document={"gateway": {"root_path": given}}, environ={})
