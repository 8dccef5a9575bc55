"""The portal in a browser, before a whole gateway below a prefix, with hostile names in all that it shows."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.support.gateway.served import ASKED, CHAT, OPERATOR, SAID, QuickServer, Served, serving, settings
from tests.support.system import browser
from tests.support.system.browser import Console

pytestmark = pytest.mark.thorough
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if browser.CHROMIUM is None:
    pytest.skip("there is no chromium", allow_module_level=True)

ROOT = "/llm"
HOSTILE = '<img src=x onerror="document.title=1">\u05d0\u05d1\u05d2' + "w" * 100
VIEWS = ("usage", "requests", "keys", "playground")


class Site:
    """A gateway that runs in another thread, and the tenants of these tests."""

    def __init__(self, loop: BlockingPortal, served: Served) -> None:
        self._loop, self._served = loop, served
        self.url = f"{served.url}{ROOT}"
        limits = {"requests_per_minute": 600, "tokens_per_day": 50_000, "max_output_tokens": 4_000}
        self.key = self.tenant("acme", {"name": HOSTILE, "self_service": "keys", "limits": limits})
        self.key_without = self.tenant("managed", {})
        for number in range(2):
            self.call("POST", CHAT, ASKED, headers={"x-request-id": f"<b>{number}"[:3] + str(number)})
        self.call("POST", "/v1/keys", {"name": HOSTILE, "scopes": {"models": [HOSTILE], "endpoints": [CHAT]}})
        loop.call(served.landed)

    def tenant(self, name: str, document: dict[str, Any]) -> str:
        async def make() -> str:
            accounts = self._served.resources.accounts
            tenant = await accounts.tenants.create({"id": name, **document})
            return (await accounts.keys.create(tenant, {"name": "owner"})).secret

        return self._loop.call(make)

    def call(self, method: str, path: str, body: Any = None, *, key: str = "", headers: Any = None) -> httpx.Response:
        own = {"authorization": f"Bearer {key or self.key}", **(headers or {})}
        return httpx.request(method, f"{self.url}{path}", headers=own, json=body, timeout=20)


@pytest.fixture(scope="module")
def site(file_url: str) -> Iterator[Site]:
    chosen = settings(file_url, section={"root_path": ROOT})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QuickServer, "capture_signals", lambda _: nullcontext())  # only a main thread has signals
        with start_blocking_portal() as loop, loop.wrap_async_context_manager(serving(chosen)) as served:
            yield Site(loop, served)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.browsing() as started:
        yield started


@contextmanager
def opened(chromium: Any, site: Site, key: str, **options: Any) -> Iterator[Console]:
    """The portal, signed in; nothing may go wrong in the browser, and no URL may contain the key."""
    with browser.console(chromium, site.url, **options) as tab:
        asked: list[str] = []
        tab.page.on("request", lambda request: asked.append(request.url))
        tab.page.goto(f"{site.url}/portal")
        sign_in(tab, key)
        tab.heading("Usage")
        yield tab
        assert tab.faults == []
        assert all(url.startswith(f"{site.url}/") and key not in url for url in [*asked, tab.page.url])
        assert tab.page.context.cookies() == []
        assert tab.page.evaluate("() => Object.keys(localStorage)") == []
        assert tab.page.title() != "1"


def sign_in(tab: Console, key: str) -> None:
    tab.page.get_by_label("API key").fill(key)
    tab.page.get_by_role("button", name="Sign in", exact=True).click()


def cells(tab: Console, caption: str) -> str:
    table = tab.page.get_by_role("region", name=caption)
    table.wait_for()
    return str(table.inner_text())


def test_it_shows_use_limits_and_why(site: Site, chromium: Any) -> None:
    with opened(chromium, site, site.key) as tab:
        tab.page.locator(".limits li").first.wait_for()
        assert "tokens per day" in tab.page.locator(".limits").inner_text()
        tab.page.locator(".limits").get_by_text("resets in").first.wait_for()
        assert "tiny" in cells(tab, "Usage by lane, model and key")

        tab.go("requests")
        tab.heading("Requests")
        tab.page.get_by_role("region", name="Requests").get_by_text("finished").first.wait_for()
        tab.page.get_by_role("region", name="Requests").get_by_role("link").first.click()
        tab.page.locator(".why p").wait_for()
        assert "Trace" not in tab.page.locator("main").inner_text()

        tab.go("requests")
        tab.page.get_by_label("Request id").fill(site.key)
        tab.page.get_by_role("button", name="Show", exact=True).click()
        tab.page.get_by_text("This is a key").wait_for()


def test_keys_are_made_used_rotated_and_revoked(site: Site, chromium: Any) -> None:
    with opened(chromium, site, site.key) as tab:
        page = tab.page
        tab.go("keys")
        page.get_by_role("button", name="New key").click()
        page.get_by_label("Name").fill("billing")
        page.get_by_role("button", name="Make key").click()
        made = page.locator("input.secret").input_value()
        page.get_by_role("button", name="I have kept it").click()
        assert site.call("POST", CHAT, ASKED, key=made).status_code == 200
        assert made not in page.content()

        row = page.get_by_role("row").filter(has_text="billing")
        row.get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        row.get_by_text("revoked").wait_for()
        assert site.call("GET", "/v1/models", key=made).status_code == 401


def test_the_own_key_is_replaced_and_a_revoked_one_signs_out(site: Site, chromium: Any) -> None:
    key = site.tenant("rotating", {"self_service": "keys"})
    with opened(chromium, site, key) as tab:
        page = tab.page
        tab.go("keys")
        page.get_by_role("button", name="Rotate").click()
        page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
        page.get_by_role("dialog").last.get_by_role("button", name="Rotate").click()
        made = page.locator("input.secret").input_value()
        page.get_by_role("button", name="I have kept it").click()
        page.get_by_role("row").filter(has_text="expired").wait_for()

        tab.go("usage")
        tab.page.reload()
        tab.heading("Usage")  # the tab goes on with the new key
        tab.expected.add(401)
        with httpx.Client(base_url=site.url, headers=OPERATOR) as admin:
            admin.delete(f"/admin/v1/tenants/rotating/keys/{made.split('-')[1]}")
        tab.go("requests")
        page.get_by_role("button", name="Sign in", exact=True).wait_for()
        assert page.evaluate("() => sessionStorage.length") == 0


def test_a_model_is_tried(site: Site, chromium: Any) -> None:
    with opened(chromium, site, site.key) as tab:
        tab.go("playground")
        tab.page.get_by_label("Prompt").fill("What is the capital of France?")
        tab.page.get_by_role("button", name="Send", exact=True).click()
        tab.page.locator(".stream", has_text=SAID).wait_for()


def test_without_self_service_there_are_no_keys_and_a_wrong_key_is_refused(site: Site, chromium: Any) -> None:
    with opened(chromium, site, site.key_without) as tab:
        assert tab.page.get_by_role("link", name="Keys").count() == 0
        tab.go("keys")
        tab.heading("Usage")

        tab.page.get_by_role("button", name="Sign out").click()
        tab.expected.add(401)
        for wrong in ("fl-wrong", "naïve key"):
            sign_in(tab, wrong)
            tab.page.get_by_text("This key is not accepted.").wait_for()
        sign_in(tab, site.key_without)
        tab.heading("Usage")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_views_are_accessible_and_fit(site: Site, chromium: Any, scheme: str) -> None:
    with opened(chromium, site, site.key, scheme=scheme) as tab:
        tab.load_axe()
        for width in (390, 1440):
            tab.resize(width)
            for view in VIEWS:
                tab.go(view)
                tab.heading(view.capitalize())
                tab.page.wait_for_load_state("networkidle")
                assert tab.violations() == [], (view, width)
                assert tab.crowded() == [], (view, width)
                assert tab.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), (view, width)
