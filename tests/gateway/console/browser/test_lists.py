"""Lists of the console: their columns, their amounts of money, and their cards on phones."""

from typing import Any

import pytest

from tests.gateway.console.browser.conftest import ScriptPage
from tests.gateway.console.browser.test_questions import PATH, TENANT, asked

pytestmark = pytest.mark.slow

REQUEST: dict[str, Any] = {
    "id": "a" * 24,
    "request_id": "req-1",
    "tenant": "acme",
    "key": "k1",
    "model": "tiny",
    "lane": "latency",
    "state": "ended",
    "outcome": "finished",
    "code": None,
    "arrived_at": 1_700_000_000.0,
    "queue_ms": 5.0,
    "ttft_ms": 120.0,
    "total_ms": 900.0,
    "prompt_tokens": 40,
    "output_tokens": 24,
    "tokens_per_s": 31.25,
    "cost": 1_230_000_000,
    "preemptions": 0,
    "worker": "w1",
}


@pytest.fixture
def requests(scripts: ScriptPage) -> Any:
    scripts.answers["/admin/v1/requests"] = {"data": [REQUEST], "has_more": False, "last_id": None}
    scripts.open("requests")
    scripts.page.get_by_role("link", name="req-1").wait_for()
    yield scripts.page
    scripts.page.set_viewport_size({"width": 1280, "height": 720})


def test_a_request_is_listed_with_its_date_key_model_pace_and_cost(requests: Any) -> None:
    cells = requests.locator("tbody tr").first.locator("td")
    shown = {cell.get_attribute("data-label"): cell.inner_text().split("\n") for cell in cells.all()}

    clock = requests.evaluate("new Date(1.7e12).toLocaleTimeString('en-GB')")
    assert shown["Arrived"] == [f"{requests.evaluate('new Date(1.7e12).getDate()')} Nov, {clock}"]
    assert shown["Tenant and key"] == ["acme", "k1"]
    assert shown["Model and lane"] == ["tiny", "latency"]
    assert shown["State and worker"] == ["finished", "w1"]
    assert (shown["Tokens"], shown["Tokens/s"]) == (["40 \u2192 24"], ["31.3"])
    assert (shown["Cost"], shown["In all"]) == (["1.23 EUR"], ["900 ms"])


def test_on_a_phone_each_row_is_a_card_that_fits_and_names_its_values(requests: Any) -> None:
    requests.set_viewport_size({"width": 390, "height": 800})

    row = requests.get_by_role("row").last
    labels = row.get_by_role("cell").evaluate_all("all => all.map(one => getComputedStyle(one, '::before').content)")
    assert labels[:3] == ['"Request"', '"Arrived"', '"Tenant and key"']
    assert requests.get_by_role("columnheader").count() == len(labels)
    assert requests.evaluate("document.documentElement.scrollWidth") == 390
    region = requests.locator(".scroll").first
    assert region.evaluate("one => one.scrollWidth <= one.clientWidth")
    assert region.get_attribute("tabindex") is None


def test_limits_of_money_are_in_the_currency(scripts: ScriptPage) -> None:
    scripts.answers[PATH] = TENANT | {"limits": {"spend_per_day": 12_500_000_000}}
    scripts.answers[f"{PATH}/quota"] = {"limits": {}}
    scripts.open("tenants/acme?tab=limits")
    field = scripts.page.get_by_label("Spend per day", exact=True)
    assert field.input_value() == "12.5"
    scripts.page.get_by_text("in EUR, of a calendar day in the tenant's zone").wait_for()

    field.fill("0.1")
    scripts.page.get_by_label("Spend per month", exact=True).fill("1,000")
    scripts.page.get_by_role("button", name="Save limits").click()
    scripts.page.get_by_text("Limits are saved.").first.wait_for()
    assert scripts.bodies[0]["limits"] == {"spend_per_day": 100_000_000, "spend_per_month": 1_000_000_000_000}

    field.fill("0")
    scripts.changes.clear()
    scripts.page.get_by_role("button", name="Save limits").click()
    asked(scripts, "With spend per day at 0, all requests of acme are refused")


def test_a_request_links_to_its_trace(scripts: ScriptPage) -> None:
    detail = REQUEST | {"trace_id": "4bf9", "preemptions": [], "time": None}
    scripts.answers[f"/admin/v1/requests/{REQUEST['id']}"] = detail
    scripts.open(f"requests/{REQUEST['id']}")

    link = scripts.page.get_by_role("link", name="4bf9")
    assert link.get_attribute("href") == "https://traces.test/4bf9"


def test_the_audit_log_is_filtered_and_exported_as_it_is_shown(scripts: ScriptPage) -> None:
    changes = {"before": {"limits": {"spend_per_day": None}}, "after": {"limits": {"spend_per_day": 2_500_000_000}}}
    entry = {
        "id": "1-0",
        "at": 1_700_000_000,
        "actor": "ada",
        "address": "",
        "action": "tenant.update",
        "target": "acme",
    }
    made = entry | {"id": "0-0", "changes": {"before": None, "after": dict.fromkeys("abcde", 1)}}
    entries = [entry | {"changes": changes}, made]
    scripts.answers["/admin/v1/audit"] = {"data": entries, "has_more": False, "last_id": "0-0"}
    scripts.open("audit?actor=ada&from=1700000000")
    page = scripts.page

    page.get_by_text("2.50 EUR").wait_for()
    assert page.get_by_text("created with 5 fields").count() == 1
    assert page.get_by_label("Who").input_value() == "ada"
    assert scripts.reads[-1] == "/admin/v1/audit?actor=ada&from=1700000000&limit=50"
    exported = page.get_by_role("link", name="As CSV").get_attribute("href")
    assert exported == "/admin/v1/audit?actor=ada&from=1700000000&format=csv"
    page.get_by_label("What").fill("tenant")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**/#/audit?actor=ada&action=tenant&from=1700000000")
    page.get_by_role("link", name="As JSON lines").wait_for()
