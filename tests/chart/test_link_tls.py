"""`linkTls`: whatever is an end of a link holds the same certificate, from a Secret, and only where one is named."""

from typing import Any

import pytest

from fairlane.gateway.config import GatewaySettings
from fairlane.scheduler.protocol.settings import LinkTlsSettings, load
from fairlane.worker.config import WorkerSettings
from tests.chart.conftest import Render
from tests.support.chart import Chart

FOLDER = "/etc/fairlane-links"
FILES = LinkTlsSettings(cert=f"{FOLDER}/tls.crt", key=f"{FOLDER}/tls.key", ca=f"{FOLDER}/ca.crt")
ENDS = [
    ("sidecar", "gateway", "gateway", GatewaySettings),
    ("two-models", "worker", "worker", WorkerSettings),
    ("two-models", "worker-small", "worker", WorkerSettings),
    ("sidecar", "engine-qwen", "lease-holder", WorkerSettings),
    ("sidecar", "engine-qwen", "lease-holder-1", WorkerSettings),
]
every_end = pytest.mark.parametrize(("mode", "component", "container", "kind"), ENDS)


def read(chart: Chart, component: str, container: str, kind: Any) -> LinkTlsSettings:
    """What a process makes of its variables for links."""
    environ = {name: value for name, value in chart.env(component, container).items() if "LINK_TLS" in name}
    settings: LinkTlsSettings = load(kind, document=chart.settings(), environ=environ).link_tls
    return settings


@every_end
def test_each_end_of_a_link_reads_the_secret_s_files(
    render: Render, mode: str, component: str, container: str, kind: Any
) -> None:
    chart = render(mode, values={"linkTls": {"existingSecret": "links"}})
    mounts = {each["mountPath"]: each for each in chart.container(component, container)["volumeMounts"]}
    volumes = {each["name"]: each for each in chart.pod(component)["volumes"]}

    assert read(chart, component, container, kind) == FILES
    assert mounts[FOLDER]["readOnly"] is True
    assert volumes[mounts[FOLDER]["name"]]["secret"] == {"secretName": "links", "defaultMode": 0o440}
    assert not chart.all("Certificate")


@every_end
def test_without_a_secret_links_have_no_certificate(
    render: Render, mode: str, component: str, container: str, kind: Any
) -> None:
    chart = render(mode)

    assert read(chart, component, container, kind) == LinkTlsSettings()
    assert FOLDER not in [each["mountPath"] for each in chart.container(component, container)["volumeMounts"]]


def test_an_engine_does_not_see_the_key(render: Render) -> None:
    chart = render("sidecar", values={"linkTls": {"existingSecret": "links"}})

    assert FOLDER not in [each["mountPath"] for each in chart.container("engine-qwen", "vllm")["volumeMounts"]]


def test_cert_manager_makes_one_certificate_for_both_ends_of_every_link(render: Render) -> None:
    chart = render("production")
    (certificate,) = chart.all("Certificate")

    secrets = {
        volume["secret"]["secretName"]
        for component in ("gateway", "worker")
        for volume in chart.pod(component)["volumes"]
        if volume["name"] == "link-tls"
    }

    assert certificate["spec"]["issuerRef"]["name"] == "serving-links"
    assert {"server auth", "client auth"} <= {*certificate["spec"]["usages"]}
    assert secrets == {certificate["spec"]["secretName"]}
