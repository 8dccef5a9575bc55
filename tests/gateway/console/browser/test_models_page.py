"""The page of models: workers, lanes, load, context, version and media of each."""

from typing import Any

import pytest

from tests.gateway.console.browser.conftest import ScriptPage
from tests.gateway.console.browser.test_overview_page import OVERVIEW

pytestmark = pytest.mark.slow

LANE = {"oldest_wait_ms": 4_000, "running": 3, "preempted": 0, "tokens_per_s": 20.0}
MODEL: dict[str, Any] = {
    "model": "tiny",
    "workers": 2,
    "draining": 1,
    "queued": 5,
    "running": 6,
    "max_sequences": 16,
    "blocks_total": 100,
    "blocks_free": 25,
    "lanes": [LANE | {"lane": "latency", "queued": 5}, LANE | {"lane": "throughput", "queued": 0}],
    "context_length": 8_192,
    "single_stream_ms": 35.0,
    "version": "f" * 64,
    "card_sha256": ["a" * 64, "b" * 64],
    "created_at": 1_700_000_000,
    "output": "text",
    "media": ["image"],
}
GONE = MODEL | {"model": "old", "workers": 0, "draining": 0, "card_sha256": [], "lanes": [], "version": ""}


def shown(scripts: ScriptPage, place: str) -> Any:
    scripts.answers["/admin/v1/overview"] = OVERVIEW | {"models": [MODEL, GONE]}
    scripts.open(place)
    scripts.page.get_by_role("heading", level=2, name="tiny").wait_for()
    return scripts.page


def test_a_model_tells_its_workers_load_context_version_and_media(scripts: ScriptPage) -> None:
    page = shown(scripts, "models")
    card = page.locator("article[data-key=tiny]")

    text = " ".join(card.inner_text().split())
    for told in (
        "serving two versions 2 workers, 1 draining",
        "6 running of 16 at most",
        "KV memory: 75 % of 100 blocks",
        "latency 3 5 4 s 0 20",
        "Context 8,192 tokens",
        "Takes text, image",
        "Version ffffffffffff",
        "35 ms a token",
    ):
        assert told in text
    assert card.get_by_role("link").get_attribute("href") == "#/workers?model=tiny"
    assert "no worker" in page.locator("article[data-key=old]").inner_text()


def test_one_model_alone(scripts: ScriptPage) -> None:
    page = shown(scripts, "models?model=tiny")

    assert page.locator("article").count() == 1
    page.get_by_role("link", name="All models").click()
    page.get_by_role("heading", level=2, name="old").wait_for()
