"""The containers of a rendered chart as processes of this machine: their own commands, variables, files and probes.

What a node would give them is given here: Secrets by a table, the ConfigMap as a file, volumes as folders. Paths of the
container in variables are moved into a folder of the test's.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.chart import Chart

READY_LIMIT_S = 400.0
STOP_LIMIT_S = 60.0
HERE = ("PATH", "PYTHONPATH", "LANG", "LD_LIBRARY_PATH", "OMP_WAIT_POLICY")
"""Of this process' variables."""

POD_IP = {"fieldRef": {"fieldPath": "status.podIP"}}


@dataclass
class PodProcess:
    """One container that runs."""

    container: Mapping[str, Any]
    process: subprocess.Popen[bytes]
    log: Path

    def probe(self, name: str) -> int:
        """The status that a probe of the container gets; 0: none."""
        asked = self.container[name]["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        try:
            return httpx.get(f"http://127.0.0.1:{ports[asked['port']]}{asked['path']}", timeout=10.0).status_code
        except httpx.TransportError:
            return 0

    def await_probe(self, name: str, status: int = 200) -> None:
        """Ask as a kubelet does, until that is the answer. Raises TimeoutError with what the process logged."""
        deadline = time.monotonic() + READY_LIMIT_S
        while self.probe(name) != status:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError(f"{name}: {self.log.read_text()[-4_000:]}")
            time.sleep(0.1)

    def stop(self) -> int:
        """SIGTERM, as a node sends it; the status."""
        self.process.terminate()
        return self.process.wait(STOP_LIMIT_S)


def start(chart: Chart, component: str, place: Path, secrets: Mapping[tuple[str, str], str]) -> PodProcess:
    """Start the container of a component. `secrets`: by the Secret's name and key."""
    container, environ = chart.container(component), {name: os.environ[name] for name in HERE if name in os.environ}
    for variable, value in chart.env(component).items():
        if value == POD_IP:
            environ[variable] = "127.0.0.1"
        elif isinstance(value, dict):
            reference = value["secretKeyRef"]
            environ[variable] = secrets[reference["name"], reference["key"]]
        else:
            environ[variable] = str(value)
    folders: dict[str, Path] = {}
    for mount in container["volumeMounts"]:
        folder = place / component / mount["name"]
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folders[mount["mountPath"]] = folder
        if mount["name"] == "config":
            config = chart.one("ConfigMap", "config")
            (folder / "fairlane.yaml").write_text(config["data"]["fairlane.yaml"])
    environ = {name: _moved(value, folders) for name, value in environ.items()}
    interpreter, *arguments = container["command"]
    assert interpreter == "python"
    log = place / f"{component}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments], env=environ, cwd=place, stdout=output, stderr=subprocess.STDOUT
        )
    return PodProcess(container, process, log)


def _moved(value: str, folders: Mapping[str, Path]) -> str:
    """A path of the container, as it is here; any other value as it is."""
    for mounted, folder in folders.items():
        if value == mounted or value.startswith(f"{mounted}/"):
            return f"{folder}{value.removeprefix(mounted)}"
    return value
