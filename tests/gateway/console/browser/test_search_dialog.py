"""The search dialog of the console: opened, used and left by the keyboard alone."""

from typing import Any

import pytest

from tests.gateway.console.browser.conftest import ScriptPage

pytestmark = pytest.mark.slow

SECRET = "fl-abcdefghijklmnop-" + "x" * 49
REQUEST = {"kind": "request", "id": "f" * 24, "tenant": "acme", "name": "finished"}


def searching(scripts: ScriptPage, keys: str, *results: dict[str, Any]) -> Any:
    scripts.answers["/admin/v1/search"] = {"data": list(results)}
    scripts.answers["/admin/v1/workers"] = scripts.answers["/admin/v1/tenants"] = {"data": [], "has_more": False}
    scripts.open("batches")
    scripts.page.keyboard.press(keys)
    scripts.page.get_by_role("combobox", name="Search").wait_for()
    return scripts.page


def result(kind: str, name: str, tenant: str | None = None) -> dict[str, Any]:
    return {"kind": kind, "id": name, "tenant": tenant, "name": ""}


@pytest.mark.parametrize("keys", ["Control+k", "Meta+k"])
def test_a_page_is_opened_by_its_name(scripts: ScriptPage, keys: str) -> None:
    page = searching(scripts, keys)
    page.keyboard.type("aud")
    page.keyboard.press("Enter")

    page.get_by_role("heading", level=1, name="Audit").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Audit"
    assert page.get_by_role("dialog").count() == 0


@pytest.mark.parametrize(
    ("found", "place"),
    [
        (REQUEST, f"#/requests/{'f' * 24}"),
        (result("tenant", "acme"), "#/tenants/acme"),
        (result("key", "abc", "acme"), "#/tenants/acme?tab=keys"),
        (result("worker", "w/1"), "#/workers?worker=w%2F1"),
    ],
)
def test_what_the_gateway_finds_is_opened(scripts: ScriptPage, found: dict[str, Any], place: str) -> None:
    page = searching(scripts, "Control+k", found)
    page.keyboard.type("something")
    page.keyboard.press("Enter")  # before the gateway has answered

    page.wait_for_url(f"**/{place}")


def test_arrow_keys_choose_among_results(scripts: ScriptPage) -> None:
    page = searching(scripts, "Control+k", *[result("tenant", f"acme{number}") for number in range(3)])
    page.keyboard.type("acme")
    page.get_by_role("listbox", name="Results").get_by_role("option").nth(2).wait_for()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)

    assert page.locator("[aria-selected=true]").inner_text().split() == ["tenant", "acme1"]
    active = page.get_by_role("combobox", name="Search").get_attribute("aria-activedescendant")
    assert page.locator(f"#{active}").get_attribute("aria-selected") == "true"
    page.keyboard.press("Enter")
    page.wait_for_url("**/#/tenants/acme1")


def test_of_a_pasted_key_only_the_id_is_sent(scripts: ScriptPage) -> None:
    page = searching(scripts, "Control+k")
    page.get_by_role("combobox", name="Search").fill(SECRET)
    page.get_by_text("Nothing is found.").wait_for()

    assert [read for read in scripts.reads if "search" in read] == ["/admin/v1/search?q=abcdefghijklmnop"]


def test_escape_leaves_it(scripts: ScriptPage) -> None:
    page = searching(scripts, "Control+k")
    page.keyboard.type("aud")
    page.keyboard.press("Escape")

    page.get_by_role("dialog").wait_for(state="detached")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("combobox", name="Search").wait_for()
