"""Before the console stops traffic it asks, and names the consequence in a sentence."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.gateway.console.browser.conftest import ScriptPage

pytestmark = pytest.mark.slow

TENANT: dict[str, Any] = {
    "id": "acme",
    "name": "Acme",
    "parent": None,
    "state": "active",
    "weight": 1,
    "lanes": ["latency", "throughput"],
    "default_lane": "latency",
    "models": None,
    "model_aliases": {},
    "timezone": "UTC",
    "reserve": "progressive",
    "preemption": "fast",
    "self_service": "none",
    "share_group": "",
    "limits": {"tokens_per_day": 10_000},
    "limits_by": [{"model": "tiny", "lane": None, "limits": {"requests_per_minute": 10}}],
    "shadow": [],
    "created_at": 1_700_000_000,
    "version": 3,
}
USED = {"limit": 10_000, "used": 4_000, "reserved": 500, "remaining": 5_500, "resets_at": None, "scope": "tenant"}
KEY = {
    "id": "k1",
    "name": "web",
    "state": "active",
    "scopes": {},
    "created_at": 1_700_000_000,
    "expires_at": None,
    "last_used_at": None,
}
PATH = "/admin/v1/tenants/acme"
SHOW = """async (tab) => {
  const { tenant } = await import("/console/views/tenant.js");
  const context = { id: "acme", fields: new URLSearchParams({ tab }), signal: new AbortController().signal };
  void tenant(document.getElementById("main"), context);
}"""


def page(data: object) -> Mapping[str, object]:
    return {"data": data, "has_more": False, "last_id": None}


def shown(scripts: ScriptPage, tab: str) -> Any:
    scripts.answers |= {
        PATH: TENANT,
        f"{PATH}/quota": {"limits": {"tokens_per_day": USED}},
        f"{PATH}/keys": page([KEY]),
        f"{PATH}/keys/k1/rotate": KEY | {"key": "fl-new"},
    }
    scripts.show(SHOW, tab)
    return scripts.page


def asked(scripts: ScriptPage, *words: str) -> None:
    """The question names these words; nothing is sent until it is confirmed."""
    dialog = scripts.page.get_by_role("dialog").last
    dialog.wait_for()
    text = dialog.inner_text()
    for each in words:
        assert each in text
    assert scripts.changes == []


@pytest.mark.parametrize(
    ("name", "figure", "words"),
    [
        ("Requests per minute", "0", "With requests per minute at 0, all requests of acme are refused"),
        ("Queued requests", "0", "requests that would have to wait (requests of acme)"),
        ("Tokens per day", "4,500", "4,500 tokens per day are used already: all requests of acme are refused"),
    ],
)
def test_a_limit_that_refuses_everything_is_confirmed(scripts: ScriptPage, name: str, figure: str, words: str) -> None:
    opened = shown(scripts, "limits")
    opened.get_by_text("4,000 used").wait_for()
    opened.get_by_label(name, exact=True).fill(figure)
    opened.get_by_role("button", name="Save limits").click()

    asked(scripts, words)
    opened.get_by_role("dialog").get_by_role("button", name="Save limits").click()
    opened.get_by_text("Limits are saved.").first.wait_for()
    assert scripts.changes == [("PATCH", PATH)]


def test_a_limit_that_leaves_room_or_is_only_counted_is_saved_at_once(scripts: ScriptPage) -> None:
    opened = shown(scripts, "limits")
    opened.get_by_text("4,000 used").wait_for()
    opened.get_by_label("Tokens per day", exact=True).fill("9000")
    opened.get_by_label("Requests per minute", exact=True).fill("0")
    opened.get_by_label("Only count Requests per minute").check()
    opened.get_by_role("button", name="Save limits").click()

    opened.get_by_text("Limits are saved.").first.wait_for()


def test_a_limit_of_one_model_says_whose_requests_it_refuses(scripts: ScriptPage) -> None:
    opened = shown(scripts, "limits")
    opened.get_by_role("button", name="Edit tiny").click()
    opened.get_by_role("dialog").get_by_label("Requests per minute", exact=True).fill("0")
    opened.get_by_role("dialog").get_by_role("button", name="Save limits").click()

    asked(scripts, "all requests of acme for tiny, any lane are refused")
    opened.get_by_role("dialog").last.get_by_role("button", name="Cancel").click()
    assert opened.get_by_role("dialog").count() == 1


def test_a_lane_or_model_that_is_taken_away_is_confirmed(scripts: ScriptPage) -> None:
    opened = shown(scripts, "settings")
    opened.get_by_label("throughput", exact=True).uncheck()
    opened.get_by_role("button", name="Save settings").click()
    asked(scripts, "Requests of acme in the throughput lane are refused with 403 lane_not_allowed")

    opened.keyboard.press("Escape")
    opened.get_by_label("throughput", exact=True).check()
    opened.get_by_label("Models", exact=True).fill("tiny")
    opened.get_by_role("button", name="Save settings").click()
    asked(scripts, "for any model but tiny are refused with 403 model_not_allowed")


def test_a_key_is_revoked_or_replaced_at_once_only_when_confirmed(scripts: ScriptPage) -> None:
    opened = shown(scripts, "keys")
    opened.get_by_role("button", name="Revoke web").click()
    asked(scripts, "stops working everywhere within a second")
    opened.keyboard.press("Escape")

    opened.get_by_role("button", name="Rotate web").click()
    opened.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    asked(scripts, "Requests with the old key of web are refused within a second")
    opened.keyboard.press("Escape")
    opened.get_by_label("The old key keeps working").fill("60")
    opened.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    opened.get_by_text("Copy the key now").wait_for()
    assert scripts.changes == [("POST", f"{PATH}/keys/k1/rotate")]


@pytest.mark.parametrize(
    ("verb", "words"), [("Suspend", "running streams are cancelled"), ("Delete", "cannot be undone")]
)
def test_a_tenant_is_stopped_only_when_confirmed(scripts: ScriptPage, verb: str, words: str) -> None:
    shown(scripts, "explain").get_by_role("button", name=verb).click()
    asked(scripts, f"{verb} acme?", words)
