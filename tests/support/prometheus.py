"""The rules and dashboards of `deploy/`, what they name, and Debian's Prometheus to try them with."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from tests.support.ports import free_port

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
RULES = DEPLOY / "prometheus"
RECORDING, ALERTS = RULES / "recording.yml", RULES / "alerts.yml"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
RUNBOOKS = DEPLOY.parent / "docs" / "runbooks"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
START_LIMIT_S = 60.0

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool here; Debian's package is `prometheus`")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus here; Debian's package is `prometheus`")

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_METRIC = re.compile(r"\b((?:\w+:)?(?:fairlane|process)_\w+(?::\w+)?|\w+:fairlane_\w+:\w+|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


class Selector(NamedTuple):
    """A metric and the labels that an expression picks by."""

    metric: str
    labels: frozenset[str]


def rules(path: Path) -> list[dict[str, Any]]:
    """Of all groups."""
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def panels(dashboard: Path) -> list[dict[str, Any]]:
    """That show something."""
    return [panel for panel in json.loads(dashboard.read_text())["panels"] if panel["type"] != "row"]


def queries(dashboard: Path) -> list[str]:
    """Every panel's, with all that its variables can be, and those of the variables themselves."""
    board = json.loads(dashboard.read_text())
    shown = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
    asked = [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    shown += [re.fullmatch(r"label_values\((.+), (\w+)\)", each)[1] for each in asked]  # type: ignore[index]
    return [re.sub(r"\$\w+", ".*", each) for each in shown]


def expressions() -> list[str]:
    """Of all rules and dashboards."""
    ruled = [rule["expr"] for path in (RECORDING, ALERTS) for rule in rules(path)]
    return [*ruled, *(query for dashboard in DASHBOARDS for query in queries(dashboard))]


def selectors(expression: str) -> set[Selector]:
    """What an expression names."""
    found = _METRIC.findall(_STRING.sub('""', expression))
    return {Selector(metric, frozenset(_MATCHER.findall(labels))) for metric, labels in found}


def family(metric: str) -> str:
    """The histogram that a sample is of, or the metric itself."""
    return _SUFFIX.sub("", metric)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """One run of it, whatever comes."""
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True, check=False)


class Prometheus:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        """What its API says. Raises httpx.HTTPStatusError where that is an error."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=30.0)
        assert answer.is_success, f"{path} {parameters}: {answer.text}"
        return answer.json()["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression comes to now."""
        return list(self.get("query", query=expression)["result"])

    def health(self) -> dict[str, tuple[str, str]]:
        """Each rule's health and last error, by name; `unknown` before it was evaluated."""
        groups = self.get("rules")["groups"]
        return {
            rule["name"]: (rule["health"], rule.get("lastError", "")) for group in groups for rule in group["rules"]
        }

    def firing(self) -> set[str]:
        """Alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"}

    def until(self, holds: Any, limit_s: float = START_LIMIT_S) -> None:
        """Ask until it holds. Raises TimeoutError."""
        ends_s = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > ends_s:
                raise TimeoutError
            time.sleep(0.2)


@contextmanager
def prometheus(
    directory: Path, jobs: Mapping[str, Sequence[str]], rule_files: Sequence[Path], *, every_s: int = 1
) -> Iterator[Prometheus]:
    """One that scrapes these targets, and evaluates these rules, so often. `jobs`: addresses by job."""
    assert PROMETHEUS is not None
    config = {
        "global": dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), f"{every_s}s"),
        "rule_files": [str(path) for path in rule_files],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": list(targets)}]} for name, targets in jobs.items()
        ],
    }
    directory.mkdir(parents=True, exist_ok=True)
    written, port = directory / "prometheus.yml", free_port()
    written.write_text(yaml.safe_dump(config))
    started = subprocess.Popen(
        [
            PROMETHEUS,
            f"--config.file={written}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    one = Prometheus(port)
    try:
        one.until(lambda: _is_ready(one.url))
        yield one
    finally:
        started.kill()
        started.wait()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=2.0).is_success
    except httpx.TransportError:
        return False
