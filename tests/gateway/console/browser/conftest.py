"""The console's own scripts in a browser, without a gateway behind them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from fairlane.gateway.control.console.routes import FILES, FOLDER
from tests.support.system import browser

ADDRESS = "http://console.test"
LINKS = {"trace": "https://traces.test/{trace_id}", "grafana": "https://grafana.test/"}
SIGNED_IN = {
    "operator": {"name": "admin", "role": "owner"},
    "oidc": None,
    "installation": {"currency": "EUR", "links": LINKS},
}
FRAME = """async () => {
  const add = (parent, tag, fields) => parent.append(Object.assign(document.createElement(tag), fields));
  const sheets = ["style", "parts", "views"].map((name) => new Promise((onload) => {
    add(document.head, "link", { rel: "stylesheet", href: `/console/${name}.css`, onload });
  }));
  for (const id of ["said", "toasts", "main"]) add(document.body, "div", { id });
  await Promise.all(sheets);
  await (await import("/console/session.js")).recognise();
}"""


class ScriptPage:
    """An empty page that may import the console's modules; `answers` are the gateway's, by path."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.answers: dict[str, object] = {}
        """A document, or a status and a document."""
        self.reads: list[str] = []
        """Path and query of each GET of the admin API."""
        self.bodies: list[Any] = []
        """The document of each call that is not a GET."""
        self.changes: list[tuple[str, str]] = []
        """Method and path of each call that is not a GET."""
        page.set_default_timeout(10_000)
        page.route("**/*", self._serve)
        page.goto(f"{ADDRESS}/empty")

    def _serve(self, route: Any) -> None:
        path = urlsplit(route.request.url).path
        if path.startswith("/admin/"):
            self.reads.append(route.request.url.removeprefix(ADDRESS))
        if route.request.method != "GET":
            self.changes.append((route.request.method, path))
            self.bodies.append(route.request.post_data_json)
        if path in self.answers:
            answer = self.answers[path]
            status, document = answer if isinstance(answer, tuple) else (200, answer)
            route.fulfill(status=status, body=json.dumps(document), content_type="application/json")
            return
        name, media_type = FILES.get(path, (None, "text/html"))
        route.fulfill(body="" if name is None else (FOLDER / name).read_text(), content_type=media_type)

    def empty(self) -> None:
        """Start again with an empty page, in which nobody is signed in."""
        self.changes.clear()
        self.bodies.clear()
        self.reads.clear()
        self.page.goto("about:blank")
        self.page.goto(f"{ADDRESS}/empty")

    def open(self, place: str = "") -> None:
        """The whole console at a view, signed in as an owner; the gateway has nothing but `answers`."""
        self.answers["/console/session"] = SIGNED_IN
        self.empty()
        self.page.goto(f"{ADDRESS}/#/{place}")
        self.page.locator("#side a").first.wait_for()

    def show(self, script: str, argument: object = None) -> None:
        """Run a script on a page that has the console's style and frame, signed in as an owner."""
        self.answers["/console/session"] = SIGNED_IN
        self.empty()
        self.page.evaluate(FRAME)
        self.page.evaluate(script, argument)


@contextmanager
def _opened() -> Iterator[ScriptPage]:
    with browser.browsing() as chromium:
        yield ScriptPage(chromium.new_page())


@pytest.fixture(scope="package")  # Playwright keeps an event loop running, beside which no other test has one
def scripts() -> Iterator[ScriptPage]:
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if browser.CHROMIUM is None:
        pytest.skip("there is no chromium")
    with _opened() as opened:
        yield opened
