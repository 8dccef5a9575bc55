"""Rules, dashboards and runbooks of `deploy/`: well-formed, each alert tried by its fault, nothing without its page."""

import json
import re
from pathlib import Path

import pytest

from tests.support.prometheus import (
    ALERTS,
    DASHBOARDS,
    DEPLOY,
    RECORDING,
    RUNBOOKS,
    needs_promtool,
    panels,
    promtool,
    queries,
    rules,
    selectors,
)

pytestmark = pytest.mark.slow
TRIED = sorted((Path(__file__).parent / "alerts").glob("*.yml"))
SECTIONS = ["Meaning", "Impact", "Diagnosis", "Resolution"]


@needs_promtool
def test_the_rules_and_the_example_are_prometheus_own() -> None:
    for told in (
        promtool("check", "rules", RECORDING, ALERTS),
        promtool("check", "config", RECORDING.parent / "prometheus.yml"),
    ):
        assert told.returncode == 0, told.stderr


@needs_promtool
@pytest.mark.parametrize("tried", TRIED, ids=lambda path: path.stem)
def test_an_alert_fires_at_its_fault_and_at_nothing_like_it(tried: Path) -> None:
    told = promtool("test", "rules", tried)

    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.parametrize("rule", rules(ALERTS), ids=lambda rule: rule["alert"])
def test_an_alert_has_its_runbook_and_is_tried_both_ways(rule: dict[str, dict[str, str]]) -> None:
    page = DEPLOY.parent / rule["annotations"]["runbook"]
    text = page.read_text()

    assert text.startswith(f"# {rule['alert']}\n\nSeverity: {rule['labels']['severity']}.")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    tried = (Path(__file__).parent / "alerts" / f"{page.stem}.yml").read_text()
    assert f"alertname: {rule['alert']}\n" in tried
    assert '"fires: ' in tried
    assert '"stays quiet: ' in tried


def test_there_are_no_pages_and_trials_of_alerts_that_are_gone() -> None:
    named = {Path(rule["annotations"]["runbook"]).stem for rule in rules(ALERTS)}

    assert {page.stem for page in RUNBOOKS.glob("*.md")} == named
    assert {tried.stem for tried in TRIED} == named


def test_rules_read_no_series_that_is_recorded_nowhere() -> None:
    recorded = {rule["record"] for rule in rules(RECORDING)}
    read = {each.metric for rule in rules(ALERTS) for each in selectors(rule["expr"])}
    read |= {each.metric for dashboard in DASHBOARDS for query in queries(dashboard) for each in selectors(query)}

    assert {name for name in read if ":" in name} == recorded


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_imported_anywhere(dashboard: Path) -> None:
    board = json.loads(dashboard.read_text())

    assert board["uid"] == f"fairlane-{dashboard.stem}"
    assert "id" not in board
    shown = panels(dashboard)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in shown:
        assert panel["title"], panel
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert selectors(target["expr"]), target["expr"]
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert all(x < 24 for x, _ in cells)
