"""The chart as a whole, in every mode of `helm/ci`."""

import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
import pytest
from kubernetes_validate import utils

from tests.chart.conftest import Render
from tests.support.chart import CHART, MODES, Chart, component_of

KUBERNETES = ("1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", kubernetes_validate.latest_version())
CUSTOM = ("cert-manager.io/", "gateway.networking.k8s.io/", "keda.sh/", "monitoring.coreos.com/")
"""Objects of others' definitions, which `test_custom_objects.py` looks at."""


@pytest.mark.parametrize("mode", MODES)
def test_lint_finds_nothing_to_say(helm: Path, mode: str) -> None:
    values = CHART / "ci" / f"{mode}-values.yaml"

    command = [str(helm), "lint", str(CHART), "--strict", "--values", str(values)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
    assert not re.findall(r"^.*\[(?:INFO|WARNING)\].*$|level=.*", done.stdout + done.stderr, re.MULTILINE)


@pytest.fixture(scope="module")
def schemas() -> Iterator[None]:
    """Kubernetes' own schemas, read once: the package reads two files for each object."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("schema_contents", "all_versions"):
            patch.setattr(utils, name, functools.cache(getattr(utils, name)))
        yield


def test_there_is_a_values_file_for_each_of_ten_ways_of_running_the_chart() -> None:
    assert len(MODES) >= 10
    assert {*KUBERNETES} <= {utils.major_minor(each) for each in utils.all_versions()} | {KUBERNETES[-1]}


@pytest.mark.usefixtures("schemas")
@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("mode", MODES)
def test_every_object_is_valid_in_the_kubernetes_that_the_chart_claims(render: Render, mode: str, version: str) -> None:
    for manifest in render(mode, kubernetes="1.29" if version == "1.29" else "1.34").manifests:
        if not manifest["apiVersion"].startswith(CUSTOM):
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("mode", MODES)
def test_the_same_values_give_the_same_text(helm: Path, mode: str) -> None:
    """Nothing is drawn or counted, so that a tool which compares renders sees only what was changed."""
    command = [str(helm), "template", "fairlane", str(CHART), "--values", str(CHART / "ci" / f"{mode}-values.yaml")]

    first, second = (subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2))

    assert first == second


@pytest.mark.parametrize("mode", MODES)
def test_no_container_has_two_variables_of_a_name_which_a_server_side_apply_refuses(render: Render, mode: str) -> None:
    for component in render(mode).components:
        pod = render(mode).pod(component)
        for container in (*pod.get("initContainers", []), *pod["containers"]):
            names = [each["name"] for each in container.get("env", [])]
            assert len(names) == len({*names})


def test_no_template_renders_two_objects() -> None:
    for template in CHART.rglob("templates/**/*.yaml"):
        assert template.read_text().count("\nkind: ") <= 1, template


def test_values_and_templates_stay_short_enough_to_read() -> None:
    assert len((CHART / "values.yaml").read_text().splitlines()) <= 400
    for template in CHART.rglob("templates/**/*"):
        assert template.is_dir() or len(template.read_text().splitlines()) <= 200, template


@pytest.mark.parametrize("mode", MODES)
def test_every_selector_meets_the_labels_of_its_own_pods_only(render: Render, mode: str) -> None:
    chart = render(mode)
    pods = {
        component: chart.one("Deployment", component)["spec"]["template"]["metadata"]["labels"]
        for component in chart.components
    }

    for owner, selector in _selectors(chart):
        assert {owner} == {component for component, labels in pods.items() if selector.items() <= labels.items()}


def _selectors(chart: Chart) -> list[tuple[str, dict[str, str]]]:
    found = [(component_of(service), service["spec"]["selector"]) for service in chart.all("Service")]
    for kind, name in {
        "Deployment": "selector",
        "PodDisruptionBudget": "selector",
        "NetworkPolicy": "podSelector",
    }.items():
        found += [(component_of(each), each["spec"][name]["matchLabels"]) for each in chart.all(kind)]
    return [(component, selector) for component, selector in found if component != "valkey"]


def test_a_release_named_otherwise_keeps_its_name_in_every_object(render: Render) -> None:
    names = {manifest["metadata"]["name"] for manifest in render(release="blue").manifests}

    assert all(name.startswith("blue-fairlane") for name in names)


def test_a_long_release_name_still_gives_valid_names(render: Render) -> None:
    names = {manifest["metadata"]["name"] for manifest in render(release="a" * 53).manifests}

    assert all(len(name) <= 63 for name in names)
