"""`deploy/compose`, read as compose does, against the settings, images and files that it names. Nothing is started."""

import re
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from fairlane.gateway.config import GatewaySettings
from fairlane.scheduler.protocol.settings import SharedSettings, load
from fairlane.worker.config import WorkerSettings

FOLDER = Path(__file__).parents[2] / "deploy/compose"
GIVEN = {"FAIRLANE_ADMIN_KEY": "k" * 64, "STORE_PASSWORD": "p" * 64, "GRAFANA_PASSWORD": "g"}
VARIABLE = re.compile(r"\$\$|\$\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\}")
PROMETHEUS = yaml.safe_load((FOLDER / "prometheus/prometheus.yml").read_text())


def compose(given: dict[str, str]) -> dict[str, Any]:
    """Return the file with its variables filled in. Raises KeyError for one that is needed and not given."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        if found["name"] not in given and found["kind"] == "?":
            raise KeyError(found["name"])
        return given.get(found["name"]) or found["rest"] or ""

    document: dict[str, Any] = yaml.safe_load(VARIABLE.sub(value, (FOLDER / "compose.yaml").read_text()))
    return document


DOCUMENT = compose(GIVEN)
SERVICES: dict[str, Any] = DOCUMENT["services"]
S = TypeVar("S", bound=SharedSettings)


def settings(kind: type[S], service: str) -> S:
    return load(kind, document=None, environ=SERVICES[service]["environment"])


@pytest.mark.parametrize("name", GIVEN)
def test_a_secret_that_is_missing_stops_the_start(name: str) -> None:
    """None has a default that could be forgotten."""
    with pytest.raises(KeyError, match=name):
        compose({key: value for key, value in GIVEN.items() if key != name})


def test_the_processes_accept_the_variables() -> None:
    gateway, worker = settings(GatewaySettings, "gateway"), settings(WorkerSettings, "worker")

    assert gateway.store_url == worker.store_url == f"redis://:{'p' * 64}@valkey:6379/0"
    assert gateway.admin_key == "k" * 64
    assert worker.admin_key is None


def test_the_planes_are_apart_and_none_is_published_beyond_this_machine() -> None:
    gateway = settings(GatewaySettings, "gateway")

    assert SERVICES["gateway"]["ports"] == [f"127.0.0.1:{port}:{port}" for port in (gateway.port, gateway.admin_port)]
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_workers_and_gateways_share_the_folder_of_the_link_sockets() -> None:
    folder = settings(GatewaySettings, "gateway").gateway.link_host
    (volume,) = {
        volume.split(":")[0]
        for name in ("gateway", "worker")
        for volume in SERVICES[name]["volumes"]
        if volume.split(":")[1] == folder
    }
    options = DOCUMENT["volumes"][volume]["driver_opts"]["o"].split(",")

    for image in ("gateway", "worker"):  # both run as the user to whom the folder belongs
        assert "USER 10001:10001" in (FOLDER.parents[1] / image / "Dockerfile").read_text()
    assert {"uid=10001", "gid=10001", "mode=0700"} <= {*options}


def test_prometheus_scrapes_the_ports_that_the_processes_have() -> None:
    asked = {job["job_name"]: job["dns_sd_configs"][0] for job in PROMETHEUS["scrape_configs"]}

    assert asked["fairlane-gateway"]["port"] == settings(GatewaySettings, "gateway").metrics_port
    assert asked["fairlane-worker"]["port"] == settings(WorkerSettings, "worker").worker.metrics_port
    assert {name for each in asked.values() for name in each["names"]} <= SERVICES.keys()


def test_every_file_that_is_mounted_is_there() -> None:
    sources = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]

    for source in sources:
        assert not source.startswith(".") or (FOLDER / source).exists(), source


def test_grafana_shows_the_dashboards_of_the_chart() -> None:
    """As files: a link would lead out of the mounted folder."""
    (source,) = (each.split(":")[0] for each in SERVICES["grafana"]["volumes"] if "/dashboards:" in each)

    assert not any(path.is_symlink() for path in (FOLDER / source).glob("*.json"))
    assert {path.name for path in (FOLDER / source).glob("*.json")} >= {"overview.json", "tenants.json", "workers.json"}


def test_the_rules_that_prometheus_loads_are_mounted() -> None:
    mounted = {volume.split(":")[1].rpartition("/")[2] for volume in SERVICES["prometheus"]["volumes"]}

    assert {*PROMETHEUS["rule_files"]} <= mounted


@pytest.mark.parametrize("name", ["gateway", "worker"])
def test_our_containers_write_to_their_volumes_alone_and_hold_no_privilege(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert [volume.split(":")[1] for volume in service["volumes"]] == ["/var/lib/fairlane", "/run/fairlane"]
    assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).exists()


@pytest.mark.parametrize(("name", "kind"), [("gateway", GatewaySettings), ("worker", WorkerSettings)])
def test_a_stop_waits_for_streams_and_drains(name: str, kind: type[SharedSettings]) -> None:
    section = getattr(load(kind, document=None, environ=SERVICES[name]["environment"]), name)
    grace_s = getattr(section, "grace_s", None) or section.drain_s

    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= grace_s + 10


def test_every_image_of_others_is_of_a_named_version() -> None:
    images = [service["image"] for service in SERVICES.values() if "build" not in service]

    assert all(re.search(r":v?\d+\.\d+\.\d+", image) for image in images)
