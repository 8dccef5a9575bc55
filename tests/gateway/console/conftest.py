"""The console's own scripts in a browser, without a gateway behind them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from fairlane.gateway.console.routes import FILES, FOLDER
from tests.support.system import browser

ADDRESS = "http://console.test"


class ScriptPage:
    """An empty page that may import the console's modules; `answers` are the admin API's, by path."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.answers: dict[str, object] = {}
        page.route("**/*", self._serve)
        page.goto(f"{ADDRESS}/empty")

    def _serve(self, route: Any) -> None:
        path = urlsplit(route.request.url).path
        if path in self.answers:
            route.fulfill(body=json.dumps(self.answers[path]), content_type="application/json")
            return
        name, media_type = FILES.get(path, (None, "text/html"))
        route.fulfill(body="" if name is None else (FOLDER / name).read_text(), content_type=media_type)


@contextmanager
def _opened() -> Iterator[ScriptPage]:
    with browser.browsing() as chromium:
        yield ScriptPage(chromium.new_page())


@pytest.fixture(scope="module")  # Playwright keeps an event loop running, beside which no other test has one
def scripts() -> Iterator[ScriptPage]:
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if browser.CHROMIUM is None:
        pytest.skip("there is no chromium")
    with _opened() as opened:
        yield opened
