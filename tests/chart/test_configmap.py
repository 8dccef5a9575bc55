"""`templates/configmap.yaml`: what the processes will read is what they accept."""

import pytest

from fairlane.gateway.config import GatewaySettings
from fairlane.scheduler.protocol.settings import SharedSettings, load
from fairlane.worker.config import WorkerSettings
from tests.chart.conftest import Render
from tests.support.chart import MODES


@pytest.mark.parametrize("mode", MODES)
def test_the_processes_accept_the_settings_of_every_mode(render: Render, mode: str) -> None:
    document = render(mode).settings()

    assert load(GatewaySettings, document=document, environ={}).host == "0.0.0.0"  # noqa: S104 - inside the pod
    assert load(WorkerSettings, document=document, environ={}).worker.metrics_port == document["worker"]["metrics_port"]


def test_a_setting_of_the_operator_reaches_the_file(render: Render) -> None:
    assert render("single").settings()["lanes"] == {"latency": {"ttft_s": 0.5}}


def test_large_numbers_stay_whole(render: Render) -> None:
    settings = render(values={"config": {"lanes": {"throughput": {"max_queued": 100_000_000}}}}).settings()

    assert load(SharedSettings, document=settings, environ={}).lanes.throughput.max_queued == 100_000_000
