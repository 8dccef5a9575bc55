"""A rendered chart, to be asked about."""

from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "helm"
APP_VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
MODES = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").iterdir())

Manifest = dict[str, Any]


class RefusedError(Exception):
    """Helm would not render; the message is what an operator reads."""


class Chart:
    """What `helm template` printed."""

    def __init__(self, text: str) -> None:
        self.manifests: list[Manifest] = [manifest for manifest in yaml.safe_load_all(text) if manifest]

    def all(self, kind: str) -> list[Manifest]:
        """Every object of a kind."""
        return [manifest for manifest in self.manifests if manifest["kind"] == kind]

    def named(self, kind: str, name: str) -> Manifest:
        """The object of that kind and name."""
        (found,) = (manifest for manifest in self.all(kind) if manifest["metadata"]["name"] == name)
        return found

    def one(self, kind: str, component: str) -> Manifest:
        """The object of that kind and component."""
        (found,) = (manifest for manifest in self.all(kind) if component_of(manifest) == component)
        return found

    def pod(self, component: str) -> Manifest:
        """The pod spec of a component's Deployment."""
        spec: Manifest = self.one("Deployment", component)["spec"]["template"]["spec"]
        return spec

    def container(self, component: str, name: str | None = None) -> Manifest:
        """The container of that name in a component's pods, a sidecar too; without a name the only one."""
        pod = self.pod(component)
        every = [*pod.get("initContainers", []), *pod["containers"]]
        (found,) = (each for each in every if name in (None, each["name"]))
        container: Manifest = found
        return container

    def env(self, component: str, name: str | None = None) -> dict[str, Any]:
        """A container's variables: the value, or where it comes from."""
        listed = self.container(component, name).get("env", [])
        return {each["name"]: each.get("value", each.get("valueFrom")) for each in listed}

    @property
    def components(self) -> list[str]:
        """Those that have a Deployment."""
        return [component_of(manifest) for manifest in self.all("Deployment")]

    def settings(self) -> Manifest:
        """fairlane.yaml, as the processes read it."""
        config = self.one("ConfigMap", "config")
        parsed: Manifest = yaml.safe_load(config["data"]["fairlane.yaml"])
        return parsed


def component_of(manifest: Manifest) -> str:
    """The component that an object belongs to."""
    return str(manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component"))
