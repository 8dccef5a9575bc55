"""`fairlane top`: its panels and keys by textual's pilot, and where its pictures come from."""

import asyncio
import html
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from textual.pilot import Pilot

from fairlane.cli.top.app import TopApp
from fairlane.cli.top.feed import Feed
from fairlane.cli.top.panels import blocks_panel
from fairlane.cli.top.picture import Picture, TopBlocks, TopLane, TopOverview, TopSpread, TopTenant, TopWorker
from tests.support.gateway.served import ADMIN_KEY, CHAT, Served, serving, settings, until

pytestmark = pytest.mark.anyio

URL = "http://gateway:8000"
SMALL = (80, 24)
LANES = (
    TopLane("latency", 3, 1500.0, 2, 0, 40.0, 1000.0, 60.0, TopSpread(900), TopSpread(70), 0.5),
    TopLane("throughput", preempted=4),
)
TENANTS = (TopTenant("acme", 1, 2, 30.0, 10), TopTenant("big", 9, 0, 10.0, 50), TopTenant("zoo", 0, 7, 20.0, 5))
WORKER = TopWorker("w1", "tiny", blocks_total=100, blocks_free=40, host_slots_total=20, host_slots_free=15)
MAP = TopBlocks(
    "w1",
    100,
    20,
    runs=[(30, 0, 0, 1), (30, 1, 1, 2), (10, 0, -1, 3), (30, -1, -1, 0)],
    host_runs=[(5, 1, 1, 4), (15, -1, -1, 0)],
    tenants=["acme", "big"],
    lanes=["latency", "throughput"],
    states=["free", "running", "waiting", "cached", "swapped"],
)
FULL = Picture(TopOverview(1_700_000_000.0, LANES, TENANTS, (WORKER,), {"overloaded": 5}), (MAP,))


class Teller:
    """Tells the app what a test says."""

    def __init__(self, picture: Picture = FULL) -> None:
        self.picture = picture
        self.tell: Callable[[Picture], None] = lambda _: None

    async def run(self, tell: Callable[[Picture], None]) -> None:
        self.tell = tell
        tell(self.picture)
        await asyncio.Event().wait()


def screen(app: TopApp) -> str:
    """What stands on the screen, a line for each row."""
    picture = app.export_screenshot()
    rows: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', picture, re.DOTALL):
        rows.setdefault(float(y), []).append((float(x), html.unescape(text).replace("\xa0", " ")))
    return "\n".join("".join(text for _, text in sorted(row)) for _, row in sorted(rows.items()))


async def shown(pilot: Pilot[None]) -> str:
    await pilot.pause()
    assert isinstance(pilot.app, TopApp)
    return screen(pilot.app)


async def test_all_panels_fit_a_small_terminal() -> None:
    async with TopApp(URL, Teller().run).run_test(size=SMALL) as pilot:
        text = await shown(pilot)

    for words in ("1 Lanes", "2 Tenants", "3 Workers", "4 KV blocks", "overloaded 5", "q quit", "900 ms/1 s", "60/100"):
        assert words in text, text
    assert all(len(line) <= 80 for line in text.splitlines())


async def test_tenants_are_sorted_by_the_next_figure_at_each_press() -> None:
    async with TopApp(URL, Teller().run).run_test(size=SMALL) as pilot:
        orders = []
        for _ in range(5):
            text = await shown(pilot)
            orders.append(sorted(("acme", "big", "zoo"), key=text.index))
            await pilot.press("s")

    assert orders == [
        ["acme", "zoo", "big"],  # tokens/s
        ["big", "acme", "zoo"],  # running
        ["zoo", "acme", "big"],  # queued
        ["big", "acme", "zoo"],  # kv
        ["acme", "big", "zoo"],  # name
    ]


async def test_tenants_are_filtered_as_it_is_typed() -> None:
    async with TopApp(URL, Teller().run).run_test(size=SMALL) as pilot:
        await pilot.press("slash")
        await pilot.pause()
        await pilot.press("Z", "o")
        filtered = await shown(pilot)
        await pilot.press("enter", "s")
        kept = await shown(pilot)
        await pilot.press("escape")
        cleared = await shown(pilot)

    assert "zoo" in filtered
    assert "big" not in filtered
    assert "big" not in kept
    assert "running▾" in kept
    assert "big" in cleared


async def test_a_pause_keeps_the_picture_and_its_end_shows_the_newest() -> None:
    teller = Teller()
    newer = Picture(TopOverview(1_700_000_001.0, LANES, (TopTenant("late", 1, 1, 1.0, 1),), (WORKER,)))
    async with TopApp(URL, teller.run).run_test(size=SMALL) as pilot:
        await pilot.press("p")
        teller.tell(newer)
        paused = await shown(pilot)
        await pilot.press("p")
        after = await shown(pilot)

    assert "PAUSED" in paused
    assert "acme" in paused
    assert "late" in after
    assert "acme" not in after


async def test_a_panel_is_zoomed_and_a_resize_draws_anew() -> None:
    async with TopApp(URL, Teller().run).run_test(size=SMALL) as pilot:
        await pilot.press("3")
        zoomed = await shown(pilot)
        await pilot.press("0")
        await pilot.resize_terminal(140, 40)
        wide = await shown(pilot)
        await pilot.resize_terminal(40, 12)
        narrow = await shown(pilot)

    assert "3 Workers" in zoomed
    assert "1 Lanes" not in zoomed
    assert "tiny" not in zoomed  # the model has a column in wide terminals alone
    assert "tiny" in wide
    assert "1 Lanes" in narrow


async def test_without_maps_the_used_blocks_are_shown() -> None:
    bare = Picture(TopOverview(0.0, (TopLane("latency"),), (), (WORKER,)))
    async with TopApp(URL, Teller(bare).run).run_test(size=SMALL) as pilot:
        text = await shown(pilot)

    assert "60/100" in text
    assert "5/20" in text


async def test_a_name_is_never_read_as_markup_nor_moves_the_cursor() -> None:
    named = Picture(TopOverview(1.0, LANES, (TopTenant("[red]a\u202eb\x1b[2J" + "x" * 10_000),), (WORKER,)))
    async with TopApp(URL, Teller(named).run).run_test(size=SMALL) as pilot:
        text = await shown(pilot)

    assert "[red]a?b?[2Jxxx" in text
    assert "…" in text


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as found:
        await found.tenant("acme")
        yield found


@pytest.mark.thorough
async def test_a_gateway_is_watched(served: Served) -> None:
    served.worker.limit = 1
    asking = asyncio.create_task(served.post(CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}))
    feed_of = lambda tell: Feed(served.url, ADMIN_KEY, tell, 0.1).run()  # noqa: E731
    app = TopApp(served.url, feed_of)
    async with app.run_test(size=SMALL) as pilot:
        await until(lambda: "hand" in screen(app))
        text = await shown(pilot)
        await until(lambda: "acme" in screen(app))
    served.worker.limit = None
    await asking

    assert "latency" in text
    assert "throughput" in text
    assert "0/256" in text


async def told_by(answers: dict[str, Any], until_told: Callable[[Picture], bool]) -> Picture:
    """The first picture of a gateway that knows these paths alone for which that holds."""

    def answer(request: httpx.Request) -> httpx.Response:
        found = answers.get(request.url.path.removeprefix("/admin/v1"), 404)
        if isinstance(found, int):
            return httpx.Response(found, json={"error": {"message": "No.", "code": "x"}})
        return httpx.Response(200, content=found) if isinstance(found, bytes) else httpx.Response(200, json=found)

    told: asyncio.Future[Picture] = asyncio.get_running_loop().create_future()

    def tell(picture: Picture) -> None:
        if until_told(picture) and not told.done():
            told.set_result(picture)

    feeding = asyncio.create_task(Feed(URL, "key", tell, 0.01, httpx.MockTransport(answer)).run())
    try:
        return await asyncio.wait_for(told, 20)
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


OVERVIEW = {
    "at": 1.0,
    "lanes": [{"lane": "latency", "queued": 2, "unknown": 1}],
    "tenants": [{"tenant": "acme"}],
    "workers": [{"id": "w1", "blocks_total": 5}],
}


async def test_a_gateway_without_room_for_a_stream_is_polled() -> None:
    found = await told_by({"/live": 429, "/overview": OVERVIEW}, lambda picture: bool(picture.overview.lanes))

    assert found.overview.lanes[0].queued == 2
    assert found.overview.tenants[0].tenant == "acme"


async def test_a_stream_brings_overviews_and_maps() -> None:
    maps = {
        "workers": [{"worker": "w1", "blocks": 2, "runs": [[2, 0, 0, 1]], "tenants": ["acme"], "lanes": ["latency"]}]
    }
    overview, kv = json.dumps(OVERVIEW), json.dumps(maps)
    stream = f"retry: 2000\n\nevent: overview\ndata: {overview}\n\n: keep-alive\n\nevent: kv\ndata: {kv}\n\n"

    found = await told_by({"/live": stream.encode()}, lambda picture: bool(picture.maps))

    assert found.overview.lanes[0].lane == "latency"
    assert found.maps[0].worker == "w1"


@pytest.mark.parametrize(
    ("answer", "words"), [(401, "gateway: No."), (b"<html>", "not answer like Fairlane"), (503, "No.")]
)
async def test_trouble_is_told_beside_what_was_known(answer: Any, words: str) -> None:
    found = await told_by({"/live": 429, "/overview": answer}, lambda picture: bool(picture.trouble))

    assert words in found.trouble


def test_a_cell_of_the_map_shows_what_most_of_its_blocks_are() -> None:
    def rows(picture: Picture, width: int) -> list[str]:
        panel: Any = blocks_panel(picture, width)
        return str(panel.renderables[0]).splitlines()[1:]

    assert rows(FULL, 202) == ["█" * 30 + "▓" * 30 + "░" * 10 + "·" * 30, "▓" * 5 + "·" * 15]
    assert rows(FULL, 12) == ["█" * 6 + "▓" * 4, "▓" * 2 + "░" * 2 + "·" * 6, "▓▓▓" + "·" * 7]
    assert rows(Picture(maps=(TopBlocks("w1"),)), 80) == []


async def test_blocks_are_coloured_by_lane_or_by_tenant() -> None:
    async with TopApp(URL, Teller().run).run_test(size=SMALL) as pilot:
        by_lane = await shown(pilot)
        await pilot.press("c", "4")
        by_tenant = await shown(pilot)

    assert "█ throughput" in by_lane
    assert "█ big" in by_tenant


@pytest.mark.slow
def test_without_its_extra_it_says_which_brings_it() -> None:
    script = """
import sys
sys.modules["textual"] = None
sys.argv = ["fairlane", "top"]
from fairlane.cli.main import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert "fairlane[top]" in line
