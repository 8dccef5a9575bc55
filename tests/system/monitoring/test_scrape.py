"""What `deploy/` asks of Prometheus, against a live scrape: metrics and labels are there, every rule is evaluated."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.prometheus import (
    ALERTS,
    DASHBOARDS,
    RECORDING,
    Prometheus,
    expressions,
    family,
    needs_prometheus,
    prometheus,
    queries,
    rules,
    selectors,
)
from tests.support.system.harness import MODEL, Server

pytestmark = pytest.mark.system
ADDED = {"job", "instance"}
"""Labels that Prometheus adds to each sample."""
SILENT = {"fairlane_gateway_shadow_refusals_total"}
"""Have no sample before something happens that a moment of light load does not bring about."""


@pytest.fixture(scope="module")
def watched(small_server: Server) -> Server:
    """A server of two gateway processes that has answered and refused a request."""
    key = small_server.tenant("acme")
    with httpx.Client(base_url=small_server.url, headers={"authorization": f"Bearer {key}"}, timeout=60.0) as client:
        asked = {"model": MODEL, "prompt": "One two", "max_tokens": 8, "ignore_eos": True}
        client.post("/v1/completions", json=asked).raise_for_status()
        assert client.post("/v1/completions", json={**asked, "max_tokens": -1}).status_code == 400
    return small_server


def addresses(server: Server) -> dict[str, Sequence[str]]:
    """By job."""
    return {
        "fairlane-gateway": [f"127.0.0.1:{server.settings['METRICS_PORT']}"],
        "fairlane-worker": [f"127.0.0.1:{server.settings['WORKER__METRICS_PORT']}"],
    }


def scraped(server: Server) -> dict[str, set[str]]:
    """Names of labels by metric, as gateway and worker tell them; a histogram has those of all its samples."""
    labels: dict[str, set[str]] = defaultdict(set)
    for address in (each for found in addresses(server).values() for each in found):
        for found in text_string_to_metric_families(httpx.get(f"http://{address}/metrics").text):
            labels[found.name + "_total" * (found.type == "counter")] |= set()
            for sample in found.samples:
                labels[family(sample.name)] |= sample.labels.keys()
    return labels


@pytest.fixture
def watching(watched: Server, tmp_path: Path) -> Iterator[Prometheus]:
    """Prometheus at that server, with our rules."""
    with prometheus(tmp_path / "prometheus", addresses(watched), [RECORDING, ALERTS]) as one:
        one.until(lambda: len([each for each in one.query("up") if each["value"][1] == "1"]) == 2)
        yield one


def test_rules_and_dashboards_name_only_what_a_scrape_has(watched: Server) -> None:
    known = scraped(watched)
    known["up"] = set()
    recorded = {rule["record"]: rule["expr"] for rule in rules(RECORDING)}

    for expression in expressions():
        for metric, labels in selectors(expression):
            if metric in recorded:
                continue
            assert family(metric) in known, f"{metric}: {expression}"
            if family(metric) not in SILENT:
                assert labels <= known[family(metric)] | ADDED, f"{metric}: {expression}"


@needs_prometheus
def test_prometheus_evaluates_every_rule_and_query(watching: Prometheus) -> None:
    named = {*(rule["record"] for rule in rules(RECORDING)), *(rule["alert"] for rule in rules(ALERTS))}
    watching.until(lambda: all(health == "ok" for health, _ in watching.health().values()))

    assert watching.health().keys() == named
    for dashboard in DASHBOARDS:
        for query in queries(dashboard):
            watching.query(query)
    for metric in ("lane_model:fairlane_gateway_time_to_first_token_seconds:p95", "model:fairlane_gateway_workers:max"):
        assert watching.query(metric), metric
    assert watching.firing() == set()
