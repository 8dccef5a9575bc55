"""What the console says of a map of KV blocks, found out by its own script in a browser."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from fairlane.gateway.console.routes import FILES, FOLDER
from tests.support.system import browser

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="there is no chromium"),
]

ADDRESS = "http://console.test"
STATES = ["free", "running", "waiting", "clean", "cached", "swapped", "copy"]
SUMS = """async ({ map, mode }) => {
  const { grouped, inUse, labelOf } = await import("/console/parts/kv_sums.js");
  const host = { ...map, blocks: map.host_blocks, runs: map.host_runs };
  const rows = [...grouped(map, "device"), ...grouped(host, "host")];
  const legend = {};
  for (const row of rows) legend[labelOf(row, mode)] = (legend[labelOf(row, mode)] ?? 0) + row.blocks;
  return { text: inUse(map, rows), legend };
}"""


def served(route: Any) -> None:
    """One of the console's files; any other address is an empty page."""
    name, media_type = FILES.get(urlsplit(route.request.url).path, (None, "text/html"))
    route.fulfill(body="" if name is None else (FOLDER / name).read_text(), content_type=media_type)


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with browser.browsing() as chromium:
        opened = chromium.new_page()
        opened.route("**/*", served)
        opened.goto(f"{ADDRESS}/empty")
        yield opened


def told(page: Any, blocks: dict[str, int], host: dict[str, int], mode: str = "state") -> Any:
    """Header and legend of a worker's pools, from how many blocks each state has."""
    runs, host_runs = (
        [[many, -1 if state in ("free", "cached") else 0, -1, STATES.index(state)] for state, many in pool.items()]
        for pool in (blocks, host)
    )
    block_map = {
        "blocks": sum(blocks.values()),
        "block_size": 16,
        "host_blocks": sum(host.values()),
        "runs": runs,
        "host_runs": host_runs,
        "tenants": ["acme"],
        "lanes": [],
        "states": STATES,
    }
    return page.evaluate(SUMS, {"map": block_map, "mode": mode})


def test_prefixes_that_are_kept_for_nobody_are_not_in_use(page: Any) -> None:
    text = told(page, {"cached": 60, "free": 8}, {"free": 32})["text"]

    assert text == "0 of 68 blocks in use (0 %), 60 cached, 16 tokens each"


def test_whatever_a_sequence_holds_is_in_use_also_where_it_waits(page: Any) -> None:
    text = told(page, {"running": 4, "waiting": 2, "clean": 3, "free": 1}, {"swapped": 5})["text"]

    assert text == "9 of 10 blocks in use (90 %), 16 tokens each"


@pytest.mark.parametrize("mode", ["tenant", "lane", "state"])
def test_room_in_host_memory_is_told_apart_from_that_of_the_pool(page: Any, mode: str) -> None:
    legend = told(page, {"running": 4, "free": 8}, {"copy": 2, "free": 30}, mode)["legend"]

    assert (legend["free"], legend["free in host memory"]) == (8, 30)
