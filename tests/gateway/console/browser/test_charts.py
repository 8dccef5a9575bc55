"""Charts of the console: any period, gaps as gaps, scales that outliers do not flatten, and ways on from them."""

import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.gateway.console.browser.conftest import ScriptPage
from tests.gateway.console.browser.test_overview_page import shown

pytestmark = pytest.mark.slow

CALL = """async ([name, ...given]) => (await import("/console/parts/series.js"))[name](...given)"""
FREE = "overview?from=1700000000&to=1700003600"


def history(*ats: float) -> dict[str, Any]:
    lane = {"ttft_ms": {"p50": 100, "p95": 200, "p99": 300}, "tpot_ms": None, "running": 1, "queued": 0, "preempted": 0}
    points = [
        {"at": at, "lanes": {"latency": lane | {"tokens_per_s": 5.0}}, "refusals": {}, "kv_used": 0.5} for at in ats
    ]
    return {"step_s": 10, "points": points}


def asked(scripts: ScriptPage) -> dict[str, list[str]]:
    """The last question for the history."""
    return parse_qs(urlsplit([read for read in scripts.reads if "/history" in read][-1]).query)


@pytest.fixture
def free(scripts: ScriptPage) -> Any:
    """The overview at an hour in the past."""
    shown(scripts)
    scripts.answers["/admin/v1/history"] = history(*range(1_700_000_000, 1_700_003_600, 10))
    scripts.page.evaluate(f"location.hash = '#/{FREE}'")
    scripts.page.locator(".u-over").first.wait_for()
    return scripts.page


@pytest.mark.parametrize(
    ("xs", "step", "expected"),
    [
        ([0, 10, 20], 10, [0, 10, 20]),
        ([0, 10, 100, 110], 10, [0, 10, 15, 100, 110]),
        ([0, 10, 40, 50], 10, [0, 10, 40, 50]),
        ([0, 300, 1_500], 300, [0, 300, 450, 1_500]),
        ([0, 10_000], None, [0, 10_000]),
    ],
)
def test_a_gap_breaks_the_line(scripts: ScriptPage, xs: list[int], step: int | None, expected: list[int]) -> None:
    scripts.show("() => undefined")
    whole = "Infinity" if step is None else str(step)
    script = f"async (xs) => (await import('/console/parts/series.js')).withGaps(xs, [xs.map(() => 1)], {whole})"

    times, (values,) = scripts.page.evaluate(script, xs)

    assert times == expected
    assert [at for at, value in zip(times, values, strict=True) if value is not None] == xs


@pytest.mark.parametrize(
    ("values", "top", "cut"),
    [
        ([1, 2, None, 4], 4.4, None),
        ([], 1, None),
        ([0] * 50 + [9], 9.9, None),
        ([10] * 99 + [1_000], 15, 1_000),
        ([10] * 50 + [1_000] * 50, 1_100, None),
    ],
)
def test_a_few_outliers_do_not_flatten_the_others(
    scripts: ScriptPage, values: list[float | None], top: float, cut: float | None
) -> None:
    scripts.show("() => undefined")

    found = scripts.page.evaluate(CALL, ["topOf", [values]])

    assert found == {"top": pytest.approx(top), "cut": cut}


def test_a_preset_ends_now_and_free_times_are_asked_for_as_they_are(scripts: ScriptPage) -> None:
    page = shown(scripts)
    page.locator("label", has_text="Week").click()
    page.wait_for_url("**/#/overview?span=week")
    page.wait_for_function("document.querySelector('input[value=week]')?.checked")
    assert "until" not in asked(scripts)
    assert float(asked(scripts)["from"][0]) == pytest.approx(time.time() - 7 * 86_400, abs=60)

    page.get_by_role("button", name="Other").click()
    page.get_by_label("From").fill("2023-11-14T22:13:20")
    page.get_by_label("To", exact=False).last.fill("2023-11-14T22:00:00")
    page.get_by_role("button", name="Show", exact=True).click()
    page.get_by_text("This must be after the start.").wait_for()
    page.get_by_label("To", exact=False).last.fill("2023-11-14T23:13:20")
    page.get_by_role("button", name="Show", exact=True).click()
    page.get_by_role("button", name="14 Nov").wait_for()
    first, last = (float(asked(scripts)[name][0]) for name in ("from", "until"))
    assert last - first == 3_600


def test_a_stretch_of_a_chart_is_shown_alone(free: Any) -> None:
    free.locator(".u-over").first.scroll_into_view_if_needed()
    box = free.locator(".u-over").first.bounding_box()
    free.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    free.mouse.down()
    free.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50, steps=4)
    free.mouse.up()

    free.wait_for_function("!location.hash.includes('from=1700000000')")
    fields = parse_qs(urlsplit(free.url).fragment.partition("?")[2])
    first, last = (int(fields[name][0]) for name in ("from", "to"))
    assert first == pytest.approx(1_700_000_900, abs=30)
    assert last == pytest.approx(1_700_001_800, abs=30)


def test_a_chart_is_enlarged_in_a_dialog(free: Any) -> None:
    small = free.locator(".u-over").first.bounding_box()
    free.get_by_role("button", name="Enlarge First token").first.click()

    large = free.get_by_role("dialog").locator(".u-over")
    large.wait_for()
    assert large.bounding_box()["height"] > 2 * small["height"]
    assert (
        free.get_by_role("dialog").get_by_role("img").get_attribute("aria-label").startswith("First token (TTFT). p50")
    )
    free.keyboard.press("Escape")
    free.get_by_role("dialog").wait_for(state="detached")


def test_charts_lead_to_grafana_and_to_the_slowest_requests(free: Any) -> None:
    grafana = free.get_by_role("link", name="Open in Grafana")
    assert grafana.get_attribute("href") == "https://grafana.test/?from=1700000000000&to=1700003600000"

    slowest = free.get_by_role("link", name="Its slowest requests and their traces")
    assert slowest.get_attribute("href") == "#/requests?lane=latency&slowest=ttft"
