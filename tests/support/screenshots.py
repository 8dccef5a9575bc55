"""Makes the pictures of docs/console.md and docs/portal.md: a whole server under some load, seen through a browser.

python -m tests.support.screenshots
"""

import random
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.system import browser
from tests.support.system.browser import Console
from tests.support.system.harness import ADMIN_KEY, MODEL, Server

DOCS = Path(__file__).parent.parent.parent / "docs"
WARM_S = 150.0
"""So long there is load before the first picture, for charts to have something to show."""
WIDTH = 1440
PRICES = {"model": "*", "lane": "*", "input": 150_000, "cached_input": 75_000, "output": 600_000}
WORDS = ("river", "market", "lantern", "copper", "orbit", "violin", "harvest", "signal", "meadow", "harbour", "candle")
TENANTS: Mapping[str, Mapping[str, object]] = {
    "assistant": {"weight": 2, "limits": {"tokens_per_minute": 90_000, "tokens_per_month": 40_000_000}},
    "nightly-reports": {
        "self_service": "keys",
        "default_lane": "throughput",
        "limits": {"tokens_per_day": 60_000, "output_tokens_per_minute": 12_000, "concurrent_requests": 8},
    },
    "research": {"default_lane": "throughput", "limits": {"requests_per_minute": 8, "tokens_per_day": 25_000}},
    "search": {"limits": {"requests_per_minute": 240, "concurrent_requests": 16}},
}


@dataclass(frozen=True)
class Work:
    """What one caller sends again and again."""

    tenant: str
    lane: str
    words: int
    tokens: int
    pause_s: float


WORK = (
    *[Work("nightly-reports", "throughput", 90, 260, 0.2)] * 4,
    Work("research", "throughput", 30, 90, 2.0),
    Work("search", "latency", 40, 24, 1.5),
    Work("search", "latency", 60, 24, 2.0),
    Work("assistant", "latency", 260, 60, 4.0),
)


@contextmanager
def load(server: Server, keys: Mapping[str, str]) -> Iterator[None]:
    """The work of all, until the block ends."""
    over = threading.Event()

    def keep_on(work: Work) -> None:
        dice = random.Random()
        with server.sdk(keys[work.tenant], max_retries=0) as client:
            while not over.is_set():
                send(client, work, dice)
                over.wait(work.pause_s * dice.uniform(0.5, 1.5))

    with ThreadPoolExecutor(len(WORK)) as pool:
        for work in WORK:
            pool.submit(keep_on, work)
        try:
            yield
        finally:
            over.set()


def send(client: Any, work: Work, dice: random.Random) -> None:
    """One request; that a limit refuses it is part of the picture."""
    try:
        client.completions.create(
            model=MODEL,
            prompt=" ".join(dice.choice(WORDS) for _ in range(work.words)),
            max_tokens=work.tokens,
            extra_body={"ignore_eos": True},
            extra_headers={"x-fairlane-lane": work.lane},
        )
    except Exception as error:  # noqa: BLE001 - the pictures are looked at
        print(f"{work.tenant}: {error}"[:200])  # noqa: T201


def most_preempted(server: Server) -> str:
    """The id of the request that had to yield most often to the latency lane."""
    with server.admin() as admin:
        listed = admin.get("/requests", params={"lane": "throughput", "state": "ended", "limit": 200}).json()["data"]
        preempted = sorted(listed, key=lambda each: -each["preemptions"])[:40]
        whole = [admin.get(f"/requests/{each['id']}").json() for each in preempted]
    return str(max(whole, key=yielded)["id"])


def yielded(request: Any) -> int:
    """How often to the latency lane, and with blocks."""
    return sum(
        1 + 5 * (each["blocks"] > 0)
        for each in request["preemptions"]
        if each["cause"] is not None and each["cause"]["lane"] == "latency"
    )


def shoot(console: Console, path: Path, height: int) -> None:
    """What is seen, in a file; as high as it is worth looking at."""
    console.page.set_viewport_size({"width": WIDTH, "height": height})
    console.page.wait_for_timeout(1500)
    console.page.screenshot(path=path, animations="disabled")


def pictures(server: Server, console: Console, key: str) -> None:
    """All of them."""
    folder = DOCS / "console"
    folder.mkdir(exist_ok=True)
    console.sign_in(ADMIN_KEY)
    shoot(console, DOCS / "console.png", 980)
    console.go("kv")
    console.page.locator(".kv-canvas").first.wait_for()
    shoot(console, folder / "kv.png", 700)
    console.go(f"requests/{most_preempted(server)}")
    console.page.locator(".waterfall").wait_for()
    shoot(console, folder / "request.png", 1120)
    console.go("tenants/nightly-reports")
    console.page.locator(".bars").wait_for()
    shoot(console, folder / "tenant.png", 960)
    console.go("playground")
    page = console.page
    page.get_by_label("Tenant key").fill(key)
    page.get_by_label("Streams on the throughput lane").fill("4")
    page.get_by_label("Output at most").fill("120")
    page.get_by_role("button", name="Send on both lanes").click()
    page.locator(".events", has_text="resumed").first.wait_for(timeout=120_000)
    shoot(console, folder / "playground.png", 920)


def portal_picture(console: Console, key: str) -> None:
    """What a tenant sees."""
    console.page.goto(f"{console.url}/portal")
    console.page.get_by_label("API key").fill(key)
    console.page.get_by_role("button", name="Sign in", exact=True).click()
    console.page.locator(".bars").wait_for()
    shoot(console, DOCS / "portal.png", 870)


def main() -> None:
    """Start a server, put load on it, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), {"WORKER__KV_MEMORY": "28MiB", "WORKER__HOST_KV_MEMORY": "28MiB"}).start()
        try:
            keys = {name: server.tenant(name, **fields) for name, fields in TENANTS.items()}
            with server.admin() as admin:
                admin.put("/prices", json={"prices": [PRICES]}).raise_for_status()
            with load(server, keys), browser.browsing() as chromium:
                time.sleep(WARM_S)
                with browser.console(chromium, server.admin_url, width=WIDTH) as console:
                    pictures(server, console, keys["assistant"])
                with browser.console(chromium, server.url, width=WIDTH) as tab:
                    portal_picture(tab, keys["nightly-reports"])
        finally:
            server.stop()


if __name__ == "__main__":
    main()
