"""The console's files: complete, from here alone, and unable to run what is injected."""

import re
from importlib import resources

import httpx
import pytest
from starlette.applications import Starlette

from fairlane.gateway.console.routes import FILES, routes
from fairlane.gateway.http.static import POLICY

pytestmark = pytest.mark.anyio


def client() -> httpx.AsyncClient:
    transport = httpx.ASGITransport(Starlette(routes=list(routes())))
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


def source(name: str) -> str:
    return (resources.files("fairlane.gateway.console") / name).read_text()


@pytest.mark.parametrize("path", FILES)
async def test_each_file_comes_with_its_type_and_the_policy(path: str) -> None:
    async with client() as http:
        answer = await http.get(path)

    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == FILES[path][1]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_a_file_the_browser_has_is_not_sent_again() -> None:
    async with client() as http:
        first = await http.get("/console/app.js")
        second = await http.get("/console/app.js", headers={"if-none-match": first.headers["etag"]})

    assert second.status_code == 304
    assert second.content == b""


async def test_no_other_file_of_the_package_is_served() -> None:
    async with client() as http:
        for path in ("/console/__init__.py", "/console/", "/console/../app.py", "/index.html"):
            assert (await http.get(path)).status_code == 404


async def test_the_policy_allows_nothing_inline_and_nothing_foreign() -> None:
    assert set(POLICY.values()) == {"'none'", "'self'"}
    assert POLICY["default-src"] == POLICY["frame-ancestors"] == POLICY["base-uri"] == "'none'"


async def test_the_page_refers_only_to_what_is_served() -> None:
    page = source("index.html")

    assert set(re.findall(r'(?:src|href)="([^"]+)"', page)) == FILES.keys() - {"/"}
    assert "style=" not in page
    assert not re.search(r"\son\w+=", page)


async def test_the_script_makes_no_markup_from_data() -> None:
    script = source("app.js")

    for dangerous in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "srcdoc",
    ):
        assert dangerous not in script


async def test_the_admin_key_is_kept_nowhere_and_goes_to_the_gateway_alone() -> None:
    script = source("app.js")

    assert "localStorage" not in script
    assert "sessionStorage" not in script
    assert "document.cookie" not in script
    assert re.findall(r'fetch\([`"]([^`"]*)[`"]', script) == ["/admin/v1${path}", "/console/session"]


async def test_every_element_that_the_script_asks_for_is_on_the_page() -> None:
    asked = set(re.findall(r'\$\("([\w-]+)"\)', source("app.js")))
    present = set(re.findall(r'id="([\w-]+)"', source("index.html")))

    assert asked <= present


async def test_every_field_and_table_says_what_it_is() -> None:
    page = source("index.html")

    assert '<html lang="en">' in page
    assert set(re.findall(r'<label for="([^"]+)"', page)) == set(re.findall(r'<input id="([^"]+)"', page))
    assert page.count("<th ") == page.count('<th scope="col"')
