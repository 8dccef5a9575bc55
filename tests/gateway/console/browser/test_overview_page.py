"""The first page answers who is slow, why, since when, who pays, and what is about to run out."""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.gateway.console.browser.conftest import ScriptPage

pytestmark = pytest.mark.slow

SINCE = int(time.time()) - 60
RESETS = SINCE + 7 * 3600 + 120
LANE = {
    "lane": "latency",
    "queued": 0,
    "running": 1,
    "preempted": 0,
    "oldest_wait_ms": 0,
    "tokens_per_s": 20.0,
    "ttft_target_ms": 1_000,
    "tpot_target_ms": 50,
    "ttft_ms": {"p50": 1_000, "p95": 2_400, "p99": 3_000},
    "tpot_ms": None,
    "goodput": 0.5,
    "requests": 20,
    "refused": 0,
}
ALARM = {
    "kind": "first_token",
    "severity": "bad",
    "lane": "latency",
    "tenants": ["acme"],
    "since": SINCE,
    "what": "First tokens of the latency lane are slower than their target, most of acme",
    "why": "3 of 4 workers are full of batch work",
}
OVERVIEW = {
    "at": time.time(),
    "window_s": 65,
    "lanes": [LANE],
    "refusals": {},
    "tenants": [{"tenant": "acme", "running": 3, "queued": 1, "tokens_per_s": 9.5, "kv_blocks": 40}],
    "workers": [],
    "models": [],
    "alarms": [ALARM],
}


def limit(used: int, most: int = 100) -> Mapping[str, object]:
    return {
        "limit": most,
        "used": used,
        "reserved": 5,
        "remaining": most - used,
        "resets_at": RESETS,
        "scope": "tenant",
    }


def shown(
    scripts: ScriptPage,
    overview: Mapping[str, object] = OVERVIEW,
    *,
    history: Sequence[Mapping[str, object]] = (),
    fields: str = "",
) -> Any:
    quotas = {
        "acme": {"requests_per_minute": limit(90), "max_prompt_tokens": limit(99)},
        "zoo": {"tokens_per_day": limit(20)},
    }
    tenants = [{"id": name, "quota": {"limits": limits}} for name, limits in quotas.items()]
    spend = [{"tenant": "zoo", "cost": 7_500_000_000}, {"tenant": "acme", "cost": 12_340_000_000}]
    scripts.answers |= {
        "/admin/v1/overview": overview,
        "/admin/v1/tenants": {"data": tenants, "has_more": False, "last_id": "zoo"},
        "/admin/v1/chargeback": {"currency": "EUR", "tenants": spend},
        "/admin/v1/history": {"step_s": 10, "points": list(history)},
    }
    scripts.open(f"overview{fields}")
    scripts.page.get_by_text("Who uses and who pays").wait_for()
    return scripts.page


def rows(page: Any, caption: str) -> list[str]:
    page.get_by_role("table", name=caption).locator("tbody tr").first.wait_for()
    return [
        " ".join(text.split()) for text in page.get_by_role("table", name=caption).locator("tbody tr").all_inner_texts()
    ]


def test_an_alarm_says_who_is_slow_since_when_and_why(scripts: ScriptPage) -> None:
    page = shown(scripts)

    alarm = page.locator(".alarm")
    clock = page.evaluate("since => new Date(since * 1000).toLocaleTimeString('en-GB')", SINCE)
    assert alarm.inner_text() == f"{ALARM['what']}, since {clock}: {ALARM['why']}. The slowest"
    alarm.get_by_role("link").click()
    page.wait_for_url("**/#/requests?lane=latency&slowest=ttft")


def test_who_pays_and_what_is_about_to_run_out(scripts: ScriptPage) -> None:
    page = shown(scripts)
    page.get_by_text("12.34 EUR").wait_for()

    assert rows(page, "Tenants now, and their spend of this month") == [
        "acme 3 1 9.5 40 12.34 EUR",
        "zoo 0 0 0 0 7.50 EUR",
    ]
    (near,) = rows(page, "Limits about to be used up")
    assert re.fullmatch(r"acme requests per minute 90 used, 5 reserved of 100 \(95 %\) in (7|6\.9) h", near)
    assert page.get_by_role("table", name="Limits about to be used up").get_by_text("Resets").count() == 1


@pytest.mark.parametrize(
    ("fields", "title"),
    [
        ("", "in the last 15 min"),
        ("?span=6h", "in the last 6 h"),
        ("?span=day", "in the last day"),
        ("?from=1700000000&to=1700003600", "Nov, "),
    ],
)
def test_refusals_name_their_period(scripts: ScriptPage, fields: str, title: str) -> None:
    points = [{"at": time.time() - 60, "lanes": {}, "refusals": {"overloaded": 2}, "kv_used": 0.5}]
    page = shown(scripts, history=points, fields=fields)

    heading = page.get_by_role("heading", name="Refusals")
    heading.filter(has_text=title).wait_for()
    page.get_by_text("Refused per interval").wait_for()


def test_a_store_that_does_not_answer_is_an_alarm(scripts: ScriptPage) -> None:
    page = shown(scripts, OVERVIEW | {"alarms": []})
    assert page.locator(".alarm").count() == 0

    scripts.answers["/admin/v1/overview"] = (503, {"error": {"code": "quota_store_unavailable", "message": "Away."}})
    page.locator(".alarm", has_text="The store does not answer, since").wait_for()
    assert "503 quota_store_unavailable" in page.locator(".alarm").inner_text()

    scripts.answers["/admin/v1/overview"] = OVERVIEW | {"alarms": []}
    page.locator(".alarm").wait_for(state="detached")
