"""The portal's files: complete, from here alone, on the tenants' port, and careful with the key."""

import posixpath
import re

import httpx
import pytest
from starlette.applications import Starlette

from fairlane.gateway.app import admin_app, create_app
from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.control.portal.routes import FILES, routes
from fairlane.gateway.runtime.resources import Resources

pytestmark = pytest.mark.anyio

SCRIPTS = [path for path in FILES if path.endswith(".js")]
OWN = [path for path in SCRIPTS if not path.startswith("/portal/console/")]
ROOT = "/llm"


def imported(path: str) -> set[str]:
    """Paths of the modules that a script imports."""
    found = re.findall(r'^\s*(?:import|export)\b[^"]*?"(\.[^"]+)"', FILES[path].read_text(), re.MULTILINE)
    return {posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) for name in found}


@pytest.mark.parametrize("path", FILES)
async def test_each_file_comes_with_the_policy(path: str) -> None:
    transport = httpx.ASGITransport(Starlette(routes=list(routes())))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        answer = await http.get(path)

    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "set-cookie" not in answer.headers


async def test_what_is_served_is_what_is_used() -> None:
    page = FILES["/portal"].read_text()
    used = set(re.findall(r'(?:src|href)="([^"#]+)"', page))
    assert not re.search(r"\s(style|on\w+)=", page)

    new = used
    while new := {each for path in new if path.endswith(".js") for each in imported(path)} - used:
        used |= new

    assert used == FILES.keys() - {"/portal"}


def exported(path: str) -> set[str]:
    found = re.findall(
        r"^export (?:async )?(?:function\*?|const|let|class) (\w+)", FILES[path].read_text(), re.MULTILINE
    )
    return set(found)


@pytest.mark.parametrize("path", SCRIPTS)
def test_each_module_exports_what_others_import_from_it(path: str) -> None:
    for names, source in re.findall(r'^import \{([^}]*)\} from "(\.[^"]+)"', FILES[path].read_text(), re.MULTILINE):
        asked = {name.split(" as ")[0].strip() for name in names.split(",") if name.strip()}
        assert asked <= exported(posixpath.normpath(posixpath.join(posixpath.dirname(path), source))), source


async def test_a_prefix_is_in_the_links_of_the_page() -> None:
    transport = httpx.ASGITransport(Starlette(routes=list(routes(ROOT))))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        page = (await http.get("/portal")).text

    assert set(re.findall(r'(?:src|href)="(/[^"#]+)"', page)) <= {f"{ROOT}{path}" for path in FILES}


async def test_it_is_on_the_tenants_port_alone() -> None:
    resources = Resources(GatewaySettings(redis_url="unix:///nowhere", admin_port=9))
    statuses = {}
    for name, app in (("tenants", create_app(resources)), ("operators", admin_app(resources))):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
            statuses[name] = [(await http.get(path)).status_code for path in ("/portal", "/portal/app.js")]

    assert statuses == {"tenants": [200, 200], "operators": [404, 404]}


@pytest.mark.parametrize("path", OWN)
async def test_a_script_makes_no_markup_from_data_and_keeps_the_key_for_its_tab(path: str) -> None:
    script = FILES[path].read_text()

    for dangerous in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "srcdoc", "console."):
        assert dangerous not in script.replace("./console/", "")
    assert not re.search("localStorage|indexedDB|document.cookie|console[.]log", script)
    assert ("sessionStorage" in script) == (path == "/portal/account.js")
