"""The operators' console in a real browser: Chromium by Playwright, checked by axe-core."""

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(sys.prefix) / "tools/node_modules/axe-core/axe.min.js"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 30_000
CROWDED = """() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  let last = null;
  while (texts.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    const boxes = [...range.getClientRects()].filter(({ width, height }) => width > 1 && height > 1);
    if (!boxes.length) continue;
    const now = { text: texts.currentNode.data, first: boxes[0], last: boxes.at(-1) };
    const near = (one, other, most) => Math.abs(one - other) < most;
    const touch = last && near(now.first.left, last.last.right, 0.5) && near(now.first.top, last.last.top, 2);
    const isWord = touch && /[\\p{L}\\p{N}]$/u.test(last.text) && /^[\\p{L}\\p{N}]/u.test(now.text);
    if (isWord) found.push(`${last.text}|${now.text}`);
    last = now;
  }
  return found;
}"""
"""Words of two elements that stand on one line with no space between them."""


@dataclass
class Console:
    """One browser's tab on the console of a server, and what went wrong in it."""

    page: Any
    url: str
    faults: list[str] = field(default_factory=list)
    """Errors of scripts, and what the browser's own console calls an error."""
    expected: set[int] = field(default_factory=set)
    """Statuses of refusals that are provoked: the browser calls each an error."""

    def hear(self, said: Any) -> None:
        """What the browser's console shows."""
        refused = re.search(r"responded with a status of (\d+)", said.text)
        if said.type == "error" and not (refused and int(refused[1]) in self.expected):
            self.faults.append(f"{said.text} {said.location}")

    def sign_in(self, key: str) -> None:
        """Sign in with the admin key or a token, and wait for the first view."""
        self.page.goto(f"{self.url}/")
        self.page.get_by_label("Admin key or token").fill(key)
        self.page.get_by_role("button", name="Sign in", exact=True).click()
        self.heading("Overview")

    def go(self, path: str) -> None:
        """Go to a view as its link would."""
        self.page.evaluate("path => { location.hash = `#/${path}` }", path)

    def heading(self, text: str) -> Any:
        """Wait for the view of this title."""
        found = self.page.get_by_role("heading", level=1, name=text)
        found.wait_for()
        return found

    def resize(self, width: int) -> None:
        """Make it that wide, and let the page take note."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def violations(self) -> list[str]:
        """What axe-core finds on the page as it stands: rule, and where."""
        found = self.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")["violations"]
        return [f"{each['id']}: {', '.join(str(node['target']) for node in each['nodes'][:3])}" for each in found]

    def crowded(self) -> list[str]:
        """Words of two elements that stand on one line with no space between them."""
        return [f"no space: {each}" for each in self.page.evaluate(CROWDED)]

    def load_axe(self) -> None:
        """Put axe-core into the page; the content policy does not hold for a debugger."""
        self.page.evaluate(AXE.read_text() + "\n;null")


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser without windows."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


@contextmanager
def console(
    browser: Any, url: str, *, width: int = 1440, height: int = 900, scheme: str = "light"
) -> Iterator[Console]:
    """A tab of its own, with cookies of its own."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    opened = Console(page, url)
    page.on("console", opened.hear)
    page.on("pageerror", lambda error: opened.faults.append(f"{error.message}\n{error.stack}"))
    yield opened
    context.close()
