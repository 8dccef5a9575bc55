"""The example for the OpenTelemetry Collector holds together, and scrapes as Prometheus' example does."""

import yaml

from tests.support.prometheus import DEPLOY, RULES

COLLECTOR = yaml.safe_load((DEPLOY / "otel" / "collector.yaml").read_text())


def test_every_pipeline_uses_what_is_configured_and_all_of_it_is_used() -> None:
    used: dict[str, set[str]] = {"receivers": set(), "processors": set(), "exporters": set()}
    for pipeline in COLLECTOR["service"]["pipelines"].values():
        for kind, names in used.items():
            names |= set(pipeline[kind])

    assert {kind: set(COLLECTOR[kind]) for kind in used} == used
    assert set(COLLECTOR["extensions"]) == set(COLLECTOR["service"]["extensions"])


def test_memory_is_limited_first_and_batches_are_made_last() -> None:
    for pipeline in COLLECTOR["service"]["pipelines"].values():
        assert (pipeline["processors"][0], pipeline["processors"][-1]) == ("memory_limiter", "batch")


def test_it_scrapes_the_jobs_that_alerts_look_for() -> None:
    scraped = COLLECTOR["receivers"]["prometheus"]["config"]["scrape_configs"]
    example = yaml.safe_load((RULES / "prometheus.yml").read_text())["scrape_configs"]

    assert [job["job_name"] for job in scraped] == [job["job_name"] for job in example]
