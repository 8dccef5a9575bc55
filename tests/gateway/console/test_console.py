"""The console's files: complete, from here alone, and unable to run what is injected."""

import hashlib
import posixpath
import re

import httpx
import pytest
from starlette.applications import Starlette

from fairlane.gateway.control.console.routes import FILES, FOLDER, PAGE, routes
from fairlane.gateway.control.static_files import POLICY

pytestmark = pytest.mark.anyio

OWN = [path for path in FILES if not path.startswith("/console/vendor/")]
SCRIPTS = [path for path in OWN if path.endswith(".js")]
SHEETS = [path for path in OWN if path.endswith(".css")]
VENDORED = "vendor/uplot"


def client() -> httpx.AsyncClient:
    transport = httpx.ASGITransport(Starlette(routes=list(routes())))
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


def source(path: str) -> str:
    return (FOLDER / FILES[path][0]).read_text()


def imported(path: str) -> set[str]:
    """Paths of the modules that a script imports."""
    found = re.findall(r'^\s*(?:import|export)\b[^"]*?"(\.[^"]+)"', source(path), re.MULTILINE)
    return {posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) for name in found}


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
        for path in (
            "/console/__init__.py",
            "/console/routes.py",
            "/console/",
            "/console/../app.py",
            "/index.html",
            "/console/index.html",
            "/console/vendor/uplot/SHA256SUMS",
        ):
            assert (await http.get(path)).status_code == 404


async def test_the_policy_allows_nothing_inline_and_nothing_foreign() -> None:
    assert set(POLICY.values()) == {"'none'", "'self'"}
    assert POLICY["default-src"] == POLICY["frame-ancestors"] == POLICY["base-uri"] == "'none'"


async def test_the_page_refers_only_to_what_is_served() -> None:
    page = (FOLDER / PAGE).read_text()
    named = set(re.findall(r'(?:src|href)="([^"#]+)"', page))

    assert named <= FILES.keys()
    assert not re.search(r"\s(style|on\w+)=", page)


async def test_every_file_that_is_served_is_used() -> None:
    page = (FOLDER / PAGE).read_text()
    used = set(re.findall(r'(?:src|href)="([^"#]+)"', page))
    new = used
    while new := {each for path in new if path.endswith(".js") for each in imported(path)} - used:
        used |= new

    assert used == FILES.keys() - {"/"}


@pytest.mark.parametrize("path", SCRIPTS)
async def test_a_script_makes_no_markup_from_data(path: str) -> None:
    script = source(path)

    for dangerous in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "srcdoc",
        "createContextualFragment",
        "javascript:",
        'setAttribute("style"',
    ):
        assert dangerous not in script


@pytest.mark.parametrize("path", SCRIPTS)
async def test_a_key_is_kept_nowhere_and_goes_to_the_gateway_alone(path: str) -> None:
    script = source(path)

    if path != "/console/theme.js":  # it keeps the theme that was chosen
        assert "localStorage" not in script
    assert "sessionStorage" not in script
    assert "indexedDB" not in script
    assert "document.cookie" not in script
    assert "://" not in script.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("path", SHEETS)
async def test_a_sheet_takes_nothing_from_elsewhere(path: str) -> None:
    assert "url(" not in source(path)
    assert "@import" not in source(path)


async def test_every_element_that_the_shell_asks_for_is_on_the_page() -> None:
    shell = "".join(map(source, SCRIPTS))
    asked = set(re.findall(r'(?:\$|getElementById)\("([\w-]+)"\)', shell))

    assert asked <= set(re.findall(r'id="([\w-]+)"', (FOLDER / PAGE).read_text()))


async def test_what_others_made_is_as_it_came() -> None:
    sums = (FOLDER / VENDORED / "SHA256SUMS").read_text().splitlines()

    assert sums
    for line in sums:
        expected, _, name = line.partition("  ")
        assert hashlib.sha256((FOLDER / VENDORED / name).read_bytes()).hexdigest() == expected
